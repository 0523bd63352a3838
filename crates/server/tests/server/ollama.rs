//! Ollama's protocol as used by its clients.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use narthex_gateway::{AutoPull, Cancel, CompileRequest, Config, Gateway, Network};
use narthex_server::{AccessOptions, ServeOptions};
use narthex_spec::{Scheme, progress::Quiet};
use serde_json::{Value, json};

use crate::support::{Live, Tiny, eventually, local, with};

/// Returns the objects of an answer with one object per line.
fn lines(text: &str) -> Vec<Value> {
    let objects = text.lines().filter(|line| line.starts_with('{'));
    objects.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn prompts_are_answered_whole_streamed_and_raw() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let options = json!({"num_predict": 8, "temperature": 0, "num_ctx": 2048});
    let prompt = json!({"model": model, "prompt": "the cat", "options": options});
    let whole = live.post("/api/generate", &with(prompt.clone(), json!({"stream": false})));
    assert_eq!(whole.header("x-narthex-ignored"), Some("num_ctx"));
    let answer = whole.json();
    let text = answer["response"].as_str().unwrap();
    assert!(
        !text.is_empty() && answer["done"] == true && answer["eval_count"].as_u64() > Some(0),
        "{answer}"
    );
    let messages = json!([{"role": "user", "content": "the cat"}]);
    let chat = json!({"model": model, "messages": messages, "options": options, "stream": false});
    assert_eq!(live.post("/api/chat", &chat).json()["message"]["content"], text);
    let streamed = lines(&live.post("/api/generate", &prompt).text());
    let pieces: String = streamed.iter().filter_map(|line| line["response"].as_str()).collect();
    assert_eq!(pieces, text);
    assert!(streamed.last().unwrap()["total_duration"].is_u64());

    let raw = live.post("/api/generate", &with(prompt.clone(), json!({"raw": true, "stream": false}))).json();
    let completion = json!({"model": model, "prompt": "the cat", "max_tokens": 8, "temperature": 0});
    assert_eq!(raw["response"], live.post("/v1/completions", &completion).json()["choices"][0]["text"]);
    let fields = json!({"stream": false, "logprobs": true, "top_logprobs": 2});
    let scored = live.post("/api/generate", &with(prompt, fields)).json();
    let tokens = scored["logprobs"].as_array().unwrap();
    assert!(!tokens.is_empty() && tokens.iter().all(|token| token["top_logprobs"][1]["logprob"].is_f64()));
    let loaded = live.post("/api/generate", &json!({"model": format!("{model}:latest")})).json();
    assert_eq!((&loaded["done_reason"], &loaded["response"]), (&json!("load"), &json!("")));
}

#[test]
fn texts_are_embedded_in_both_forms() {
    let tiny = Tiny::new();
    let model = tiny.embedding();
    let live = Live::start(tiny.config());
    let two = live.post("/api/embed", &json!({"model": model, "input": ["the cat", "the dog"]})).json();
    assert_eq!(two["embeddings"].as_array().unwrap().len(), 2);
    let one = live.post("/api/embeddings", &json!({"model": model, "prompt": "the cat"})).json();
    assert_eq!(one["embedding"], two["embeddings"][0]);
    // Without a prompt, the model is only loaded.
    for body in [json!({"model": model}), json!({"model": model, "prompt": ""})] {
        assert_eq!(live.post("/api/embeddings", &body).json(), json!({"embedding": []}));
    }
    let long = json!({"model": model, "input": "the cat ".repeat(400)});
    assert_eq!(live.post("/api/embed", &long).status, 200);
    for empty in [json!({"model": model}), json!({"model": model, "input": []})] {
        assert_eq!(live.post("/api/embed", &empty).json()["embeddings"], json!([]));
    }
    assert_eq!(live.post("/api/embed", &with(long, json!({"truncate": false}))).status, 400);
}

#[test]
fn models_are_listed_and_described() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let tags = live.get("/api/tags").json();
    let listed = &tags["models"][0];
    assert_eq!((&listed["name"], listed["digest"].as_str().unwrap().len()), (&json!(model), 64));
    assert!(listed["size"].as_u64() > Some(0) && listed["modified_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(live.get("/api/ps").json()["models"], json!([]));
    live.post("/api/chat", &json!({"model": model}));
    let loaded = &live.get("/api/ps").json()["models"][0];
    assert_eq!((&loaded["model"], &loaded["digest"]), (&json!(model), &listed["digest"]));
    let shown = live.post("/api/show", &json!({"model": model})).json();
    assert_eq!(
        (&shown["capabilities"], &shown["details"]["family"]),
        (&json!(["completion", "tools"]), &json!("llama"))
    );
    assert!(shown["model_info"]["llama.context_length"].as_u64() > Some(0));
    assert!(shown["template"].as_str().unwrap().contains("messages"), "{}", shown["template"]);
    // Ollama's client sends both names of the model.
    for names in [json!({"model": model, "name": ""}), json!({"model": "", "name": model, "options": null})] {
        assert_eq!(live.post("/api/show", &names).json()["details"], shown["details"], "{names}");
        assert!(live.post("/api/pull", &names).text().contains("success"), "{names}");
    }
    let refused = live.post("/api/show", &json!({"model": "", "name": ""}));
    assert_eq!((refused.status, refused.json()["error"].as_str()), (400, Some("model is required")));
    for (path, body) in
        [("/api/show", json!({"model": "nothing"})), ("/api/pull", json!({"model": "/etc/passwd"}))]
    {
        let answer = live.post(path, &body);
        assert_eq!(answer.status, 404, "{path}: {}", answer.text());
        assert!(answer.json()["error"].is_string());
    }
}

#[test]
fn a_model_that_sees_says_so() {
    let tiny = Tiny::new();
    let model = tiny.vision_chat();
    let live = Live::start(tiny.config());
    let ollama = json!(["completion", "tools", "vision"]);
    assert_eq!(live.post("/api/show", &json!({"model": model})).json()["capabilities"], ollama);
    assert_eq!(live.get("/api/tags").json()["models"][0]["capabilities"], ollama);
    let openai = json!(["chat", "responses", "messages", "completions", "tools", "vision"]);
    assert_eq!(live.get("/v1/models").json()["data"][0]["capabilities"], openai);
}

#[test]
fn a_model_is_unloaded_by_a_request_without_a_prompt() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    for path in ["/api/generate", "/api/chat"] {
        let load = json!({"model": model});
        assert_eq!(live.post(path, &load).json()["done_reason"], "load", "{path}");
        assert_eq!(live.get("/api/ps").json()["models"].as_array().unwrap().len(), 1, "{path}");
        let unload = live.post(path, &with(load, json!({"keep_alive": 0})));
        assert_eq!(
            (unload.header("x-narthex-ignored"), &unload.json()["done_reason"]),
            (None, &json!("unload"))
        );
        assert_eq!(live.get("/api/ps").json()["models"], json!([]), "{path}");
    }
}

#[test]
fn a_model_stays_in_memory_for_the_time_of_a_request() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let load = |keep_alive: Value| {
        let answer = live.post("/api/generate", &json!({"model": model, "keep_alive": keep_alive}));
        assert_eq!((answer.status, answer.header("x-narthex-ignored")), (200, None), "{}", answer.text());
        live.get("/api/ps").json()["models"].clone()
    };
    assert_eq!(load(json!(-1))[0]["expires_at"], "9999-12-31T23:59:59Z");
    let expires = load(json!("24h"))[0]["expires_at"].as_str().unwrap().to_owned();
    assert!(expires.starts_with("20"), "{expires}");
    load(json!(0.01));
    eventually("the end of its time", || live.get("/api/ps").json()["models"] == json!([]));
}

#[test]
fn a_model_is_unloaded_after_an_answer() {
    let tiny = Tiny::new();
    let (chat, embedding) = (tiny.chat(), tiny.embedding());
    let live = Live::start(tiny.config());
    let messages = json!([{"role": "user", "content": "the cat"}]);
    let options = json!({"num_predict": 2});
    let check = |path: &str, body: Value| {
        let times = [(json!("5m"), 1, None), (json!("soon"), 1, Some("keep_alive")), (json!(0), 0, None)];
        for (keep_alive, loaded, ignored) in times {
            let answer = live.post(path, &with(body.clone(), json!({"keep_alive": keep_alive})));
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
            assert_eq!(answer.header("x-narthex-ignored"), ignored, "{path}");
            let models = live.get("/api/ps").json()["models"].as_array().unwrap().len();
            assert_eq!(models, loaded, "{path}: keep_alive {keep_alive}");
        }
    };
    check("/api/chat", json!({"model": chat, "messages": messages, "options": options}));
    check("/api/generate", json!({"model": chat, "prompt": "the cat", "options": options}));
    check("/api/generate", json!({"model": chat, "prompt": "the", "raw": true, "options": options}));
    check("/api/embed", json!({"model": embedding, "input": "the cat"}));
    check("/api/embed", json!({"model": embedding}));
    check("/api/embeddings", json!({"model": embedding, "prompt": "the cat"}));
    check("/api/embeddings", json!({"model": embedding}));
}

#[test]
fn every_package_of_a_model_is_listed() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let gateway = Gateway::open(tiny.config()).unwrap();
    let request = CompileRequest::new(Scheme::F16);
    let second = gateway.compile(&model, &request, &Quiet, &Cancel::new()).unwrap().1;
    assert_eq!(second.name.to_string(), model);

    let live = Live::over(gateway, local());
    let tags = live.get("/api/tags").json();
    let listed = tags["models"].as_array().unwrap();
    assert_eq!(listed.len(), 2, "{tags}");
    for entry in listed {
        let request = json!({"model": entry["name"], "prompt": "the cat", "options": {"num_predict": 1}});
        live.post("/api/generate", &request);
        let loaded = live.get("/api/ps").json();
        let digest = &entry["digest"];
        assert!(loaded["models"].as_array().unwrap().iter().any(|one| one["digest"] == *digest), "{entry}");
    }
}

#[test]
fn a_model_is_removed_by_its_exact_name() {
    let tiny = Tiny::new();
    let (model, other) = (tiny.chat(), tiny.embedding());
    let aliases = [("short".to_owned(), model.clone())].into();
    let live = Live::start(Config { aliases, default_model: Some(model.clone()), ..tiny.config() });
    let delete = |body: Value| live.request("DELETE", "/api/delete", &[], body.to_string().as_bytes());
    live.post("/api/generate", &json!({"model": model}));

    // Neither an alias, nor the default model in place of an unknown one, nor an absent package is removed.
    let check = |name: &str, status: u16, expect: &str| {
        let answer = delete(json!({"model": name}));
        let error = answer.json()["error"].as_str().unwrap_or_default().to_owned();
        assert_eq!(answer.status, status, "{name}: {error}");
        assert!(error.contains(expect), "{name}: {error}");
    };
    check("short", 501, "this server has no settings file");
    check("unknown", 404, "the model unknown is not installed");
    check(&format!("{model}@f16"), 404, "is not installed");
    check("smollm2:135m", 404, "is not installed");
    check("/etc/passwd", 404, "is not installed");
    check("", 400, "model is required");
    assert_eq!(live.get("/api/tags").json()["models"].as_array().unwrap().len(), 3);

    let removed = delete(json!({"name": model}));
    assert_eq!((removed.status, removed.text()), (200, String::new()));
    let listed = live.get("/api/tags").json();
    assert_eq!(
        (listed["models"].as_array().unwrap().len(), &listed["models"][0]["name"]),
        (1, &json!(other))
    );
    assert_eq!(live.get("/api/ps").json()["models"], json!([]));
    check(&model, 404, "is not installed");
}

#[test]
fn endpoints_that_do_not_exist_here_are_refused_with_what_does() {
    let live = Live::start(Tiny::new().config());
    for (path, expect) in [("/api/push", "narthex export MODEL"), ("/api/blobs/sha256:00", "narthex pull")] {
        let answer = live.post(path, &json!({"model": "m"}));
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert_eq!(answer.status, 501, "{path}: {error}");
        assert!(error.starts_with(path) && error.contains(expect), "{error}");
    }
    assert_eq!(live.post("/api/blob", &json!({})).status, 404);
}

#[test]
fn a_pull_keeps_to_the_rights_of_its_caller_and_to_the_network() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let config = || Config { network: Network::CacheOnly, ..tiny.config() };
    let access = AccessOptions { auto_pull: Some(AutoPull::Never), ..AccessOptions::default() };
    let live = Live::with_options(config(), ServeOptions { access, ..local() });
    let whole = live.post("/api/pull", &json!({"model": model, "stream": false}));
    assert_eq!((whole.status, whole.json()), (200, json!({"status": "success"})));
    assert_eq!(
        lines(&live.post("/api/pull", &json!({"model": model})).text()).last().unwrap()["status"],
        "success"
    );
    let refused = live.post("/api/pull", &json!({"model": "smollm2:135m"}));
    assert!(refused.status == 404 && refused.json()["error"].as_str().unwrap().contains("narthex pull"));
    drop(live);
    let live = Live::start(config());
    let streamed = lines(&live.post("/api/pull", &json!({"name": "smollm2:135m"})).text());
    assert_eq!(streamed[0]["status"], "pulling manifest");
    assert!(streamed.last().unwrap()["error"].as_str().unwrap().contains("offline"), "{streamed:?}");
}
