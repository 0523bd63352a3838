//! What every protocol shares: hints are ignored by name, answers carry timings, greedy texts are equal, and a client
//! that leaves a stream frees its slot.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use narthex_gateway::Config;
use narthex_server::{RequestOptions, ServeOptions};
use narthex_spec::Speculation;
use serde_json::{Value, json};
use support::{Head, LONG_CONTEXT, Live, Tiny, eventually, local, with};

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

#[test]
fn hints_are_ignored_by_name_in_every_protocol() {
    let tiny = Tiny::new();
    let (model, embedding) = (tiny.chat(), tiny.embedding());
    let reranker = tiny.encoder("bert", Head::Score);
    let live = Live::start(tiny.config());
    let check = |path: &str, body: Value, expect: &str| {
        let answer = live.post(path, &body);
        assert_eq!(answer.status, 200, "{path}: {body}: {}", answer.text());
        // Their order is that of the body's fields, which depends on the build of the test.
        let sorted = |names: &str| {
            let mut names: Vec<String> = names.split(", ").map(str::to_owned).collect();
            names.sort_unstable();
            names
        };
        let ignored = answer.header("x-narthex-ignored").unwrap_or_default();
        assert_eq!(sorted(ignored), sorted(expect), "{path}: {body}");
    };
    let [chat, completion, response, message, ollama, generate]: [Endpoint; 6] =
        endpoints(&model, 2).try_into().ok().unwrap();
    // Every value of the list in issue and guide, one by one: neutral values, empty ones, and hints without effect.
    for (fields, expect) in [
        (json!({"tool_choice": "none"}), ""),
        (json!({"tool_choice": "auto", "parallel_tool_calls": true, "tools": []}), ""),
        (json!({"reasoning_effort": "high"}), "reasoning_effort"),
        (json!({"store": true, "verbosity": "low"}), "store, verbosity"),
        (
            json!({"user": "u", "metadata": {"a": "b"}, "service_tier": "auto"}),
            "metadata, service_tier, user",
        ),
        (
            json!({"metadata": {}, "logit_bias": {}, "response_format": {}, "chat_template_kwargs": {}}),
            "metadata",
        ),
        (json!({"best_of": 1, "n": 1}), "best_of"),
        (json!({"presence_penalty": 0, "frequency_penalty": 0, "repeat_penalty": 1.0, "min_p": 0}), ""),
        (json!({"top_k": -1, "top_p": 1, "typical_p": 1, "n_predict": -1}), ""),
        (json!({"mirostat": 0, "mirostat_tau": 5.0}), "mirostat, mirostat_tau"),
        (json!({"priority": 0, "cache_prompt": true, "id_slot": -1}), "cache_prompt, id_slot, priority"),
        (json!({"keep_alive": "5m", "add_generation_prompt": true}), "add_generation_prompt, keep_alive"),
        (json!({"dry_multiplier": 0, "dry_base": 1.75}), "dry_base, dry_multiplier"),
        (
            json!({"repeat_last_n": 64, "typ_p": 1, "samplers": "edskypmxt", "reasoning_format": "auto"}),
            "reasoning_format, repeat_last_n, samplers",
        ),
        (json!({"xtc_probability": 0.0, "xtc_threshold": 0.1}), "xtc_probability, xtc_threshold"),
        (json!({"top_logprobs": 0, "stream_options": {}, "stop": [], "seed": null, "echo": false}), ""),
    ] {
        check(chat.path, with(chat.body.clone(), fields), expect);
    }
    let llama = json!({"cache_prompt": true, "user": "u", "mirostat": 0, "best_of": 1, "suffix": ""});
    check(completion.path, with(completion.body, llama), "cache_prompt, mirostat, user, best_of");
    let codex = json!({
        "reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k", "text": {"verbosity": "low"}, "tools": [{"type": "web_search"}], "store": false,
    });
    let expect = "include, prompt_cache_key, web_search, text.verbosity, reasoning.summary, reasoning.effort";
    check(response.path, with(response.body, codex), expect);
    let claude = json!({
        "metadata": {"user_id": "u"}, "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"effort": "medium"}, "context_management": {"edits": []},
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
    });
    let expect = "context_management, metadata, web_search, thinking, output_config.effort";
    check(message.path, with(message.body, claude), expect);
    let fields = json!({"keep_alive": -1, "options": {"num_ctx": 512, "num_predict": 2}, "think": true});
    check(ollama.path, with(ollama.body, fields.clone()), "keep_alive, num_ctx, think");
    check(generate.path, with(generate.body, fields), "keep_alive, num_ctx, think");
    let embed = json!({"model": embedding, "input": "the cat", "user": "u"});
    check("/v1/embeddings", embed, "user");
    let embed =
        json!({"model": embedding, "input": "the cat", "keep_alive": "5m", "options": {"num_ctx": 64}});
    check("/api/embed", embed, "keep_alive, options");
    let rank = json!({"model": reranker, "query": "a", "documents": ["b"], "user": "u"});
    check("/v1/rerank", rank, "user");
}

#[test]
fn strict_servers_refuse_hints_that_do_not_describe_the_caller() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let requests = RequestOptions { strict_parameters: true, ..RequestOptions::default() };
    let live = Live::with_options(tiny.config(), ServeOptions { requests, ..local() });
    let [chat, completion, response, message, ollama, ..]: [Endpoint; 6] =
        endpoints(&model, 2).try_into().ok().unwrap();
    for (Endpoint { path, body }, fields) in [
        (chat, json!({"cache_prompt": true})),
        (completion, json!({"cache_prompt": true})),
        (response, json!({"include": ["x"]})),
        (message, json!({"context_management": {"edits": []}})),
        (ollama, json!({"keep_alive": 1})),
    ] {
        assert_eq!(live.post(path, &with(body, fields)).status, 400, "{path}");
    }
    let caller = with(json!({"model": model, "prompt": "the", "max_tokens": 1}), json!({"user": "u"}));
    assert_eq!(live.post("/v1/completions", &caller).status, 200);
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
