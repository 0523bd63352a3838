//! Requests that are refused before a model runs: malformed requests, forbidden callers, invalid fields. All errors are
//! in OpenAI's form.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use narthex_gateway::{Cancel, Config, Gateway, keys::KeyLimits};
use narthex_server::{AccessOptions, Authentication, ServeError, ServeOptions, run_until};
use narthex_testkit::checkpoint::{BERT_MAX_LENGTH, LLAMA_CONTEXT};
use serde_json::{Value, json};

use crate::support::{Answer, Live, Tiny, chat, check_paths, local, with};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const EMBEDDINGS: &str = "/v1/embeddings";

#[test]
fn malformed_requests_are_answered_in_openai_s_shape() {
    let live = Live::start(Tiny::new().config());
    let check = |method: &str, path: &str, body: &[u8], status: u16, expect: &str| {
        let error = live.request(method, path, &[], body).error(status);
        assert!(error["message"].as_str().unwrap().contains(expect), "{method} {path}: {error}");
    };
    for path in [CHAT, COMPLETIONS, EMBEDDINGS] {
        check("POST", path, b"", 400, "not JSON");
        check("POST", path, b"{\"model\": ", 400, "line 1");
        check("POST", path, b"\xFF\xFE{}", 400, "not JSON");
        check("POST", path, b"[1, 2]", 400, "expected");
        check("POST", path, format!("{{\"x\": {}", "[".repeat(100_000)).as_bytes(), 400, "recursion");
        check("POST", path, b"{}", 400, "model");
        check("GET", path, b"", 405, "GET is not allowed");
        check("DELETE", path, b"", 405, path);
    }
    check("POST", "/v1/models", b"{}", 405, "POST");
    check("GET", "/v1/none", b"", 404, "/v1/none");
    check("GET", "/nothing", b"", 404, "/health");
    check("GET", "/v1/models/no/such/model", b"", 404, "no/such/model");
    check("GET", "/v1/models/%ff%fe", b"", 400, "UTF-8");
    assert_eq!(live.get(CHAT).header("allow"), Some("POST"));
}

#[test]
fn browsers_get_the_page_and_other_clients_a_line() {
    let gateway = Gateway::open(Tiny::new().config()).unwrap();
    let live = Live::over(gateway.clone(), local());
    let page = |headers: &[(&str, &str)]| {
        let headers = [headers, &[("Accept", "text/html,*/*;q=0.8")]].concat();
        live.request("GET", "/", &headers, b"")
    };
    let (html, line) = (page(&[]), live.get("/"));
    assert_eq!((line.status, line.text().as_str()), (200, "Narthex is running"));
    assert_eq!(html.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = html.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(html.header("cache-control"), Some("no-cache"));
    assert_eq!(page(&[("If-None-Match", html.header("etag").unwrap())]).status, 304);

    // Every file that the page names exists, and browsers may keep it for good.
    let text = html.text();
    let files: Vec<&str> = text.split('"').filter(|part| part.starts_with("/page/")).collect();
    assert_eq!(files.len(), 3, "{text}");
    for file in files {
        let answer = live.request("GET", file, &[("Accept-Encoding", "gzip")], b"");
        let caching = answer.header("cache-control");
        assert_eq!((answer.status, caching), (200, Some("public, max-age=31536000, immutable")), "{file}");
        assert_eq!(answer.header("content-encoding"), Some("gzip"), "{file}");
    }

    // The page asks for a key itself, so it needs none.
    gateway.add_key("user", KeyLimits::default(), &Cancel::new()).unwrap();
    assert_eq!((page(&[]).status, live.get("/").status, live.get("/page/app.css").status), (200, 401, 200));
}

#[test]
fn a_body_is_bounded() {
    let live = Live::start(Tiny::new().config());
    let body = vec![b' '; (32 << 20) + 1];
    let error = live.request("POST", CHAT, &[], &body).error(413);
    assert!(error["message"].as_str().unwrap().contains("32 MiB"), "{error}");
    // A body of the maximum size is read, and refused for its content.
    live.request("POST", CHAT, &[], &body[1..]).error(400);
}

#[test]
fn the_content_type_does_not_matter() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    for kind in ["application/json", "text/plain", "application/x-www-form-urlencoded"] {
        let body = chat(&model, 2).to_string();
        let answer = live.request("POST", CHAT, &[("Content-Type", kind)], body.as_bytes());
        assert_eq!(answer.status, 200, "{kind}: {}", answer.text());
    }
}

#[test]
fn pages_of_other_origins_may_not_call() {
    let live = Live::start(Tiny::new().config());
    let status = |headers: &[(&str, &str)]| live.request("GET", "/health", headers, b"").status;
    let refused = |headers: &[(&str, &str)]| live.request("GET", "/v1/models", headers, b"").error(403);
    for host in ["localhost", "localhost:1", "127.0.0.1", "[::1]:8000", "LocalHost"] {
        assert_eq!(status(&[("Host", host)]), 200, "{host}");
    }
    for host in ["evil.example", "127.0.0.1.evil.example", "192.168.0.1:8000"] {
        assert!(refused(&[("Host", host)])["message"].as_str().unwrap().contains("Host"), "{host}");
    }
    for hosts in [&[""][..], &["\u{e9}vil.example"], &["localhost", "localhost"], &["localhost:x"]] {
        let headers: Vec<_> = hosts.iter().map(|&host| ("Host", host)).collect();
        let error = live.request("GET", "/v1/models", &headers, b"").error(400);
        assert!(error["message"].as_str().unwrap().contains("Host"), "{hosts:?}: {error}");
    }
    live.raw(b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n").error(400);
    let other_target =
        b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    live.raw(other_target).error(403);
    for origin in ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:5173"] {
        let answer = live.request("GET", "/health", &[("Origin", origin)], b"");
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some(origin)));
        assert_eq!(answer.header("vary").map(str::to_ascii_lowercase).as_deref(), Some("origin"));
    }
    for origin in
        ["https://evil.example", "null", "http://localhost.evil.example", "http://\u{e9}vil.example"]
    {
        let error = refused(&[("Origin", origin)]);
        assert!(error["message"].as_str().unwrap().contains("--cors-origin"), "{origin}: {error}");
    }
    // A page must send a preflight request first, which is refused as well.
    live.request("OPTIONS", CHAT, &[("Origin", "https://evil.example")], b"").error(403);
}

#[test]
fn http_2_names_its_host_in_the_authority() {
    let live = Live::start(Tiny::new().config());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let status = |host: &str| {
        let client = reqwest::Client::builder().no_proxy().http2_prior_knowledge();
        let client = client.resolve(host, live.address).build().unwrap();
        let url = format!("http://{host}:{}/v1/models", live.address.port());
        runtime.block_on(async { client.get(url).send().await.unwrap().status().as_u16() })
    };
    assert_eq!((status("localhost"), status("evil.example")), (200, 403));
}

#[test]
fn other_machines_need_a_key() {
    let open = || ServeOptions { host: "0.0.0.0".to_owned(), ..local() };
    let gateway = narthex_gateway::Gateway::open(Tiny::new().config()).unwrap();
    let refused = run_until(gateway, open(), |_| panic!("it serves"), async || ());
    let error = refused.unwrap_err();
    assert!(matches!(error, ServeError::NoKey { .. }), "{error}");
    assert!(error.hint().unwrap().contains("narthex key add"));
    // Without authentication, the list of hosts still applies.
    let authentication = Authentication::Off;
    let options =
        ServeOptions { access: AccessOptions { authentication, ..AccessOptions::default() }, ..open() };
    let live = Live::with_options(Tiny::new().config(), options);
    let get = |headers: &[(&str, &str)]| live.request("GET", "/health", headers, b"").status;
    assert_eq!((get(&[("Host", "192.168.1.2:8000")]), get(&[("Host", "evil.example")])), (200, 403));
    // A loopback origin refers to the visitor's machine, not to this one.
    assert_eq!(get(&[("Host", "192.168.1.2"), ("Origin", "http://localhost:3000")]), 403);
}

#[test]
fn an_allowed_origin_may_ask_first() {
    let origin = "https://app.example";
    let cors_origins =
        ["https://app.example", "https://b.example"].map(|origin| origin.parse().unwrap()).into();
    let options =
        ServeOptions { access: AccessOptions { cors_origins, ..AccessOptions::default() }, ..local() };
    let live = Live::with_options(Tiny::new().config(), options);
    let wanted = ("Access-Control-Request-Headers", "content-type,x-stainless-lang");
    let asked = live.request("OPTIONS", CHAT, &[("Origin", origin), wanted], b"");
    assert_eq!(asked.header("access-control-allow-headers"), Some(wanted.1));
    let private = ("Access-Control-Request-Private-Network", "true");
    let asked = live.request("OPTIONS", CHAT, &[("Origin", origin), private], b"");
    assert_eq!(asked.header("access-control-allow-private-network"), Some("true"));
    let answer = live.request("OPTIONS", CHAT, &[("Origin", origin)], b"");
    assert_eq!(answer.header("access-control-allow-private-network"), None);
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (204, Some(origin)));
    assert!(answer.header("access-control-allow-methods").unwrap().contains("POST"));
    assert!(answer.header("access-control-allow-headers").unwrap().contains("Content-Type"));
    live.request("OPTIONS", CHAT, &[("Origin", "https://other.example")], b"").error(403);
}

#[test]
fn wrong_fields_are_named() {
    let tiny = Tiny::new();
    let (model, embedding) = (tiny.chat(), tiny.embedding());
    let live = Live::start(tiny.config());
    let check = |path: &str, base: &Value, fields: Value, param: &str| {
        let error = live.post(path, &with(base.clone(), fields.clone())).error(400);
        assert_eq!(error["param"], param, "{fields}: {error}");
        assert!(error["message"].as_str().unwrap().contains(param), "{fields}: {error}");
    };
    let base = chat(&model, 4);
    let bad = [
        (json!({"temperature": -1}), "temperature"),
        (json!({"temperature": "warm"}), "temperature"),
        (json!({"top_p": 1.5}), "top_p"),
        (json!({"n": 0}), "n"),
        (json!({"n": 100_000}), "n"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": 3}), "stop"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (json!({"logit_bias": {"70000": 1}}), "logit_bias"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"tools": [{"type": "function"}]}), "tools[0]"),
        (json!({"tools": [{"type": "function", "function": {"name": "a b"}}]}), "tools"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"stop": vec!["a"; 1 << 16]}), "stop"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}),
            "response_format",
        ),
        (json!({"modalities": ["audio"]}), "modalities"),
        (json!({"priority": 3}), "priority"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "wizard", "content": "x"}]}), "messages[0].role"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content[0].image_url",
        ),
        (json!({"model": 3}), "model"),
    ];
    for (fields, param) in bad {
        check(CHAT, &base, fields, param);
    }
    let base = json!({"model": model, "prompt": "the cat", "max_tokens": 4});
    let bad = [
        (json!({"suffix": "x"}), "suffix"),
        (json!({"mirostat": 2}), "mirostat"),
        (json!({"best_of": 3}), "best_of"),
        (json!({"logprobs": 6}), "logprobs"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [[]]}), "prompt"),
        (json!({"prompt": [70_000]}), "prompt"),
        (json!({"prompt": [-1]}), "prompt[0]"),
        (json!({"prompt": vec!["a"; 65]}), "prompt"),
        (json!({"prompt": vec![[0]; 65]}), "prompt"),
        (json!({"prompt": ["a", "b"], "stream": true}), "prompt"),
    ];
    for (fields, param) in bad {
        check(COMPLETIONS, &base, fields, param);
    }
    let base = json!({"model": embedding, "input": "the cat"});
    let bad = [
        (json!({"input": []}), "input"),
        (json!({"input": {}}), "input"),
        (json!({"input": [[]]}), "input"),
        (json!({"input": [[70_000]]}), "input"),
        (json!({"dimensions": 0}), "dimensions"),
        (json!({"dimensions": 65}), "dimensions"),
        (json!({"encoding_format": "hex"}), "encoding_format"),
        (json!({"truncate": "START"}), "truncate"),
    ];
    for (fields, param) in bad {
        check(EMBEDDINGS, &base, fields, param);
    }
}

#[test]
fn wrong_counts_say_what_is_allowed() {
    let live = Live::start(Tiny::new().config());
    for (count, allowed) in [
        ("max_tokens", "expected an integer of at least 1, found -1; omit it for no limit"),
        ("max_completion_tokens", "expected an integer of at least 1, found -1; omit it for no limit"),
        ("n", "expected an integer of at least 1, found -1"),
        ("min_tokens", "expected an integer of at least 0, found -1"),
    ] {
        let error = live.post(CHAT, &with(chat("tiny", 4), json!({count: -1}))).error(400);
        assert!(error["message"].as_str().unwrap().contains(allowed), "{count}: {error}");
    }
}

#[test]
fn every_form_of_content_and_every_role_is_read() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let text = |messages: Value| {
        let answer = live.post(CHAT, &with(chat(&model, 6), json!({"messages": messages})));
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let whole = text(json!([{"role": "user", "content": "the cat"}]));
    let parts = json!([{"type": "text", "text": "the "}, {"type": "text", "text": "cat"}]);
    assert_eq!(text(json!([{"role": "user", "content": parts}])), whole);
    text(json!([
        {"role": "developer", "content": "be brief"}, {"role": "user", "content": "the cat", "name": "anna"},
        {"role": "assistant", "content": null}, {"role": "tool", "content": "7", "tool_call_id": "x"},
        {"role": "user", "content": ""},
    ]));
    // Fields with values that require nothing are not refused.
    let idle =
        json!({"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "user": "anna"});
    assert_eq!(live.post(CHAT, &with(chat(&model, 2), idle)).status, 200);
}

#[test]
fn a_path_is_no_model_s_name() {
    let tiny = Tiny::new();
    tiny.chat();
    let live = Live::start(tiny.config());
    let checkpoint = tiny.home().with_file_name("tiny.gguf");
    let there = checkpoint.to_str().unwrap().to_owned();
    for path in [there.clone(), format!("{there}@f32"), "/etc/hostname".to_owned(), "~/x".to_owned()] {
        let check = |answer: Answer| {
            let error = answer.error(404);
            assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
            let message = error["message"].as_str().unwrap();
            // The error does not reveal whether the file exists.
            assert!(message.contains("found a path") && !message.contains(&path), "{message}");
        };
        check(live.post(CHAT, &chat(&path, 2)));
        check(live.post(COMPLETIONS, &json!({"model": path, "prompt": "x"})));
        check(live.post(EMBEDDINGS, &json!({"model": path, "input": "x"})));
        check(live.get(&format!("/v1/models/{}", path.replace('/', "%2F"))));
    }
}

#[test]
fn a_path_has_the_same_answer_whether_its_file_exists_or_not() {
    let tiny = Tiny::new();
    tiny.chat();
    let live = Live::start(tiny.config());
    let there = tiny.home().with_file_name("tiny.gguf").to_str().unwrap().to_owned();
    let user = json!([{"role": "user", "content": "x"}]);
    let requests = [
        (CHAT, json!({"messages": user})),
        ("/v1/chat/completions/render", json!({"messages": user})),
        ("/v1/completions/render", json!({"prompt": "x"})),
        ("/v1/responses/input_tokens", json!({"input": "x"})),
        (COMPLETIONS, json!({"prompt": "x"})),
        (EMBEDDINGS, json!({"input": "x"})),
        ("/v1/responses", json!({"input": "x"})),
        ("/v1/messages", json!({"messages": user, "max_tokens": 1})),
        ("/v1/messages/count_tokens", json!({"messages": user})),
        ("/v1/rerank", json!({"query": "x", "documents": ["x"]})),
        ("/v1/classify", json!({"input": "x"})),
        ("/predict", json!({"inputs": "x"})),
        ("/v1/answer", json!({"question": "x", "context": "x"})),
        ("/v1/decisions", json!({"input": "x", "questions": [{"type": "predicate", "instructions": "x"}]})),
        ("/v1/systemone", json!({"state": "x", "questions": {"x": {"type": "noul"}}})),
        ("/v1/fill", json!({"text": "x"})),
        ("/v1/audio/speech", json!({"input": "x"})),
        ("/tokenize", json!({"content": "x"})),
        ("/detokenize", json!({"tokens": [1]})),
        ("/apply-template", json!({"messages": user})),
        ("/api/chat", json!({"messages": user})),
        ("/api/generate", json!({"prompt": "x"})),
        ("/api/embed", json!({"input": "x"})),
        ("/api/embeddings", json!({"prompt": "x"})),
        ("/v1/settings", json!({"pin": true})),
        ("/api/create", json!({"model": "x"})),
        ("/api/copy", json!({"destination": "x"})),
        ("/api/show", json!({})),
        ("/api/pull", json!({"stream": false})),
    ];
    let document = live.get("/openapi.json").json();
    check_paths(&document, requests.iter().map(|(path, _)| *path));
    for (route, body) in requests {
        let field = match route {
            "/api/create" => "from",
            "/api/copy" => "source",
            _ => "model",
        };
        let ask = |model: String| live.post(route, &with(body.clone(), json!({field: model})));
        let paths = [
            there.clone(),
            there.replace("tiny", "none"),
            "/etc/hostname".to_owned(),
            "/etc/none".to_owned(),
        ];
        let answers = paths.map(ask);
        let text = |answer: &Answer| answer.text().replace(answer.header("x-request-id").unwrap(), "");
        let first = &answers[0];
        assert!(first.status == 404 && first.text().contains("found a path"), "{route}: {}", first.text());
        for answer in &answers {
            assert_eq!((answer.status, text(answer)), (first.status, text(first)), "{route}");
        }
    }
}

#[test]
fn what_is_too_long_is_refused_with_both_numbers() {
    let tiny = Tiny::new();
    let (model, embedding) = (tiny.chat(), tiny.embedding());
    let live = Live::start(tiny.config());
    let check = |path: &str, body: Value, param: &str, found: usize, limit: usize| {
        let error = live.post(path, &body).error(400);
        assert_eq!((&error["code"], &error["param"]), (&json!("context_length_exceeded"), &json!(param)));
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&found.to_string()) && message.contains(&limit.to_string()), "{message}");
    };
    let tokens = vec![5; 300];
    check(COMPLETIONS, json!({"model": model, "prompt": tokens}), "prompt", 300, LLAMA_CONTEXT);
    let long = "x".repeat(1000);
    let messages = json!({"messages": [{"role": "user", "content": long}]});
    let error = live.post(CHAT, &with(chat(&model, 4), messages.clone())).error(400);
    let found: usize = error["message"]
        .as_str()
        .unwrap()
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .nth(1)
        .unwrap();
    assert!((1000..1100).contains(&found), "{error}");
    check(CHAT, with(chat(&model, 4), messages), "messages", found, LLAMA_CONTEXT);
    // An even longer text is refused without tokenizing it completely.
    let endless = "x".repeat(1_000_000);
    let body = json!({"messages": [{"role": "user", "content": endless}]});
    for (path, body) in
        [(CHAT, with(chat(&model, 4), body)), (COMPLETIONS, json!({"model": model, "prompt": endless}))]
    {
        let error = live.post(path, &body).error(400);
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("resulted in at least ") && error["code"] == "context_length_exceeded",
            "{error}"
        );
    }
    let words = "cat ".repeat(100);
    check(EMBEDDINGS, json!({"model": embedding, "input": words}), "input", 102, BERT_MAX_LENGTH);
    for truncate in [json!(true), json!("END")] {
        let body = json!({"model": embedding, "input": words, "truncate": truncate});
        let answer = live.post(EMBEDDINGS, &body);
        assert_eq!(answer.json()["usage"]["prompt_tokens"], BERT_MAX_LENGTH, "{}", answer.text());
    }
}

#[test]
fn fields_that_are_null_are_left_out() {
    let tiny = Tiny::new();
    let (model, embedding) = (tiny.chat(), tiny.embedding());
    let live = Live::start(tiny.config());
    let null =
        |fields: &[&str]| fields.iter().map(|&field| (field.to_owned(), Value::Null)).collect::<Value>();
    let sampling =
        ["temperature", "top_p", "n", "stop", "seed", "stream", "stream_options", "logprobs", "user"];
    let chat_only = ["tools", "tool_choice", "response_format", "top_logprobs", "max_completion_tokens"];
    let answer = live.post(CHAT, &with(chat(&model, 2), null(&[&sampling[..], &chat_only].concat())));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let base = json!({"model": model, "prompt": "x"});
    let answer =
        live.post(COMPLETIONS, &with(base, null(&[&sampling[..], &["suffix", "echo", "best_of"]].concat())));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let base = json!({"model": embedding, "input": "x"});
    let answer =
        live.post(EMBEDDINGS, &with(base, null(&["encoding_format", "dimensions", "truncate", "user"])));
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn answers_say_where_they_were_computed() {
    let tiny = Tiny::new();
    let (model, embedding) = (tiny.chat(), tiny.embedding());
    let asked = |live: &Live| {
        let stream = with(chat(&model, 2), json!({"stream": true}));
        let bodies = [
            (CHAT, chat(&model, 2)),
            (CHAT, stream),
            (COMPLETIONS, json!({"model": model, "prompt": "the", "max_tokens": 2})),
            (EMBEDDINGS, json!({"model": embedding, "input": "the"})),
        ];
        bodies.map(|(path, body)| {
            let answer = live.post(path, &body);
            assert_eq!(answer.status, 200, "{}", answer.text());
            ["x-narthex-device", "x-narthex-fallback"].map(|name| answer.header(name).map(str::to_owned))
        })
    };
    for [device, fallback] in asked(&Live::start(tiny.config())) {
        assert_eq!((device.as_deref(), fallback), (Some("cpu"), None));
    }
    // If a requested device is missing, every answer states this.
    let live = Live::start(Config { providers: "qnn,cpu".parse().unwrap(), ..tiny.config() });
    for [device, fallback] in asked(&live) {
        assert_eq!(device.as_deref(), Some("cpu"));
        assert!(fallback.is_some_and(|reason| reason.starts_with("qnn: ")));
    }
    let health = live.get("/health").json();
    let passed = &health["models"][0]["passed_over"][0];
    assert_eq!((&passed["device"], &passed["announced"]), (&json!("qnn"), &json!(true)), "{health}");
    assert_eq!(health["npu"]["available"], json!(false));
    assert_eq!(health["models"][0]["device"], json!("cpu"));
}
