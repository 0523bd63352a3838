//! Seeds for files of API keys.

use serde_json::{Value, json};

use super::Input;

pub(super) fn seeds() -> Vec<Input> {
    let file = |keys: Value| json!({"version": 1, "keys": keys}).to_string();
    let key = |name: &str, limits: Value| json!({"name": name, "hash": "0".repeat(64), "created": 1_790_000_000, "limits": limits});
    let limited = json!({
        "role": "admin", "models": ["smollm2:135m"], "requests_per_minute": 60, "tokens_per_minute": 1000,
        "concurrency": 4,
    });
    let huge = json!({"requests_per_minute": u64::MAX, "concurrency": -1});
    let many: Vec<Value> = (0..100).map(|number| key(&number.to_string(), json!({}))).collect();
    vec![
        Input::valid("none", file(json!([]))),
        Input::valid("two", file(json!([key("a", json!({"role": "user"})), key("b", limited)]))),
        Input::bomb("many", file(many.into())),
        Input::bomb("limits", file(json!([key("a", huge)]))),
        Input::bomb("name", file(json!([key(&"a".repeat(10_000), json!({}))]))),
        Input::bomb("nested", "[".repeat(5000)),
    ]
}
