//! API keys over HTTP: which callers may send which requests, within which limits, and for which models.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::num::NonZeroU32;

use narthex_gateway::{
    Cancel, Config, Gateway,
    keys::{ApiKey, KeyLimits, KeyRole},
};
use narthex_server::{AccessOptions, Authentication, CurrentGateway, ServeOptions};
use serde_json::{Value, json};

use crate::support::{Answer, LONG_CONTEXT, Live, Tiny, chat, eventually, local, with};

const CHAT: &str = "/v1/chat/completions";

fn key(gateway: &Gateway, name: &str, limits: KeyLimits) -> String {
    gateway.add_key(name, limits, &Cancel::new()).unwrap().expose().to_owned()
}

fn user() -> KeyLimits {
    KeyLimits::default()
}

fn admin() -> KeyLimits {
    KeyLimits { role: KeyRole::Admin, ..user() }
}

fn get(live: &Live, path: &str, key: &str) -> Answer {
    live.request("GET", path, &[("Authorization", &format!("Bearer {key}"))], b"")
}

fn post(live: &Live, body: &Value, key: &str) -> Answer {
    live.request("POST", CHAT, &[("x-api-key", key)], body.to_string().as_bytes())
}

#[test]
fn a_known_key_is_needed_once_there_is_one() {
    let gateway = Gateway::open(Tiny::new().config()).unwrap();
    let live = Live::over(gateway.clone(), local());
    // A server without keys accepts any key.
    assert_eq!((live.get("/v1/models").status, get(&live, "/v1/models", "unused").status), (200, 200));
    let [user, admin] =
        [("user", user()), ("admin", admin())].map(|(name, limits)| key(&gateway, name, limits));
    let error = live.get("/v1/models").error(401);
    assert!(
        error["code"] == "invalid_api_key" && error["message"].as_str().unwrap().contains("Bearer"),
        "{error}"
    );
    assert_eq!(live.get("/v1/models").header("www-authenticate"), Some("Bearer"));
    for wrong in ["", "unused", &user[..user.len() - 1], &format!("{user}0"), &user.to_uppercase()] {
        assert_eq!(get(&live, "/v1/models", wrong).error(401)["code"], "invalid_api_key", "{wrong}");
    }
    for header in ["Authorization", "authorization", "X-Api-Key", "api-key"] {
        let value = if header.eq_ignore_ascii_case("authorization") {
            format!("bearer {user}")
        } else {
            user.clone()
        };
        assert_eq!(live.request("GET", "/v1/models", &[(header, &value)], b"").status, 200, "{header}");
    }
    // `/health` states for everyone that the server runs. Models are visible only with a key, metrics only to admins.
    assert_eq!(live.get("/health").json(), json!({"status": "ok"}));
    assert!(get(&live, "/health", &user).json()["models"].is_array());
    assert_eq!(live.get("/metrics").status, 401);
    assert_eq!(get(&live, "/metrics", &user).error(403)["code"], "admin_only");
    assert_eq!(get(&live, "/metrics", &admin).status, 200);
    // A web page may read the refusal.
    let page = live.request("GET", "/v1/models", &[("Origin", "http://localhost:1")], b"");
    assert_eq!((page.status, page.header("access-control-allow-origin")), (401, Some("http://localhost:1")));
    gateway.remove_key("user", &Cancel::new()).unwrap();
    let status = |key: &str| get(&live, "/v1/models", key).status;
    assert_eq!((status(&user), status(&admin)), (401, 200), "the file was read again");
    // Without its last key, the server does not open.
    gateway.remove_key("admin", &Cancel::new()).unwrap();
    assert_eq!((status(&admin), live.get("/v1/models").status), (401, 401));
}

#[test]
fn a_key_of_the_options_protects_an_open_server() {
    let keys = vec![ApiKey::from_secret("env", "a-key-of-the-container", KeyRole::User).unwrap()];
    let access = AccessOptions { keys, ..AccessOptions::default() };
    let options = ServeOptions { host: "0.0.0.0".to_owned(), access, ..local() };
    let live = Live::with_options(Tiny::new().config(), options);
    let get = |path, headers: &[(&str, &str)]| {
        live.request("GET", path, &[headers, &[("Host", "localhost")]].concat(), b"")
    };
    assert_eq!(get("/v1/models", &[]).status, 401);
    let models = get("/v1/models", &[("api-key", "a-key-of-the-container")]);
    // Requests may not start downloads on this server, so no models are available.
    assert_eq!((models.status, &models.json()["data"]), (200, &json!([])));
    let models = get("/v1/models?available=true", &[("api-key", "a-key-of-the-container")]);
    assert_eq!((models.status, &models.json()["data"]), (200, &json!([])));
}

#[test]
fn a_replaced_gateway_answers_the_next_requests() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let gateway = Gateway::open(tiny.config()).unwrap();
    let current = CurrentGateway::from(gateway.clone());
    let live = Live::over(current.clone(), local());
    assert_eq!(live.post(CHAT, &chat("short", 2)).status, 404);
    let aliases = [("short".to_owned(), model.clone())].into();
    current.replace(gateway.with_settings(Config { aliases, ..tiny.config() }).unwrap());
    assert_eq!(live.post(CHAT, &chat("short", 2)).status, 200);
    assert_eq!(live.get("/v1/models").json()["data"][1]["root"], json!(model));
}

#[test]
fn a_key_uses_its_models_alone() {
    let tiny = Tiny::new();
    let (model, other) = (tiny.chat(), tiny.embedding());
    let gateway = Gateway::open(tiny.config()).unwrap();
    let live = Live::over(gateway.clone(), local());
    let models = [model.parse().unwrap()].into();
    let key = key(&gateway, "app", KeyLimits { models, ..user() });
    assert_eq!(post(&live, &chat(&model, 2), &key).status, 200);
    let error = post(&live, &chat(&other, 2), &key).error(403);
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_allowed"), &json!("model")), "{error}");
    let listed = get(&live, "/v1/models", &key).json();
    assert_eq!((listed["data"].as_array().unwrap().len(), &listed["data"][0]["id"]), (1, &json!(model)));
    get(&live, &format!("/v1/models/{other}"), &key).error(403);
}

#[test]
fn a_model_is_unloaded_and_removed_for_admins_alone() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let gateway = Gateway::open(tiny.config()).unwrap();
    let live = Live::over(gateway.clone(), local());
    let [user, admin] =
        [("user", user()), ("admin", admin())].map(|(name, limits)| key(&gateway, name, limits));
    let unload = json!({"model": model, "keep_alive": 0}).to_string();
    let status =
        |key: &str| live.request("POST", "/api/generate", &[("x-api-key", key)], unload.as_bytes()).status;
    assert_eq!((status(&user), status(&admin)), (403, 200));

    // So is its removal.
    let named = json!({"model": model}).to_string();
    let status =
        |key: &str| live.request("DELETE", "/api/delete", &[("x-api-key", key)], named.as_bytes()).status;
    assert_eq!((status(&user), status(&admin), status(&admin)), (403, 200, 404));
}

#[test]
fn other_machines_are_no_admins_without_a_key() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let unload = json!({"model": model, "keep_alive": 0}).to_string();
    let gateway = Gateway::open(tiny.config()).unwrap();
    let serve = |host: &str| {
        let access = AccessOptions { authentication: Authentication::Off, ..AccessOptions::default() };
        Live::over(gateway.clone(), ServeOptions { host: host.to_owned(), access, ..local() })
    };
    let (open, loopback) = (serve("0.0.0.0"), serve("127.0.0.1"));
    // The statuses of a chat, of the metrics, and of a removal from memory.
    let statuses = |live: &Live, key: Option<&str>| {
        let key = key.map(|key| ("api-key", key));
        let headers: Vec<_> = [("Host", "localhost")].into_iter().chain(key).collect();
        let status = |method, path, body: &str| live.request(method, path, &headers, body.as_bytes()).status;
        let chat = status("POST", CHAT, &chat(&model, 2).to_string());
        [chat, status("GET", "/metrics", ""), status("POST", "/api/generate", &unload)]
    };
    assert_eq!(statuses(&open, None), [200, 403, 403]);
    let [user, admin] =
        [("user", user()), ("admin", admin())].map(|(name, limits)| key(&gateway, name, limits));
    assert_eq!(statuses(&open, None), [200, 403, 403]);
    assert_eq!(statuses(&open, Some("unknown")), [200, 403, 403]);
    assert_eq!(statuses(&open, Some(&user)), [200, 403, 403]);
    assert_eq!(statuses(&open, Some(&admin)), [200; 3]);
    // The programs of this machine keep their rights.
    assert_eq!(statuses(&loopback, None), [200; 3]);
}

#[test]
fn limits_end_in_429_with_the_wait() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let gateway = Gateway::open(tiny.config()).unwrap();
    let live = Live::over(gateway.clone(), local());
    let two = NonZeroU32::new(2);
    let slow = key(&gateway, "requests", KeyLimits { requests_per_minute: two, ..user() });
    let first = post(&live, &chat(&model, 2), &slow);
    assert_eq!((first.status, first.header("x-ratelimit-remaining-requests")), (200, Some("1")));
    assert!(first.header("content-length").is_some(), "the length is stated as without limits");
    post(&live, &chat(&model, 2), &slow);
    let refused = post(&live, &chat(&model, 2), &slow);
    assert_eq!(refused.error(429)["code"], "rate_limit_exceeded");
    assert!((1..=30).contains(&refused.header("retry-after").unwrap().parse::<u64>().unwrap()));
    assert_eq!(refused.header("x-ratelimit-limit-requests"), Some("2"));
    // Another key has separate limits. Tokens are charged when the answer ends.
    let few = key(&gateway, "tokens", KeyLimits { tokens_per_minute: two, ..user() });
    assert_eq!(post(&live, &chat(&model, 4), &few).status, 200);
    let refused = post(&live, &chat(&model, 4), &few);
    assert_eq!(refused.error(429)["code"], "rate_limit_exceeded");
    assert_eq!(refused.header("x-ratelimit-remaining-tokens"), Some("0"));
}

#[test]
fn concurrency_is_free_again_when_the_client_goes() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let gateway = Gateway::open(Config { slots: 4, ..tiny.config() }).unwrap();
    let live = Live::over(gateway.clone(), local());
    let limits =
        KeyLimits { concurrency: NonZeroU32::new(1), tokens_per_minute: NonZeroU32::new(40_000), ..user() };
    let key = key(&gateway, "one", limits);
    // The limit refills by 667 tokens a second, so the tokens of this prompt are missing for some seconds.
    let prompt = json!([{"role": "user", "content": "the ".repeat(2000)}]);
    let body = with(chat(&model, LONG_CONTEXT), json!({"stream": true, "messages": prompt})).to_string();
    let length = body.len();
    let head = format!(
        "POST {CHAT} HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Length: {length}\r\n\r\n"
    );
    let mut running = live.begin(&format!("{head}{body}"));
    let mut seen = [0; 1];
    std::io::Read::read_exact(&mut running, &mut seen).unwrap();
    assert_eq!(post(&live, &chat(&model, 2), &key).error(429)["code"], "rate_limit_exceeded");
    drop(running);
    eventually("the end of the request", || post(&live, &chat(&model, 2), &key).status == 200);
    // If the client disconnects, the tokens so far are charged.
    let left = get(&live, "/v1/models", &key);
    let remaining: u64 = left.header("x-ratelimit-remaining-tokens").unwrap().parse().unwrap();
    assert!(remaining < 40_000, "{remaining}");
}

#[test]
fn each_choice_and_prompt_is_a_concurrent_answer() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let gateway = Gateway::open(Config { slots: 4, ..tiny.config() }).unwrap();
    let live = Live::over(gateway.clone(), local());
    let limits = KeyLimits { concurrency: NonZeroU32::new(2), ..user() };
    let key = key(&gateway, "two", limits);
    let complete = |fields: Value| {
        let headers = [("authorization", format!("Bearer {key}"))];
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        let body = with(json!({"model": model, "max_tokens": 2, "temperature": 0}), fields).to_string();
        live.request("POST", "/v1/completions", &headers, body.as_bytes())
    };
    let prompts = ["the", "cat", "sat", "on", "the"];
    let texts = |answer: &Value| {
        let choices = answer["choices"].as_array().unwrap();
        choices.iter().map(|choice| choice["text"].clone()).collect::<Vec<_>>()
    };
    // The prompts wait for one another.
    let together = texts(&complete(json!({"prompt": prompts})).json());
    let alone: Vec<_> =
        prompts.iter().flat_map(|prompt| texts(&complete(json!({"prompt": prompt})).json())).collect();
    assert_eq!(together, alone);
    assert_eq!(complete(json!({"prompt": "the", "n": 2})).json()["choices"].as_array().unwrap().len(), 2);
    let error = complete(json!({"prompt": "the", "n": 3})).error(429);
    assert!(error["message"].as_str().unwrap().contains("2 concurrent answers"), "{error}");
}

#[test]
fn keys_start_no_downloads_on_an_open_server_unless_they_are_admins() {
    let gateway = Gateway::open(Tiny::new().config()).unwrap();
    let [user, admin] =
        [("user", user()), ("admin", admin())].map(|(name, limits)| key(&gateway, name, limits));
    let options = ServeOptions { host: "0.0.0.0".to_owned(), ..local() };
    let live = Live::over(gateway, options);
    let get = |path: &str, key: &str| {
        let headers = [("Host", "localhost"), ("api-key", key)];
        live.request("GET", path, &headers, b"").json()["data"].as_array().unwrap().len()
    };
    let available = "/v1/models?available=true";
    assert!(get(available, &user) == 0 && get(available, &admin) > 40, "an admin may download all models");
    assert_eq!(get("/v1/models?limit=1000", &admin), 0, "only installed models are listed");
    let headers = [("Host", "localhost"), ("api-key", user.as_str())];
    let body = chat("smollm2:135m", 2).to_string();
    let error = live.request("POST", CHAT, &headers, body.as_bytes()).error(404);
    assert!(error["message"].as_str().unwrap().contains("narthex pull smollm2:135m"), "{error}");
}
