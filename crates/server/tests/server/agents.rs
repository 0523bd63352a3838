//! Structured output and tools over HTTP with a model of random weights, because the guarantees do not depend on the
//! model.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use narthex_gateway::{Config, Gateway};
use narthex_server::{RequestOptions, ServeOptions};
use narthex_spec::Speculation;
use serde_json::{Value, json};

use crate::support::{Live, Tiny, chat, local, with};

/// Returns the chunks of a streamed answer.
fn chunks(live: &Live, request: Value) -> Vec<Value> {
    let answer = live.post("/v1/chat/completions", &with(request, json!({"stream": true})));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn whole(live: &Live, request: &Value) -> Value {
    let answer = live.post("/v1/chat/completions", request);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["choices"][0].clone()
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "a": {"type": "integer", "minimum": 3, "maximum": 9},
            "b": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 2, "maxItems": 3},
        },
        "required": ["a", "b"],
        "additionalProperties": false,
    })
}

fn check_schema(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap();
    assert!((3..=9).contains(&value["a"].as_i64().unwrap()), "{text}");
    let items = value["b"].as_array().unwrap();
    assert!((2..=3).contains(&items.len()) && items.iter().all(|item| item == "x" || item == "y"), "{text}");
}

#[test]
fn answers_follow_their_schema_whole_and_streamed() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema(), "strict": true}});
    for temperature in [0, 1] {
        let fields = json!({"response_format": format, "temperature": temperature, "seed": 7});
        let request = with(chat(&model, 200), fields);
        let choice = whole(&live, &request);
        check_schema(choice["message"]["content"].as_str().unwrap());
        assert_eq!(choice["finish_reason"], "stop");
        let chunks = chunks(&live, request);
        let text: String =
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(text, choice["message"]["content"]);
    }
    let regex = with(chat(&model, 50), json!({"regex": "(yes|no)!"}));
    let text = whole(&live, &regex)["message"]["content"].clone();
    assert!(text == "yes!" || text == "no!", "{text}");
    let lark = with(chat(&model, 50), json!({"grammar": "start: \"a\" \"b\" \"c\""}));
    assert_eq!(whole(&live, &lark)["message"]["content"], "abc");
    let unused = with(regex, json!({"tools": tools(), "tool_choice": "none"}));
    assert_eq!(whole(&live, &unused)["message"]["content"], text);
    let cut = with(chat(&model, 2), json!({"response_format": format}));
    assert_eq!(whole(&live, &cut)["finish_reason"], "length");
}

#[test]
fn schemas_that_cannot_be_enforced_are_refused() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let check = |fields: Value, param: &str, text: &str| {
        let answer = live.post("/v1/chat/completions", &with(chat(&model, 9), fields));
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, error["param"].as_str()), (400, Some(param)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(text), "{error}");
    };
    let format = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}});
    check(format(json!({"type": "array", "uniqueItems": true})), "response_format", "uniqueItems");
    check(json!({"grammar": "start: other"}), "grammar", "other");
    let pattern = json!({"type": "string", "pattern": "(?<=a)b"});
    let refused = r#"the schema's "pattern": "(?<=a)b" cannot be enforced: look-around"#;
    check(format(pattern.clone()), "response_format", refused);
    check(json!({"regex": "(?<=a)b"}), "regex", r#"the regular expression "(?<=a)b" cannot be enforced"#);
    let overlap = json!({"oneOf": [{"type": "integer"}, {"type": "number"}]});
    check(format(overlap), "response_format", r#"the schema's "oneOf" cannot be enforced"#);
    // The error of a tool names it, and the error of a schema beside tools names the schema's field.
    let wrong = json!({"type": "object", "properties": {"a": pattern}, "required": ["a"]});
    let wrong =
        json!({"type": "function", "function": {"name": "wrong", "parameters": wrong, "strict": true}});
    check(
        json!({"tools": [tools()[0], wrong]}),
        "tools[1].function.parameters",
        &format!("tool wrong: {refused}"),
    );
    check(with(format(pattern), json!({"tools": tools()})), "response_format", refused);
    // A grammar of the text might allow calls that are not valid.
    let mut lenient = tools();
    lenient[0]["function"]["strict"] = json!(false);
    for (fields, param) in
        [(json!({"regex": "yes|no"}), "regex"), (json!({"grammar": "start: \"yes\""}), "grammar")]
    {
        check(with(fields.clone(), json!({"tools": tools()})), param, "tools that have strict: true");
        let required = json!({"tools": lenient, "tool_choice": "required"});
        check(with(fields.clone(), required), param, "tool_choice that requires a call");
        let named = json!({"type": "function", "function": {"name": "set"}});
        check(with(fields, json!({"tools": lenient, "tool_choice": named})), param, "tools");
    }
    check(
        json!({"regex": "a", "grammar": "start: \"a\""}),
        "regex",
        "regex: expected one grammar, found also grammar",
    );
    check(json!({"tool_choice": "required"}), "tool_choice", "at least one tool");
    check(json!({"best_of": 3}), "best_of", "not supported");
}

#[test]
fn the_error_of_a_schema_names_the_field_of_its_protocol() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "string", "minLength": 1_000_000_000_000u64}}});
    let refused = r#"the schema's "minLength": 1000000000000 cannot be enforced: no answer is so long"#;
    let check = |path: &str, fields: Value, param: &str| {
        let body = with(json!({"model": model, "max_tokens": 9, "stream": false}), fields);
        let answer = live.post(path, &body).json();
        let error = if answer["error"].is_string() { &answer } else { &answer["error"] };
        let message = error["message"].as_str().or(error["error"].as_str()).unwrap_or_default();
        assert!(message.contains(refused) && message.contains(param), "{path}: {answer}");
        if let Some(found) = error["param"].as_str() {
            assert_eq!(found, param, "{path}: {answer}");
        }
    };

    let messages = json!([{"role": "user", "content": "the cat"}]);
    let format = json!({"type": "json_schema", "name": "n", "schema": schema});
    let function = json!({"name": "f", "parameters": schema, "strict": true});
    let other = json!({"type": "web_search"});
    let of_chat = |fields: Value| with(json!({"messages": messages}), fields);
    let of_input = |fields: Value| with(json!({"input": "the cat"}), fields);
    let chat = "/v1/chat/completions";
    check(
        chat,
        of_chat(json!({"response_format": {"type": "json_schema", "json_schema": format}})),
        "response_format",
    );
    let tools = json!({"tools": [other, {"type": "function", "function": function}]});
    check(chat, of_chat(tools.clone()), "tools[1].function.parameters");
    check("/v1/responses", of_input(json!({"text": {"format": format}})), "text.format");
    let flat = with(json!({"type": "function"}), function.clone());
    check("/v1/responses", of_input(json!({"tools": [other, flat]})), "tools[1].parameters");
    let space = json!({"type": "namespace", "name": "s", "tools": [flat]});
    check("/v1/responses", of_input(json!({"tools": [space]})), "tools[0].tools[0].parameters");
    let messages_path = "/v1/messages";
    check(messages_path, of_chat(json!({"output_config": {"format": format}})), "output_config.format");
    check(messages_path, of_chat(json!({"output_format": format})), "output_format");
    let tool = json!({"name": "f", "input_schema": schema, "strict": true});
    check(messages_path, of_chat(json!({"tools": [tool]})), "tools[0].input_schema");
    check("/api/chat", of_chat(json!({"format": schema})), "format");
    check("/api/chat", of_chat(tools), "tools[1].function.parameters");
    check("/api/generate", json!({"prompt": "the cat", "format": schema}), "format");
    check(
        "/v1/completions",
        json!({"prompt": "the cat", "response_format": {"type": "json_schema", "json_schema": format}}),
        "response_format",
    );
}

#[test]
fn numbers_of_a_schema_never_end_the_server() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::start(tiny.config());
    let object = |schema: &Value| json!({"type": "object", "properties": {"a": schema}, "required": ["a"]});
    let tool = |schema: &Value, strict: bool| json!([{"type": "function", "function": {"name": "f", "parameters": object(schema), "strict": strict}}]);
    // A request at each place of the API that takes a schema.
    let doors = |schema: &Value| {
        let of_chat = |fields: Value| ("/v1/chat/completions", with(chat(&model, 200), fields));
        let format =
            |schema: &Value| json!({"type": "json_schema", "name": "n", "schema": schema, "strict": true});
        [
            of_chat(json!({"response_format": {"type": "json_schema", "json_schema": format(schema)}})),
            of_chat(json!({"tools": tool(schema, false), "tool_choice": "required"})),
            of_chat(json!({"tools": tool(schema, true)})),
            of_chat(json!({"grammar": format!("start: %json {schema}")})),
            (
                "/v1/responses",
                json!({
                    "model": model, "input": "the cat", "max_output_tokens": 200, "text": {"format": format(schema)},
                }),
            ),
            (
                "/api/chat",
                json!({
                    "model": model, "messages": [{"role": "user", "content": "the cat"}], "format": schema,
                    "stream": false, "options": {"num_predict": 200},
                }),
            ),
        ]
    };
    let lowest = i64::MIN;
    for schema in [
        json!({"type": "integer", "minimum": lowest, "maximum": lowest}),
        json!({"$ref": "#/$defs/q", "$defs": {"q": {"type": "integer", "minimum": lowest, "maximum": lowest}}}),
        json!({"allOf": [{"type": "integer", "minimum": 1e300}, {"maximum": lowest}]}),
        json!({"enum": [1_234_567_890_123_456_789_i64]}),
    ] {
        for (path, body) in doors(&schema) {
            let answer = live.post(path, &body);
            // A tool that is not strict has no guarantee.
            let is_open = body["tools"][0]["function"]["strict"] == false;
            assert!(
                answer.status == 400 || is_open && answer.status == 200,
                "{path} {body}: {}",
                answer.text()
            );
        }
    }
    for schema in [
        json!({"type": "integer", "minimum": lowest, "maximum": i64::MAX}),
        json!({"type": "number", "exclusiveMinimum": 1}),
    ] {
        for (path, body) in doors(&schema) {
            let answer = live.post(path, &body);
            assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text());
        }
    }
    assert_eq!(live.get("/health").status, 200);
}

#[test]
fn schemas_without_a_guarantee_are_followed_as_far_as_possible() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::start(tiny.config());
    let schema = json!({
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"const": "x"}, "maxItems": 2, "minItems": 2, "uniqueItems": true},
            "b": {"oneOf": [{"const": 4}, {"enum": [4]}]},
        },
        "required": ["a", "b"],
        "propertyNames": {"pattern": "^[a-z]$"},
    });
    let expect = json!({"a": ["x", "x"], "b": 4});
    let format = json!({"type": "json_schema", "name": "n", "schema": schema, "strict": false});
    let of_chat = json!({"response_format": {"type": "json_schema", "json_schema": format}});
    let choice = whole(&live, &with(chat(&model, 100), of_chat.clone()));
    let found: Value = serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
    assert_eq!(found, expect);

    let body =
        json!({"model": model, "input": "the cat", "max_output_tokens": 100, "text": {"format": format}});
    let answer = live.post("/v1/responses", &body).json();
    let text = answer["output"][0]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), expect);

    let tools =
        json!([{"type": "function", "function": {"name": "f", "parameters": schema, "strict": false}}]);
    let choice = whole(&live, &with(chat(&model, 200), json!({"tools": tools, "tool_choice": "required"})));
    let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), expect);
}

#[test]
fn references_are_followed_with_their_escapes() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let schema = json!({
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/Box%3Cstring%3E"}, "b": {"$ref": "#/definitions/x~1y"}},
        "required": ["a", "b"],
        "definitions": {"Box<string>": {"enum": ["k"]}, "x/y": {"type": "integer", "minimum": 4, "maximum": 4}},
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let choice = whole(&live, &with(chat(&model, 60), json!({"response_format": format})));
    let found: Value = serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
    assert_eq!(found, json!({"a": "k", "b": 4}));
}

fn tools() -> Value {
    json!([{"type": "function", "function": {
        "name": "set",
        "description": "Sets values.",
        "parameters": schema(),
        "strict": true,
    }}])
}

#[test]
fn required_calls_are_made_whole_and_streamed() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::start(tiny.config());
    for choice in [json!("required"), json!({"type": "function", "function": {"name": "set"}})] {
        // Calls may have the stop strings.
        let fields = json!({
            "tools": tools(), "tool_choice": choice, "parallel_tool_calls": false, "temperature": 1, "seed": 3,
            "stop": ["\n", "{", "<tool_call>", "set"],
        });
        let request = with(chat(&model, 300), fields);
        let answer = whole(&live, &request);
        assert_eq!(
            (&answer["finish_reason"], &answer["message"]["content"]),
            (&json!("tool_calls"), &Value::Null)
        );
        let call = &answer["message"]["tool_calls"][0];
        assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("set")));
        let arguments = call["function"]["arguments"].as_str().unwrap();
        check_schema(arguments);

        let deltas: Vec<Value> = chunks(&live, request)
            .iter()
            .map(|chunk| chunk["choices"][0]["delta"]["tool_calls"][0].clone())
            .filter(|delta| !delta.is_null())
            .collect();
        assert!(deltas.len() > 2, "a call streams before it is complete: {deltas:?}");
        assert_eq!((&deltas[0]["function"]["name"], &deltas[0]["index"]), (&json!("set"), &json!(0)));
        assert!(deltas[0]["id"].is_string() && deltas[1]["id"].is_null());
        let streamed: String =
            deltas.iter().filter_map(|delta| delta["function"]["arguments"].as_str()).collect();
        assert_eq!(streamed, arguments);
    }
}

#[test]
fn histories_with_calls_are_read_and_hints_are_named() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "set", "arguments": "{\"a\": 3}"}});
    let request = json!({
        "model": model,
        "max_tokens": 3,
        "messages": [
            {"role": "user", "content": "Set it."},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "done"}]},
        ],
        "tools": tools(),
        "tool_choice": "none",
        "store": true,
        "reasoning_effort": "none",
        "thinking": {"type": "disabled"},
        "reasoning": {"effort": "none"},
        "include_reasoning": true,
        "parallel_tool_calls": true,
        "user": "u",
        "top_k": -1,
        "ignore_eos": false,
    });
    let answer = live.post("/v1/chat/completions", &request);
    assert_eq!(answer.status, 200, "{}", answer.text());
    // The order of the first ones is that of the body's fields, which depends on the build of the test.
    let mut ignored: Vec<&str> = answer.header("x-narthex-ignored").unwrap().split(", ").collect();
    ignored.sort_unstable();
    assert_eq!(ignored, ["include_reasoning", "reasoning", "reasoning_effort", "store", "thinking", "user"]);
}

fn messages() -> Value {
    json!([{"role": "user", "content": "the cat"}])
}

/// Returns the `data` lines of server-sent events.
fn events(text: &str) -> Vec<Value> {
    text.lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

#[test]
fn every_protocol_gives_the_same_greedy_text_whole_and_streamed() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let expected =
        whole(&live, &json!({"model": model, "messages": messages(), "max_tokens": 12, "temperature": 0}));
    let expected = expected["message"]["content"].as_str().unwrap().to_owned();
    let post = |path: &str, body: Value| {
        let answer = live.post(path, &body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer
    };

    let body = json!({"model": model, "messages": messages(), "max_tokens": 12, "temperature": 0});
    let answer = post("/v1/messages", body.clone()).json();
    assert_eq!((&answer["content"][0]["text"], &answer["type"]), (&json!(expected), &json!("message")));
    let streamed = events(&post("/v1/messages", with(body, json!({"stream": true}))).text());
    let text: String = streamed.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(
        (text.as_str(), streamed.last().unwrap()["type"].as_str()),
        (expected.as_str(), Some("message_stop"))
    );

    let body = json!({"model": model, "input": "the cat", "max_output_tokens": 12, "temperature": 0});
    let answer = post("/v1/responses", body.clone()).json();
    assert_eq!(answer["output"][0]["content"][0]["text"], expected);
    let streamed = events(&post("/v1/responses", with(body, json!({"stream": true}))).text());
    let deltas = streamed.iter().filter(|event| event["type"] == "response.output_text.delta");
    assert_eq!(deltas.filter_map(|event| event["delta"].as_str()).collect::<String>(), expected);
    assert!(streamed.last().unwrap()["response"]["usage"]["output_tokens"].as_u64() > Some(0));

    let body =
        json!({"model": model, "messages": messages(), "options": {"num_predict": 12, "temperature": 0}});
    let answer = post("/api/chat", with(body.clone(), json!({"stream": false}))).json();
    assert_eq!((&answer["message"]["content"], &answer["done"]), (&json!(expected), &json!(true)));
    let text = post("/api/chat", body).text();
    let lines: Vec<Value> = text
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let text: String = lines.iter().filter_map(|line| line["message"]["content"].as_str()).collect();
    assert_eq!((text, &lines.last().unwrap()["done"]), (expected, &json!(true)));
}

#[test]
fn every_protocol_makes_required_calls() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::start(tiny.config());
    let body = json!({
        "model": model, "messages": messages(), "max_tokens": 300, "temperature": 0,
        "tools": [{"name": "set", "input_schema": schema()}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true}, "stop_sequences": ["\n"],
    });
    let answer = live.post("/v1/messages", &body).json();
    assert_eq!(
        (&answer["stop_reason"], &answer["content"][0]["type"]),
        (&json!("tool_use"), &json!("tool_use"))
    );
    check_schema(&answer["content"][0]["input"].to_string());
    let body = json!({
        "model": model, "input": "the cat", "max_output_tokens": 300, "temperature": 0, "parallel_tool_calls": false,
        "tools": [{"type": "function", "name": "set", "parameters": schema()}],
        "tool_choice": {"type": "function", "name": "set"},
    });
    let answer = live.post("/v1/responses", &body).json();
    assert_eq!(
        (&answer["output"][0]["type"], &answer["output"][0]["name"]),
        (&json!("function_call"), &json!("set"))
    );
    check_schema(answer["output"][0]["arguments"].as_str().unwrap());
    let error =
        live.post("/v1/messages", &json!({"model": "nothing", "max_tokens": 1, "messages": messages()}));
    assert_eq!((error.status, &error.json()["error"]["type"]), (404, &json!("not_found_error")));
    let error = live.post("/api/chat", &json!({"model": "nothing", "messages": messages()}));
    assert!(error.status == 404 && error.json()["error"].is_string());
}

#[test]
fn tokens_are_counted_and_paths_may_be_spelled_otherwise() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let tokens =
        live.post("/tokenize", &json!({"model": model, "content": "the cat"})).json()["tokens"].clone();
    let text = live.post("/detokenize", &json!({"model": model, "tokens": tokens})).json();
    assert_eq!(text["content"], "the cat");
    let long = live.post("/tokenize", &json!({"model": model, "content": " ".repeat((256 << 10) + 1)}));
    assert!(
        long.status == 400 && long.text().contains("at most 262144 bytes, found 262145"),
        "{}",
        long.text()
    );
    let body = json!({"model": model, "messages": messages()});
    let prompt = live.post("/apply-template", &body).json()["prompt"].clone();
    assert!(prompt.as_str().unwrap().contains("<|im_start|>user\nthe cat<|im_end|>"), "{prompt}");
    let counted = live.post("/v1/messages/count_tokens", &body).json()["input_tokens"].as_u64().unwrap();
    let tokenized = live.post("/tokenize", &body).json()["count"].as_u64().unwrap();
    let used = live.post("/api/v1/chat/completions/", &with(body, json!({"max_tokens": 1}))).json();
    assert_eq!((counted, tokenized), (used["usage"]["prompt_tokens"].as_u64().unwrap(), counted));
    for path in ["/", "/models", "//v1/models/", "/v1/health", "/api/tags", "/api/version"] {
        assert_eq!(live.get(path).status, 200, "{path}");
    }
}

#[test]
fn responses_are_stored_continued_and_removed() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let ask = |fields: Value| {
        let body = json!({"model": model, "max_output_tokens": 6, "temperature": 0});
        live.post("/v1/responses", &with(body, fields))
    };
    let first = ask(json!({"input": "the cat", "instructions": "Be brief."})).json();
    let id = first["id"].as_str().unwrap();
    assert_eq!(live.get(&format!("/v1/responses/{id}")).json(), first);
    let items = live.get(&format!("/v1/responses/{id}/input_items")).json();
    assert_eq!((items["data"].as_array().unwrap().len(), &items["has_more"]), (1, &json!(false)));
    assert_eq!(items["data"][0]["content"], json!([{"type": "input_text", "text": "the cat"}]));
    live.get(&format!("/v1/responses/{id}/input_items?limit=x")).error(400);
    live.get("/v1/responses/resp_none/input_items").error(404);
    let streamed = live.get(&format!("/v1/responses/{id}?starting_after=1&stream=true")).error(400);
    assert_eq!(streamed["param"], "stream");
    assert_eq!((&first["store"], &first["instructions"]), (&json!(true), &json!("Be brief.")));
    let text = &first["output"][0]["content"][0]["text"];
    let continued = ask(json!({"input": "and?", "previous_response_id": id})).json();
    let whole = json!([
        {"role": "user", "content": "the cat"},
        {"role": "assistant", "content": text},
        {"role": "user", "content": "and?"},
    ]);
    let resent = ask(json!({"input": whole, "store": false})).json();
    assert_eq!(continued["usage"]["input_tokens"], resent["usage"]["input_tokens"]);
    assert_eq!(continued["output"][0]["content"], resent["output"][0]["content"]);
    assert_eq!(live.get(&format!("/v1/responses/{}", resent["id"].as_str().unwrap())).status, 404);

    let streamed = events(&ask(json!({"input": "the cat", "stream": true})).text());
    let response = &streamed.last().unwrap()["response"];
    assert_eq!(live.get(&format!("/v1/responses/{}", response["id"].as_str().unwrap())).json(), *response);

    let path = format!("/v1/responses/{id}");
    let removed = live.request("DELETE", &path, &[], b"").json();
    assert_eq!((&removed["id"], &removed["deleted"]), (&json!(id), &json!(true)));
    live.get(&path).error(404);
    let lost = ask(json!({"input": "and?", "previous_response_id": id}));
    assert_eq!(lost.error(400)["code"], "previous_response_not_found");
}

#[test]
fn aliases_defaults_and_strictness_are_the_server_s_choice() {
    let tiny = Tiny::new();
    let (model, embedding) = (tiny.chat(), tiny.embedding());
    let config = || Config { aliases: [("gpt-4o".to_owned(), model.clone())].into(), ..tiny.config() };
    let live = Live::start(config());
    let ask = |live: &Live, name: &str| live.post("/v1/chat/completions", &chat(name, 2));
    let answer = ask(&live, "gpt-4o");
    assert_eq!((answer.status, &answer.json()["model"]), (200, &json!("gpt-4o")));
    assert!(answer.json()["system_fingerprint"].as_str().unwrap().starts_with("narthex-"));
    assert_eq!(ask(&live, &format!("{model}:latest")).status, 200);
    assert_eq!(ask(&live, "gpt-4o:latest").status, 200);
    assert!(ask(&live, "gpt-3:latest").error(404)["message"].as_str().unwrap().contains("gpt-3"));
    ask(&live, "gpt-3").error(404);
    assert!(ask(&live, "/etc/passwd").error(404)["message"].as_str().unwrap().contains("found a path"));
    let models = live.get("/v1/models").json();
    let listed =
        |id: &str| models["data"].as_array().unwrap().iter().find(|entry| entry["id"] == id).cloned();
    assert_eq!(listed("gpt-4o").unwrap()["root"], json!(model));
    assert_eq!(live.get("/v1/models/gpt-4o").json(), listed("gpt-4o").unwrap());
    let tags = live.get("/api/tags").json();
    let digest = |name: &str| {
        tags["models"]
            .as_array()
            .unwrap()
            .iter()
            .find(|entry| entry["model"] == name)
            .map(|entry| &entry["digest"])
    };
    assert_eq!(digest("gpt-4o").unwrap(), digest(&model).unwrap());
    assert_eq!(live.get(&format!("/v1/models/{model}")).json(), listed(&model).unwrap());
    assert_eq!(listed(&embedding).unwrap()["capabilities"], json!(["embeddings"]));
    // Anthropic's clients read other fields of the same list.
    assert_eq!((&models["has_more"], &models["first_id"]), (&json!(false), &models["data"][0]["id"]));
    let alias = listed("gpt-4o").unwrap();
    assert_eq!((&alias["type"], &alias["display_name"]), (&json!("model"), &json!("gpt-4o")));
    assert!(alias["created_at"].as_str().unwrap().ends_with('Z'), "{alias}");
    assert_eq!(alias["max_input_tokens"], alias["context_length"]);
    let of_anthropic = live.request("GET", "/v1/models", &[("anthropic-version", "2023-06-01")], b"").json();
    assert_eq!(of_anthropic["data"][0]["capabilities"], Value::Null);
    let long = json!({"model": embedding, "input": "the cat ".repeat(400)});
    live.post("/v1/embeddings", &long).error(400);
    let foreign = live.post("/v1/embeddings", &json!({"model": embedding, "input": [[791, 8415]]}));
    assert!(foreign.error(400)["message"].as_str().unwrap().contains("check_embedding_ctx_length"));
    drop(live);

    let requests = RequestOptions { strict_parameters: true, truncate: true };
    let config = Config { default_model: Some(model.clone()), ..config() };
    let live = Live::with_options(config, ServeOptions { requests, ..local() });
    assert_eq!(ask(&live, "gpt-3").status, 200);
    let hinted = live.post("/v1/chat/completions", &with(chat(&model, 2), json!({"store": true})));
    assert_eq!(hinted.error(400)["param"], "store");
    assert_eq!(live.post("/v1/embeddings", &long).status, 200);
    assert_eq!(live.post("/v1/embeddings", &with(long, json!({"truncate": false}))).status, 400);
    drop(live);
    let config = Config { aliases: [("a".to_owned(), "nothing".to_owned())].into(), ..tiny.config() };
    let refused = Gateway::open(config).err().unwrap().to_string();
    assert!(refused.contains("alias: no model is named \"nothing\""), "{refused}");
}

#[test]
fn errors_have_the_form_of_their_protocol() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    for body in
        [json!({"model": "nothing", "max_tokens": 1, "messages": messages()}), json!({"model": model})]
    {
        let error = live.post("/v1/messages", &body).json();
        assert!(error["type"] == "error" && error["error"]["message"].is_string(), "{error}");
        let embed = with(body, json!({"input": "the cat"}));
        assert!(live.post("/api/embed", &embed).json()["error"].is_string());
    }
    let host = [("Host", "evil.example")];
    assert!(live.request("GET", "/api/tags", &host, b"").json()["error"].is_string());
    live.request("GET", "/v1/models", &host, b"").error(403);
}

/// A protocol with its form of requests and answers.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Protocol {
    Chat,
    Responses,
    Messages,
}

/// Parts of an answer of any protocol.
#[derive(Debug, Default, PartialEq)]
struct Parts {
    reasoning: String,
    text: String,
    /// Arguments of each call, as JSON text.
    calls: Vec<String>,
}

impl Protocol {
    fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
        }
    }

    /// Returns a request. `budget` is the maximum number of tokens of reasoning.
    fn request(self, model: &str, budget: Option<usize>, with_tools: bool, with_schema: bool) -> Value {
        let limit = 400;
        let mut request = json!({"model": model, "messages": messages(), "max_tokens": limit});
        match self {
            Self::Chat => {
                request["temperature"] = json!(0);
                request["thinking_budget"] = json!(budget);
                request["enable_thinking"] = json!(budget.is_some());
                request["parallel_tool_calls"] = json!(false);
            }
            Self::Responses => {
                let effort = if budget.is_some() { "high" } else { "none" };
                request = json!({
                    "model": model, "input": "the cat", "max_output_tokens": limit, "temperature": 0,
                    "reasoning": {"effort": effort}, "thinking_budget": budget, "parallel_tool_calls": false,
                });
            }
            Self::Messages => {
                request["temperature"] = json!(0);
                request["thinking"] = match budget {
                    Some(budget) => json!({"type": "enabled", "budget_tokens": budget}),
                    None => json!({"type": "disabled"}),
                };
            }
        }
        if with_tools {
            let choice = if with_schema { "auto" } else { "required" };
            (request["tools"], request["tool_choice"]) = match self {
                Self::Chat => (tools(), json!(choice)),
                Self::Responses => {
                    let tool =
                        json!({"type": "function", "name": "set", "parameters": schema(), "strict": true});
                    (json!([tool]), json!(choice))
                }
                Self::Messages => {
                    let choice = if with_schema { "auto" } else { "any" };
                    let choice = json!({"type": choice, "disable_parallel_tool_use": true});
                    (json!([{"name": "set", "input_schema": schema()}]), choice)
                }
            };
        }
        if with_schema {
            let format = json!({"type": "json_schema", "name": "n", "schema": schema()});
            match self {
                Self::Chat => {
                    request["response_format"] = json!({"type": "json_schema", "json_schema": format});
                }
                Self::Responses => request["text"] = json!({"format": format}),
                Self::Messages => request["output_config"] = json!({"format": format}),
            }
        }
        request
    }

    fn whole(self, answer: &Value) -> Parts {
        let mut parts = Parts::default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match self {
            Self::Chat => {
                let message = &answer["choices"][0]["message"];
                (parts.reasoning, parts.text) =
                    (text(&message["reasoning_content"]), text(&message["content"]));
                let calls = message["tool_calls"].as_array().into_iter().flatten();
                parts.calls = calls.map(|call| text(&call["function"]["arguments"])).collect();
            }
            Self::Responses => {
                for item in answer["output"].as_array().unwrap() {
                    let content = text(&item["content"][0]["text"]);
                    match item["type"].as_str().unwrap() {
                        "reasoning" => parts.reasoning = content,
                        "message" => parts.text = content,
                        _ => parts.calls.push(text(&item["arguments"])),
                    }
                }
            }
            Self::Messages => {
                for block in answer["content"].as_array().unwrap() {
                    match block["type"].as_str().unwrap() {
                        "thinking" => parts.reasoning = text(&block["thinking"]),
                        "text" => parts.text = text(&block["text"]),
                        _ => parts.calls.push(block["input"].to_string()),
                    }
                }
            }
        }
        parts
    }

    fn streamed(self, events: &[Value]) -> Parts {
        let mut parts = Parts::default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for event in events {
            match self {
                Self::Chat => {
                    let delta = &event["choices"][0]["delta"];
                    parts.reasoning += &text(&delta["reasoning_content"]);
                    parts.text += &text(&delta["content"]);
                    for call in delta["tool_calls"].as_array().into_iter().flatten() {
                        parts.calls.resize(call["index"].as_u64().unwrap() as usize + 1, String::new());
                        *parts.calls.last_mut().unwrap() += &text(&call["function"]["arguments"]);
                    }
                }
                Self::Responses => match event["type"].as_str().unwrap() {
                    "response.reasoning_text.delta" => parts.reasoning += &text(&event["delta"]),
                    "response.output_text.delta" => parts.text += &text(&event["delta"]),
                    "response.function_call_arguments.done" => parts.calls.push(text(&event["arguments"])),
                    _ => {}
                },
                Self::Messages => {
                    if event["content_block"]["type"] == "tool_use" {
                        parts.calls.push(String::new());
                    }
                    parts.reasoning += &text(&event["delta"]["thinking"]);
                    parts.text += &text(&event["delta"]["text"]);
                    if let Some(part) = event["delta"]["partial_json"].as_str() {
                        *parts.calls.last_mut().unwrap() += part;
                    }
                }
            }
        }
        parts
    }
}

#[test]
fn every_protocol_keeps_constraints_with_and_without_reasoning() {
    let tiny = Tiny::new();
    let model = tiny.thinking_chat();
    let live = Live::start(tiny.config());
    for protocol in [Protocol::Chat, Protocol::Responses, Protocol::Messages] {
        for budget in [Some(6), None] {
            for (with_tools, with_schema) in [(true, false), (false, true), (true, true)] {
                let request = protocol.request(&model, budget, with_tools, with_schema);
                let answer = live.post(protocol.path(), &request);
                assert_eq!(answer.status, 200, "{request}: {}", answer.text());
                let parts = protocol.whole(&answer.json());
                assert_eq!(parts.reasoning.is_empty(), budget.is_none(), "{request}: {parts:?}");
                assert!(with_schema || !parts.calls.is_empty(), "{request}: {parts:?}");
                assert!(with_tools || parts.calls.is_empty(), "{request}: {parts:?}");
                match parts.calls.as_slice() {
                    [] => check_schema(&parts.text),
                    calls => calls.iter().for_each(|call| check_schema(call)),
                }
                let stream = live.post(protocol.path(), &with(request.clone(), json!({"stream": true})));
                assert_eq!(stream.status, 200, "{request}: {}", stream.text());
                let text = stream.text();
                let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
                let data = data.filter(|data| *data != "[DONE]");
                let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
                let streamed = protocol.streamed(&events);
                let plain = |parts: &Parts| {
                    let calls = parts.calls.iter().map(|call| serde_json::from_str::<Value>(call).unwrap());
                    (parts.reasoning.clone(), parts.text.clone(), calls.collect::<Vec<_>>())
                };
                assert_eq!(plain(&streamed), plain(&parts), "{request}");
            }
        }
    }
    let request = Protocol::Chat.request(&model, Some(6), false, true);
    let usage = live.post("/v1/chat/completions", &request).json()["usage"].clone();
    let reasoning = usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!((6..24).contains(&reasoning), "{usage}");
}

/// Returns a request for calls, of which an answer may have several.
fn request_for_calls(protocol: Protocol, model: &str, seed: u64) -> Value {
    let (name, about) = ("set", "Sets values.");
    let body = json!({"model": model, "temperature": 1, "seed": seed});
    let messages = messages();
    let fields = match protocol {
        Protocol::Chat => {
            let function = json!({"name": name, "description": about, "parameters": schema()});
            let tools = json!([{"type": "function", "function": function}]);
            json!({"messages": messages, "max_tokens": 400, "tools": tools, "tool_choice": "required"})
        }
        Protocol::Responses => {
            let tools =
                json!([{"type": "function", "name": name, "description": about, "parameters": schema()}]);
            json!({"input": "the cat", "max_output_tokens": 400, "tools": tools, "tool_choice": "required"})
        }
        Protocol::Messages => {
            let tools = json!([{"name": name, "description": about, "input_schema": schema()}]);
            json!({"messages": messages, "max_tokens": 400, "tools": tools, "tool_choice": {"type": "any"}})
        }
    };
    with(body, fields)
}

#[test]
fn an_answer_may_have_several_calls() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::start(tiny.config());
    let first = Protocol::Chat;
    // The weights are random, so some seed gives two calls or more.
    let (seed, message) = (0..200)
        .find_map(|seed| {
            let choice = whole(&live, &request_for_calls(first, &model, seed));
            let calls = choice["message"]["tool_calls"].as_array()?.len();
            (choice["finish_reason"] == "tool_calls" && calls > 1).then(|| (seed, choice["message"].clone()))
        })
        .unwrap();
    let calls = message["tool_calls"].as_array().unwrap();
    let ids: Vec<&str> = calls.iter().map(|call| call["id"].as_str().unwrap()).collect();
    assert!(ids.iter().enumerate().all(|(index, id)| !ids[..index].contains(id)), "{ids:?}");
    assert_eq!(message["content"], Value::Null);

    let chunks = chunks(&live, request_for_calls(first, &model, seed));
    let deltas: Vec<&Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array())
        .flatten()
        .collect();
    let indices: Vec<u64> = deltas.iter().map(|delta| delta["index"].as_u64().unwrap()).collect();
    assert!(indices.is_sorted() && indices.last() == Some(&(calls.len() as u64 - 1)), "{indices:?}");
    for (index, call) in calls.iter().enumerate() {
        let own: Vec<&Value> = deltas.iter().copied().filter(|delta| delta["index"] == index).collect();
        let named = |delta: &&Value| delta["id"].is_string() && delta["function"]["name"] == "set";
        assert!(named(&own[0]) && !own[1..].iter().any(|delta| delta["id"].is_string()), "{own:?}");
        let arguments: String =
            own.iter().filter_map(|delta| delta["function"]["arguments"].as_str()).collect();
        assert_eq!(call["function"]["arguments"], arguments, "{index}");
    }

    let expected: Vec<Value> = calls
        .iter()
        .map(|call| serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap())
        .collect();
    for protocol in [first, Protocol::Responses, Protocol::Messages] {
        let request = request_for_calls(protocol, &model, seed);
        let answer = live.post(protocol.path(), &request);
        assert_eq!(answer.status, 200, "{request}: {}", answer.text());
        let stream = live.post(protocol.path(), &with(request, json!({"stream": true}))).text();
        let data = stream.lines().filter_map(|line| line.strip_prefix("data: "));
        let data = data.filter(|data| *data != "[DONE]");
        let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
        for parts in [protocol.whole(&answer.json()), protocol.streamed(&events)] {
            assert_eq!(parts.text, "", "{protocol:?}");
            let calls: Vec<Value> =
                parts.calls.iter().map(|call| serde_json::from_str(call).unwrap()).collect();
            assert_eq!(calls, expected, "{protocol:?}");
        }
    }
}

#[test]
fn prompts_are_scored_without_an_answer() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let score =
        json!({"model": model, "prompt": "the cat and", "max_tokens": 0, "echo": true, "logprobs": 1});
    let answer = live.post("/v1/completions", &score).json();
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &answer["usage"]["completion_tokens"]), (&json!("the cat and"), &json!(0)));
    let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
    assert!(logprobs.len() > 1 && logprobs[0].is_null() && logprobs[1].as_f64().is_some(), "{choice}");
    let refused = live.post("/v1/completions", &with(score, json!({"echo": false})));
    assert_eq!(refused.error(400)["param"], "max_tokens");
}

#[test]
fn an_answer_has_its_minimum_of_tokens() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    // The bias makes the stop token the best one at every position.
    let request = json!({
        "model": model, "messages": messages(), "max_tokens": 9, "temperature": 0, "logit_bias": {"2": 100},
    });
    let count = |request: Value| {
        live.post("/v1/chat/completions", &request).json()["usage"]["completion_tokens"].clone()
    };
    assert_eq!(count(request.clone()), 1);
    assert_eq!(count(with(request, json!({"min_tokens": 5, "typical_p": 0.9}))), 6);
}

#[test]
fn drafts_are_counted_unless_speculation_is_off() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let drafted = |speculation: Speculation, draft: bool| {
        let live = Live::start(Config { speculation, ..tiny.config() });
        let body = with(chat(&model, 100), json!({"draft": draft}));
        let usage = live.post("/v1/chat/completions", &body).json()["usage"].clone();
        assert_eq!(usage["completion_tokens"], 100);
        let details = &usage["completion_tokens_details"];
        let counts = ["accepted_prediction_tokens", "rejected_prediction_tokens"];
        counts.iter().map(|name| details[name].as_u64().unwrap()).sum::<u64>()
    };
    // A model of random weights repeats itself, so that drafts can be looked up in the text.
    assert!(drafted(Speculation::Auto, true) > 0);
    assert_eq!(drafted(Speculation::Auto, false), 0);
    assert_eq!(drafted(Speculation::Off, true), 0);
}

/// Grammar of a short patch.
const PATCH: &str = r#"
start: "*** " NAME LF line{1,2} "*** End"
line: "+" /[a-c"]{0,3}/ LF
NAME: /[xy]/
%import common.LF
"#;

fn check_patch(input: &str) {
    let lines: Vec<&str> = input.split('\n').collect();
    let (first, last) = (lines[0], *lines.last().unwrap());
    assert!(["*** x", "*** y"].contains(&first) && last == "*** End" && lines.len() <= 4, "{input:?}");
    let is_line =
        |line: &str| line.strip_prefix('+').is_some_and(|rest| rest.chars().all(|c| "abc\"".contains(c)));
    assert!(lines[1..lines.len() - 1].iter().all(|line| is_line(line)), "{input:?}");
}

#[test]
fn the_input_of_a_custom_tool_follows_its_grammar() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::start(tiny.config());
    let source = json!({"syntax": "lark", "definition": PATCH});
    let sampling = json!({"temperature": 1, "seed": 5, "parallel_tool_calls": false});

    let format = json!({"type": "grammar", "grammar": source});
    let tool = json!({"type": "custom", "custom": {"name": "patch", "format": format}});
    let fields = json!({"tools": [tool], "tool_choice": {"type": "custom", "custom": {"name": "patch"}}});
    let request = with(with(chat(&model, 300), sampling.clone()), fields);
    let answer = whole(&live, &request);
    let call = &answer["message"]["tool_calls"][0];
    assert_eq!((&call["type"], &answer["finish_reason"]), (&json!("custom"), &json!("tool_calls")));
    let input = call["custom"]["input"].as_str().unwrap();
    check_patch(input);
    let chunks = chunks(&live, request);
    let inputs = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"][0]["custom"]["input"].as_str());
    assert_eq!(inputs.collect::<String>(), input);

    let format = with(source, json!({"type": "grammar"}));
    let tool = json!({"type": "custom", "name": "patch", "format": format});
    let fields = json!({"model": model, "input": "the cat", "tools": [tool], "tool_choice": "required"});
    let request = with(with(fields, sampling), json!({"max_output_tokens": 300}));
    let output = live.post("/v1/responses", &request).json()["output"].clone();
    assert_eq!(output[0]["type"], "custom_tool_call", "{output}");
    check_patch(output[0]["input"].as_str().unwrap());

    let format = json!({"type": "grammar", "syntax": "lark", "definition": "start: \"(\" start? \")\""});
    let tool = json!({"type": "custom", "name": "patch", "format": format});
    let answer = live.post("/v1/responses", &json!({"model": model, "input": "the cat", "tools": [tool]}));
    let error = answer.json()["error"].clone();
    assert_eq!((answer.status, &error["param"]), (400, &json!("tools[0].format")), "{error}");
    let expect = "tool patch: the rule start cannot be enforced: recursive rules are not supported";
    assert!(error["message"].as_str().unwrap().contains(expect), "{error}");
}

#[test]
fn every_endpoint_takes_a_grammar() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let shared = json!({"model": model, "max_tokens": 50, "regex": "(yes|no)!", "stream": false});
    for (path, fields, place) in [
        ("/v1/completions", json!({"prompt": "the cat"}), "/choices/0/text"),
        ("/v1/responses", json!({"input": "the cat"}), "/output/0/content/0/text"),
        ("/v1/messages", json!({"messages": messages()}), "/content/0/text"),
        ("/api/chat", json!({"messages": messages()}), "/message/content"),
        ("/api/generate", json!({"prompt": "the cat"}), "/response"),
        ("/api/generate", json!({"prompt": "the cat", "raw": true}), "/response"),
    ] {
        let answer = live.post(path, &with(shared.clone(), fields));
        let answer = answer.json();
        let text = answer.pointer(place).and_then(Value::as_str);
        assert!(matches!(text, Some("yes!" | "no!")), "{path}: {answer}");
    }
    let format = json!({"response_format": {"type": "json_object"}, "prompt": "the cat"});
    let answer = live.post("/v1/completions", &with(shared.clone(), format));
    let error = answer.json()["error"].clone();
    assert_eq!((answer.status, &error["param"]), (400, &json!("regex")));
    assert!(error["message"].as_str().unwrap().contains("found also response_format"), "{error}");
    let format = json!({"format": "json", "prompt": "the cat"});
    assert_eq!(live.post("/api/generate", &with(shared, format)).status, 400);
}

#[test]
fn responses_have_log_probabilities_on_request() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let request = json!({
        "model": model, "input": "the cat", "max_output_tokens": 6, "temperature": 0, "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
    });
    let answer = live.post("/v1/responses", &request);
    assert_eq!(answer.header("x-narthex-ignored"), None);
    let part = answer.json()["output"][0]["content"][0].clone();
    let tokens = part["logprobs"].as_array().unwrap();
    assert!(
        !tokens.is_empty() && tokens.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2)
    );
    let text: String = tokens.iter().filter_map(|token| token["token"].as_str()).collect();
    assert!(text.starts_with(part["text"].as_str().unwrap()), "{part}");
    let streamed = events(&live.post("/v1/responses", &with(request, json!({"stream": true}))).text());
    let deltas = streamed.iter().filter(|event| event["type"] == "response.output_text.delta");
    let streamed: Vec<&Value> = deltas.flat_map(|event| event["logprobs"].as_array().unwrap()).collect();
    assert_eq!(streamed, tokens.iter().collect::<Vec<_>>());
}
