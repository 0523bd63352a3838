//! What every protocol shares: hints are ignored by name, answers carry timings, greedy texts are equal, and a client
//! that leaves a stream frees its slot.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use narthex_gateway::Config;
use narthex_server::{RequestOptions, ServeOptions};
use narthex_spec::Speculation;
use serde_json::{Value, json};

use crate::support::{Answer, Head, LONG_CONTEXT, Live, Tiny, eventually, local, with};

/// An endpoint with a body that it answers.
struct Endpoint {
    path: &'static str,
    body: Value,
}

fn messages() -> Value {
    json!([{"role": "user", "content": "the cat"}])
}

/// Returns every endpoint that generates, with a greedy request of at most `tokens` tokens.
fn endpoints(model: &str, tokens: usize) -> Vec<Endpoint> {
    let options = json!({"num_predict": tokens, "temperature": 0});
    let body = |fields: Value| with(json!({"model": model, "temperature": 0}), fields);
    let ollama = |fields: Value| with(json!({"model": model, "options": options}), fields);
    vec![
        Endpoint {
            path: "/v1/chat/completions",
            body: body(json!({"messages": messages(), "max_tokens": tokens})),
        },
        Endpoint { path: "/v1/completions", body: body(json!({"prompt": "the cat", "max_tokens": tokens})) },
        Endpoint {
            path: "/v1/responses",
            body: body(json!({"input": "the cat", "max_output_tokens": tokens})),
        },
        Endpoint { path: "/v1/messages", body: body(json!({"messages": messages(), "max_tokens": tokens})) },
        Endpoint { path: "/api/chat", body: ollama(json!({"messages": messages()})) },
        Endpoint { path: "/api/generate", body: ollama(json!({"prompt": "the cat"})) },
    ]
}

/// Returns the text of an object of any protocol: an answer, or a part of a stream.
fn text(value: &Value) -> String {
    let delta = value["type"].as_str().is_none_or(|kind| kind.ends_with("output_text.delta"));
    [
        value.pointer("/choices/0/message/content"),
        value.pointer("/choices/0/delta/content"),
        value.pointer("/choices/0/text"),
        value.pointer("/output/0/content/0/text"),
        value.pointer("/content/0/text"),
        value.pointer("/delta/text"),
        value.pointer("/message/content"),
        value.get("response"),
        value.get("delta").filter(|_| delta),
    ]
    .into_iter()
    .flatten()
    .filter_map(Value::as_str)
    .collect()
}

/// Returns the objects of a stream of any protocol.
fn parts(body: &str) -> Vec<Value> {
    let lines = body.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    lines.filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn greedy_texts_are_equal_whole_and_streamed() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let mut answers = endpoints(&model, 12);
    let raw = json!({"raw": true});
    let Endpoint { path, body } = answers.pop().unwrap();
    answers.push(Endpoint { path, body: body.clone() });
    answers.push(Endpoint { path, body: with(body, raw) });
    let mut texts: Vec<(&str, String)> = Vec::new();
    for Endpoint { path, body } in &answers {
        let whole = live.post(path, &with(body.clone(), json!({"stream": false})));
        assert_eq!(whole.status, 200, "{path}: {}", whole.text());
        let whole = text(&whole.json());
        let streamed = live.post(path, &with(body.clone(), json!({"stream": true}))).text();
        let streamed: String = parts(&streamed).iter().map(text).collect();
        assert_eq!(whole, streamed, "{path}: {body}");
        texts.push((*path, whole));
    }
    let (continued, answered): (Vec<_>, Vec<_>) = texts
        .into_iter()
        .enumerate()
        .partition(|(index, (path, _))| *path == "/v1/completions" || *index == 6);
    for group in [continued, answered] {
        assert!(group.len() > 1 && !group[0].1.1.is_empty());
        assert!(group.iter().all(|(_, (_, text))| *text == group[0].1.1), "{group:?}");
    }
}

#[test]
fn answers_carry_their_timings_and_device() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    for Endpoint { path, body } in endpoints(&model, 3) {
        let is_ollama = path.starts_with("/api/");
        let check = |end: &Value| {
            let timings = if is_ollama { end } else { &end["timings"] };
            assert_eq!(timings["device"], "cpu", "{path}: {end}");
            let names =
                if is_ollama { ["eval_count", "total_duration"] } else { ["predicted_n", "prompt_ms"] };
            assert!(names.iter().all(|name| timings[name].as_f64() > Some(0.0)), "{path}: {end}");
        };
        check(&live.post(path, &with(body.clone(), json!({"stream": false}))).json());
        let usage = if path.contains("completions") {
            [json!({}), json!({"include_usage": true})]
        } else {
            [json!({}), json!({})]
        };
        for stream_options in usage {
            let mut body = with(body.clone(), json!({"stream": true}));
            if stream_options != json!({}) {
                body["stream_options"] = stream_options;
            }
            let parts = parts(&live.post(path, &body).text());
            let timed: Vec<&Value> = parts
                .iter()
                .map(|part| part.get("response").filter(|it| it.is_object()).unwrap_or(part))
                .filter(|part| part.get(if is_ollama { "device" } else { "timings" }).is_some())
                .collect();
            assert_eq!(timed.len(), 1, "{path}: {parts:?}");
            check(timed[0]);
        }
    }
}

/// Hints with values that require nothing, one by one.
fn hints() -> Vec<Value> {
    let one_by_one = [
        json!({"add_generation_prompt": true, "backend_sampling": true, "cache_prompt": true, "dry_base": 1.75}),
        json!({"dry_multiplier": 0, "dynatemp_range": 0, "enable_thinking": true, "id_slot": -1}),
        json!({"frequency_penalty": 0, "ignore_eos": false, "keep_alive": "5m", "length_penalty": 1, "min_p": 0}),
        json!({"metadata": {"a": "b"}, "min_tokens": 0, "mirostat": 0, "mirostat_tau": 5.0, "n": 1, "n_probs": 0}),
        json!({"parallel_tool_calls": true, "presence_penalty": 0, "priority": 0, "prompt_cache_key": "k"}),
        json!({"reasoning_effort": "high", "reasoning_format": "auto", "repeat_last_n": 64, "samplers": "edskypmxt"}),
        json!({"repeat_penalty": 1.0, "repetition_penalty": 1.0, "service_tier": "auto", "shift": true, "store": true}),
        json!({"skip_special_tokens": true, "tfs_z": 1, "thinking_budget": -1, "tool_choice": "auto", "top_k": -1}),
        json!({"top_logprobs": 0, "truncate": true, "typ_p": 1, "typical_p": 1, "user": "u", "verbosity": "low"}),
        json!({"tool_choice": "none", "function_call": "auto", "top_k": 0, "best_of": 1, "n_predict": -1, "num_predict": -1}),
        json!({"xtc_probability": 0.0}),
        json!({"chat_template_kwargs": {"a": 1}, "stream_options": {"include_usage": true}, "seed": 7}),
        // Null, false and empty values.
        json!({"chat_template_kwargs": {}, "logit_bias": {}, "metadata": {}, "response_format": {}, "store": false}),
        json!({"stream_options": {}, "tool_choice": {}, "tools": [], "stop": [], "suffix": "", "seed": null}),
        json!({"echo": false, "reasoning": {}, "text": {}, "thinking": {}, "options": {}}),
    ];
    let fields = one_by_one.iter().flat_map(|fields| fields.as_object().unwrap());
    fields.map(|(name, value)| json!({name: value})).collect()
}

/// Parameters of generated text, which every endpoint that generates has, and no other.
const SAMPLING: [&str; 12] = [
    "frequency_penalty",
    "min_p",
    "min_tokens",
    "n_predict",
    "num_predict",
    "presence_penalty",
    "repeat_penalty",
    "repetition_penalty",
    "seed",
    "top_k",
    "typ_p",
    "typical_p",
];

/// Returns true if an endpoint has a parameter of this name that it does not ignore.
fn supports(path: &str, name: &str) -> bool {
    let has_chat_template = path != "/v1/completions";
    match name {
        "skip_special_tokens" => true,
        name if SAMPLING.contains(&name) => true,
        "add_generation_prompt" | "chat_template_kwargs" | "continue_final_message" => has_chat_template,
        "tool_choice" | "parallel_tool_calls" => has_chat_template && path != "/api/generate",
        "n" => path.ends_with("completions"),
        "stream_options" => path.ends_with("completions"),
        "top_logprobs" => {
            path.starts_with("/api/") || ["/v1/chat/completions", "/v1/responses"].contains(&path)
        }
        "store" => path == "/v1/responses",
        "truncate" => path == "/api/chat",
        "keep_alive" => path.starts_with("/api/"),
        _ => false,
    }
}

/// Checks that an endpoint answers, and that it names these fields, in any order.
fn check_ignored(live: &Live, path: &str, body: &Value, expect: &str) {
    let answer = live.post(path, body);
    assert_eq!(answer.status, 200, "{path}: {body}: {}", answer.text());
    // Their order is that of the body's fields, which depends on the build of the test.
    let sorted = |names: &str| {
        let mut names: Vec<String> = names.split(", ").map(str::to_owned).collect();
        names.sort_unstable();
        names
    };
    let ignored = answer.header("x-narthex-ignored").unwrap_or_default();
    assert_eq!(sorted(ignored), sorted(expect), "{path}: {body}");
}

#[test]
fn a_thread_is_refused_with_the_code_that_anthropic_s_client_looks_for() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let body = json!({
        "model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "a"}], "thread": {"type": "create"},
    });
    let answer = live.post("/v1/messages", &body);
    let error = &answer.json()["error"];
    assert_eq!((answer.status, &error["type"]), (400, &json!("invalid_request_error")));
    assert_eq!(
        error["details"],
        json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]})
    );
}

#[test]
fn every_hint_is_ignored_by_name_in_every_endpoint() {
    let tiny = Tiny::new();
    let (model, embedding) = (tiny.chat(), tiny.embedding());
    let reranker = tiny.encoder("bert", Head::Score);
    let live = Live::start(tiny.config());
    let asks = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    };
    let encoders = [
        Endpoint { path: "/v1/embeddings", body: json!({"model": embedding, "input": "the cat"}) },
        Endpoint { path: "/api/embed", body: json!({"model": embedding, "input": "the cat"}) },
        Endpoint { path: "/api/embeddings", body: json!({"model": embedding, "prompt": "the cat"}) },
        Endpoint { path: "/v1/rerank", body: json!({"model": reranker, "query": "a", "documents": ["b"]}) },
    ];
    for fields in hints() {
        let (name, value) = fields.as_object().unwrap().iter().next().unwrap();
        for Endpoint { path, body } in endpoints(&model, 2) {
            let is_named = asks(value) && !supports(path, name);
            // Ollama's own options of the answer stay.
            let fields = if name == "options" { json!({}) } else { fields.clone() };
            check_ignored(&live, path, &with(body, fields), if is_named { name } else { "" });
        }
        for Endpoint { path, body } in &encoders {
            if asks(value) && SAMPLING.contains(&name.as_str()) {
                continue;
            }
            let has = name == "truncate" && *path != "/api/embeddings"
                || name == "keep_alive" && path.starts_with("/api/");
            let is_named = asks(value) && !has;
            check_ignored(&live, path, &with(body.clone(), fields.clone()), if is_named { name } else { "" });
        }
    }
}

#[test]
fn values_that_would_change_the_answer_are_refused_by_name_in_every_endpoint() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    for fields in [
        json!({"best_of": 3}),
        json!({"mirostat": 2}),
        json!({"priority": 3}),
        json!({"id_slot": 1}),
        json!({"dry_multiplier": 0.8}),
        json!({"xtc_probability": 0.5}),
        json!({"tfs_z": 0.5}),
        json!({"use_beam_search": true}),
        json!({"temprature": 1}),
        json!({"tool_choice": "required"}),
        json!({"presence_penalty": 1, "repeat_last_n": 64}),
    ] {
        let name = fields.as_object().unwrap().keys().next_back().unwrap();
        for Endpoint { path, body } in endpoints(&model, 2) {
            let answer = live.post(path, &with(body, fields.clone()));
            assert!(
                answer.status == 400 && answer.text().contains(name.as_str()),
                "{path}: {fields}: {}",
                answer.text()
            );
        }
    }
    let two = json!({"n": 2});
    for Endpoint { path, body } in endpoints(&model, 2) {
        let status = if path.ends_with("completions") { 200 } else { 400 };
        assert_eq!(live.post(path, &with(body, two.clone())).status, status, "{path}");
    }
}

/// Returns a request with parameters of the text; Ollama has them in `options`.
fn with_options(Endpoint { path, body }: Endpoint, fields: &Value) -> Endpoint {
    let mut body = body;
    let place = if path.starts_with("/api/") { &mut body["options"] } else { &mut body };
    *place = with(place.take(), fields.clone());
    if path.starts_with("/api/") {
        body["stream"] = json!(false);
    }
    Endpoint { path, body }
}

#[test]
fn extensions_have_the_same_effect_in_every_conversation() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let texts = |fields: &Value| {
        let all = endpoints(&model, 12).into_iter().filter(|one| one.path != "/v1/completions");
        let answers = all.map(|endpoint| {
            let Endpoint { path, body } = with_options(endpoint, fields);
            let answer = live.post(path, &body);
            assert_eq!(answer.status, 200, "{path}: {body}: {}", answer.text());
            assert_eq!(answer.header("x-narthex-ignored"), None, "{path}: {body}");
            text(&answer.json())
        });
        let answers: Vec<String> = answers.collect();
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{fields}: {answers:?}");
        answers[0].clone()
    };
    let greedy = texts(&json!({}));
    let random = json!({"temperature": 2, "seed": 7});
    let sampled = texts(&random);
    let check = |base: &Value, fields: Value, expect: Option<&str>| {
        let (before, after) = (texts(base), texts(&with(base.clone(), fields.clone())));
        assert_ne!(before, after, "{fields}");
        assert!(expect.is_none_or(|expect| expect == after), "{fields}: {after}");
    };
    assert_ne!(greedy, sampled);
    check(&random, json!({"seed": 8}), None);
    check(&random, json!({"top_k": 1}), Some(&greedy));
    check(&random, json!({"min_p": 1}), Some(&greedy));
    check(&random, json!({"typical_p": 0.001}), None);
    check(&json!({}), json!({"repeat_penalty": 50}), None);
    check(&json!({}), json!({"presence_penalty": 2, "frequency_penalty": 2}), None);
    check(&json!({}), json!({"stop": greedy.chars().nth(2).unwrap().to_string()}), None);
    // The bias makes this token the best one at every position: one that ends the answer, and one that does not.
    let (end, start) = (json!({"logit_bias": {"2": 100}}), json!({"logit_bias": {"1": 100}}));
    check(&end, json!({"min_tokens": 3}), None);
    check(&end, json!({"ignore_eos": true}), None);
    check(&start, json!({"skip_special_tokens": false}), Some(&"<|im_start|>".repeat(12)));
}

#[test]
fn the_start_of_the_answer_can_be_left_out_of_the_prompt() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let conversation = json!({"model": model, "messages": messages()});
    let left = json!({"add_generation_prompt": false});
    let count = |path: &str, fields: &Value, count: &str| {
        let endpoint = endpoints(&model, 2).into_iter().find(|one| one.path == path).unwrap();
        let stream = json!({"stream": false});
        let answer = live.post(path, &with(with(endpoint.body, fields.clone()), stream));
        assert_eq!(answer.header("x-narthex-ignored"), None, "{path}");
        let answer = answer.json();
        // Anthropic's number of input tokens has no tokens of the prefix cache.
        let cached = answer["usage"]["cache_read_input_tokens"].as_u64().unwrap_or(0);
        answer.pointer(count).and_then(Value::as_u64).unwrap() + cached
    };
    let prompt = |fields: &Value| {
        let answer = live.post("/apply-template", &with(conversation.clone(), fields.clone())).json();
        answer["prompt"].as_str().unwrap().to_owned()
    };
    let (whole, short) = (prompt(&json!({})), prompt(&left));
    assert_eq!(whole.strip_prefix(short.as_str()), Some("<|im_start|>assistant\n"));
    let tokens = live.post("/tokenize", &json!({"model": model, "content": short})).json()["count"].clone();
    for (path, usage) in [
        ("/v1/chat/completions", "/usage/prompt_tokens"),
        ("/v1/responses", "/usage/input_tokens"),
        ("/v1/messages", "/usage/input_tokens"),
        ("/api/chat", "/prompt_eval_count"),
        ("/api/generate", "/prompt_eval_count"),
    ] {
        assert_eq!(json!(count(path, &left, usage)), tokens, "{path}");
        assert!(json!(count(path, &json!({}), usage)) != tokens, "{path}");
    }
}

#[test]
fn a_rendered_prompt_is_that_of_an_answer() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let template = live.post("/apply-template", &json!({"model": model, "messages": messages()})).json();
    let body =
        json!({"model": model, "messages": messages(), "max_tokens": 2, "thinking": {"type": "enabled"}});
    let answer = live.post("/v1/chat/completions", &body);
    let rendered = live.post("/v1/chat/completions/render", &body);
    assert_eq!(rendered.header("x-narthex-ignored"), answer.header("x-narthex-ignored"));
    let rendered = rendered.json();
    assert_eq!((&rendered["model"], &rendered["prompt"]), (&json!(model), &template["prompt"]));
    assert!(rendered["request_id"].as_str().unwrap().starts_with("chatcmpl-"), "{rendered}");
    let count = |rendered: &Value| json!(rendered["token_ids"].as_array().unwrap().len());
    assert_eq!(count(&rendered), answer.json()["usage"]["prompt_tokens"]);

    let body = json!({"model": model, "prompt": "the cat", "max_tokens": 2});
    let rendered = live.post("/v1/completions/render", &body).json();
    assert_eq!((rendered.as_array().unwrap().len(), &rendered[0]["prompt"]), (1, &json!("the cat")));
    let usage = live.post("/v1/completions", &body).json()["usage"]["prompt_tokens"].clone();
    assert_eq!(count(&rendered[0]), usage);
    let tokens = with(body, json!({"prompt": [[1, 2], [3]]}));
    let rendered = live.post("/v1/completions/render", &tokens).json();
    let expect = json!([[1, 2], [3]]);
    assert_eq!(json!([rendered[0]["token_ids"], rendered[1]["token_ids"]]), expect);
    assert!(rendered[0]["prompt"].is_null(), "{rendered}");

    // Requests that would get no answer get no prompt either, with the same error.
    let long = "the cat ".repeat(5000);
    let user = |text: &str| json!([{"role": "user", "content": text}]);
    for (path, fields) in [
        ("/v1/chat/completions", json!({"messages": []})),
        ("/v1/chat/completions", json!({"messages": user(&long)})),
        ("/v1/chat/completions", json!({"messages": user("x"), "temperature": 9})),
        ("/v1/chat/completions", json!({"messages": user("x"), "n": 129})),
        ("/v1/completions", json!({"prompt": long})),
        ("/v1/completions", json!({"prompt": [9_999_999]})),
        ("/v1/completions", json!({"prompt": []})),
        ("/v1/completions", json!({"prompt": "x", "response_format": {"type": "no"}})),
    ] {
        let body = with(json!({"model": model}), fields);
        let refused = live.post(path, &body).error(400);
        assert_eq!(live.post(&format!("{path}/render"), &body).error(400), refused, "{path}: {body}");
    }
}

#[test]
fn an_answer_continues_the_text_of_the_assistant() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let both = json!([messages()[0], {"role": "assistant", "content": "the dog"}]);
    let continued = json!({"model": model, "messages": both, "continue_final_message": true});
    let prompt = live.post("/apply-template", &continued).json()["prompt"].clone();
    assert!(prompt.as_str().unwrap().ends_with("<|im_start|>assistant\nthe dog"), "{prompt}");
    let tokens = live.post("/tokenize", &json!({"model": model, "content": prompt})).json()["count"].clone();
    let body = json!({"model": model, "messages": both, "max_tokens": 2, "stream": false});
    for (path, fields, usage) in [
        ("/v1/chat/completions", json!({"continue_final_message": true}), "/usage/prompt_tokens"),
        ("/v1/messages", json!({}), "/usage/input_tokens"),
        ("/api/chat", json!({}), "/prompt_eval_count"),
    ] {
        let count = |fields: Value| {
            let answer = live.post(path, &with(body.clone(), fields)).json();
            // Anthropic's number of input tokens has no tokens of the prefix cache.
            let cached = answer["usage"]["cache_read_input_tokens"].as_u64().unwrap_or(0);
            json!(answer.pointer(usage).and_then(Value::as_u64).unwrap() + cached)
        };
        assert_eq!(count(fields), tokens, "{path}");
        assert_ne!(count(json!({"continue_final_message": false})), tokens, "{path}");
    }
    let question = json!({"messages": messages(), "continue_final_message": true});
    let refused = live.post("/v1/chat/completions", &with(body, question));
    assert_eq!(refused.error(400)["param"], "continue_final_message");
}

#[test]
fn agents_of_every_protocol_send_their_hints() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let [_, completion, response, message, ollama, generate]: [Endpoint; 6] =
        endpoints(&model, 2).try_into().ok().unwrap();
    let codex = json!({
        "reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k", "text": {"verbosity": "low"}, "tools": [{"type": "web_search"}], "store": false,
        "max_tool_calls": 3,
    });
    let expect = "max_tool_calls, prompt_cache_key, web_search, text.verbosity, include, reasoning.effort, reasoning.summary";
    check_ignored(&live, response.path, &with(response.body, codex), expect);
    let claude = json!({
        "metadata": {"user_id": "u"}, "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"effort": "medium"}, "context_management": {"edits": []},
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
    });
    let expect = "context_management, metadata, web_search, thinking, output_config.effort";
    check_ignored(&live, message.path, &with(message.body, claude), expect);
    let fields = json!({"keep_alive": -1, "options": {"num_ctx": 512, "num_predict": 2}, "think": true});
    check_ignored(&live, ollama.path, &with(ollama.body, fields.clone()), "num_ctx, think");
    check_ignored(&live, generate.path, &with(generate.body.clone(), fields), "num_ctx, think");
    // A continuation has no chat template.
    let raw = json!({
        "raw": true, "stream": false, "think": true, "reasoning_effort": "low", "add_generation_prompt": true,
        "chat_template_kwargs": {"a": 1},
    });
    let expect = "think, reasoning_effort, chat_template_kwargs, add_generation_prompt";
    check_ignored(&live, generate.path, &with(generate.body, raw), expect);
    let llama = json!({"cache_prompt": true, "user": "u", "mirostat": 0, "best_of": 3, "n": 3, "suffix": ""});
    check_ignored(
        &live,
        completion.path,
        &with(completion.body, llama),
        "cache_prompt, mirostat, user, best_of",
    );
}

#[test]
fn strict_servers_refuse_hints_that_do_not_describe_the_caller() {
    let tiny = Tiny::new();
    let (model, thinking) = (tiny.chat(), tiny.thinking_chat());
    let requests = RequestOptions { strict_parameters: true, ..RequestOptions::default() };
    let live = Live::with_options(tiny.config(), ServeOptions { requests, ..local() });
    let refused = |Endpoint { path, body }: Endpoint, fields: Value| {
        let name = fields.as_object().unwrap().keys().next().unwrap();
        let answer = live.post(path, &with(body, fields.clone()));
        assert!(answer.status == 400 && answer.text().contains(name.as_str()), "{path}: {}", answer.text());
    };
    let reasoning = [json!({"reasoning_effort": "low"}), json!({"enable_thinking": true})];
    for fields in
        [reasoning.as_slice(), &[json!({"cache_prompt": true}), json!({"mirostat_tau": 5.0})]].concat()
    {
        endpoints(&model, 2).into_iter().for_each(|endpoint| refused(endpoint, fields.clone()));
    }
    for Endpoint { path, body } in endpoints(&model, 2) {
        assert_eq!(live.post(path, &with(body, json!({"user": "u", "top_k": -1}))).status, 200, "{path}");
    }
    for Endpoint { path, body } in
        endpoints(&thinking, 2).into_iter().filter(|one| one.path != "/v1/completions")
    {
        for fields in &reasoning {
            assert_eq!(live.post(path, &with(body.clone(), fields.clone())).status, 200, "{path}: {fields}");
        }
    }
    let [_, _, response, message, ollama, _]: [Endpoint; 6] = endpoints(&model, 2).try_into().ok().unwrap();
    refused(response, json!({"reasoning": {"effort": "low"}}));
    refused(message, json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}));
    refused(ollama, json!({"think": true}));
}

/// Returns bodies with a picture in an earlier turn, each with its path.
fn with_pictures(model: &str, picture: &str) -> Vec<Endpoint> {
    let url = format!("data:image/png;base64,{picture}");
    let turns = |seen: Value| json!([{"role": "user", "content": seen}, {"role": "assistant", "content": "A cat."}, {"role": "user", "content": "Sure?"}]);
    let chat = turns(json!([{"type": "image_url", "image_url": {"url": url}}]));
    let responses = turns(json!([{"type": "input_image", "image_url": url}]));
    let source = json!({"type": "base64", "media_type": "image/png", "data": picture});
    let anthropic = turns(json!([{"type": "image", "source": source}]));
    let mut ollama = turns(json!("What is it?"));
    ollama[0]["images"] = json!([picture]);
    vec![
        Endpoint { path: "/v1/chat/completions", body: json!({"model": model, "messages": chat}) },
        Endpoint { path: "/v1/responses", body: json!({"model": model, "input": responses}) },
        Endpoint { path: "/v1/messages", body: json!({"model": model, "messages": anthropic}) },
        Endpoint { path: "/v1/messages/count_tokens", body: json!({"model": model, "messages": anthropic}) },
        Endpoint { path: "/api/chat", body: json!({"model": model, "messages": ollama}) },
        Endpoint { path: "/api/generate", body: json!({"model": model, "prompt": "a", "images": [picture]}) },
    ]
}

/// Returns the message of an error in any protocol.
fn error_message(body: &Value) -> &str {
    body["error"].as_str().or(body["error"]["message"].as_str()).unwrap()
}

#[test]
fn a_model_that_does_not_see_refuses_pictures_by_name_in_every_protocol() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    for Endpoint { path, body } in with_pictures(&model, "iVBORw==") {
        let answer = live.post(path, &body);
        let error = answer.json();
        let message = error_message(&error);
        assert_eq!(answer.status, 400, "{path}: {error}");
        let expect = format!(
            "{model} does not read images, but the conversation has some (these models of the catalogue do: gemma3:"
        );
        assert!(message.starts_with(&expect), "{path}: {message}");
        match path {
            "/v1/chat/completions" => assert_eq!(error["error"]["param"], "messages"),
            "/v1/responses" => assert_eq!(error["error"]["param"], "input"),
            "/v1/messages" => assert_eq!(error["error"]["type"], "invalid_request_error"),
            _ => {}
        }
    }
    let sound = json!([{"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}]);
    let body = json!({"model": model, "messages": [{"role": "user", "content": sound}]});
    let error = live.post("/v1/chat/completions", &body).error(400);
    assert!(error["message"].as_str().unwrap().contains("/v1/audio/transcriptions"), "{error}");
}

#[test]
fn a_broken_picture_is_named_in_every_protocol() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let places = [
        "messages[0].content[0].image_url.url",
        "input[0].content[0].image_url",
        "messages[0].content[0].source.data",
        "messages[0].content[0].source.data",
        "messages[0].images[0]",
        "images[0]",
    ];
    for (Endpoint { path, body }, place) in with_pictures(&model, "iVB?").into_iter().zip(places) {
        let answer = live.post(path, &body);
        let error = answer.json();
        let expect = format!("{place}: expected base64, found '?' after 3 characters");
        assert_eq!((answer.status, error_message(&error)), (400, expect.as_str()), "{path}");
    }
}

#[test]
fn an_overlong_prompt_is_refused_in_the_words_of_its_protocol() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let messages = json!([{"role": "user", "content": "the cat and the dog ".repeat(400)}]);
    let body = json!({"model": model, "messages": messages, "max_tokens": 8});
    let message = |path: &str| {
        let answer = live.post(path, &body);
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        answer.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    let of_openai = message("/v1/chat/completions");
    assert!(of_openai.starts_with("This model's maximum context length is "), "{of_openai}");
    let of_anthropic = message("/v1/messages");
    assert!(of_anthropic.starts_with("prompt is too long: "), "{of_anthropic}");
    assert!(of_anthropic.contains(" maximum. This model's maximum context length is "), "{of_anthropic}");
    // A streamed response reports it as an event, as OpenAI's servers do.
    let body = json!({"model": model, "input": messages, "stream": true});
    let text = live.post("/v1/responses", &body).text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|event| serde_json::from_str(event).unwrap()).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["response.created", "response.in_progress", "response.failed"]);
    let error = &events[2]["response"]["error"];
    assert_eq!(error["code"], "context_length_exceeded");
    assert!(
        error["message"].as_str().unwrap().starts_with("This model's maximum context length is "),
        "{error}"
    );
    // A whole response names the field of its own protocol.
    let answer = live.post("/v1/responses", &json!({"model": model, "input": messages}));
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("input")));
    let answer = live.post("/v1/chat/completions", &json!({"model": model, "messages": messages}));
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("messages")));
}

#[test]
fn the_oldest_turns_of_an_overlong_conversation_are_omitted_on_request() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let old = "the cat and the dog ".repeat(40);
    let (system, last) = (message("system", "be brief"), message("user", "the dog"));
    let long = json!([system, message("user", &old), message("assistant", "and"), last]);
    let chat = |messages: &Value| {
        let options = json!({"num_predict": 8, "temperature": 0});
        json!({"model": model, "messages": messages, "options": options, "stream": false})
    };
    let answer = live.post("/api/chat", &chat(&long));
    assert_eq!(answer.header("x-narthex-omitted-messages"), Some("2"), "{}", answer.text());
    let newest = live.post("/api/chat", &chat(&json!([system, last])));
    assert_eq!(newest.header("x-narthex-omitted-messages"), None);
    let counted = |answer: &Answer| {
        let json = answer.json();
        (json["prompt_eval_count"].clone(), json["message"]["content"].clone())
    };
    assert_eq!(counted(&answer), counted(&newest));
    let refused = live.post("/api/chat", &with(chat(&long), json!({"truncate": false})));
    assert_eq!(refused.status, 400);

    let response = json!({"model": model, "input": long, "max_output_tokens": 8, "temperature": 0});
    live.post("/v1/responses", &response).error(400);
    let answer = live.post("/v1/responses", &with(response.clone(), json!({"truncation": "auto"})));
    assert_eq!(answer.header("x-narthex-omitted-messages"), Some("2"));
    assert_eq!(answer.json()["truncation"], "auto");
    live.post("/v1/responses", &with(response, json!({"truncation": "sometimes"}))).error(400);
    // The last turn alone is too long.
    let endless = live.post("/api/chat", &chat(&json!([last, message("user", &old.repeat(3))])));
    assert_eq!(endless.status, 400);
}

/// Returns a conversation with reasoning, a text and two parallel calls, in the form of chats and of responses.
fn conversation_with_calls() -> [Value; 2] {
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
    let chat = json!([
        {"role": "user", "content": "the cat"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Two.", "tool_calls": [call("a"), call("b")]},
        {"role": "tool", "tool_call_id": "a", "content": "the dog"},
        {"role": "tool", "tool_call_id": "b", "content": "the cat"},
        {"role": "user", "content": "and"},
    ]);
    let call =
        |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{\"a\": 1}"});
    let result =
        |id: &str, text: &str| json!({"type": "function_call_output", "call_id": id, "output": text});
    let reasoning =
        json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Two."}]});
    let responses = json!([
        {"role": "user", "content": "the cat"},
        reasoning,
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        call("a"),
        call("b"),
        result("a", "the dog"),
        result("b", "the cat"),
        {"role": "user", "content": "and"},
    ]);
    [chat, responses]
}

#[test]
fn a_conversation_has_the_same_prompt_as_chat_and_as_response() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::start(tiny.config());
    let [chat, responses] = conversation_with_calls();
    let post = |path: &str, body: Value| {
        let answer = live.post(path, &body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    };
    let chat = post("/v1/chat/completions", json!({"model": model, "messages": chat, "max_tokens": 1}));
    let response = post("/v1/responses", json!({"model": model, "input": responses, "max_output_tokens": 1}));
    assert_eq!(chat["usage"]["prompt_tokens"], response["usage"]["input_tokens"]);
}

#[test]
fn items_of_stored_responses_can_be_referenced() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let ask = |input: Value| {
        let body = json!({"model": model, "input": input, "max_output_tokens": 6, "temperature": 0});
        live.post("/v1/responses", &body)
    };
    let first = ask(json!("the cat")).json();
    let item = &first["output"][0];
    let turn = |item: Value| json!([{"role": "user", "content": "the cat"}, item, {"role": "user", "content": "and"}]);
    let reference = turn(json!({"type": "item_reference", "id": item["id"]}));
    let (referenced, sent) = (ask(reference).json(), ask(turn(item.clone())).json());
    assert_eq!(referenced["usage"]["input_tokens"], sent["usage"]["input_tokens"], "{referenced}");
    let unknown = ask(turn(json!({"type": "item_reference", "id": "msg_0"}))).error(400);
    assert_eq!(unknown["param"], "input[1].id");
    // The same conversation is counted as it is answered.
    let counted = json!({"model": model, "input": "and", "previous_response_id": first["id"]});
    let tokens = live.post("/v1/responses/input_tokens", &counted).json();
    let answered = live.post("/v1/responses", &with(counted, json!({"max_output_tokens": 1}))).json();
    assert_eq!(tokens["object"], "response.input_tokens");
    assert_eq!(tokens["input_tokens"], answered["usage"]["input_tokens"]);
}

#[test]
fn the_stop_sequence_of_a_message_is_named() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let body = json!({"model": model, "messages": messages(), "max_tokens": 12, "temperature": 0});
    let whole = live.post("/v1/messages", &body).json();
    let text = whole["content"][0]["text"].as_str().unwrap();
    assert_eq!(whole["stop_sequence"], Value::Null);
    let stop: String = text.chars().skip(3).take(2).collect();
    let body = with(body, json!({"stop_sequences": ["never", stop]}));
    let check = |end: &Value| {
        assert_eq!((&end["stop_reason"], &end["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
    };
    check(&live.post("/v1/messages", &body).json());
    let parts = parts(&live.post("/v1/messages", &with(body, json!({"stream": true}))).text());
    check(&parts.iter().find(|part| part["type"] == "message_delta").unwrap()["delta"]);
}

#[test]
fn a_client_that_leaves_a_stream_of_any_protocol_frees_its_slot() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::start(Config { slots: 1, max_queue: 4, speculation: Speculation::Off, ..tiny.config() });
    let mut generated = 0;
    for Endpoint { path, body } in endpoints(&model, LONG_CONTEXT) {
        let mut stream = live.stream(path, &with(body, json!({"stream": true})));
        let first = stream.line().unwrap().unwrap();
        assert!(first.contains(" 200 "), "{path}: {first}");
        eventually("the start", || live.engine(&model)["running"] == 1);
        drop(stream);
        eventually("a free slot", || live.engine(&model)["running"] == 0);
        let so_far = live.engine(&model)["generated_tokens"].as_u64().unwrap();
        assert!(so_far - generated < (LONG_CONTEXT / 2) as u64, "{path}: {so_far}");
        generated = so_far;
    }
}

#[test]
fn the_text_of_a_malformed_call_is_delivered_with_a_reason() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::start(tiny.config());
    let x = live.post("/tokenize", &json!({"model": model, "content": "x"})).json()["tokens"][0].to_string();
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    // The grammar allows a call or this text, and the bias prefers the text.
    let body = json!({
        "model": model, "messages": messages(), "max_tokens": 60, "temperature": 0, "tools": [tool],
        "regex": "<tool_call>x", "logit_bias": {x: 100},
    });
    let choice = live.post("/v1/chat/completions", &body).json()["choices"][0].clone();
    assert_eq!(choice["message"]["content"], "<tool_call>x", "{choice}");
    assert_eq!(
        (&choice["finish_reason"], &choice["stop_reason"]),
        (&json!("stop"), &json!("malformed_tool_call"))
    );
    let parts = parts(&live.post("/v1/chat/completions", &with(body, json!({"stream": true}))).text());
    assert_eq!(parts.iter().map(text).collect::<String>(), "<tool_call>x");
    let last = parts.iter().find(|part| part["choices"][0]["finish_reason"].is_string()).unwrap();
    assert_eq!(last["choices"][0]["stop_reason"], "malformed_tool_call", "{last}");
}
