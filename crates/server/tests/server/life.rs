//! A server under load and over time: full queues, clients that disconnect, models that load or fail, and shutdown.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    sync::atomic::AtomicBool,
    time::Duration,
};

use narthex_catalog::store::Store;
use narthex_gateway::Config;
use narthex_spec::{Speculation, progress::Quiet};
use serde_json::{Value, json};

use crate::support::{
    Head, LONG_CONTEXT, Live, PATIENCE, Stream, Tiny, chat, eventually, local, text_of, with,
};

const CHAT: &str = "/v1/chat/completions";

fn streamed(request: Value) -> Value {
    with(request, json!({"stream": true}))
}

/// Starts a stream that lasts for seconds without speculation, and waits for its first chunk.
fn endless(live: &Live, model: &str) -> Stream {
    let mut stream = live.stream(CHAT, &streamed(chat(model, LONG_CONTEXT)));
    assert_eq!(stream.chunk().unwrap()["choices"][0]["delta"]["role"], "assistant");
    stream
}

#[test]
fn a_full_queue_refuses_and_says_when_to_come_back() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::start(Config { slots: 1, max_queue: 1, speculation: Speculation::Off, ..tiny.config() });
    let running = endless(&live, &model);
    eventually("the start", || live.engine(&model)["running"] == 1);
    let waiting = endless(&live, &model);
    for body in [chat(&model, 2), streamed(chat(&model, 2))] {
        let answer = live.post(CHAT, &body);
        answer.error(429);
        assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    }
    drop((running, waiting));
    eventually("room in the queue", || live.post(CHAT, &chat(&model, 2)).status == 200);
}

#[test]
fn a_client_that_leaves_a_stream_frees_its_slot() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::start(Config { slots: 1, max_queue: 4, speculation: Speculation::Off, ..tiny.config() });
    let running = endless(&live, &model);
    let label = format!("{{model=\"{model}\",scheme=\"f32\"}}");
    eventually("the start", || live.metric(&format!("narthex_requests_running{label}")) == Some(1.0));
    assert_eq!(live.metric("narthex_open_streams"), Some(1.0));
    drop(running);
    eventually("a free slot", || live.engine(&model)["running"] == 0);
    assert_eq!(live.metric(&format!("narthex_requests_running{label}")), Some(0.0));
    eventually("the stream's end", || live.metric("narthex_open_streams") == Some(0.0));
    let generated = live.engine(&model)["generated_tokens"].as_u64().unwrap();
    assert!(generated < (LONG_CONTEXT / 2) as u64, "{generated}");
}

#[test]
fn a_client_that_leaves_while_it_waits_frees_its_place() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::start(Config { slots: 1, max_queue: 4, speculation: Speculation::Off, ..tiny.config() });
    let mut running = endless(&live, &model);
    eventually("the start", || live.engine(&model)["running"] == 1);
    // One request is streamed, the other waits for the complete answer.
    let streaming = endless(&live, &model);
    let whole = live.stream(CHAT, &chat(&model, LONG_CONTEXT));
    eventually("the queue", || live.engine(&model)["waiting"] == 2);
    drop((streaming, whole));
    eventually("an empty queue", || live.engine(&model)["waiting"] == 0);
    // The running request has not ended in the meantime.
    assert_eq!(live.engine(&model)["running"], 1);
    assert!(running.chunk().is_some());
}

#[test]
fn a_client_that_leaves_an_encoder_frees_its_place() {
    let tiny = Tiny::new();
    let model = tiny.encoder("bert", Head::Spans);
    let live = Live::start(Config { max_queue: 0, ..tiny.config() });
    // The question leaves room for one token of the context in a window, so there are as many windows as tokens.
    let (question, context) = ("the ".repeat(60), "cat ".repeat(250_000));
    let asked = json!({"model": model, "question": question, "context": context});
    let short = with(asked.clone(), json!({"context": "the cat"}));
    assert_eq!(live.post("/v1/answer", &short).status, 200);
    let running = live.stream("/v1/answer", &asked);
    eventually("the start", || live.engine(&model)["running"] == 1);
    live.post("/v1/answer", &short).error(429);
    drop(running);
    eventually("a free place", || live.engine(&model)["running"] == 0);
    assert_eq!(live.post("/v1/answer", &short).status, 200);
}

#[test]
fn while_a_model_loads_requests_are_told_to_come_back() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(Config { load_wait: Duration::ZERO, ..tiny.config() });
    let answer = live.post(CHAT, &chat(&model, 2));
    let error = answer.error(503);
    assert!(error["message"].as_str().unwrap().contains("still loading"), "{error}");
    assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    eventually("the load", || live.post(CHAT, &chat(&model, 2)).status == 200);
}

#[test]
fn hundreds_of_requests_that_wait_for_a_load_leave_room_for_others() {
    const WAITING: usize = 600;
    let tiny = Tiny::new();
    let store = Store::open(Some(tiny.home())).unwrap();
    // The load waits for a lock that is held as if by another process that compiles the model.
    let compiling = store.lock("compile-smollm2-135m-w8", &Quiet, &AtomicBool::new(false)).unwrap();
    let config = Config { slots: 1, max_queue: WAITING - 1, load_wait: PATIENCE, ..tiny.config() };
    let live = Live::start(config);
    let body = chat("smollm2:135m", 1).to_string();
    let head = "HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length";
    let request = format!("POST {CHAT} {head}: {}\r\n\r\n{body}", body.len());
    let mut clients: Vec<TcpStream> = (0..=WAITING).map(|_| live.begin(&request)).collect();
    // One request is refused; all others wait.
    clients.iter().for_each(|client| client.set_nonblocking(true).unwrap());
    let is_answered = |client: &TcpStream| client.peek(&mut [0]).is_ok();
    eventually("the answer of one too many", || clients.iter().any(is_answered));
    assert_eq!(live.get("/health").json()["models"][0]["state"]["state"], "loading");
    assert!(live.metric("narthex_open_streams").is_some());
    let refused = clients.iter().position(is_answered).unwrap();
    let mut answer = vec![0; 4096];
    let length = clients[refused].read(&mut answer).unwrap();
    assert!(answer[..length].starts_with(b"HTTP/1.1 429"), "{}", String::from_utf8_lossy(&answer[..length]));
    drop(clients);
    assert_eq!(live.get("/health").status, 200);
    drop(live);
    drop(compiling);
}

#[test]
fn a_load_that_failed_is_reported_with_its_reason() {
    let tiny = Tiny::new();
    let (model, embedding) = (tiny.chat(), tiny.embedding());
    let live = Live::start(Config { retry_failed_after: Duration::ZERO, ..tiny.config() });
    let health = live.get("/health").json();
    assert_eq!((&health["status"], &health["models"]), (&json!("ok"), &json!([])));
    let data = tiny.package(&model).join("model.onnx.data");
    let good = fs::read(&data).unwrap();
    fs::remove_file(&data).unwrap();
    let answer = live.post(CHAT, &streamed(chat(&model, 2)));
    let message = answer.error(503)["message"].as_str().unwrap().to_owned();
    assert!(message.contains("model.onnx.data is missing") && message.contains("narthex rm"), "{message}");
    assert_eq!(answer.header("retry-after"), None, "files do not mend themselves");
    let health = live.get("/health").json();
    assert_eq!((&health["status"], &health["models"][0]["id"]), (&json!("degraded"), &json!(model)));
    assert_eq!(health["models"][0]["state"]["state"], "failed", "{health}");
    assert!(health["models"][0]["state"]["reason"].as_str().unwrap().contains("is missing"));
    // Other models still answer.
    assert_eq!(live.post("/v1/embeddings", &json!({"model": embedding, "input": "x"})).status, 200);
    fs::write(&data, good).unwrap();
    assert_eq!(live.post(CHAT, &chat(&model, 2)).status, 200);
    assert_eq!(live.get("/health").json()["status"], "ok");
}

#[test]
fn health_and_metrics_say_what_there_is() {
    let tiny = Tiny::new();
    let (model, embedding) = (tiny.chat(), tiny.embedding());
    let live = Live::start(tiny.config());
    let whole = live.post(CHAT, &chat(&model, 10)).json();
    let chunks = live.stream(CHAT, &streamed(chat(&model, 10))).rest();
    assert_eq!(text_of(&chunks), whole["choices"][0]["message"]["content"].as_str().unwrap());
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
    live.post("/v1/embeddings", &json!({"model": embedding, "input": "the cat"}));
    live.post(CHAT, &json!({}));
    live.get("/no/such/path");

    let health = live.get("/health").json();
    assert_eq!(health["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(health["npu"]["available"], false);
    assert!(health["memory"]["weights_bytes"].as_u64().unwrap() > 0, "{health}");
    assert!(health["memory"]["kv_budget_bytes"].as_u64().unwrap() > 0, "{health}");
    #[cfg(target_os = "linux")]
    for size in ["resident_bytes", "free_bytes", "total_bytes", "warning_below_bytes"] {
        assert!(health["memory"][size].as_u64().unwrap() > 1 << 20, "{size}: {health}");
    }
    let models = health["models"].as_array().unwrap();
    assert_eq!(models.len(), 2);
    for entry in models {
        assert_eq!((&entry["state"]["state"], &entry["device"]), (&json!("ready"), &json!("cpu")), "{entry}");
        let [line] = &entry["placement"].as_array().unwrap()[..] else { panic!("{entry}") };
        assert!(line["ep"] == "cpu" && line["nodes"].as_u64().unwrap() > 0, "{line}");
    }

    let metrics = live.get("/metrics");
    assert!(metrics.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    let text = metrics.text();
    assert!(text.ends_with("# EOF\n"), "{text}");
    let prompt = whole["usage"]["prompt_tokens"].as_f64().unwrap();
    let check = |sample: &str, expect: f64| assert_eq!(live.metric(sample), Some(expect), "{sample}\n{text}");
    check("narthex_http_requests_total{route=\"/v1/chat/completions\",status=\"200\"}", 2.0);
    check("narthex_http_requests_total{route=\"/v1/chat/completions\",status=\"400\"}", 1.0);
    check("narthex_http_requests_total{route=\"/v1/embeddings\",status=\"200\"}", 1.0);
    check("narthex_http_requests_total{route=\"unknown\",status=\"404\"}", 1.0);
    check("narthex_prompt_tokens_total", 2.0 * prompt);
    check("narthex_generated_tokens_total", 20.0);
    check("narthex_first_token_seconds_count", 2.0);
    check("narthex_queue_seconds_count", 2.0);
    check("narthex_between_tokens_seconds_count", 18.0);
    check(&format!("narthex_request_prompt_tokens_sum{{model=\"{model}\",scheme=\"f32\"}}"), 2.0 * prompt);
    check("narthex_fallback_answers_total", 0.0);
    check("vllm:num_requests_running", 0.0);
    check("narthex_open_streams", 0.0);
}

#[test]
fn a_model_that_is_gone_is_gone_from_the_metrics() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let gateway = tiny.gateway();
    let live = Live::over(gateway.clone(), local());
    assert_eq!(live.post(CHAT, &chat(&model, 2)).status, 200);
    let sample = format!("narthex_requests_running{{model=\"{model}\",scheme=\"f32\"}}");
    assert!(live.metric(&sample).is_some());
    gateway.remove(&model).unwrap();
    assert_eq!(live.metric(&sample), None);
    live.post(CHAT, &chat(&model, 2)).error(404);
}

#[test]
fn a_signal_lets_streams_finish_and_refuses_new_connections() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::start(tiny.config());
    let expect = live.post(CHAT, &chat(&model, 600)).json();
    let mut stream = live.stream(CHAT, &streamed(chat(&model, 600)));
    let first = stream.chunk().unwrap();
    live.signal();
    eventually("the end of new connections", || TcpStream::connect(live.address).is_err());
    let chunks = [vec![first], stream.rest()].concat();
    assert_eq!(text_of(&chunks), expect["choices"][0]["message"]["content"].as_str().unwrap());
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    live.join();
}

#[test]
fn a_signal_closes_connections_that_carry_no_answer() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::start(tiny.config());
    let mut stream = live.stream(CHAT, &streamed(chat(&model, 600)));
    assert!(stream.chunk().is_some());
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: {}\r\nContent-Length: 100\r\n", live.address);
    // Connections without bytes, with a part of the head, and with a part of the body after a complete head. They must
    // end sooner than running answers have to.
    let patience = Some(Duration::from_secs(30));
    let begun = ["".to_owned(), head.clone(), format!("{head}\r\n{{")].map(|bytes| live.begin(&bytes));
    // A connection with an answered request that has begun another one.
    let mut answered = live.begin(&format!("GET /v1/models HTTP/1.1\r\nHost: {}\r\n\r\n", live.address));
    assert!(answered.read(&mut [0; 4096]).unwrap() > 0);
    answered.write_all(head.as_bytes()).unwrap();
    live.signal();
    for mut connection in begun.into_iter().chain([answered]) {
        connection.set_read_timeout(patience).unwrap();
        // A request with an incomplete body may get an error answer, and unread bytes may cause a reset.
        if let Err(error) = connection.read_to_end(&mut Vec::new()) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "it is open after {patience:?}");
        }
    }
    assert_eq!(stream.rest().last().unwrap()["choices"][0]["finish_reason"], "length");
    live.join();
}

#[test]
fn a_second_signal_ends_streams_too() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::start(Config { speculation: Speculation::Off, ..tiny.config() });
    let mut stream = endless(&live, &model);
    live.signal();
    live.signal();
    live.join();
    let mut chunks = 0;
    while stream.chunk().is_some() {
        chunks += 1;
    }
    assert!(chunks < LONG_CONTEXT / 2, "{chunks}");
}
