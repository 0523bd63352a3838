//! The document of the API, compared with actual answers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use serde_json::{Value, json};
use support::{Head, Live, Tiny, chat, with};

/// Validates an answer against the schema of an operation.
fn check(document: &Value, method: &str, path: &str, status: u16, answer: &Value) {
    let response = &document["paths"][path][method]["responses"][status.to_string()];
    let mut schema = response["content"]["application/json"]["schema"].clone();
    assert!(schema.is_object(), "{method} {path} documents no {status}");
    schema["components"] = document["components"].clone();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> = validator.iter_errors(answer).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{method} {path}: {errors:?} in {answer}");
}

#[test]
fn answers_are_those_of_the_document() {
    let tiny = Tiny::new();
    let (model, embedding) = (tiny.chat(), tiny.embedding());
    let (reranker, masked) = (tiny.encoder("bert", Head::Score), tiny.encoder("bert", Head::Masked));
    let live = Live::start(tiny.config());
    let document = live.get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    let messages = json!([{"role": "user", "content": "the cat"}]);
    let brief = json!({"model": model, "messages": messages, "max_tokens": 2});
    let text = json!({"model": model, "content": "the cat"});
    for (path, body) in [
        ("/v1/chat/completions", with(chat(&model, 2), json!({"logprobs": true}))),
        ("/v1/completions", json!({"model": model, "prompt": "the cat", "max_tokens": 2, "logprobs": 1})),
        ("/v1/responses", json!({"model": model, "input": "the cat", "max_output_tokens": 2})),
        ("/v1/messages", brief.clone()),
        ("/v1/messages/count_tokens", brief),
        ("/v1/embeddings", json!({"model": embedding, "input": ["the cat"]})),
        ("/v1/embeddings", json!({"model": embedding, "input": "the cat", "encoding_format": "base64"})),
        (
            "/v1/rerank",
            json!({"model": reranker, "query": "a", "documents": ["b"], "return_documents": true}),
        ),
        ("/v1/fill", json!({"model": masked, "text": "the [MASK]"})),
        ("/tokenize", text),
        ("/detokenize", json!({"model": model, "tokens": [5]})),
        ("/apply-template", json!({"model": model, "messages": messages})),
        ("/api/chat", json!({"model": model, "messages": messages, "stream": false})),
        ("/api/generate", json!({"model": model, "prompt": "the cat", "stream": false, "logprobs": true})),
        ("/api/embed", json!({"model": embedding, "input": "the cat"})),
        ("/api/embeddings", json!({"model": embedding, "prompt": "the cat"})),
        ("/api/show", json!({"model": model})),
        ("/api/pull", json!({"model": model, "stream": false})),
    ] {
        let answer = live.post(path, &body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        check(&document, "post", path, 200, &answer.json());
        check(&document, "post", path, 400, &live.post(path, &json!({})).json());
        let schema = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        let mut schema = schema.clone();
        schema["components"] = document["components"].clone();
        let validator = jsonschema::validator_for(&schema).unwrap();
        assert!(validator.is_valid(&body), "{path}: {body}: {:?}", validator.iter_errors(&body).next());
        assert!(!validator.is_valid(&json!({})), "{path}");
    }
    for path in ["/v1/models", "/api/tags", "/api/ps", "/api/version", "/health"] {
        check(&document, "get", path, 200, &live.get(path).json());
    }
    check(&document, "get", "/v1/models/{id}", 200, &live.get(&format!("/v1/models/{model}")).json());
    check(&document, "get", "/v1/responses/{id}", 404, &live.get("/v1/responses/x").json());
}
