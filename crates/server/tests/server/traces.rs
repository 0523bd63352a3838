//! Traces of requests at a collector of OpenTelemetry. A server in this process stands in for it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

use narthex_gateway::Network;
use narthex_server::{ServeError, ServeOptions};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value},
    trace::v1::{Span, span::SpanKind, status::StatusCode},
};
use prost::Message;
use serde_json::json;

use crate::support::{Live, PATIENCE, Tiny, chat, local, with};

/// Span of a caller, in the header `traceparent`.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A request to the collector.
struct Export {
    head: String,
    body: Vec<u8>,
}

/// Starts a collector that accepts everything. Returns its address and the requests that it receives.
fn collector() -> (String, mpsc::Receiver<Export>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (send, exports) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            if send.send(answer(stream.unwrap())).is_err() {
                return;
            }
        }
    });
    (address, exports)
}

fn answer(mut stream: TcpStream) -> Export {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
    }
    let lower = head.to_ascii_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
    Export { head, body }
}

fn traced(endpoint: &str) -> ServeOptions {
    ServeOptions { traces: Some(endpoint.parse().unwrap()), ..local() }
}

/// Returns an attribute as text.
fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let value = attributes.iter().find(|attribute| attribute.key == key)?.value.clone()?.value?;
    Some(match value {
        any_value::Value::StringValue(text) => text,
        any_value::Value::IntValue(number) => number.to_string(),
        other => panic!("{key}: {other:?}"),
    })
}

#[test]
fn a_request_and_the_work_of_its_model_are_spans_below_the_caller_s() {
    let (endpoint, exports) = collector();
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::with_options(tiny.config(), traced(&endpoint));
    let body = with(chat(&model, 3), json!({"messages": [{"role": "user", "content": "confidential"}]}));
    let traceparent = format!("00-{TRACE}-{PARENT}-01");
    let headers = [
        ("Content-Type", "application/json"),
        ("traceparent", traceparent.as_str()),
        ("x-request-id", "req_traced"),
    ];
    let answer = live.request("POST", "/v1/chat/completions", &headers, body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let usage = answer.json()["usage"].clone();
    assert_eq!(live.get("/health").status, 200);
    assert_eq!(live.post("/v1/chat/completions", &chat("missing", 3)).status, 404);
    live.signal();
    live.join();

    let export = exports.recv_timeout(PATIENCE).unwrap();
    assert!(export.head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{}", export.head);
    assert!(export.head.contains("content-type: application/x-protobuf"), "{}", export.head);
    assert!(!export.body.windows(12).any(|bytes| bytes == b"confidential"));
    let request = ExportTraceServiceRequest::decode(export.body.as_slice()).unwrap();
    let [resource] = &request.resource_spans[..] else { panic!("{request:?}") };
    let of_program = &resource.resource.as_ref().unwrap().attributes;
    assert_eq!(attribute(of_program, "service.name").as_deref(), Some("narthex"));
    let spans: Vec<&Span> = resource.scope_spans.iter().flat_map(|scope| &scope.spans).collect();
    let named = |name: &str| -> Vec<&Span> {
        spans.iter().copied().filter(|span| span.name.starts_with(name)).collect()
    };
    // Reports are not traced.
    let (requests, work) = (named("POST /v1/chat/completions"), named("chat "));
    assert_eq!((requests.len(), work.len(), spans.len()), (2, 1, 3), "{spans:?}");

    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let [served, refused] = requests[..] else { panic!("{requests:?}") };
    assert_eq!((hex(&served.trace_id), hex(&served.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    assert_eq!(served.kind(), SpanKind::Server);
    let of_served = |key| attribute(&served.attributes, key).unwrap();
    assert_eq!(
        ["http.request.method", "http.route", "http.response.status_code", "narthex.request_id"]
            .map(of_served),
        ["POST", "/v1/chat/completions", "200", "req_traced"]
    );
    // A caller without a span begins a trace, and its mistake is no error of the server.
    assert!(refused.parent_span_id.is_empty() && hex(&refused.trace_id) != TRACE, "{refused:?}");
    assert_eq!(attribute(&refused.attributes, "http.response.status_code").as_deref(), Some("404"));
    assert!(refused.status.as_ref().is_none_or(|status| status.code() == StatusCode::Unset), "{refused:?}");

    let work = work[0];
    assert_eq!((&work.trace_id, &work.parent_span_id), (&served.trace_id, &served.span_id));
    let of_work = |key| attribute(&work.attributes, key).unwrap();
    assert_eq!(of_work("gen_ai.operation.name"), "chat");
    assert!(of_work("gen_ai.request.model").starts_with(&model), "{work:?}");
    assert_eq!(of_work("gen_ai.usage.input_tokens"), usage["prompt_tokens"].to_string());
    assert_eq!(of_work("gen_ai.usage.output_tokens"), usage["completion_tokens"].to_string());
    assert_eq!(of_work("narthex.device"), "cpu");
    let events: Vec<&str> = work.events.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(events, ["left the queue", "first token"]);
    assert!(served.start_time_unix_nano <= work.start_time_unix_nano, "{served:?} {work:?}");
    assert!(work.end_time_unix_nano <= served.end_time_unix_nano, "{served:?} {work:?}");
}

#[test]
fn a_collector_that_is_away_disturbs_no_request() {
    // The port is free again when the listener is dropped.
    let endpoint = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::with_options(tiny.config(), traced(&endpoint));
    assert_eq!(live.post("/v1/chat/completions", &chat(&model, 3)).status, 200);
    live.signal();
    live.join();
}

#[test]
fn an_offline_server_sends_traces_to_this_machine_only() {
    let tiny = Tiny::new();
    let config = narthex_gateway::Config { network: Network::CacheOnly, ..tiny.config() };
    let gateway = narthex_gateway::Gateway::open(config).unwrap();
    let error = traced("http://collector.lan:4318").check(&gateway).unwrap_err();
    assert!(matches!(error, ServeError::Traces { .. }), "{error}");
    assert!(error.to_string().contains("http://collector.lan:4318/v1/traces is another machine"), "{error}");
    traced("http://localhost:4318").check(&gateway).unwrap();
}
