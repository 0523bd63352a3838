//! Seeds for manifests of packages, and for wheels.

use std::io::{Cursor, Write};

use serde_json::{Value, json};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

use super::Input;

/// Size in bytes of the tables in the manifests.
const DATA: usize = 1 << 16;

pub(super) fn manifests() -> Vec<Input> {
    let (decoder, encoder) = (decoder(), encoder());
    let bomb = |name: &str, pointer: &str, value: Value| {
        let mut manifest = decoder.clone();
        if let Some(place) = manifest.pointer_mut(pointer) {
            *place = value;
        }
        Input::bomb(name, manifest.to_string())
    };
    let giant = json!(1u64 << 62);
    vec![
        Input::valid("decoder", decoder.to_string()),
        Input::valid("encoder", encoder.to_string()),
        bomb("heads", "/graphs/0/kv/0/heads", giant.clone()),
        bomb("head-size", "/graphs/0/kv/0/head_size", giant.clone()),
        bomb("rows", "/tables/0/rows", giant.clone()),
        bomb("block", "/tables/0/encoding/block", giant.clone()),
        bomb("offset", "/tables/0/encoding/quants/offset", json!(u64::MAX)),
        bomb("length", "/max_length", giant.clone()),
        bomb("vocabulary", "/architecture/vocab", giant),
        bomb("kv", "/graphs/0/kv", vec![decoder["graphs"][0]["kv"][0].clone(); 500].into()),
        bomb("outside", "/tables/0/encoding/quants/file", json!("../../../../dev/zero")),
        Input::bomb("nested", "[".repeat(5000)),
    ]
}

fn range(offset: usize, length: usize) -> Value {
    json!({"file": "data", "offset": offset, "length": length})
}

fn binding(role: Value, name: &str) -> Value {
    json!({"slot": role, "name": name, "dtype": "f32", "shape": ["batch", 64]})
}

/// Returns the manifest of a package. Decoders and encoders differ in the arguments.
fn manifest(architecture: Value, graph: Value, tables: Value) -> Value {
    let digest = "0".repeat(64);
    json!({
        "format": 1, "name": "tiny", "architecture": architecture,
        "recipe": {"scheme": "w8", "block": 32, "accuracy_level": 4}, "max_length": 64,
        "graphs": [graph], "tables": tables,
        "tokenizer": {"file": "tokenizer.json", "bos": 0, "stop": [0, 2], "pad": 0},
        "chat": {"template": "chat_template.jinja", "special_tokens": {"bos_token": "<s>"}},
        "files": {
            "data": {"bytes": DATA, "sha256": digest}, "model.onnx": {"bytes": 64, "sha256": digest},
            "tokenizer.json": {"bytes": 64, "sha256": digest},
            "chat_template.jinja": {"bytes": 64, "sha256": digest},
        },
        "provenance": {"source": "a seed", "checkpoint": {"f": digest}, "license": null, "compiler": "0.1.0"},
    })
}

fn decoder() -> Value {
    let layer = json!({
        "attention": {"heads": 4, "kv_heads": 2, "head_size": 16, "qkv_bias": false, "output_bias": false,
            "window": null},
        "mlp": {"inner": 96, "activation": "silu", "gated": true, "bias": false},
    });
    let architecture = json!({
        "kind": "decoder", "family": "llama", "vocab": 300, "hidden": 64, "context": 256, "layers": [layer],
        "norm_epsilon": 1e-5, "rope": {"theta": 1e4, "dims": 16, "scaling": {"type": "none"}}, "tied_head": true,
    });
    let role = |role: &str| json!({"role": role});
    let of_layer = |role: &str| json!({"role": role, "layer": 0});
    let graph = json!({
        "file": "model.onnx", "target": "dynamic",
        "inputs": [
            binding(role("embeds"), "embeds"), binding(role("seqlens_k"), "seqlens_k"),
            binding(role("total_length"), "total"), binding(role("logits_rows"), "rows"),
            binding(of_layer("past_key"), "pk"), binding(of_layer("past_value"), "pv"),
        ],
        "outputs": [
            binding(role("logits"), "logits"), binding(of_layer("present_key"), "nk"),
            binding(of_layer("present_value"), "nv"),
        ],
        "kv": [{"heads": 2, "head_size": 16, "window": null, "dtype": "f32", "keys": "after"}],
    });
    let encoding = json!({
        "type": "w8", "block": 32, "quants": range(64, 300 * 64), "scales": range(20_000, 300 * 64 / 32 * 2),
    });
    let tables = json!([{"role": "token", "rows": 300, "cols": 64, "encoding": encoding}]);
    manifest(architecture, graph, tables)
}

fn encoder() -> Value {
    let architecture = json!({
        "kind": "encoder", "family": "bert", "vocab": 100, "hidden": 64, "positions": 64, "layers": 1, "heads": 4,
        "inner": 96, "activation": "gelu", "norm_epsilon": 1e-12, "pooling": "mean", "normalize": true,
    });
    let role = |role: &str| json!({"role": role});
    let graph = json!({
        "file": "model.onnx", "target": "dynamic", "kv": [],
        "inputs": [binding(role("embeds"), "embeds"), binding(role("padding_mask"), "mask")],
        "outputs": [binding(role("embedding"), "embedding")],
    });
    let table = |role: &str, rows: usize, dtype: &str, size: usize| {
        let encoding = json!({"type": "plain", "dtype": dtype, "data": range(0, rows * 64 * size)});
        json!({"role": role, "rows": rows, "cols": 64, "encoding": encoding})
    };
    let tables = json!([
        table("token", 100, "f16", 2),
        table("position", 64, "f32", 4),
        table("token_type", 2, "f32", 4)
    ]);
    manifest(architecture, graph, tables)
}

pub(super) fn wheels() -> anyhow::Result<Vec<Input>> {
    let plain: [(&str, &[u8]); 3] =
        [("p/a.txt", b"some text"), ("p/b/c.bin", &[0; 300]), ("p-1.dist-info/RECORD", b"")];
    let names: Vec<String> = (0..100).map(|i| i.to_string()).collect();
    let many: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    let deflated = zip(&plain, CompressionMethod::Deflated)?;
    Ok(vec![
        Input::valid("deflated", deflated.clone()),
        Input::valid("stored", zip(&plain, CompressionMethod::Stored)?),
        Input::bomb("members", zip(&many, CompressionMethod::Stored)?),
        Input::bomb("zeros", zip(&[("zeros", &vec![0; 1 << 20])], CompressionMethod::Deflated)?),
        Input::bomb(
            "outside",
            zip(&[("../a", b"x"), ("/b", b"x"), ("c\\..\\d", b"x")], CompressionMethod::Stored)?,
        ),
        Input::bomb("count", in_end_record(&deflated, 10, &u16::MAX.to_le_bytes())),
        Input::bomb("directory", in_end_record(&deflated, 12, &(u32::MAX - 1).to_le_bytes())),
    ])
}

fn zip(members: &[(&str, &[u8])], method: CompressionMethod) -> anyhow::Result<Vec<u8>> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in members {
        zip.start_file(*name, SimpleFileOptions::default().compression_method(method))?;
        zip.write_all(bytes)?;
    }
    Ok(zip.finish()?.into_inner())
}

/// Returns the archive with `bytes` at offset `at` of its end record, which has the position of the central directory.
fn in_end_record(archive: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    const END_RECORD: usize = 22;
    let mut archive = archive.to_vec();
    let start = archive.len() - END_RECORD + at;
    archive[start..start + bytes.len()].copy_from_slice(bytes);
    archive
}
