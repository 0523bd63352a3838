//! Shared support of these tests: a live server over tiny models on a free port, and a client that sends raw HTTP.

#![allow(dead_code, reason = "each test program uses a part of this")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::{
    collections::BTreeSet,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::mpsc,
    thread::JoinHandle,
};

use narthex_gateway::{Config, Gateway};
use narthex_server::{CurrentGateway, ServeError, ServeOptions, ServerAddress, run_until};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

#[path = "../../../gateway/tests/support/mod.rs"]
mod tiny;

#[allow(unused_imports, reason = "each test program uses a part of this")]
pub(crate) use tiny::{LONG_CONTEXT, PATIENCE, SPECIAL, Tiny, encoders::Head, eventually};

/// Live server. Dropping it ends the server.
pub(crate) struct Live {
    pub(crate) address: SocketAddr,
    signals: UnboundedSender<()>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

/// Returns options of a server for this machine on a free port.
pub(crate) fn local() -> ServeOptions {
    ServeOptions::local(0)
}

/// Returns the address of a server; port 0 for a Unix socket.
fn tcp(bound: ServerAddress) -> SocketAddr {
    match bound {
        ServerAddress::Tcp(address) => address,
        ServerAddress::Unix(_) => ([127, 0, 0, 1], 0).into(),
    }
}

impl Live {
    /// Starts a server over a store with these settings.
    pub(crate) fn start(config: Config) -> Self {
        Self::with_options(config, local())
    }

    /// Starts a server like [`Self::start`], with these options.
    pub(crate) fn with_options(config: Config, options: ServeOptions) -> Self {
        Self::over(Gateway::open(config).unwrap(), options)
    }

    /// Starts a server over a gateway that the test can also use.
    pub(crate) fn over(gateway: impl Into<CurrentGateway>, options: ServeOptions) -> Self {
        let gateway = gateway.into();
        let (signals, mut received) = unbounded_channel();
        let (ready, address) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let signal = async || {
                received.recv().await;
            };
            run_until(gateway, options, |bound| ready.send(tcp(bound)).unwrap(), signal)
        });
        let address = address.recv_timeout(PATIENCE).expect("the server binds its port");
        Self { address, signals, thread: Some(thread) }
    }

    /// Sends a signal to the server.
    pub(crate) fn signal(&self) {
        self.signals.send(()).unwrap();
    }

    /// Waits for the end of the server after a signal.
    pub(crate) fn join(mut self) {
        self.thread.take().unwrap().join().unwrap().unwrap();
    }

    /// Returns the base URL, `http://…/v1`.
    pub(crate) fn base(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Opens a connection and sends the beginning of a request.
    pub(crate) fn begin(&self, bytes: &str) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(bytes.as_bytes()).unwrap();
        stream
    }

    /// Sends bytes unchanged. The request must ask the server to close the connection.
    pub(crate) fn raw(&self, request: &[u8]) -> Answer {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Answer::parse(&bytes)
    }

    /// Sends one request with these headers.
    pub(crate) fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str(&format!("Host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        self.raw(&[head.as_bytes(), body].concat())
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], b"")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.request("POST", path, &[("Content-Type", "application/json")], body.to_string().as_bytes())
    }

    /// Starts a streamed answer.
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Stream {
        let mut stream = self.connect();
        let body = body.to_string();
        // HTTP/1.0 has no chunked encoding, so the events are sent unchanged.
        let head =
            format!("POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        Stream { lines: BufReader::new(stream) }
    }

    /// Returns a sample of `/metrics`; `name` is the beginning of its line.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics").text();
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.rsplit(' ').next()?.parse().unwrap())
    }

    /// Returns the counters of a model's engine from `/health`.
    pub(crate) fn engine(&self, model: &str) -> Value {
        let health = self.get("/health").json();
        let models = health["models"].as_array().unwrap();
        models.iter().find(|entry| entry["id"] == model).map_or(Value::Null, |entry| entry["engine"].clone())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // After the second signal, the server does not wait for running answers.
        let _ = self.signals.send(());
        let _ = self.signals.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Complete answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let header = |line: &str| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        Self { status, headers: lines.map(header).collect(), body: bytes[end + 4..].to_vec() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }

    /// Checks that this is an error with this status in OpenAI's form. Returns its `error` object.
    pub(crate) fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{:?}", self.text());
        assert_eq!(self.header("content-type"), Some("application/json"));
        let body = self.json();
        let error = body["error"].as_object().unwrap();
        assert_eq!(
            error.keys().map(String::as_str).collect::<Vec<_>>(),
            ["message", "type", "param", "code"]
        );
        assert!(!error["message"].as_str().unwrap().is_empty());
        let kind = match status {
            429 => "rate_limit_error",
            503 => "service_unavailable",
            400..500 => "invalid_request_error",
            _ => "server_error",
        };
        assert_eq!(error["type"], kind);
        assert!(error["param"].is_null() || error["param"].is_string());
        assert!(error["code"].is_null() || error["code"].is_string());
        body["error"].clone()
    }
}

/// Streamed answer. Dropping it closes the connection.
pub(crate) struct Stream {
    lines: BufReader<TcpStream>,
}

impl Stream {
    /// Returns the next line; `None` at the end.
    pub(crate) fn line(&mut self) -> io::Result<Option<String>> {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line)?;
        Ok((read > 0).then(|| line.trim_end().to_owned()))
    }

    /// Returns the data of the next event; `None` at the end.
    pub(crate) fn data(&mut self) -> Option<String> {
        while let Some(line) = self.line().unwrap() {
            if let Some(data) = line.strip_prefix("data: ") {
                return Some(data.to_owned());
            }
        }
        None
    }

    /// Returns the next chunk; `None` at `[DONE]` or the end.
    pub(crate) fn chunk(&mut self) -> Option<Value> {
        let data = self.data()?;
        (data != "[DONE]").then(|| serde_json::from_str(&data).unwrap())
    }

    /// Returns all remaining chunks. The stream must end with `[DONE]`.
    pub(crate) fn rest(mut self) -> Vec<Value> {
        let mut chunks = Vec::new();
        loop {
            match self.data().expect("the stream ends with [DONE]").as_str() {
                "[DONE]" => break,
                data => chunks.push(serde_json::from_str(data).unwrap()),
            }
        }
        assert_eq!(self.data(), None);
        chunks
    }
}

/// Returns the concatenated text of chat chunks.
pub(crate) fn text_of(chunks: &[Value]) -> String {
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect()
}

/// Returns a `logit_bias` that suppresses all tokens that end an answer.
pub(crate) fn unending() -> Value {
    SPECIAL.iter().map(|token| (token.to_string(), json!(-100))).collect()
}

/// Returns a greedy chat request that no stop token ends.
pub(crate) fn chat(model: &str, max_tokens: usize) -> Value {
    json!({
        "model": model, "messages": [{"role": "user", "content": "the cat"}], "max_tokens": max_tokens,
        "temperature": 0, "logit_bias": unending(),
    })
}

/// Checks that a test has a request to every path whose body the API's document describes.
#[track_caller]
pub(crate) fn check_paths<'a>(document: &Value, tested: impl Iterator<Item = &'a str>) {
    let paths = document["paths"].as_object().unwrap().iter();
    let with_body = paths
        .filter(|(_, methods)| methods["post"]["requestBody"]["content"]["application/json"].is_object());
    let expected: BTreeSet<&str> = with_body.map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        tested.collect::<BTreeSet<_>>(),
        expected,
        "expected a request to every path with a body of JSON"
    );
}

/// Returns the request with changed or added fields.
pub(crate) fn with(mut request: Value, fields: Value) -> Value {
    let fields = fields.as_object().unwrap().clone();
    request.as_object_mut().unwrap().extend(fields);
    request
}
