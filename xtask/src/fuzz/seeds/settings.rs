//! Seeds for settings and records. The first byte of each selects the parser, as in `fuzz/src/settings.rs`.

use serde_json::{Value, json};

use super::Input;

pub(super) fn seeds() -> Vec<Input> {
    let mut seeds = records();
    seeds.extend(user_files());
    seeds.extend(options());
    seeds.extend(bombs());
    seeds
}

fn valid(parser: char, name: &str, content: impl AsRef<[u8]>) -> Input {
    Input::valid(name, [&[parser as u8], content.as_ref()].concat())
}

fn bomb(parser: char, name: &str, content: impl AsRef<[u8]>) -> Input {
    Input::bomb(name, [&[parser as u8], content.as_ref()].concat())
}

fn key(device: &str) -> Value {
    json!({
        "device": device, "runtime": "1.31.1", "provider": "onnxruntime-qnn 2.7.0", "driver": "none",
        "settings": {"soc_model": "60"},
    })
}

fn files() -> Value {
    json!({"a/b.bin": {"bytes": 3, "sha256": "0".repeat(64)}})
}

/// Returns the measurements of a CPU and an NPU that reads `chunk` tokens at once.
fn measurements(chunk: u64) -> Value {
    let times = |device: &str, chunk: u64, ms: f64| json!({"device": device, "chunk": chunk, "chunk_ms": ms, "short_ms": ms, "token_ms": 50.0 / ms});
    json!({
        "version": 1, "keys": [key("cpu"), key("qnn")], "threads": 0,
        "measured": {
            "devices": [times("cpu", 256, 90.0), times("qnn", chunk, 2.5)],
            "handover": {"prefill": "qnn", "decode": "cpu", "token_ms": 0.125},
        },
        "refused": [{"device": "webgpu", "reason": "r", "fix": null, "announced": true}],
    })
}

/// Returns the record of a check with one result of a decoder.
fn verification(margin: f64) -> Value {
    json!({
        "version": 3, "key": key("qnn"), "quarantine": "q",
        "positions": [{"text": 0, "at": 4, "divergence": 0.001, "margin": margin, "agrees": true}],
        "texts": [{"text": 1, "tokens": 30, "cosine": null}],
    })
}

/// Returns the records that Narthex writes.
fn records() -> Vec<Input> {
    let model = json!({
        "name": "tiny", "kind": "chat", "scheme": "w8", "state": {"state": "failed", "reason": "r", "hint": null},
        "placement": null, "passed_over": measurements(64)["refused"], "max_length": 2048, "package_bytes": 9,
        "engine": {
            "running": 0, "waiting": 0, "slots": 4, "kv_used_bytes": 0, "kv_budget_bytes": 9, "prompt_tokens": 1,
            "cached_tokens": 0, "generated_tokens": 2,
        },
    });
    let receipt = json!({"made_for": "tiny", "source": "s", "archive": "0".repeat(64), "files": files()});
    let states =
        json!({"a": {"inode": 1, "bytes": 2, "modified": 1_790_000_000_000_000_000u64, "changed": -1}});
    let manifest = json!({"format": narthex_spec::manifest::FORMAT, "name": "tiny", "files": files()});
    let comparison = json!({"positions": 500, "divergence": 0.25, "perplexity_change": 0.5, "agreeing": 499});
    let kv_cache = json!({"version": 4, "key": key("cpu"), "i8": comparison, "f16": comparison});
    let server = json!({"pid": 1, "address": "[::1]:8000", "encryption": "tls", "started": 1_790_000_000, "models": [model]});
    let node = json!({"path": "/layers.0/MatMul", "why": null});
    vec![
        valid('R', "receipt", receipt.to_string()),
        valid('S', "states", states.to_string()),
        valid('M', "manifest", manifest.to_string()),
        valid('C', "contexts", json!({"key": key("qnn"), "files": {"a": "0".repeat(64)}}).to_string()),
        valid('P', "provider", key("openvino:npu").to_string()),
        valid('V', "verification", verification(0.75).to_string()),
        valid('K', "kv-cache", kv_cache.to_string()),
        valid('D', "measurements", measurements(64).to_string()),
        valid('W', "server", server.to_string()),
        valid('A', "answer", json!({"partly": {"elsewhere": [node], "nodes": 3}}).to_string()),
    ]
}

/// Returns files of other programs and of the user.
fn user_files() -> Vec<Input> {
    let node =
        json!({"node_name": "/a", "op_type": "Cast", "reason": "not supported. QNN node `Cast` is left"});
    let tool = json!({
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object"}, "strict": true},
        "command": ["./weather", "--json"], "timeout": 5,
    });
    let listing = json!({
        "sha": "a".repeat(40), "siblings": [{"rfilename": "config.json", "size": 9}], "tags": ["license:mit"],
        "cardData": {"license": "mit"},
    });
    let file =
        json!({"filename": "p-1-py3-none-any.whl", "url": "p.whl", "hashes": {"sha256": "0".repeat(64)}});
    let index_page = json!({"meta": {"api-version": "1.1"}, "name": "p", "files": [file]});
    let tls = concat!(
        include_str!("../../../../crates/server/tests/tls/certificate.pem"),
        "\0",
        include_str!("../../../../crates/server/tests/tls/key.pem")
    );
    vec![
        valid('L', "listing", listing.to_string()),
        valid('Q', "index-page", index_page.to_string()),
        valid('Q', "index-page-html", "<html><a href='../p.whl#sha256=00'>p</a><a\nhref=q%2B.whl>"),
        valid(
            'Z',
            "pip-configuration",
            "[global]\nextra-index-url =\n    https://a\n    https://b\nproxy: http://p\n",
        ),
        valid('T', "trace", json!({"unsupported_nodes": [node]}).to_string()),
        valid('I', "cards", "NVIDIA H200, 143771\nNVIDIA GB10, [N/A]\n"),
        valid('H', "host-header", "[::1]:8080"),
        valid('N', "kept-tokens", "[0, 5, 999]"),
        valid('F', "tools", json!([tool]).to_string()),
        valid('J', "vocabulary-list", "[1, 2, 3]"),
        valid('X', "vocabulary-text", "the cat sat"),
        valid('Y', "tls", tls),
        valid('E', "environment", "HF_HOME=/nowhere\nHF_TOKEN=hf_0123456789abcdef\nHF_HUB_OFFLINE=1\n"),
    ]
}

/// Returns values of options.
fn options() -> Vec<Input> {
    [
        ("model", "smollm2:135m"),
        ("order", "qnn,openvino:npu,cpu"),
        ("named-order", "auto"),
        ("phases", "prefill=qnn,decode=cpu"),
        ("head", "layers=qnn,head=cpu"),
        ("npu", "vtcm=4,priority=high"),
        ("layers", "1,3-5"),
        ("matformer", "ffn=8192"),
        ("yarn", "4"),
        ("target", "qnn:x-elite"),
        ("hub", "hf:org/model/q4.gguf@main"),
        ("host", "*.internal"),
        ("origin", "https://box.lan:8443"),
    ]
    .map(|(name, text)| valid('O', &format!("option-{name}"), text))
    .into()
}

fn bombs() -> Vec<Input> {
    let mut bombs: Vec<Input> = "RSMLCPVKDWATNFJIH"
        .chars()
        .map(|parser| bomb(parser, &format!("nested-{parser}"), "[".repeat(5000)))
        .collect();
    let many = vec!["a"; 2000].join(",");
    bombs.extend([
        bomb('D', "chunk", measurements(u64::MAX).to_string()),
        bomb('V', "margin", verification(1e300).to_string()),
        bomb('N', "many-tokens", format!("[{}]", vec!["0"; 5000].join(","))),
        bomb('O', "option-list", &many),
        bomb('O', "option-range", "0-18446744073709551615"),
        bomb('O', "option-widths", format!("ffn={}", vec!["18446744073709551615"; 500].join("+"))),
        bomb('X', "vocabulary", [0xFF; 100]),
        bomb('E', "token-file", "HF_HOME=/nowhere\nHF_TOKEN_PATH=/dev/zero\n"),
        bomb('Y', "certificates", "-----BEGIN CERTIFICATE-----\n".repeat(300)),
    ]);
    bombs
}
