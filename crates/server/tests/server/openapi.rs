//! The document of the API, compared with actual answers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use jsonschema::Validator;
use narthex_gateway::Config;
use serde_json::{Map, Value, json};

use crate::support::{Head, Live, Tiny, chat, check_paths, with};

fn validator(document: &Value, schema: &Value) -> Validator {
    let mut schema = schema.clone();
    schema["components"] = document["components"].clone();
    jsonschema::validator_for(&schema).unwrap()
}

/// Validates an answer against the schema of an operation.
fn check(document: &Value, method: &str, path: &str, status: u16, answer: &Value) {
    let response = &document["paths"][path][method]["responses"][status.to_string()];
    let schema = &response["content"]["application/json"]["schema"];
    assert!(schema.is_object(), "{method} {path} documents no {status}");
    let validator = validator(document, schema);
    let errors: Vec<String> = validator.iter_errors(answer).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{method} {path}: {errors:?} in {answer}");
}

/// Returns the validator of the parts of a streamed answer: of the data of events, or of lines.
fn validator_of_parts(document: &Value, path: &str) -> Validator {
    let content = &document["paths"][path]["post"]["responses"]["200"]["content"];
    let data = &content["text/event-stream"]["schema"]["properties"]["data"];
    let of_events = [&data["contentSchema"], &data["anyOf"][0]["contentSchema"]];
    let mut schemas = of_events.into_iter().chain([&content["application/x-ndjson"]["schema"]]);
    validator(document, schemas.find(|schema| schema.is_object()).unwrap())
}

#[test]
fn answers_are_those_of_the_document() {
    let tiny = Tiny::new();
    let (model, embedding) = (tiny.chat(), tiny.embedding());
    let (reranker, masked) = (tiny.encoder("bert", Head::Score), tiny.encoder("bert", Head::Masked));
    let spans = tiny.encoder("bert", Head::Spans);
    let (classifier, tagger) = (tiny.encoder("bert", Head::Labels), tiny.encoder("bert", Head::Tokens));
    let live = Live::start(tiny.config());
    let document = live.get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    let messages = json!([{"role": "user", "content": "the cat"}]);
    let brief = json!({"model": model, "messages": messages, "max_tokens": 2});
    let text = json!({"model": model, "content": "the cat"});
    let requests = [
        ("/v1/chat/completions", with(chat(&model, 2), json!({"logprobs": true}))),
        ("/v1/completions", json!({"model": model, "prompt": "the cat", "max_tokens": 2, "logprobs": 1})),
        ("/v1/responses", json!({"model": model, "input": "the cat", "max_output_tokens": 2})),
        ("/v1/messages", brief.clone()),
        ("/v1/messages/count_tokens", brief),
        ("/v1/responses/input_tokens", json!({"model": model, "input": "the cat"})),
        ("/v1/embeddings", json!({"model": embedding, "input": ["the cat"]})),
        ("/v1/embeddings", json!({"model": embedding, "input": "the cat", "encoding_format": "base64"})),
        (
            "/v1/rerank",
            json!({"model": reranker, "query": "a", "documents": ["b"], "return_documents": true}),
        ),
        (
            "/v1/decisions",
            json!({"model": model, "input": "a", "questions": [{"type": "predicate", "instructions": "b"}]}),
        ),
        ("/v1/systemone", json!({"model": model, "state": "a", "questions": {"b": {"type": "noul"}}})),
        ("/v1/classify", json!({"model": classifier, "input": ["the cat", "a dog"]})),
        ("/v1/classify", json!({"model": tagger, "input": "the cat", "aggregation_strategy": "none"})),
        ("/predict", json!({"model": classifier, "inputs": [["the cat"], ["a", "b"]], "raw_scores": true})),
        ("/predict", json!({"model": tagger, "inputs": "the cat"})),
        ("/v1/fill", json!({"model": masked, "text": "the [MASK]"})),
        ("/v1/answer", json!({"model": spans, "question": "a", "context": "the cat"})),
        ("/v1/chat/completions/render", json!({"model": model, "messages": messages, "temperature": 0.5})),
        ("/v1/completions/render", json!({"model": model, "prompt": ["the cat", "the dog"]})),
        ("/tokenize", text),
        ("/detokenize", json!({"model": model, "tokens": [5]})),
        ("/apply-template", json!({"model": model, "messages": messages})),
        ("/api/chat", json!({"model": model, "messages": messages, "stream": false})),
        ("/api/generate", json!({"model": model, "prompt": "the cat", "stream": false, "logprobs": true})),
        ("/api/embed", json!({"model": embedding, "input": "the cat"})),
        ("/api/embeddings", json!({"model": embedding, "prompt": "the cat"})),
        ("/v1/settings", json!({"model": model})),
        ("/api/show", json!({"model": model})),
        ("/api/pull", json!({"model": model, "stream": false})),
    ];
    // Answers with speech are files, and that of `/api/copy` is empty. A server without
    // settings creates no models.
    let others = ["/v1/audio/speech", "/api/create", "/api/copy"];
    check_paths(&document, requests.iter().map(|(path, _)| *path).chain(others));
    for (path, body) in requests {
        let answer = live.post(path, &body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        check(&document, "post", path, 200, &answer.json());
        check(&document, "post", path, 400, &live.post(path, &json!({})).json());
        let schema = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        let validator = validator(&document, schema);
        assert!(validator.is_valid(&body), "{path}: {body}: {:?}", validator.iter_errors(&body).next());
        assert!(!validator.is_valid(&json!({})), "{path}");
    }
    for path in [
        "/v1/audio/voices",
        "/v1/catalogue",
        "/v1/settings",
        "/v1/models",
        "/api/tags",
        "/api/ps",
        "/api/version",
        "/health",
        "/health/history",
        "/health/requests",
    ] {
        check(&document, "get", path, 200, &live.get(path).json());
    }
    check(&document, "get", "/v1/models/{id}", 200, &live.get(&format!("/v1/models/{model}")).json());
    let forecast = live.get(&format!("/v1/load/{model}")).json();
    check(&document, "get", "/v1/load/{id}", 200, &forecast);
    let plan = live.get("/v1/catalogue/smollm2:135m").json();
    check(&document, "get", "/v1/catalogue/{id}", 200, &plan);
    check(&document, "get", "/v1/responses/{id}", 404, &live.get("/v1/responses/x").json());
}

/// Returns requests to every endpoint that streams, with texts, log-probabilities, counts and calls.
fn streamed_requests(model: &str, x: &Value) -> Vec<(&'static str, Value)> {
    let messages = json!([{"role": "user", "content": "the cat"}]);
    let parameters = json!({
        "type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"],
        "additionalProperties": false,
    });
    let tools = json!([{"type": "function", "function": {"name": "set", "parameters": parameters}}]);
    let call = json!({"tools": tools, "tool_choice": "required", "parallel_tool_calls": false});
    let malformed = json!({"tools": tools, "regex": "<tool_call>x", "logit_bias": {x.to_string(): 100}});
    let function = json!({"type": "function", "name": "set", "parameters": parameters});
    let brief_response = json!({"model": model, "input": "the cat", "max_output_tokens": 3});
    let respond = |tool: Value| {
        let fields = json!({"max_output_tokens": 60, "tools": [tool], "tool_choice": "required"});
        with(brief_response.clone(), fields)
    };
    let usage = json!({"include_usage": true});
    let logprobs = json!({"n": 2, "logprobs": true, "top_logprobs": 2, "stream_options": usage});
    let brief = json!({"model": model, "messages": messages, "max_tokens": 4});
    let claude =
        json!({"tools": [{"name": "set", "input_schema": parameters}], "tool_choice": {"type": "any"}});
    // A sampled first token may end the answer, which then has one part.
    let greedy = json!({"num_predict": 3, "temperature": 0});
    vec![
        ("/v1/chat/completions", chat(model, 3)),
        ("/v1/chat/completions", with(chat(model, 3), logprobs)),
        ("/v1/chat/completions", with(chat(model, 60), call)),
        ("/v1/chat/completions", with(chat(model, 60), malformed)),
        ("/v1/completions", json!({"model": model, "prompt": "the cat", "max_tokens": 3})),
        (
            "/v1/completions",
            json!({
                "model": model, "prompt": "the cat", "max_tokens": 3, "echo": true, "logprobs": 2,
                "stream_options": usage,
            }),
        ),
        ("/v1/responses", brief_response.clone()),
        ("/v1/responses", respond(function)),
        ("/v1/responses", respond(json!({"type": "custom", "name": "patch"}))),
        ("/v1/messages", brief.clone()),
        ("/v1/messages", with(with(brief, json!({"max_tokens": 60})), claude)),
        ("/api/chat", json!({"model": model, "messages": messages, "options": greedy})),
        ("/api/generate", json!({"model": model, "prompt": "the cat", "logprobs": true, "options": greedy})),
        ("/api/pull", json!({"model": model})),
    ]
}

#[test]
fn parts_of_streams_are_those_of_the_document() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::start(tiny.config());
    let document = live.get("/openapi.json").json();
    let x = &live.post("/tokenize", &json!({"model": model, "content": "x"})).json()["tokens"][0];
    for (path, body) in streamed_requests(&model, x) {
        let whole = live.post(path, &with(body.clone(), json!({"stream": false})));
        assert_eq!(whole.status, 200, "{path}: {}", whole.text());
        check(&document, "post", path, 200, &whole.json());
        let answer = live.post(path, &with(body.clone(), json!({"stream": true}))).text();
        let data = answer.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
        let parts: Vec<Value> = data
            .filter(|line| line.starts_with('{'))
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert!(parts.len() > 1, "{path}: {body}: {answer}");
        let validator = validator_of_parts(&document, path);
        for part in parts {
            let errors: Vec<String> = validator.iter_errors(&part).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{path}: {body}: {errors:?} in {part}");
        }
    }
}

/// Checks that an object is valid, and that it is not if one of its fields at these pointers is missing.
fn check_required(validator: &Validator, value: &Value, required: &[&str]) {
    let errors: Vec<String> = validator.iter_errors(value).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?} in {value}");
    for pointer in required {
        let mut changed = value.clone();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let object = changed.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        assert!(object.remove(name).is_some() && !validator.is_valid(&changed), "{pointer}: {value}");
    }
}

#[test]
fn errors_are_those_of_the_document_in_every_protocol() {
    let tiny = Tiny::new();
    let live = Live::start(tiny.config());
    let document = live.get("/openapi.json").json();
    let messages = json!([{"role": "user", "content": "the cat"}]);
    let openai = ["/error", "/error/message", "/error/type", "/error/param", "/error/code"];
    let anthropic = ["/type", "/error", "/error/type", "/error/message"];
    for (path, required) in [
        ("/v1/chat/completions", openai.as_slice()),
        ("/v1/messages", &anthropic),
        ("/v1/messages/count_tokens", &anthropic),
        ("/api/chat", &["/error"]),
    ] {
        let unknown = json!({"model": "nothing", "messages": messages});
        for (status, body) in [(400, json!({"model": 5})), (404, unknown)] {
            let answer = live.post(path, &with(body, json!({"stream": false})));
            assert_eq!(answer.status, status, "{path}: {}", answer.text());
            let response = &document["paths"][path]["post"]["responses"][status.to_string()];
            let schema = &response["content"]["application/json"]["schema"];
            check_required(&validator(&document, schema), &answer.json(), required);
        }
    }
}

#[test]
fn ranges_are_those_of_the_document() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let document = live.get("/openapi.json").json();
    let messages = json!([{"role": "user", "content": "the cat"}]);
    let sampling = [
        ("temperature", json!([-0.1, 0, 2, 2.1])),
        ("top_p", json!([-0.1, 0, 1, 1.1])),
        ("min_p", json!([-0.1, 0, 1, 1.1])),
        ("typical_p", json!([-0.1, 0, 1, 1.1])),
        ("repetition_penalty", json!([0, 0.02, 100, 101])),
        ("presence_penalty", json!([-2.1, -2, 2, 2.1])),
        ("frequency_penalty", json!([-2.1, -2, 2, 2.1])),
        ("n", json!([0, 1, 2, 129])),
    ];
    let common = [("temperature", json!([-0.1, 0, 2, 2.1])), ("top_p", json!([-0.1, 0, 1, 1.1]))];
    let of_chat = [("top_logprobs", json!([-1, 0, 20, 21]))];
    let of_text = [("logprobs", json!([-1, 0, 5, 6]))];
    let limit = |name| [(name, json!([0, 1, 2, -1]))];
    for (path, body, fields) in [
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 1, "logprobs": true}),
            [sampling.as_slice(), &of_chat].concat(),
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "max_tokens": 1}),
            [sampling.as_slice(), &of_text].concat(),
        ),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 1}),
            [common.as_slice(), &limit("max_tokens")].concat(),
        ),
        (
            "/v1/responses",
            json!({"input": "a", "max_output_tokens": 1}),
            [common.as_slice(), &limit("max_output_tokens")].concat(),
        ),
    ] {
        let schema = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        let validator = validator(&document, schema);
        for (name, values) in fields {
            for (value, is_valid) in values.as_array().unwrap().iter().zip([false, true, true, false]) {
                let body = with(with(body.clone(), json!({"model": model})), json!({name: value}));
                let status = live.post(path, &body).status;
                assert_eq!(
                    [status != 400, validator.is_valid(&body)],
                    [is_valid; 2],
                    "{path} {name} {value}"
                );
            }
        }
    }
}

#[test]
fn the_health_report_is_that_of_the_document() {
    let tiny = Tiny::new();
    let (model, broken) = (tiny.chat(), tiny.embedding());
    std::fs::remove_file(tiny.package(&broken).join("model.onnx.data")).unwrap();
    let live = Live::start(Config { providers: "qnn,cpu".parse().unwrap(), ..tiny.config() });
    let response = &live.get("/openapi.json").json();
    let content = &response["paths"]["/health"]["get"]["responses"]["200"]["content"];
    let validator = validator(response, &content["application/json"]["schema"]);
    check_required(&validator, &live.get("/health").json(), &["/status", "/memory/low", "/npu/devices"]);
    assert_eq!(live.post("/v1/chat/completions", &chat(&model, 2)).status, 200);
    assert_eq!(live.post("/v1/embeddings", &json!({"model": broken, "input": "x"})).status, 503);
    let mut health = live.get("/health").json();
    health["models"].as_array_mut().unwrap().sort_by_key(|entry| entry["state"]["state"] == "failed");
    let required = [
        "/models/0/id",
        "/models/0/state/state",
        "/models/0/draft_model",
        "/models/0/engine/cached_tokens",
        "/models/0/placement/0/compute_share",
        "/models/0/passed_over/0/reason",
        "/models/1/state/reason",
        "/models/1/fallen",
    ];
    check_required(&validator, &health, &required);
}

#[test]
fn schemas_distinguish_null_from_absence() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let document = live.get("/openapi.json").json();
    let path = "/v1/chat/completions";
    let content = &document["paths"][path]["post"]["responses"]["200"]["content"];
    let check = |validator: Validator, value: Value, required: &[&str], never_null: &[&str]| {
        assert!(validator.is_valid(&value), "{value}");
        let change = |pointer: &str, change: fn(&mut Map<String, Value>, &str)| {
            let mut changed = value.clone();
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            change(changed.pointer_mut(parent).unwrap().as_object_mut().unwrap(), name);
            assert!(!validator.is_valid(&changed), "{pointer}: {changed}");
        };
        for pointer in required {
            change(pointer, |object, name| assert!(object.remove(name).is_some()));
        }
        for pointer in never_null {
            change(pointer, |object, name| drop(object.insert(name.to_owned(), Value::Null)));
        }
    };
    check(
        validator(&document, &content["application/json"]["schema"]),
        live.post(path, &chat(&model, 2)).json(),
        &[
            "/system_fingerprint",
            "/timings",
            "/choices/0/finish_reason",
            "/choices/0/logprobs",
            "/choices/0/message/content",
            "/choices/0/message/refusal",
        ],
        &[
            "/object",
            "/timings",
            "/choices/0/stop_reason",
            "/choices/0/message/reasoning_content",
            "/choices/0/message/tool_calls",
        ],
    );
    let streamed = with(chat(&model, 2), json!({"stream": true, "stream_options": {"include_usage": true}}));
    let first = live.stream(path, &streamed).chunk().unwrap();
    assert_eq!(first["usage"], Value::Null);
    check(
        validator_of_parts(&document, path),
        first,
        &["/object", "/choices/0/finish_reason", "/choices/0/logprobs"],
        &["/timings", "/choices/0/stop_reason", "/choices/0/delta/role", "/choices/0/delta/tool_calls"],
    );
}
