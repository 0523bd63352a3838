//! Requests to the servers that run on this store, so that a conversation does not load a model a second time.
//!
//! A server streams its answer as one JSON object a line (`/api/chat`). The lines become the events of a generation.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read},
    mem,
    net::{TcpStream, ToSocketAddrs},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use narthex_gateway::{
    Encryption, ErrorKind, Gateway, RunningServer,
    models::{ModelState, ModelStatus},
    request::{
        ChatRequest, FinishReason, GenerateOptions, GenerationEvent, GenerationSink, Grammar, Media, Message,
        Repetition, RequestGrammar, Summary, Times,
    },
};
use narthex_spec::Scheme;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use ureq::RequestBuilder;

use crate::output;

/// Text for users if no server uses the store.
pub(crate) const NO_SERVER: &str = "No server is running; `narthex serve` starts one.";

/// Maximum time to connect to a server of this machine.
const CONNECT: Duration = Duration::from_millis(500);

/// Maximum time of a server to say whether it accepts requests of this user.
const ADMISSION: Duration = Duration::from_secs(2);

/// Maximum size of a line of an answer in bytes.
const MAX_LINE: u64 = 16 << 20;

/// Maximum size of an error's text in bytes.
const MAX_ERROR: u64 = 64 << 10;

/// Returns the URL of a server for clients on this machine, without a path; `None` for a Unix socket.
pub(crate) fn origin(server: &RunningServer) -> Option<String> {
    let scheme = match server.encryption {
        Encryption::None => "http",
        Encryption::Tls => "https",
    };
    Some(format!("{scheme}://{}", host_and_port(&server.address)?))
}

/// Returns the host and the port for clients on this machine; `None` for a Unix socket. A server that listens on every
/// address is reached on the loopback address.
pub(crate) fn host_and_port(address: &str) -> Option<String> {
    let (host, port) = address.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    let host = match host {
        "0.0.0.0" => "127.0.0.1",
        "[::]" => "[::1]",
        host => host,
    };
    Some(format!("{host}:{port}"))
}

/// A model in the memory of a running server.
pub(crate) struct ServedModel {
    server: LocalServer,
    pub(crate) status: ModelStatus,
}

/// A running server that this machine can reach without TLS.
struct LocalServer {
    origin: String,
    key: Option<String>,
}

impl LocalServer {
    /// Returns the server if it accepts connections.
    fn reach(server: &RunningServer) -> Option<Self> {
        if server.encryption == Encryption::Tls {
            return None;
        }
        let mut addresses = host_and_port(&server.address)?.to_socket_addrs().ok()?;
        addresses.find(|address| TcpStream::connect_timeout(address, CONNECT).is_ok())?;
        Some(Self { origin: origin(server)?, key: std::env::var("NARTHEX_API_KEY").ok() })
    }

    /// Returns whether the server accepts the user's key, or needs none.
    fn admits_user(&self) -> bool {
        let request = agent(Some(ADMISSION)).get(format!("{}/v1/models", self.origin));
        self.with_key(request).call().is_ok_and(|response| response.status().is_success())
    }

    /// Adds the user's key to a request.
    fn with_key<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    /// Returns what a load of the model would do, in words; `None` if the server does not say so.
    fn load_forecast(&self, model: &str) -> Option<String> {
        let request = agent(Some(ADMISSION)).get(format!("{}/v1/load/{model}", self.origin));
        let response =
            self.with_key(request).call().ok().filter(|response| response.status().is_success())?;
        let body: Value = serde_json::from_reader(response.into_body().into_reader().take(MAX_ERROR)).ok()?;
        Some(body["text"].as_str()?.to_owned())
    }

    /// Returns a report of the server; `None` if it refuses it or does not answer.
    fn report(&self, path: &str) -> Option<Value> {
        let request = agent(Some(ADMISSION)).get(format!("{}{path}", self.origin));
        let response =
            self.with_key(request).call().ok().filter(|response| response.status().is_success())?;
        serde_json::from_reader(response.into_body().into_reader().take(MAX_LINE)).ok()
    }

    /// Sends a request. Returns the body of a successful answer.
    fn post(&self, path: &str, body: &Value) -> anyhow::Result<impl Read + use<>> {
        let request = agent(None).post(format!("{}{path}", self.origin)).content_type("application/json");
        let response = self
            .with_key(request)
            .send(body.to_string())
            .with_context(|| format!("the server at {} does not answer", self.origin))?;
        let status = response.status();
        let body = response.into_body().into_reader();
        if status.is_success() {
            return Ok(body);
        }
        let mut text = String::new();
        // A text that cannot be read leaves the status.
        let _ = body.take(MAX_ERROR).read_to_string(&mut text);
        bail!("the server at {} refused the request: {}", self.origin, refusal(&text, status.as_u16()))
    }
}

/// Returns a client for servers of this machine, whose requests take at most this time.
fn agent(timeout: Option<Duration>) -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None);
    config.timeout_global(timeout).build().into()
}

/// Returns the message of a refusal.
fn refusal(text: &str, status: u16) -> String {
    let error = serde_json::from_str::<Value>(text).ok().and_then(|error| match &error["error"] {
        Value::String(message) => Some(message.clone()),
        error => error["message"].as_str().map(str::to_owned),
    });
    error.unwrap_or_else(|| format!("status {status}"))
}

/// Loads a model into the memory of the first running server that can be reached. Returns its address, or `None` without a
/// server.
pub(crate) fn load(gateway: &Gateway, model: &str) -> anyhow::Result<Option<String>> {
    gateway.model(model)?;
    for server in gateway.running_servers() {
        if let Some(reached) = LocalServer::reach(&server) {
            // Servers of earlier versions have no forecast.
            if let Some(forecast) = reached.load_forecast(model) {
                output::note(format!("{model} {forecast}"));
            }
            let body = json!({"model": model, "stream": false});
            reached.post("/api/generate", &body)?;
            return Ok(Some(server.address));
        }
    }
    Ok(None)
}

/// Remarks of a server on its settings.
pub(crate) struct ServerNotes {
    pub(crate) address: String,
    pub(crate) notes: Vec<String>,
}

/// State of a running server.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ServerState {
    pub(crate) address: String,
    /// Tokens that its models generate a second, if they are known.
    pub(crate) tokens_per_second: Option<f64>,
    /// Its `/health`; null if it does not answer, or does not accept the user's key.
    pub(crate) health: Value,
    /// Its last requests, newest first, if the user's key is that of an admin.
    pub(crate) requests: Vec<Value>,
}

/// Returns the tokens a second in the last sample of each running server of this store that has one, by address.
pub(crate) fn sampled_rates(gateway: &Gateway) -> BTreeMap<String, f64> {
    let rates = gateway.running_servers().into_iter().filter_map(|server| {
        let history = LocalServer::reach(&server)?.report("/health/history")?;
        let rate = history["samples"].as_array()?.last()?["tokens_per_second"].as_f64()?;
        Some((server.address, rate))
    });
    rates.collect()
}

/// Returns the state of every running server of this store without its tokens a second, with at most this number of requests.
pub(crate) fn states(gateway: &Gateway, requests: usize) -> Vec<ServerState> {
    let servers = gateway.running_servers().into_iter();
    servers.map(|server| ServerState::read(server, requests)).collect()
}

impl ServerState {
    fn read(server: RunningServer, requests: usize) -> Self {
        let reached = LocalServer::reach(&server);
        let [health, mut list] = ["/health", "/health/requests"]
            .map(|path| reached.as_ref().and_then(|server| server.report(path)).unwrap_or_default());
        let listed = list["requests"].as_array_mut().map(mem::take).unwrap_or_default();
        let requests = listed.into_iter().take(requests).collect();
        Self { address: server.address, tokens_per_second: None, health, requests }
    }
}

/// Lets every running server read its settings again.
pub(crate) fn reload(gateway: &Gateway) -> anyhow::Result<Vec<ServerNotes>> {
    let mut reloaded = Vec::new();
    for server in gateway.running_servers() {
        let reached = LocalServer::reach(&server)
            .with_context(|| format!("the server at {} cannot be reached without TLS", server.address))?;
        let answer = reached.post("/v1/settings", &json!({"reload": true}))?;
        let settings: Value = serde_json::from_reader(answer.take(MAX_LINE))?;
        let notes = settings["notes"].as_array().into_iter().flatten();
        let notes = notes.filter_map(Value::as_str).map(str::to_owned).collect();
        reloaded.push(ServerNotes { address: server.address, notes });
    }
    Ok(reloaded)
}

/// Unloads a model from every running server that has it in memory, or every model. Returns the models with the addresses of
/// their servers.
pub(crate) fn unload(gateway: &Gateway, model: Option<&str>) -> anyhow::Result<Vec<String>> {
    let name = model.map(|model| anyhow::Ok(gateway.model(model)?.name)).transpose()?;
    let mut unloaded = Vec::new();
    for server in gateway.running_servers() {
        for status in server.models.iter().filter(|status| status.state == ModelState::Ready) {
            if name.as_ref().is_some_and(|name| *name != status.name) {
                continue;
            }
            let reached = LocalServer::reach(&server)
                .with_context(|| format!("the server at {} cannot be reached without TLS", server.address))?;
            reached
                .post("/api/generate", &json!({"model": status.id(), "keep_alive": 0, "stream": false}))?;
            unloaded.push(format!("{} from {}", status.id(), server.address));
        }
    }
    Ok(unloaded)
}

/// An answer of a server.
pub(crate) struct ServedAnswer {
    cancelled: Arc<AtomicBool>,
}

impl ServedAnswer {
    /// Ends the answer at its next part.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

impl ServedModel {
    /// Returns the model if a reachable server has it in memory, in this scheme if one is stated.
    pub(crate) fn find(gateway: &Gateway, model: &str, scheme: Option<Scheme>) -> Option<Self> {
        let name = gateway.model(narthex_gateway::split_scheme(model).0).ok()?.name;
        gateway.running_servers().iter().find_map(|server| {
            let status = server.models.iter().find(|status| {
                status.name == name
                    && status.state == ModelState::Ready
                    && scheme.is_none_or(|scheme| scheme == status.scheme)
            });
            let status = status?.clone();
            let server = LocalServer::reach(server).filter(LocalServer::admits_user)?;
            Some(Self { server, status })
        })
    }

    /// Starts an answer, whose events go to the sink. The request has no tools.
    pub(crate) fn chat(
        &self,
        request: &ChatRequest,
        sink: Box<dyn GenerationSink>,
    ) -> anyhow::Result<ServedAnswer> {
        let body = self.server.post("/api/chat", &body(&self.status.id(), request))?;
        let cancelled = Arc::new(AtomicBool::new(false));
        let answer = ServedAnswer { cancelled: cancelled.clone() };
        thread::Builder::new()
            .name("answer".to_owned())
            .spawn(move || read_answer(BufReader::new(body), &cancelled, sink))
            .context("cannot start a thread")?;
        Ok(answer)
    }
}

/// Returns the body of a request in Ollama's protocol, whose servers omit the oldest turns of a long conversation.
fn body(model: &str, request: &ChatRequest) -> Value {
    let ChatRequest { messages, options, .. } = request;
    let messages: Vec<Value> = messages.iter().map(message_body).collect();
    let mut body = json!({"model": model, "messages": messages, "options": sampling(options)});
    if let Some(RequestGrammar { grammar: Grammar::JsonSchema(schema), .. }) = &options.grammar {
        body["format"] = schema.clone();
    }
    body
}

/// Returns a message in Ollama's protocol, in which images stand before the text.
fn message_body(message: &Message) -> Value {
    let Message { role, content, .. } = message;
    let images: Vec<String> = content.media().map(Media::base64).collect();
    let mut body = json!({"role": role, "content": content.text()});
    if !images.is_empty() {
        body["images"] = images.into();
    }
    body
}

/// Returns a number through its text, so that 0.2 is not 0.20000000298.
fn exact(value: f32) -> Option<Value> {
    value.to_string().parse::<f64>().ok().map(Value::from)
}

/// Returns the options that the request states.
fn sampling(options: &GenerateOptions) -> Map<String, Value> {
    let mut stated = Map::new();
    let mut state = |name: &str, value: Option<Value>| {
        stated.extend(value.map(|value| (name.to_owned(), value)));
    };
    state("temperature", options.temperature.and_then(exact));
    state("top_p", options.top_p.and_then(exact));
    state("top_k", options.top_k.map(Value::from));
    state("min_p", options.min_p.and_then(exact));
    state("repeat_penalty", options.repetition_penalty.and_then(exact));
    state("presence_penalty", exact(options.presence_penalty));
    state("frequency_penalty", exact(options.frequency_penalty));
    state("num_predict", options.max_tokens.map(Value::from));
    state("seed", options.seed.map(Value::from));
    state("stop", Some(options.stop.clone().into()));
    state("end_at_repetition", (options.repetition == Repetition::End).then(|| true.into()));
    stated
}

/// A line of an answer.
#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    message: LineMessage,
    #[serde(default)]
    done: bool,
    done_reason: Option<String>,
    #[serde(default)]
    prompt_eval_count: usize,
    #[serde(default)]
    eval_count: usize,
    /// Nanoseconds; absent if software stood in for an NPU.
    total_duration: Option<u64>,
    prompt_eval_duration: Option<u64>,
    error: Option<String>,
}

#[derive(Default, Deserialize)]
struct LineMessage {
    #[serde(default)]
    content: String,
    #[serde(default)]
    thinking: String,
}

impl Line {
    /// Returns the events of the line.
    fn events(self) -> Vec<GenerationEvent> {
        if let Some(message) = self.error {
            return vec![GenerationEvent::Failed { kind: ErrorKind::Unavailable, message }];
        }

        let mut events = Vec::new();
        if !self.message.thinking.is_empty() {
            events.push(GenerationEvent::Reasoning { choice: 0, text: self.message.thinking });
        }
        if !self.message.content.is_empty() {
            let text = self.message.content;
            events.push(GenerationEvent::Text { choice: 0, text, tokens: Vec::new() });
        }
        if self.done {
            let reason = match self.done_reason.as_deref() {
                Some("length") => FinishReason::Length,
                Some("repetition") => FinishReason::Repetition,
                _ => FinishReason::Stop,
            };
            let times = self.total_duration.zip(self.prompt_eval_duration).map(|(total, first)| Times {
                // The server does not state it.
                queued: Duration::ZERO,
                first_token: Duration::from_nanos(first),
                total: Duration::from_nanos(total),
            });
            events.push(GenerationEvent::Finished { choice: 0, reason });
            events.push(GenerationEvent::Done(Summary {
                prompt_tokens: self.prompt_eval_count,
                completion_tokens: self.eval_count,
                times,
                ..Summary::default()
            }));
        }
        events
    }
}

/// Reads the lines of an answer until its end, or until it is cancelled.
fn read_answer(mut lines: impl BufRead, cancelled: &AtomicBool, mut sink: Box<dyn GenerationSink>) {
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut lines).take(MAX_LINE).read_until(b'\n', &mut line);
        if cancelled.load(Ordering::Relaxed) {
            // The connection closes, which ends the answer on the server.
            return;
        }
        let events = match read {
            Ok(0) => return,
            Ok(_) if line.trim_ascii().is_empty() => continue,
            Ok(_) => match serde_json::from_slice::<Line>(&line) {
                Ok(line) => line.events(),
                Err(error) => failed(&error.to_string()),
            },
            Err(error) => failed(&error.to_string()),
        };
        for event in events {
            let is_last = matches!(event, GenerationEvent::Done(_) | GenerationEvent::Failed { .. });
            if sink.event(event).is_break() || is_last {
                return;
            }
        }
    }
}

fn failed(reason: &str) -> Vec<GenerationEvent> {
    let message = format!("the server's answer cannot be read: {reason}");
    vec![GenerationEvent::Failed { kind: ErrorKind::Unavailable, message }]
}

#[cfg(test)]
mod tests {
    use std::{io::Write, net::TcpListener, sync::mpsc};

    use narthex_gateway::request::{Content, MediaKind, Part, Role};

    use super::*;

    #[test]
    fn a_server_is_reached_with_its_own_encryption() {
        let check = |address: &str, encryption, expect: Option<&str>| {
            let server = RunningServer::new(address, encryption);
            assert_eq!(origin(&server).as_deref(), expect);
        };
        check("0.0.0.0:8000", Encryption::None, Some("http://127.0.0.1:8000"));
        check("[::]:8443", Encryption::Tls, Some("https://[::1]:8443"));
        check("/run/narthex.sock", Encryption::None, None);
    }

    #[test]
    fn a_server_with_another_key_is_left_alone() {
        let check = |status: &str, expect| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let origin = format!("http://{}", listener.local_addr().unwrap());
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}");
            let server = thread::spawn(move || {
                let (mut connection, _) = listener.accept().unwrap();
                let _ = connection.read(&mut [0; 4096]).unwrap();
                connection.write_all(answer.as_bytes()).unwrap();
            });
            assert_eq!(LocalServer { origin, key: None }.admits_user(), expect, "{status}");
            server.join().unwrap();
        };
        check("200 OK", true);
        check("401 Unauthorized", false);
        check("403 Forbidden", false);
    }

    fn events(answer: &str, is_cancelled: bool) -> Vec<GenerationEvent> {
        let (sender, events) = mpsc::channel();
        read_answer(answer.as_bytes(), &AtomicBool::new(is_cancelled), Box::new(sender));
        events.iter().collect()
    }

    #[test]
    fn lines_become_events() {
        let answer = r#"{"message": {"role": "assistant", "content": "", "thinking": "hm"}, "done": false}
            {"message": {"role": "assistant", "content": "Hi"}, "done": false}

            {"message": {"content": ""}, "done": true, "done_reason": "repetition", "total_duration": 3000000,
             "prompt_eval_count": 4, "prompt_eval_duration": 1000000, "eval_count": 2}"#;
        let answer = answer.replace("\n             ", " ");
        let found = events(&answer, false);
        assert_eq!(found[0], GenerationEvent::Reasoning { choice: 0, text: "hm".to_owned() });
        assert_eq!(found[1], GenerationEvent::Text { choice: 0, text: "Hi".to_owned(), tokens: Vec::new() });
        assert_eq!(found[2], GenerationEvent::Finished { choice: 0, reason: FinishReason::Repetition });
        let GenerationEvent::Done(summary) = &found[3] else { panic!("{found:?}") };
        let milliseconds = Duration::from_millis;
        let times = Times { queued: Duration::ZERO, first_token: milliseconds(1), total: milliseconds(3) };
        assert_eq!((summary.prompt_tokens, summary.completion_tokens, summary.times), (4, 2, Some(times)));
        assert_eq!(events(&answer, true), [], "cancelled");
        for broken in ["{\"error\": \"no memory\"}", "{", "[]"] {
            let found = events(broken, false);
            assert!(matches!(found.as_slice(), [GenerationEvent::Failed { .. }]), "{broken}: {found:?}");
        }
        assert_eq!(events("", false), [], "the server ended");
    }

    #[test]
    fn only_stated_options_are_sent() {
        let mut request = ChatRequest::user("hello");
        request.options.temperature = Some(0.2);
        request.options.repetition = Repetition::End;
        request.options.grammar = Some(Grammar::JsonSchema(json!({"type": "object"})).into());
        let body = body("tiny@w8", &request);
        let options = json!({
            "temperature": 0.2, "presence_penalty": 0.0, "frequency_penalty": 0.0, "stop": [],
            "end_at_repetition": true,
        });
        assert_eq!((&body["options"], &body["format"]), (&options, &json!({"type": "object"})));
        assert_eq!(body["messages"], json!([{"role": "user", "content": "hello"}]));
    }

    #[test]
    fn images_are_sent_with_their_message() {
        let image = Media::new(MediaKind::Image, None, b"\x89PNG".to_vec());
        let content: Content = [Part::Media(image), Part::text("What is it?")].into_iter().collect();
        let found = message_body(&Message::new(Role::User, content));
        assert_eq!(found, json!({"role": "user", "content": "What is it?", "images": ["iVBORw=="]}));
    }

    #[test]
    fn refusals_have_the_message_of_the_server() {
        assert_eq!(refusal(r#"{"error": "no"}"#, 400), "no");
        assert_eq!(refusal(r#"{"error": {"message": "no"}}"#, 401), "no");
        assert_eq!(refusal("<html>", 502), "status 502");
    }
}
