//! The state of running servers, as `narthex top` shows it.

use comfy_table::Cell;
use serde_json::Value;

use super::{bytes, right, table};
use crate::running_server::{NO_SERVER, ServerState};

/// Renders servers. Figures that a server does not state are left out.
pub(crate) fn server_states(servers: &[ServerState]) -> String {
    if servers.is_empty() {
        return NO_SERVER.to_owned();
    }
    let states: Vec<String> = servers.iter().map(state).collect();
    states.join("\n\n")
}

fn state(server: &ServerState) -> String {
    let health = &server.health;
    let Some(status) = health["status"].as_str() else {
        return format!(
            "{} does not answer, or its state cannot be read: it needs TLS, or another key in NARTHEX_API_KEY",
            server.address
        );
    };
    let Some(version) = health["version"].as_str() else {
        return format!("{} · {status} · a key in NARTHEX_API_KEY shows more", server.address);
    };

    let mut parts = vec![
        format!("{} · narthex {version} · {status}", server.address),
        totals(health, server.tokens_per_second),
        memory(&health["memory"]),
    ];
    parts.extend(
        [models(health), upstreams(health), devices(health), requests(&server.requests)]
            .into_iter()
            .flatten(),
    );
    parts.join("\n")
}

/// Returns the speed, the answers and the power.
fn totals(health: &Value, rate: Option<f64>) -> String {
    let rate = rate.map_or_else(String::new, |rate| format!("{rate:.1} tokens/s · "));
    let mut line = format!("{rate}{} running · {} waiting", sum(health, "running"), sum(health, "waiting"));
    let cached = sum(health, "cached_tokens");
    // The server counts the tokens that it computes apart from those of the cache.
    let read = sum(health, "prompt_tokens") + cached;
    if read > 0 {
        let share = cached as f64 / read as f64;
        line.push_str(&format!(" · {:.0} % of prompt tokens from the cache", share * 100.0));
    }
    if let Some(watts) = health["power"]["watts"].as_f64() {
        line.push_str(&format!(" · {watts:.1} W"));
        if let Some(idle) = health["power"]["idle_watts"].as_f64() {
            line.push_str(&format!(" ({idle:.1} W without requests)"));
        }
    }
    line
}

/// Returns a line for each upstream.
fn upstreams(health: &Value) -> Option<String> {
    let lines = list(health, "upstreams").map(|upstream| {
        let text = |name: &str| upstream[name].as_str().unwrap_or_default();
        let count = |name: &str| upstream[name].as_u64().unwrap_or_default();
        let mut line = format!(
            "upstream {}: {} · {} running · {} requests · {} errors · {} tokens",
            text("name"),
            text("state"),
            count("running"),
            count("requests"),
            count("errors"),
            count("prompt_tokens") + count("generated_tokens"),
        );
        if let Some(time) = upstream["first_byte_ms"].as_f64() {
            line.push_str(&format!(" · first byte {time:.0} ms"));
        }
        if let Some(error) = upstream["last_error"].as_str() {
            line.push_str(&format!(" · last error {error}"));
        }
        line
    });
    let lines: Vec<_> = lines.collect();
    (!lines.is_empty()).then(|| format!("\n{}", lines.join("\n")))
}

/// Returns the sum of a counter over the models.
fn sum(health: &Value, counter: &str) -> u64 {
    list(health, "models").filter_map(|model| model["engine"][counter].as_u64()).sum()
}

fn memory(memory: &Value) -> String {
    let sizes = [
        size(memory, "weights_bytes").map(|size| format!("weights {size}")),
        size_of(memory, "kv_used_bytes", "kv_budget_bytes").map(|size| format!("KV cache {size}")),
        size_of(memory, "free_bytes", "total_bytes").map(|size| format!("free {size}")),
        memory["low"].as_bool().filter(|low| *low).map(|_| "little memory is free".to_owned()),
    ];
    sizes.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

fn size(sizes: &Value, field: &str) -> Option<String> {
    sizes[field].as_u64().map(bytes)
}

/// Returns a size and its maximum.
fn size_of(sizes: &Value, field: &str, maximum: &str) -> Option<String> {
    Some(format!("{} of {}", size(sizes, field)?, size(sizes, maximum)?))
}

/// Returns the table of the models; `None` without models.
fn models(health: &Value) -> Option<String> {
    list(health, "models").next()?;
    let mut models = table(&["MODEL", "STATE", "DEVICE", "RUNNING", "WAITING", "KV CACHE", "GENERATED"]);
    for model in list(health, "models") {
        let engine = &model["engine"];
        models.add_row([
            Cell::new(format!("{}@{}", text(&model["id"]), text(&model["scheme"]))),
            Cell::new(text(&model["state"]["state"])),
            Cell::new(text(&model["device"])),
            right(figure(&engine["running"], "")),
            right(figure(&engine["waiting"], "")),
            right(size(engine, "kv_used_bytes").unwrap_or_else(|| "-".to_owned())),
            right(figure(&engine["generated_tokens"], "")),
        ]);
    }
    Some(format!("\n{}", models.trim_fmt()))
}

/// Returns a number with its unit, or a dash.
fn figure(value: &Value, unit: &str) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |value| format!("{value:.0}{unit}"))
}

/// Returns the devices that this machine has; `None` if there are none.
fn devices(health: &Value) -> Option<String> {
    let devices = list(health, "devices").map(|device| match device["usable"].as_bool() {
        Some(true) => text(&device["device"]).to_owned(),
        _ => format!("{} (not usable)", text(&device["device"])),
    });
    let devices: Vec<String> = devices.collect();
    (!devices.is_empty()).then(|| format!("\ndevices: {}", devices.join(", ")))
}

/// Returns the table of the last requests; `None` if there are none.
fn requests(requests: &[Value]) -> Option<String> {
    if requests.is_empty() {
        return None;
    }
    let mut rows = table(&["LAST REQUESTS", "STATUS", "MODEL", "TOKENS", "FIRST TOKEN", "TOKENS/S", "TOTAL"]);
    for request in requests {
        rows.add_row([
            Cell::new(text(&request["route"])),
            right(figure(&request["status"], "")),
            Cell::new(text(&request["model"])),
            right(figure(&request["tokens"], "")),
            right(figure(&request["first_token_ms"], " ms")),
            right(figure(&request["tokens_per_second"], "")),
            right(figure(&request["total_ms"], " ms")),
        ]);
    }
    Some(format!("\n{}", rows.trim_fmt()))
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_server_is_shown_as_far_as_it_states_its_figures() {
        let engine = json!({
            "running": 1, "waiting": 2, "kv_used_bytes": 2_000_000, "generated_tokens": 40, "prompt_tokens": 150,
            "cached_tokens": 50,
        });
        let health = json!({
            "status": "ok", "version": "0.1.0",
            "memory": {"weights_bytes": 500, "kv_used_bytes": 20, "kv_budget_bytes": 80, "free_bytes": null, "low": true},
            "power": {"sensor": "RAPL", "watts": 12.51, "idle_watts": null},
            "devices": [{"device": "cpu", "usable": true}, {"device": "qnn", "usable": false}],
            "upstreams": [{
                "name": "box", "state": "skipped", "running": 1, "requests": 9, "errors": 3, "prompt_tokens": 40,
                "generated_tokens": 2, "first_byte_ms": 81.6, "last_error": "upstream_timeout",
            }],
            "models": [
                {"id": "tiny", "scheme": "w8", "state": {"state": "ready"}, "device": "cpu", "engine": engine},
                {"id": "other", "scheme": "w4", "state": {"state": "loading"}, "device": null, "engine": null},
            ],
        });
        let request = json!({
            "route": "POST /v1/chat/completions", "status": 200, "model": "tiny@w8", "tokens": 9, "first_token_ms": 250.4,
            "tokens_per_second": null, "total_ms": 812.0,
        });
        let server = ServerState {
            address: "127.0.0.1:8000".to_owned(),
            tokens_per_second: Some(3.25),
            health,
            requests: vec![request],
        };
        let shown = server_states(&[server]);
        let lines: Vec<String> =
            shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expect = [
            "127.0.0.1:8000 · narthex 0.1.0 · ok",
            "3.2 tokens/s · 1 running · 2 waiting · 25 % of prompt tokens from the cache · 12.5 W",
            "weights 500 B · KV cache 20 B of 80 B · little memory is free",
            "",
            "MODEL STATE DEVICE RUNNING WAITING KV CACHE GENERATED",
            "tiny@w8 ready cpu 1 2 2.0 MB 40",
            "other@w4 loading - - - - -",
            "",
            "upstream box: skipped · 1 running · 9 requests · 3 errors · 42 tokens · first byte 82 ms · last error \
             upstream_timeout",
            "",
            "devices: cpu, qnn (not usable)",
            "",
            "LAST REQUESTS STATUS MODEL TOKENS FIRST TOKEN TOKENS/S TOTAL",
            "POST /v1/chat/completions 200 tiny@w8 9 250 ms - 812 ms",
        ];
        assert_eq!(lines, expect);
    }

    #[test]
    fn servers_without_a_readable_state_are_named() {
        let server = |health| ServerState {
            address: "a:1".to_owned(),
            tokens_per_second: None,
            health,
            requests: Vec::new(),
        };
        let shown = server_states(&[server(Value::Null), server(json!({"status": "ok"}))]);
        let expect = "a:1 does not answer, or its state cannot be read: it needs TLS, or another key in NARTHEX_API_KEY\n\na:1 · ok · \
                      a key in NARTHEX_API_KEY shows more";
        assert_eq!(shown, expect);
        assert!(server_states(&[]).starts_with("No server is running"));
    }
}
