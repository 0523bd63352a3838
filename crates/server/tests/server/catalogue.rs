//! `/v1/catalogue`: the models for this machine, and the plan of one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use narthex_gateway::{Config, Network};
use serde_json::{Value, json};

use crate::support::{Live, Tiny};

#[test]
fn models_are_ranked_for_this_machine() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(Config { network: Network::CacheOnly, ..tiny.config() });
    let catalogue = live.get("/v1/catalogue").json();
    let models = catalogue["models"].as_array().unwrap();
    let of = |id: &str| models.iter().find(|one| one["id"] == id).unwrap();
    let own = of(&model);
    assert_eq!((&own["installed"], &own["kind"]), (&json!(true), &json!("chat")));
    let small = of("smollm2:135m");
    assert_eq!((&small["installed"], &small["gated"]), (&json!(false), &json!(false)));
    assert!(small["download_bytes"].as_u64() > Some(50_000_000), "{small}");
    assert!(small["here"]["bytes"].as_u64() > Some(50_000_000) && small["here"]["fits"] == true, "{small}");
    assert_eq!(of("gemma3:27b")["gated"], true);
    let reads = |id: &str| of(id)["reads"].clone();
    assert_eq!((reads("smollm2:135m"), reads("gemma3n:e2b")), (json!([]), json!(["image", "audio"])));

    let chat = models.iter().filter(|one| one["kind"] == "chat");
    let scores: Vec<f64> = chat.filter_map(|one| one["here"]["score"].as_f64()).collect();
    assert!(scores.len() > 10 && scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
}

#[test]
fn a_model_is_planned_before_its_download() {
    let live = Live::start(Config { network: Network::CacheOnly, ..Tiny::new().config() });
    let plan = live.get("/v1/catalogue/smollm2:135m").json();
    assert_eq!((&plan["context"], &plan["schemes"][0]["scheme"]), (&json!(8192), &json!("w8")));
    let cpu = &plan["devices"][0];
    assert_eq!((&cpu["device"], &cpu["schemes"][0]["reason"]), (&json!("cpu"), &Value::Null));
    assert!(cpu["schemes"][0]["context"].as_u64() > Some(0), "{cpu}");
    let npu = plan["npus"].as_array().unwrap().iter().find(|npu| npu["target"] == "openvino:npu").unwrap();
    assert!(npu["runs"] == true && npu["verdict"].as_str().unwrap().contains("NPU"), "{npu}");

    // Without conversations, no memory of them is planned.
    assert_eq!((plan.get("memory"), &plan["kv_slot_bytes"]), (None, &json!(0)));
    let memory = |query: &str| live.get(&format!("/v1/catalogue/smollm2:135m?{query}"));
    let planned = memory("context=4096&users=3").json()["memory"].clone();
    assert_eq!((&planned["context"], &planned["users"]), (&json!(4096), &json!(3)));
    let on_cpu = &planned["devices"][0];
    assert_eq!((&on_cpu["device"], &on_cpu["weights"]), (&json!("cpu"), &json!("mapped")));
    let scheme = &on_cpu["schemes"][0];
    assert_eq!(scheme["kv"].as_u64(), plan["kv_token_bytes"].as_u64().map(|bytes| 3 * 4096 * bytes));
    assert_eq!((&scheme["scheme"], &scheme["towers"]), (&json!("w8"), &json!(0)));
    assert_eq!(memory("users=2").json()["memory"]["context"], 8192);
    let message = |query: &str| memory(query).error(400)["message"].as_str().unwrap().to_owned();
    assert!(message("context=9000").contains("expected 1 to 8192 tokens"), "{}", message("context=9000"));
    assert!(message("users=0").contains("at least one conversation") && memory("users=x").status == 400);

    // Only names are planned, and only models whose sizes follow from their settings.
    assert_eq!(live.get("/v1/catalogue/no-such-model").status, 404);
    assert_eq!(live.get("/v1/catalogue/%2Fetc%2Fpasswd").status, 404);
    assert_eq!(live.get("/v1/catalogue/hibari").status, 400);
}
