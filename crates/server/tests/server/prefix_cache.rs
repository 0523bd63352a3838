//! The prefix cache over HTTP: prompts that share a prefix with an earlier one read only the rest, and the answer counts
//! it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use serde_json::{Value, json};

use crate::support::{Live, Tiny, with};

/// Tokens of a prompt, and those of them that were cached.
#[derive(Debug, Clone, Copy)]
struct PromptTokens {
    all: u64,
    cached: u64,
}

impl PromptTokens {
    fn of(answer: &Value) -> Self {
        let usage = &answer["usage"];
        let count = |value: &Value| value.as_u64().unwrap();
        Self {
            all: count(&usage["prompt_tokens"]),
            cached: count(&usage["prompt_tokens_details"]["cached_tokens"]),
        }
    }
}

#[test]
fn a_second_request_finds_the_prompt_of_the_first() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let ask = |question: &str| {
        let system = "the cat and the dog ".repeat(4);
        let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": question}]);
        let answer = live
            .post("/v1/chat/completions", &json!({"model": model, "messages": messages, "max_tokens": 1}));
        PromptTokens::of(&answer.json())
    };
    assert_eq!(ask("who").cached, 0);
    let PromptTokens { all, cached } = ask("where");
    assert!(cached > all / 2 && cached < all, "{cached} of {all}");
}

#[test]
fn the_last_token_of_a_repeated_prompt_is_not_cached() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let text = "the cat and the dog ".repeat(4);
    let messages = json!([{"role": "user", "content": text}]);
    let chat = json!({"model": model, "messages": messages, "max_tokens": 1});
    let usage = |path: &str, body: &Value| live.post(path, body).json()["usage"].clone();
    // The second choice finds the prompt that the first one read.
    let first = usage("/v1/chat/completions", &with(chat.clone(), json!({"n": 2})));
    assert_eq!(first["prompt_tokens_details"]["cached_tokens"], 0, "{first}");

    let completion = json!({"model": model, "prompt": text, "max_tokens": 1});
    let response = json!({"model": model, "input": text, "max_output_tokens": 1});
    for (path, body, prompt, cached) in [
        ("/v1/chat/completions", &chat, "/prompt_tokens", "/prompt_tokens_details/cached_tokens"),
        ("/v1/completions", &completion, "/prompt_tokens", "/prompt_tokens_details/cached_tokens"),
        ("/v1/responses", &response, "/input_tokens", "/input_tokens_details/cached_tokens"),
    ] {
        usage(path, body);
        let again = usage(path, body);
        let count = |pointer: &str| again.pointer(pointer).and_then(Value::as_u64).unwrap();
        assert_eq!(count(cached), count(prompt) - 1, "{path}: {again}");
    }
    let read = usage("/v1/messages", &chat);
    assert_eq!(read["input_tokens"], 1, "{read}");
    assert_eq!(read["cache_read_input_tokens"], first["prompt_tokens"].as_u64().unwrap() - 1, "{read}");
}

/// Returns a request to each protocol with instructions in parts.
fn with_instructions(model: &str, texts: &[&str]) -> [(&'static str, Value); 3] {
    let parts =
        |kind: &str| -> Vec<Value> { texts.iter().map(|text| json!({"type": kind, "text": text})).collect() };
    let messages =
        |content: Value| json!([{"role": "system", "content": content}, {"role": "user", "content": "who"}]);
    let user = json!([{"role": "user", "content": "who"}]);
    let chat = json!({"model": model, "messages": messages(json!(parts("text"))), "max_tokens": 1});
    let input = messages(json!(parts("input_text")));
    let response = json!({"model": model, "input": input, "max_output_tokens": 1});
    let message = json!({"model": model, "system": parts("text"), "messages": user, "max_tokens": 1});
    [("/v1/chat/completions", chat), ("/v1/responses", response), ("/v1/messages", message)]
}

#[test]
fn a_header_that_differs_in_each_request_leaves_the_prefix_cached() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let instructions = "the cat and the dog ".repeat(4);
    let tokens = |path: &str, body: &Value| {
        let answer = live.post(path, body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        let usage = answer.json()["usage"].clone();
        let count = |pointers: &[&str]| {
            pointers.iter().find_map(|pointer| usage.pointer(pointer).and_then(Value::as_u64)).unwrap()
        };
        let all = count(&["/prompt_tokens", "/input_tokens"]);
        let cached = count(&[
            "/prompt_tokens_details/cached_tokens",
            "/input_tokens_details/cached_tokens",
            "/cache_read_input_tokens",
        ]);
        // The protocol of messages counts the cached tokens apart.
        PromptTokens { all: if path == "/v1/messages" { all + cached } else { all }, cached }
    };
    for (number, end) in [";", ";\n"].into_iter().enumerate() {
        let header = format!("x-anthropic-billing-header: cc_version=2.1.1; cch={number}{end}");
        let headed = with_instructions(&model, &[&header, &instructions]);
        for ((path, plain), (_, headed)) in with_instructions(&model, &[&instructions]).iter().zip(&headed) {
            let PromptTokens { all, .. } = tokens(path, plain);
            let found = tokens(path, headed);
            assert_eq!((found.all, found.cached), (all, all - 1), "{path}: {header:?}");
        }
    }
}

/// Conversation of an agent, with the sums over its turns after the first one.
struct Transcript {
    messages: Vec<Value>,
    /// Length of the last prompt.
    prompt: u64,
    /// Tokens by which the prompts grew.
    new: u64,
    /// Tokens that were not cached.
    read: u64,
}

#[test]
fn interleaved_agents_read_little_more_than_what_is_new() {
    const AGENTS: usize = 4;
    const TURNS: usize = 20;
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::start(tiny.config());
    let parameters = json!({
        "type": "object", "properties": {"file": {"enum": ["a", "b"]}}, "required": ["file"],
        "additionalProperties": false,
    });
    let function = json!({"name": "read", "description": "Reads a file.", "parameters": parameters});
    let request = json!({
        "model": model, "tools": [{"type": "function", "function": function}], "tool_choice": "required",
        "parallel_tool_calls": false, "max_tokens": 100, "temperature": 0,
    });
    let system = json!({"role": "system", "content": "the cat and the dog ".repeat(10)});
    let start = |agent: usize| {
        let question = json!({"role": "user", "content": format!("{agent}: which file has the cat")});
        Transcript { messages: vec![system.clone(), question], prompt: 0, new: 0, read: 0 }
    };
    let mut agents: Vec<Transcript> = (0..AGENTS).map(start).collect();
    for turn in 0..TURNS {
        for (number, agent) in agents.iter_mut().enumerate() {
            let body = with(request.clone(), json!({"messages": agent.messages}));
            let answer = live.post("/v1/chat/completions", &body);
            assert_eq!(answer.status, 200, "{}", answer.text());
            let answer = answer.json();
            let PromptTokens { all, cached } = PromptTokens::of(&answer);
            // In its first turn, an agent shares the instructions and the tools with the first one.
            let least = if turn == 0 && number > 0 { all / 2 } else { agent.prompt };
            assert!(cached >= least && cached < all, "turn {turn} of {number}: {cached} of {all}");
            if turn > 0 {
                agent.new += all - agent.prompt;
                agent.read += all - cached;
            }
            agent.prompt = all;
            let message = answer["choices"][0]["message"].clone();
            let call = &message["tool_calls"][0];
            let content = format!("file {}, line {turn} of {number}", call["function"]["arguments"]);
            let result = json!({"role": "tool", "tool_call_id": call["id"], "content": content});
            assert!(call["id"].is_string(), "{answer}");
            agent.messages.extend([message, result]);
        }
    }
    for Transcript { new, read, .. } in agents {
        assert!(new > TURNS as u64 * 10 && read * 10 <= new * 11, "{read} read, {new} new");
    }
}
