//! Bodies of requests; every endpoint reads each of them.

use serde_json::{Value, json};

use super::Input;

pub(super) fn seeds() -> Vec<Input> {
    let mut inputs: Vec<Input> =
        valid().into_iter().map(|(name, body)| Input::valid(name, body.to_string())).collect();
    let chat = |messages: Value| json!({"model": "m", "messages": messages}).to_string();
    let user = json!({"role": "user", "content": "a"});
    let bias: serde_json::Map<String, Value> = (0..1000).map(|id| (id.to_string(), json!(1))).collect();
    let nested = |open: &str| {
        format!(r#"{{"model": "m", "messages": [], "prompt": "", "input": "", "x": {}"#, open.repeat(2000))
    };
    inputs.extend([
        Input::bomb("arrays", nested("[")),
        Input::bomb("objects", nested(r#"{"a":"#)),
        Input::bomb("messages", chat(vec![user; 800].into())),
        Input::bomb(
            "n",
            json!({"model": "m", "prompt": "a", "n": u64::MAX, "max_tokens": u64::MAX}).to_string(),
        ),
        Input::bomb("prompts", json!({"model": "m", "prompt": vec!["a"; 5000]}).to_string()),
        Input::bomb(
            "inputs",
            json!({"model": "m", "input": vec![vec![1]; 5000], "dimensions": u64::MAX}).to_string(),
        ),
        Input::bomb("lists", json!({"model": "m", "prompt": vec![vec![vec![0; 3]; 3]; 900]}).to_string()),
        Input::bomb("values", json!({"model": "m", "stop": vec![0; 15_000]}).to_string()),
        Input::bomb("bias", json!({"model": "m", "prompt": "a", "logit_bias": bias}).to_string()),
        Input::bomb(
            "number",
            r#"{"model": "m", "prompt": "a", "temperature": 1e999999, "seed": 99999999999999999999}"#,
        ),
    ]);
    inputs
}

fn valid() -> Vec<(&'static str, Value)> {
    let messages = json!([
        {"role": "system", "content": "Answer briefly."},
        {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": " kind."}]},
        {"role": "user", "content": "Name three colours \u{1F642}", "name": "ann"},
        {"role": "assistant", "content": null},
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
    ]);
    vec![
        ("chat", json!({"model": "m", "messages": messages})),
        (
            "chat-full",
            json!({
                "model": "smollm2:135m", "messages": messages, "max_completion_tokens": 40, "temperature": 0.7, "top_p": 0.9,
                "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1, "presence_penalty": -0.5, "frequency_penalty": 0.5,
                "logit_bias": {"5": -100}, "seed": -1, "stop": ["a", "b"], "n": 2, "stream": true,
                "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 5, "tools": [],
                "tool_choice": "none", "response_format": {"type": "text"}, "user": "u",
            }),
        ),
        (
            "completion",
            json!({
                "model": "m", "prompt": "Once", "max_tokens": 8, "echo": true, "logprobs": 2, "stop": "\n", "best_of": 1,
            }),
        ),
        ("completions", json!({"model": "m", "prompt": ["a", "b"]})),
        ("completion-tokens", json!({"model": "m", "prompt": [1, 2, 3]})),
        ("embedding", json!({"model": "m", "input": "a cat"})),
        (
            "embeddings",
            json!({
                "model": "m", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 8, "truncate": "END",
            }),
        ),
        ("embedding-tokens", json!({"model": "m", "input": [[1, 2], [3]], "truncate": true})),
        (
            "rerank",
            json!({"model": "m", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1, "truncate": true}),
        ),
        (
            "answer",
            json!({"model": "m", "question": "q", "context": "c", "top_k": 2, "max_answer_tokens": 9}),
        ),
        ("fill", json!({"model": "m", "text": "a [MASK]", "top_k": 2})),
        ("fill-more", json!({"model": "m", "text": "a", "generate": 3, "rounds": 2})),
    ]
}
