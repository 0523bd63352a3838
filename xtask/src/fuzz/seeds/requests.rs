//! Bodies of requests; every endpoint parses each of them. The name of a body begins with its path, as
//! `attack/routes.rs` writes it.

use serde_json::{Value, json};
use xtask_tools::http::form;

use super::Input;

pub(super) fn seeds() -> Vec<Input> {
    let mut inputs: Vec<Input> = valid()
        .into_iter()
        .chain(agents())
        .chain(without_generation())
        .chain(with_media())
        .map(|(name, body)| Input::valid(name, body.to_string()))
        .chain(forms())
        .collect();
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

/// Returns conversations with pictures and sounds.
fn with_media() -> Vec<(&'static str, Value)> {
    vec![
        (
            "chat-completions-media",
            json!({"model": "m", "messages": [{"role": "user", "content": [
                {"type": "text", "text": "What?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw==", "detail": "low"}},
                {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
                {"type": "file", "file": {"filename": "a.gif", "file_data": "data:image/gif;base64,R0lG"}},
            ]}]}),
        ),
        (
            "responses-media",
            json!({"model": "m", "input": [{"role": "user", "content": [
                {"type": "input_image", "image_url": "data:;base64,iVBO\r\nRw", "detail": "auto"},
                {"type": "input_file", "file_data": "data:image/gif;base64,R0lG"},
            ]}]}),
        ),
        (
            "messages-media",
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
                {"type": "image", "source": {"type": "url", "url": "data:image/gif;base64,R0lG"}},
            ]}]}),
        ),
        (
            "ollama-chat-media",
            json!({"model": "m", "messages": [{"role": "user", "content": "What?", "images": ["iVBORw==", "R0lG"]}]}),
        ),
        ("ollama-generate-media", json!({"model": "m", "prompt": "What?", "images": ["iVBORw=="]})),
    ]
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
        ("chat-completions", json!({"model": "m", "messages": messages})),
        (
            "chat-completions-full",
            json!({
                "model": "smollm2:135m", "messages": messages, "max_completion_tokens": 40, "temperature": 0.7, "top_p": 0.9,
                "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1, "presence_penalty": -0.5, "frequency_penalty": 0.5,
                "logit_bias": {"5": -100}, "seed": -1, "stop": ["a", "b"], "n": 2, "stream": true,
                "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 5, "tools": [],
                "tool_choice": "none", "response_format": {"type": "text"}, "user": "u",
            }),
        ),
        (
            "completions",
            json!({
                "model": "m", "prompt": "Once", "max_tokens": 8, "echo": true, "logprobs": 2, "stop": "\n", "best_of": 1,
            }),
        ),
        ("completions-list", json!({"model": "m", "prompt": ["a", "b"]})),
        ("completions-tokens", json!({"model": "m", "prompt": [1, 2, 3]})),
        ("embeddings", json!({"model": "m", "input": "a cat"})),
        (
            "embeddings-list",
            json!({
                "model": "m", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 8, "truncate": "END",
            }),
        ),
        ("embeddings-tokens", json!({"model": "m", "input": [[1, 2], [3]], "truncate": true})),
        (
            "rerank",
            json!({"model": "m", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1, "truncate": true}),
        ),
        ("classify", json!({"model": "m", "input": ["a", "b"], "use_activation": false, "truncate": true})),
        (
            "predict",
            json!({"model": "m", "inputs": [["a"], ["a", "b"]], "raw_scores": true, "aggregation_strategy": "none"}),
        ),
        (
            "decisions",
            json!({
                "model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
                "questions": [
                    {"type": "predicate", "name": "p", "instructions": "b"},
                    {"type": "choice", "instructions": "c", "choices": [{"value": "x", "description": "d"}, {"value": true}]},
                    {"type": "score", "instructions": "e", "levels": [{"label": "low"}, {"label": "high"}]},
                ],
            }),
        ),
        (
            "systemone",
            json!({
                "model": "m", "state": {"a": [1, "b"]}, "questions": {
                    "p": {"type": "noul", "instructions": "b", "criteria": {"true": "c"}},
                    "q": {"type": "choice", "criteria": {"x": null, "y": "d"}},
                    "r": {"type": "score", "instructions": ["e"], "criteria": ["low", "high"]},
                },
            }),
        ),
        (
            "answer",
            json!({"model": "m", "question": "q", "context": "c", "top_k": 2, "max_answer_tokens": 9}),
        ),
        ("fill", json!({"model": "m", "text": "a [MASK]", "top_k": 2})),
        ("fill-more", json!({"model": "m", "text": "a", "generate": 3, "rounds": 2})),
    ]
}

/// Returns bodies with tools and schemas, and those of the other protocols.
fn agents() -> Vec<(&'static str, Value)> {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    vec![
        (
            "chat-completions-tools",
            json!({
                "model": "m", "tools": [{"type": "function", "function": {"name": "f", "parameters": schema, "strict": true}}],
                "tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": false,
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": null, "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
                    ]},
                    {"role": "tool", "tool_call_id": "c1", "content": "3"},
                ],
            }),
        ),
        (
            "chat-completions-schema",
            json!({
                "model": "m", "messages": [{"role": "user", "content": "a"}],
                "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": true}},
            }),
        ),
        (
            "responses",
            json!({
                "model": "m", "instructions": "Be brief.", "max_output_tokens": 9, "stream": true,
                "tools": [{"type": "function", "name": "f", "parameters": schema}],
                "input": [
                    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
                    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c1", "output": "3"},
                ],
            }),
        ),
        (
            "messages",
            json!({
                "model": "m", "max_tokens": 9, "system": [{"type": "text", "text": "s"}], "stop_sequences": ["x"],
                "tools": [{"name": "f", "description": "d", "input_schema": schema}], "tool_choice": {"type": "any"},
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "3"}]},
                ],
            }),
        ),
        (
            "ollama-chat",
            json!({
                "model": "m:latest", "messages": [{"role": "user", "content": "a"}], "stream": false, "format": schema,
                "options": {"num_predict": 8, "temperature": 0.5, "stop": ["x"], "seed": 1},
            }),
        ),
        (
            "ollama-generate",
            json!({"model": "m", "prompt": "a", "system": "s", "raw": false, "options": {"seed": 1}}),
        ),
        (
            "ollama-create",
            json!({
                "model": "n", "from": "m", "system": "s", "stream": false,
                "parameters": {"temperature": 0.5, "top_k": 40, "stop": ["x"], "num_ctx": 4096},
            }),
        ),
        ("ollama-embed", json!({"model": "m", "input": ["a", "b"], "truncate": true})),
    ]
}

/// Returns bodies of the endpoints that generate nothing.
/// Returns forms with a file.
fn forms() -> Vec<Input> {
    let wav = narthex_audio::Pcm { sample_rate: 16_000, samples: vec![0.25; 400] }.to_wav();
    let fields: [(&str, &[u8]); 10] = [
        ("file", &wav),
        ("model", b"local/tiny"),
        ("language", b"en"),
        ("prompt", b"Narthex"),
        ("response_format", b"verbose_json"),
        ("temperature", b"0.5"),
        ("timestamp_granularities[]", b"word"),
        ("chunking_strategy", br#"{"type": "server_vad", "threshold": 0.4, "silence_duration_ms": 500}"#),
        ("vad_filter", b"true"),
        ("user", b"ann"),
    ];
    vec![
        Input::valid("audio-transcriptions", form(&fields)),
        Input::valid("audio-translations", form(&fields[..2])),
        Input::bomb("audio-transcriptions-parts", form(&[("x", b"".as_slice()); 300])),
        Input::bomb("audio-transcriptions-nested", form(&[("file", &form(&fields)), ("model", b"m")])),
    ]
}

fn without_generation() -> Vec<(&'static str, Value)> {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    vec![
        (
            "ollama-embeddings",
            json!({"model": "m", "prompt": "a", "options": {"seed": 1}, "keep_alive": "5m"}),
        ),
        ("ollama-show", json!({"name": "m", "verbose": true})),
        ("ollama-copy", json!({"source": "m", "destination": "n"})),
        (
            "settings",
            json!({"model": "m", "pin": true, "default": true, "add_name": "n", "remove_name": "o"}),
        ),
        ("ollama-delete", json!({"model": "m@w8"})),
        ("ollama-pull", json!({"model": "m", "stream": true, "insecure": false})),
        ("responses-input-tokens", json!({"model": "m", "input": "a", "instructions": "Be brief."})),
        (
            "messages-count-tokens",
            json!({
                "model": "m", "system": "s", "tools": [{"name": "f", "input_schema": schema}],
                "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
            }),
        ),
        (
            "apply-template",
            json!({
                "model": "m", "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
                "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}],
            }),
        ),
        (
            "chat-completions-render",
            json!({"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}),
        ),
        ("completions-render", json!({"model": "m", "prompt": ["a b", "c"], "max_tokens": 2})),
        ("tokenize", json!({"model": "m", "content": "a b"})),
        ("detokenize", json!({"model": "m", "tokens": [1, 2, 3]})),
        (
            "audio-speech",
            json!({
                "model": "m", "input": "Hello.", "voice": "v", "speed": 1.5, "response_format": "opus",
                "stream_format": "sse", "seed": 1,
            }),
        ),
    ]
}
