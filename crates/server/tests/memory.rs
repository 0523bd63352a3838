//! Memory of a body: a counting allocator sees how often a text is held while its body is read.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use narthex_testkit::allocator::CountingAllocator;
use serde_json::{Value, json};
use support::{Live, Tiny};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Returns a body for every field that may have a long text.
fn bodies(text: &str) -> Vec<(&'static str, Value)> {
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let parts = json!([{"type": "text", "text": text}]);
    let result = json!([{"type": "tool_result", "tool_use_id": "c", "content": text}]);
    let results = json!([{"type": "tool_result", "tool_use_id": "c", "content": parts}]);
    vec![
        ("/v1/chat/completions", json!({"messages": user(json!(text))})),
        ("/v1/chat/completions", json!({"messages": user(parts.clone())})),
        ("/v1/chat/completions", json!({"messages": user(json!("a")), "stop": [text]})),
        ("/v1/completions", json!({"prompt": text})),
        ("/v1/completions", json!({"prompt": "a", "stop": text})),
        ("/v1/responses", json!({"input": text})),
        ("/v1/responses", json!({"input": user(json!(text))})),
        ("/v1/responses", json!({"input": user(json!([{"type": "input_text", "text": text}]))})),
        ("/v1/messages", json!({"messages": user(json!(text)), "max_tokens": 1})),
        ("/v1/messages", json!({"messages": user(parts.clone()), "max_tokens": 1})),
        ("/v1/messages", json!({"messages": user(result), "max_tokens": 1})),
        ("/v1/messages", json!({"messages": user(results), "max_tokens": 1})),
        ("/v1/messages", json!({"messages": user(json!("a")), "max_tokens": 1, "system": text})),
        ("/v1/embeddings", json!({"input": text})),
        ("/v1/embeddings", json!({"input": [text]})),
        ("/v1/rerank", json!({"query": "a", "documents": [text]})),
        ("/v1/rerank", json!({"query": "a", "documents": [{"text": text}]})),
        ("/api/chat", json!({"messages": user(json!(text))})),
        ("/api/generate", json!({"prompt": text})),
        ("/api/embed", json!({"input": text})),
    ]
}

/// The only test of this program: tests at once would count each other's memory.
#[test]
fn a_text_is_held_in_its_body_in_the_parser_and_in_the_request() {
    const LENGTH: usize = 8 << 20;
    // The parser copies a text with an escape into a buffer.
    let text = format!("\n{}", "a".repeat(LENGTH));
    let tiny = Tiny::new();
    let live = Live::start(tiny.config());
    for (path, mut body) in bodies(&text) {
        body["model"] = json!("nothing");
        let body = body.to_string();
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes();
        let fields: String = body.chars().filter(|c| *c != 'a').take(100).collect();
        drop(body);
        let before = ALLOCATOR.reset_peak();
        let answer = live.raw(&request);
        let times = (ALLOCATOR.peak() - before) as f64 / LENGTH as f64;
        assert!(answer.status == 404, "{path} {fields}: {}", answer.text());
        assert!((2.0..3.3).contains(&times), "{path} {fields}: held {times:.2} times");
    }
}
