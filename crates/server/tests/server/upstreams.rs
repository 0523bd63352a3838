//! Requests that another server answers. A server in this process stands in for it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    num::NonZeroU32,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use narthex_gateway::{
    Cancel, Config, Gateway, ModelSettings, UpstreamCondition, UpstreamRule, UpstreamSettings,
    keys::KeyLimits,
};
use narthex_testkit::checkpoint::LLAMA_CONTEXT;
use serde_json::{Value, json};

use crate::support::{Answer, Live, PATIENCE, Tiny, chat, eventually, local, unending, with};

const CHAT: &str = "/v1/chat/completions";

/// Key of the upstream.
const SECRET: &str = "sk-upstream-0123456789";

/// Answer of the stand-in.
enum Reply {
    /// These bytes; the connection stays open.
    Whole(Vec<u8>),
    /// These bytes, and then the end of the connection.
    Cut(Vec<u8>),
    /// These bytes, and then nothing until the client has left.
    Held(Vec<u8>),
}

/// Server that stands in for an upstream.
struct StandIn {
    address: SocketAddr,
    /// Requests with their heads.
    received: Arc<Mutex<Vec<String>>>,
    /// A message for each held connection that its client has closed.
    left: mpsc::Receiver<()>,
}

impl StandIn {
    /// Starts a server that gives each request this answer.
    fn start(reply: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (leave, left) = mpsc::channel();
        let (reply, requests) = (Arc::new(reply), received.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (reply, requests, leave) = (reply.clone(), requests.clone(), leave.clone());
                std::thread::spawn(move || serve(stream.unwrap(), &*reply, &requests, &leave));
            }
        });
        Self { address, received, left }
    }

    fn settings(&self) -> UpstreamSettings {
        let url = format!("http://{}/v1/", self.address).parse().unwrap();
        let models = [("big", "Llama-70B"), ("gpt-4o", "gpt-4o")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        let key = Some(SECRET.parse().unwrap());
        UpstreamSettings { key, models: models.into(), ..UpstreamSettings::new(url) }
    }

    /// Returns the only request since the last call.
    fn request(&self) -> String {
        let mut received = self.received.lock().unwrap();
        assert_eq!(received.len(), 1, "{received:?}");
        received.remove(0)
    }

    fn count(&self) -> usize {
        self.received.lock().unwrap().len()
    }
}

fn serve(
    stream: TcpStream,
    reply: &dyn Fn(&str) -> Reply,
    requests: &Mutex<Vec<String>>,
    leave: &mpsc::Sender<()>,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    while let Some(request) = read_request(&mut reader) {
        requests.lock().unwrap().push(request.clone());
        match reply(&request) {
            Reply::Whole(bytes) => writer.write_all(&bytes).unwrap(),
            Reply::Cut(bytes) => return writer.write_all(&bytes).unwrap(),
            Reply::Held(bytes) => {
                writer.write_all(&bytes).unwrap();
                let mut rest = Vec::new();
                let _ = reader.read_to_end(&mut rest);
                let _ = leave.send(());
                return;
            }
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.to_ascii_lowercase();
    let length = length.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some(head + std::str::from_utf8(&body).unwrap())
}

/// Returns an answer with this status and these headers and body.
fn response(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn json_response(body: &str) -> Vec<u8> {
    response("200 OK", "Content-Type: application/json; charset=utf-8\r\n", body)
}

/// Returns the head of a stream of events, and these events as one chunk of the body.
fn events(events: &str) -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    format!("{head}{:x}\r\n{events}\r\n", events.len()).into_bytes()
}

fn ended(mut chunks: Vec<u8>) -> Vec<u8> {
    chunks.extend(b"0\r\n\r\n");
    chunks
}

const WHOLE: &str = "{\"id\": \"x\",  \"choices\": [{\"message\": {\"content\": \"Hi\"}}], \
                     \"usage\": {\"prompt_tokens\": 5, \"completion_tokens\": 7}}";

const TEXT: &str = "data: {\"choices\": [{\"delta\": {\"content\": \"Hi\"}}], \"usage\": null}\n\n";

const USAGE: &str =
    "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 5, \"completion_tokens\": 7}}\n\n";

const DONE: &str = "data: [DONE]\n\n";

fn config(tiny: &Tiny, settings: UpstreamSettings) -> Config {
    Config { upstreams: [("box".to_owned(), settings)].into(), ..tiny.config() }
}

fn question(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "Hi"}]})
}

/// Returns the body of a streamed answer as text.
fn streamed(live: &Live, path: &str, body: &Value) -> String {
    let mut stream = live.stream(path, body);
    let mut lines = Vec::new();
    while let Some(line) = stream.line().unwrap() {
        lines.push(line);
    }
    let start = lines.iter().position(String::is_empty).unwrap() + 1;
    lines[start..].iter().map(|line| format!("{line}\n")).collect()
}

fn assert_secret_is_absent(text: &str) {
    assert!(!text.contains(SECRET) && !text.contains("caller"), "{text}");
}

#[test]
fn an_answer_is_passed_on_and_counted() {
    let upstream = StandIn::start(|_| Reply::Whole(json_response(WHOLE)));
    let tiny = Tiny::new();
    let gateway = Gateway::open(config(&tiny, upstream.settings())).unwrap();
    let limits = KeyLimits { tokens_per_minute: NonZeroU32::new(60), ..KeyLimits::default() };
    let caller = gateway.add_key("caller", limits, &Cancel::new()).unwrap();
    let admin = KeyLimits { role: narthex_gateway::keys::KeyRole::Admin, ..KeyLimits::default() };
    let admin = gateway.add_key("admin", admin, &Cancel::new()).unwrap();
    let live = Live::over(gateway, local());
    let bearer = format!("Bearer {}", caller.expose());
    let post = |model: &str| {
        let body =
            with(question(model), json!({"min_answer_score": 0.5, "top_p": 0.5, "provider": {"a": 1}}));
        live.request(
            "POST",
            CHAT,
            &[("Authorization", &bearer), ("Cookie", "c")],
            body.to_string().as_bytes(),
        )
    };
    for (model, named) in [("big", "Llama-70B"), ("box/Other:1", "Other:1")] {
        let answer = post(model);
        assert_eq!((answer.status, answer.text().as_str()), (200, WHOLE));
        assert_eq!(answer.header("x-narthex-upstream"), Some("box"));
        let request = upstream.request();
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{head}");
        let head = head.to_ascii_lowercase();
        assert!(head.contains(&format!("authorization: bearer {SECRET}")), "{head}");
        assert!(!request.contains(caller.expose()) && !head.contains("cookie"), "{request}");
        let expect = json!({
            "model": named, "messages": [{"role": "user", "content": "Hi"}], "top_p": 0.5, "provider": {"a": 1},
        });
        assert_eq!(serde_json::from_str::<Value>(body).unwrap(), expect);
    }

    let key = format!("Bearer {}", admin.expose());
    let get = |path: &str| live.request("GET", path, &[("Authorization", &key)], b"");
    let metrics = get("/metrics").text();
    for line in [
        "narthex_upstream_requests_total{upstream=\"box\",outcome=\"answered\"} 2",
        "narthex_upstream_prompt_tokens_total{upstream=\"box\"} 10",
        "narthex_upstream_generated_tokens_total{upstream=\"box\"} 14",
        "narthex_upstream_first_byte_seconds_count{upstream=\"box\"} 2",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    }
    let health = get("/health").json();
    let report = &health["upstreams"][0];
    assert_eq!(
        (&report["name"], &report["state"], &report["requests"]),
        (&json!("box"), &json!("ok"), &json!(2))
    );
    assert_eq!((&report["generated_tokens"], &report["running"]), (&json!(14), &json!(0)));
    let spent = post("big").header("x-ratelimit-remaining-tokens").unwrap().parse::<u32>().unwrap();
    assert!((24..=45).contains(&spent), "{spent}");
    for path in ["/metrics", "/health", "/health/requests", "/v1/models", "/v1/settings"] {
        assert!(!get(path).text().contains(SECRET), "{path}");
    }
}

#[test]
fn models_of_upstreams_are_listed_and_need_the_right() {
    let upstream = StandIn::start(|_| Reply::Whole(json_response(WHOLE)));
    let tiny = Tiny::new();
    let aliases = [("large".to_owned(), "box/big".to_owned())].into();
    let config =
        Config { aliases, default_model: Some("big".to_owned()), ..config(&tiny, upstream.settings()) };
    let gateway = Gateway::open(config).unwrap();
    let live = Live::over(gateway.clone(), local());
    let listed = live.get("/v1/models").json();
    let owners: Vec<_> =
        listed["data"].as_array().unwrap().iter().map(|one| (&one["id"], &one["owned_by"])).collect();
    assert_eq!(owners, [(&json!("big"), &json!("box")), (&json!("gpt-4o"), &json!("box"))]);
    assert_eq!(live.get("/v1/models/box/x").json()["owned_by"], "box");
    assert_eq!(live.post(CHAT, &question("large")).status, 200);
    assert_eq!(live.post(CHAT, &question("unknown-model")).status, 200, "the default model");

    let limits = KeyLimits { models: ["gpt-4o".parse().unwrap()].into(), ..KeyLimits::default() };
    let key = gateway.add_key("user", limits, &Cancel::new()).unwrap();
    let key = format!("Bearer {}", key.expose());
    let ask = |model: &str| {
        let body = question(model).to_string();
        live.request("POST", CHAT, &[("Authorization", &key)], body.as_bytes())
    };
    assert_eq!(ask("gpt-4o").status, 200);
    for model in ["big", "box/gpt-4o", "box/@x", "large"] {
        assert_eq!(ask(model).error(403)["code"], "model_not_allowed", "{model}");
    }
    let two = br#"{"model": "big", "model": "gpt-4o", "messages": []}"#;
    live.request("POST", CHAT, &[("Authorization", &key)], two).error(400);
}

#[test]
fn streams_are_passed_on_with_hidden_counts() {
    let stream = [TEXT, USAGE, DONE].concat();
    let upstream = StandIn::start(move |_| Reply::Whole(ended(events(&stream))));
    let live = Live::start(config(&Tiny::new(), upstream.settings()));
    let ask = with(question("big"), json!({"stream": true}));
    assert_eq!(streamed(&live, CHAT, &ask), [TEXT, DONE].concat());
    assert!(upstream.request().contains("\"stream_options\":{\"include_usage\":true}"));
    let counted = with(ask.clone(), json!({"stream_options": {"include_usage": true}}));
    assert_eq!(streamed(&live, CHAT, &counted), [TEXT, USAGE, DONE].concat());
    assert_eq!(live.metric("narthex_upstream_generated_tokens_total"), Some(14.0));
    assert_eq!(live.metric("narthex_open_streams"), Some(0.0));
}

#[test]
fn every_path_of_openai_reaches_the_upstream_and_others_name_them() {
    let embeddings = "{\"data\": [{\"embedding\": [1.5]}], \"usage\": {\"total_tokens\": 3}}";
    let response = "event: response.created\ndata: {\"response\": {\"usage\": null}}\n\nevent: response.completed\n\
                    data: {\"response\": {\"usage\": {\"input_tokens\": 5, \"output_tokens\": 9}}}\n\n";
    let upstream = StandIn::start(move |request| {
        Reply::Whole(if request.starts_with("POST /v1/responses") {
            ended(events(response))
        } else if request.starts_with("POST /v1/embeddings") {
            json_response(embeddings)
        } else {
            json_response(WHOLE)
        })
    });
    let live = Live::start(config(&Tiny::new(), upstream.settings()));
    let input = json!({"model": "big", "input": "a"});
    assert_eq!(live.post("/v1/embeddings", &input).text(), embeddings);
    assert_eq!(live.post("/v1/completions", &json!({"model": "big", "prompt": "a"})).text(), WHOLE);
    let stream = with(input, json!({"stream": true}));
    assert_eq!(streamed(&live, "/v1/responses", &stream), response);
    assert!(!upstream.received.lock().unwrap()[2].contains("stream_options"));
    assert_eq!(live.metric("narthex_upstream_generated_tokens_total"), Some(16.0));

    let messages = with(question("big"), json!({"max_tokens": 5}));
    let tokens = json!({"model": "big", "prompt": "a"});
    for (path, body) in [("/v1/messages", &messages), ("/api/chat", &question("big")), ("/tokenize", &tokens)]
    {
        let answer = live.post(path, body);
        let text = answer.text();
        assert!(answer.status == 400 && text.contains("/v1/chat/completions"), "{path}: {text}");
    }
    assert_eq!(upstream.count(), 3);
}

/// Returns the answer to a question whose upstream answers with these bytes and closes the connection.
fn failing(reply: impl Fn(&str) -> Reply + Send + Sync + 'static, body: &Value) -> Answer {
    let upstream = StandIn::start(reply);
    let timeout = Duration::from_millis(300);
    let live = Live::start(config(&Tiny::new(), UpstreamSettings { timeout, ..upstream.settings() }));
    let answer = live.post(CHAT, body);
    assert_secret_is_absent(&answer.text());
    assert_secret_is_absent(&live.get("/health").text());
    answer
}

#[test]
fn failures_have_the_errors_of_the_table() {
    let check = |bytes: Vec<u8>, status: u16, code: &str| {
        for stream in [false, true] {
            let bytes = bytes.clone();
            let body = with(question("big"), json!({"stream": stream}));
            let error = failing(move |_| Reply::Cut(bytes.clone()), &body).error(status);
            assert_eq!(error["code"], code, "{error}");
            assert!(error["message"].as_str().unwrap().starts_with("the upstream box "), "{error}");
        }
    };
    let echo = format!("{{\"error\": \"{SECRET} caller\"}}");
    check(response("500 Oops", "Content-Type: application/json\r\n", &echo), 502, "upstream_error");
    check(response("401 No", "Content-Type: application/json\r\n", &echo), 502, "upstream_key_refused");
    check(response("307 Away", "Location: http://127.0.0.1:9/\r\n", ""), 502, "upstream_malformed");
    check(response("200 OK", "Content-Type: text/html\r\n", "<p>"), 502, "upstream_malformed");
    check(json_response("hello"), 502, "upstream_malformed");
    check(
        response("200 OK", "Content-Type: application/json\r\nContent-Encoding: gzip\r\n", "x"),
        502,
        "upstream_malformed",
    );
    check(b"SSH-2.0-OpenSSH\r\n\r\n".to_vec(), 502, "upstream_malformed");
    check(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{\"a\":".to_vec(),
        502,
        "upstream_cut",
    );
    check(Vec::new(), 502, "upstream_cut");
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "a".repeat(100_000));
    check(long.into_bytes(), 502, "upstream_malformed");

    let streamed = with(question("big"), json!({"stream": true}));
    let part = events("data: {\"choic");
    assert_eq!(failing(move |_| Reply::Cut(part.clone()), &streamed).error(502)["code"], "upstream_cut");
    let held =
        [Vec::new(), events(": wait\n"), b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n".to_vec()];
    for bytes in held {
        let error = failing(move |_| Reply::Held(bytes.clone()), &streamed).error(504);
        assert_eq!(error["code"], "upstream_timeout");
    }
}

#[test]
fn refusals_are_passed_on_without_the_key() {
    let refusal = format!("{{\"error\": {{\"message\": \"no {SECRET}\"}}}}");
    let bytes = response("429 Wait", "Content-Type: application/json\r\nRetry-After: 17\r\n", &refusal);
    let answer = failing(move |_| Reply::Cut(bytes.clone()), &question("big"));
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("17")));
    assert_eq!(answer.json(), json!({"error": {"message": "no ***"}}));
    let bytes = response("404 None", "Content-Type: text/html\r\n", "<script>");
    let error = failing(move |_| Reply::Cut(bytes.clone()), &question("big")).error(404);
    assert_eq!(error["code"], "upstream_refused");
}

#[test]
fn a_stream_that_is_cut_or_silent_ends_with_an_error() {
    let check = |reply: fn(Vec<u8>) -> Reply, part: &str, code: &str| {
        let bytes = events(&[TEXT, part].concat());
        let upstream = StandIn::start(move |_| reply(bytes.clone()));
        let timeout = Duration::from_millis(300);
        let live = Live::start(config(&Tiny::new(), UpstreamSettings { timeout, ..upstream.settings() }));
        let text = streamed(&live, CHAT, &with(question("big"), json!({"stream": true})));
        let error = text.strip_prefix(TEXT).unwrap().strip_prefix("data: ").unwrap();
        let error: Value = serde_json::from_str(error).unwrap();
        assert_eq!(error["error"]["code"], code, "{text}");
        assert_eq!(
            live.metric("narthex_upstream_requests_total{upstream=\"box\",outcome=\"cut\"}"),
            Some(1.0)
        );
    };
    for part in ["", "data: {\"ch"] {
        check(Reply::Cut, part, "upstream_cut");
        check(Reply::Held, part, "upstream_timeout");
    }
    // Without chunks, only the last event shows that a stream is complete.
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
    for (end, whole) in [(DONE, true), ("", false)] {
        let bytes = [head, TEXT, end].concat().into_bytes();
        let upstream = StandIn::start(move |_| Reply::Cut(bytes.clone()));
        let live = Live::start(config(&Tiny::new(), upstream.settings()));
        let text = streamed(&live, CHAT, &with(question("big"), json!({"stream": true})));
        assert_eq!(text == [TEXT, DONE].concat(), whole, "{text}");
    }
}

#[test]
fn long_answers_are_passed_in_parts() {
    let line =
        format!("data: {{\"choices\": [{{\"delta\": {{\"content\": \"{}\"}}}}]}}\n\n", "a".repeat(3 << 20));
    let stream = [&line, USAGE, DONE].concat();
    let whole = format!("{{\"text\": \"{}\", \"usage\": {{\"total_tokens\": 3}}}}", "a".repeat(3 << 20));
    let replies = (ended(events(&stream)), json_response(&whole));
    let upstream = StandIn::start(move |request| {
        Reply::Whole(if request.contains("\"stream\":true") { replies.0.clone() } else { replies.1.clone() })
    });
    let live = Live::start(config(&Tiny::new(), upstream.settings()));
    let text = streamed(&live, CHAT, &with(question("big"), json!({"stream": true})));
    assert!(text == [&line, DONE].concat(), "{} bytes", text.len());
    let body = question("big").to_string();
    let request =
        format!("POST {CHAT} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    assert!(live.raw(request.as_bytes()).text() == whole);
    assert_eq!(live.metric("narthex_upstream_prompt_tokens_total"), Some(8.0));
}

#[test]
fn a_client_that_leaves_cancels_the_request() {
    let upstream = StandIn::start(|_| Reply::Held(events(TEXT)));
    let live = Live::start(config(&Tiny::new(), upstream.settings()));
    let mut stream = live.stream(CHAT, &with(question("big"), json!({"stream": true})));
    assert!(stream.data().is_some());
    assert_eq!(live.get("/health").json()["upstreams"][0]["running"], 1);
    drop(stream);
    upstream.left.recv_timeout(PATIENCE).unwrap();
    let cancelled = || live.metric("narthex_upstream_requests_total{upstream=\"box\",outcome=\"cancelled\"}");
    eventually("the request ends", || cancelled() == Some(1.0));
    // A part that was passed on is charged.
    assert_eq!(live.metric("narthex_upstream_generated_tokens_total"), Some(1.0));
}

#[test]
fn an_upstream_that_fails_is_skipped() {
    let upstream = StandIn::start(|_| Reply::Cut(response("503 Down", "", "")));
    let live = Live::start(config(&Tiny::new(), upstream.settings()));
    for _ in 0..3 {
        live.post(CHAT, &question("big")).error(502);
    }
    let answer = live.post(CHAT, &question("big"));
    assert_eq!(answer.error(503)["code"], "upstream_skipped");
    assert!(answer.header("retry-after").unwrap().parse::<u32>().unwrap() <= 10);
    assert_eq!(upstream.count(), 3);
    let report = live.get("/health").json()["upstreams"][0].clone();
    assert_eq!((&report["state"], &report["last_error"]), (&json!("skipped"), &json!("upstream_error")));
}

#[test]
fn an_upstream_has_a_limit_of_requests_and_may_be_absent() {
    let upstream = StandIn::start(|_| Reply::Held(events(TEXT)));
    let settings = UpstreamSettings { max_concurrent: 1, ..upstream.settings() };
    let live = Live::start(config(&Tiny::new(), settings));
    let mut stream = live.stream(CHAT, &with(question("big"), json!({"stream": true})));
    assert!(stream.data().is_some());
    let answer = live.post(CHAT, &question("big"));
    assert_eq!(
        (answer.error(429)["code"].clone(), answer.header("retry-after")),
        (json!("upstream_busy"), Some("1"))
    );

    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}").parse().unwrap();
    let live = Live::start(config(&Tiny::new(), UpstreamSettings::new(url)));
    assert_eq!(live.post(CHAT, &question("box/a")).error(502)["code"], "upstream_unreachable");
    let network = narthex_gateway::Network::CacheOnly;
    let away = UpstreamSettings::new("http://192.0.2.1/v1".parse().unwrap());
    let live = Live::start(Config { network, ..config(&Tiny::new(), away) });
    assert_eq!(live.post(CHAT, &question("box/a")).error(503)["code"], "upstream_offline");
}

/// Settings with a rule for a local model.
fn with_rule(tiny: &Tiny, upstream: &StandIn, model: &str, when: &[UpstreamCondition]) -> Config {
    let rule = UpstreamRule { model: "box/big".to_owned(), when: when.iter().copied().collect() };
    let settings = ModelSettings { upstream: Some(rule), ..ModelSettings::default() };
    let name = narthex_gateway::split_scheme(model).0.to_owned();
    Config { models: [(name, settings)].into(), slots: 1, ..config(tiny, upstream.settings()) }
}

#[test]
fn rules_send_requests_to_an_upstream() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let upstream = StandIn::start(|_| Reply::Whole(json_response(WHOLE)));
    let when = [UpstreamCondition::TooLong, UpstreamCondition::Tools];
    let live = Live::start(with_rule(&tiny, &upstream, &model, &when));
    let instead = |answer: &Answer, condition: &str| {
        assert_eq!(
            (answer.status, answer.header("x-narthex-upstream")),
            (200, Some("box")),
            "{}",
            answer.text()
        );
        assert_eq!(answer.header("x-narthex-fallback"), Some(condition));
    };
    let here = live.post(CHAT, &chat(&model, 2));
    assert_eq!((here.status, here.header("x-narthex-upstream"), upstream.count()), (200, None, 0));

    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    instead(&live.post(CHAT, &with(chat(&model, 2), json!({"tools": [tool]}))), "local: tools");
    let long = "the cat ".repeat(LLAMA_CONTEXT);
    let overlong = json!([{"role": "user", "content": long}]);
    instead(&live.post(CHAT, &with(chat(&model, 2), json!({"messages": overlong}))), "local: too-long");
    let response = json!({"model": model, "input": long, "stream": true, "max_output_tokens": 20});
    assert!(live.post("/v1/responses", &response).header("x-narthex-upstream").is_some());

    let long = tiny.long_chat();
    let live = Live::start(with_rule(&tiny, &upstream, &long, &[UpstreamCondition::Busy]));
    let unending = json!({"max_tokens": null, "stream": true, "logit_bias": unending()});
    let mut running = live.stream(CHAT, &with(chat(&long, 2), unending));
    assert!(running.chunk().is_some());
    instead(&live.post(CHAT, &chat(&long, 2)), "local: busy");
}

#[test]
fn rules_of_an_upstream_that_fails_have_no_effect() {
    let tiny = Tiny::new();
    let (short, long) = (tiny.chat(), tiny.long_chat());
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    for reply in ["500 Oops", "400 Bad"] {
        let upstream = StandIn::start(move |_| Reply::Cut(response(reply, "", "")));
        let live = Live::start(with_rule(&tiny, &upstream, &long, &[UpstreamCondition::Tools]));
        let answer = live.post(CHAT, &with(chat(&long, 2), json!({"tools": [tool]})));
        assert_eq!((answer.status, answer.header("x-narthex-upstream")), (200, None), "{}", answer.text());

        let live = Live::start(with_rule(&tiny, &upstream, &short, &[UpstreamCondition::TooLong]));
        let overlong = json!([{"role": "user", "content": "the cat ".repeat(LLAMA_CONTEXT)}]);
        let error = live.post(CHAT, &with(chat(&short, 2), json!({"messages": overlong}))).error(400);
        assert_eq!((&error["code"], upstream.count()), (&json!("context_length_exceeded"), 2));
    }
}

#[test]
fn a_model_that_cannot_be_loaded_is_answered_by_the_upstream() {
    let tiny = Tiny::new();
    let upstream = StandIn::start(|_| Reply::Whole(json_response(WHOLE)));
    let all = [UpstreamCondition::Unavailable];
    let network = narthex_gateway::Network::CacheOnly;
    let config = Config { network, ..with_rule(&tiny, &upstream, "smollm2:135m", &all) };
    let live = Live::start(config);
    let answer = live.post(CHAT, &chat("smollm2:135m", 2));
    assert_eq!(answer.header("x-narthex-fallback"), Some("local: unavailable"), "{}", answer.text());
}
