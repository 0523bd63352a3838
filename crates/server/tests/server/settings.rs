//! `/v1/settings`, `/api/create`, `/api/copy` and `/api/delete` of a server whose settings requests may change.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Mutex;

use narthex_gateway::{Cancel, Config, Gateway, ModelSettings, keys::KeyLimits};
use narthex_server::{AppliedSettings, CurrentGateway, ServeOptions, SettingsChange, SettingsEditor};
use serde_json::{Value, json};

use crate::support::{Answer, Live, Tiny, chat, local, with};

/// Starts a server that keeps its settings in memory.
fn live(config: Config) -> (Live, Gateway) {
    let gateway = Gateway::open(config.clone()).unwrap();
    let current = CurrentGateway::from(gateway.clone());
    let (edited, stored) = (current.clone(), Mutex::new(config));
    let settings = SettingsEditor::new(move |change| {
        let mut config = stored.lock().unwrap();
        match change.clone() {
            SettingsChange::Reload => {
                let notes = vec!["server.port needs a restart".to_owned()];
                return Ok(AppliedSettings { gateway: edited.get(), notes });
            }
            SettingsChange::AddName { name, .. } if name == "forbidden" => {
                return Err("the disk is full".to_owned());
            }
            SettingsChange::AddName { name, model } => drop(config.aliases.insert(name, model)),
            SettingsChange::AddModel { name, from, answers } => {
                let custom = ModelSettings { from: Some(from), answers, ..ModelSettings::default() };
                config.models.insert(name, custom);
            }
            SettingsChange::RemoveName { name } => {
                config.aliases.remove(&name);
                config.models.remove(&name);
            }
            SettingsChange::DefaultModel { model } => config.default_model = model,
            SettingsChange::Pin { model, pinned } => {
                let own: &mut ModelSettings = config.models.entry(model).or_default();
                own.residence.pinned = pinned;
            }
        }
        let gateway = edited.get().with_settings(config.clone()).map_err(|error| error.to_string())?;
        edited.replace(gateway.clone());
        Ok(gateway.into())
    });
    (Live::over(current, ServeOptions { settings: Some(settings), ..local() }), gateway)
}

fn message(answer: &Answer, status: u16) -> String {
    assert_eq!(answer.status, status, "{}", answer.text());
    answer.json()["error"]["message"].as_str().unwrap().to_owned()
}

#[test]
fn names_pins_and_the_default_model_are_changed() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let (live, _) = live(tiny.config());
    let change = |fields: Value| live.post("/v1/settings", &with(json!({"model": model}), fields));
    let empty = json!({"editable": true, "default_model": null, "pinned": [], "names": {}});
    assert_eq!(live.get("/v1/settings").json(), empty);
    let changed = change(json!({"pin": true, "default": true, "add_name": "gpt-4o"})).json();
    let expect =
        json!({"editable": true, "default_model": model, "pinned": [model], "names": {"gpt-4o": model}});
    assert_eq!((&changed, &live.get("/v1/settings").json()), (&expect, &expect));
    for name in ["gpt-4o", "unknown"] {
        assert_eq!(live.post("/v1/chat/completions", &chat(name, 2)).status, 200, "{name}");
    }
    let reset = change(json!({"pin": false, "default": false, "remove_name": "gpt-4o"}));
    assert_eq!(reset.json(), empty.clone());
    assert_eq!(live.post("/v1/chat/completions", &chat("gpt-4o", 2)).status, 404);

    let reloaded = live.post("/v1/settings", &json!({"reload": true})).json();
    assert_eq!(reloaded, with(empty, json!({"notes": ["server.port needs a restart"]})));
    assert!(message(&live.post("/v1/settings", &json!({"reload": false})), 400).contains("model"));
    assert!(message(&change(json!({"add_name": "two words"})), 400).contains("without spaces"));
    assert!(message(&change(json!({"add_name": model})), 400).contains("expected a new name"));
    assert!(message(&change(json!({"remove_name": "gpt-4o"})), 400).contains("expected an additional name"));
    assert!(message(&change(json!({"add_name": "forbidden"})), 409).contains("the disk is full"));
    assert!(message(&change(json!({"context": 5})), 400).contains("context"));
}

#[test]
fn a_custom_model_is_created_over_http() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let (live, gateway) = live(tiny.config());
    let create = |fields: Value| live.post("/api/create", &with(json!({"model": "pirate"}), fields));
    let created = create(json!({"from": model, "system": "Arr.", "parameters": {"temperature": 0}}));
    assert_eq!((created.status, created.header("content-type")), (200, Some("application/x-ndjson")));
    assert_eq!(created.json(), json!({"status": "success"}));
    let prompt = |name: &str| {
        let messages = json!([{"role": "user", "content": "hi"}]);
        live.post("/apply-template", &json!({"model": name, "messages": messages})).json()["prompt"].clone()
    };
    assert!(prompt("pirate").as_str().unwrap().contains("Arr.") && prompt("pirate") != prompt(&model));
    assert_eq!(live.post("/v1/chat/completions", &chat("pirate", 2)).status, 200);

    // A second one of the same name replaces the first.
    assert_eq!(create(json!({"from": model, "system": "Ahoy.", "stream": false})).status, 200);
    assert!(prompt("pirate").as_str().unwrap().contains("Ahoy."));
    let name = json!({"model": "pirate"}).to_string();
    assert_eq!(live.request("DELETE", "/api/delete", &[], name.as_bytes()).status, 200);
    assert_eq!(live.post("/v1/chat/completions", &chat("pirate", 2)).status, 404);

    let error = |fields: Value, status: u16| {
        let answer = create(fields);
        assert_eq!(answer.status, status, "{}", answer.text());
        answer.json()["error"].as_str().unwrap().to_owned()
    };
    assert!(error(json!({"from": "unknown"}), 404).contains("unknown"));
    assert!(error(json!({"model": model, "from": model}), 400).contains("expected a new name"));
    assert!(error(json!({"from": model, "files": {"a": "sha256:0"}}), 400).contains("narthex import"));

    let user = gateway.add_key("user", KeyLimits::default(), &Cancel::new()).unwrap();
    let body = json!({"model": "pirate", "from": model}).to_string();
    let headers = [("x-api-key", user.expose())];
    assert_eq!(live.request("POST", "/api/create", &headers, body.as_bytes()).status, 403);
}

#[test]
fn a_request_states_the_devices_of_a_model_that_it_loads() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let (live, gateway) = live(tiny.config());
    let on =
        |map: Value| live.post("/v1/chat/completions", &with(chat(&model, 2), json!({"device_map": map})));
    let refused = on(json!({"layers": "npu"})).error(503);
    assert!(refused["message"].as_str().unwrap().contains("part of Snapdragon chips"), "{refused}");
    assert_eq!(on(json!({"layers": "cpu", "head": "cpu"})).status, 200);
    let why = &live.get("/health").json()["models"][0]["why"];
    assert_eq!(*why, "required by the device map layers=cpu,head=cpu");
    assert_eq!(
        (on(json!("layers=cpu")).status, on(json!(null)).status, on(json!({})).status),
        (200, 200, 200)
    );

    for (map, expected) in [
        (json!({"layers": "npu"}), "is in memory and runs on cpu"),
        (json!({"embeddings": "npu", "layers": "cpu"}), "the host looks them up"),
        (json!({"layers": 7}), "an object of parts and their devices"),
    ] {
        let error = on(map).error(400);
        assert_eq!(error["param"], "device_map", "{error}");
        assert!(error["message"].as_str().unwrap().contains(expected), "{error}");
    }
    let load = json!({"model": model, "device_map": {"layers": "cpu"}});
    assert_eq!(live.post("/api/generate", &load).json()["done_reason"], "load");

    // Other callers use the model too.
    let user = gateway.add_key("user", KeyLimits::default(), &Cancel::new()).unwrap();
    let body = with(chat(&model, 2), json!({"device_map": {"layers": "cpu"}})).to_string();
    let headers = [("x-api-key", user.expose())];
    assert_eq!(live.request("POST", "/v1/chat/completions", &headers, body.as_bytes()).status, 403);
}

#[test]
fn a_copy_is_a_name_and_its_removal_keeps_the_model() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let (live, gateway) = live(tiny.config());
    let copy =
        |source: &str| live.post("/api/copy", &json!({"source": source, "destination": "mine"})).status;
    assert_eq!((copy("unknown"), copy(&model)), (404, 200));
    assert_eq!(live.post("/api/show", &json!({"model": "mine"})).status, 200);
    let name = json!({"model": "mine"}).to_string();
    let delete = || live.request("DELETE", "/api/delete", &[], name.as_bytes()).status;
    assert_eq!((delete(), delete()), (200, 404));
    assert_eq!(live.get("/api/tags").json()["models"].as_array().unwrap().len(), 1);

    let user = gateway.add_key("user", KeyLimits::default(), &Cancel::new()).unwrap();
    let headers = [("x-api-key", user.expose())];
    assert_eq!(live.request("GET", "/v1/settings", &headers, b"").status, 403);
    let body = json!({"source": model, "destination": "mine"}).to_string();
    assert_eq!(live.request("POST", "/api/copy", &headers, body.as_bytes()).status, 403);
}
