//! Element type of the KV cache on the CPU: named, or chosen by a comparison that is stored.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use narthex_gateway::{Config, Gateway};
use narthex_spec::KvCacheDtype;
use serde_json::Value;

use crate::support::{Tiny, ask, greedy, question};

/// Bytes of a token: 2 layers, keys and values, 2 heads of 16 elements, and in integers a scale for each head.
const SINGLE: usize = 2 * 2 * 2 * 16 * 4;
const HALF: usize = SINGLE / 2;
const INTEGERS: usize = 2 * 2 * 2 * (16 + 4);

/// A greedy answer, the bytes of a token in the cache, and the notes of the load.
fn run(tiny: &Tiny, model: &str, kv_cache_dtype: KvCacheDtype) -> (String, usize, Vec<String>) {
    let gateway = Gateway::open(Config { kv_cache_dtype, ..tiny.config() }).unwrap();
    let text = ask(&gateway, model, question("the cat", greedy(24))).text;
    let status = gateway.status().remove(0);
    (text, status.engine.unwrap().kv_token_bytes, status.placement.unwrap().notes)
}

/// The stored comparison below a folder.
fn record(folder: &Path) -> Option<PathBuf> {
    fs::read_dir(folder).ok()?.find_map(|entry| {
        let path = entry.ok()?.path();
        if path.is_dir() { record(&path) } else { path.ends_with("kv-cache.json").then_some(path) }
    })
}

#[test]
fn the_smallest_type_is_chosen_once_where_answers_stay_the_same() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let (expected, bytes, notes) = run(&tiny, &model, KvCacheDtype::F32);
    assert_eq!((bytes, notes.len(), record(&tiny.home())), (SINGLE, 0, None));
    assert_eq!(run(&tiny, &model, KvCacheDtype::Auto), (expected.clone(), INTEGERS, Vec::new()));

    // Stored refusals are used, and the reasons are reported if no smaller type is left.
    let path = record(&tiny.home()).unwrap();
    let mut stored: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let integers = &stored["i8"];
    assert!(integers["divergence"].as_f64().unwrap() < 0.005, "{stored}");
    assert!(integers["positions"].as_u64().unwrap() > 4, "{stored}");
    assert!(stored["f16"].is_null(), "half precision need not be compared: {stored}");
    stored["f16"] = integers.clone();
    stored["i8"]["divergence"] = 0.02.into();
    fs::write(&path, stored.to_string()).unwrap();
    assert_eq!(run(&tiny, &model, KvCacheDtype::Auto), (expected.clone(), HALF, Vec::new()));
    stored["f16"]["divergence"] = Value::Null;
    fs::write(&path, stored.to_string()).unwrap();
    let (text, bytes, notes) = run(&tiny, &model, KvCacheDtype::Auto);
    assert_eq!((text, bytes), (expected.clone(), SINGLE));
    assert!(notes[0].contains("in f32, because with f16 logits are not finite, and with i8"), "{notes:?}");
    assert!(notes[0].contains("by 0.0200 nats on average, above 0.005"), "{notes:?}");
    assert_eq!(run(&tiny, &model, KvCacheDtype::F16), (expected.clone(), HALF, Vec::new()));
    assert_eq!(run(&tiny, &model, KvCacheDtype::I8), (expected.clone(), INTEGERS, Vec::new()));

    // A record that cannot be read, or that belongs to another kind of comparison, is replaced by a new comparison.
    stored["version"] = 0.into();
    for unknown in ["{", &stored.to_string()] {
        fs::write(&path, unknown).unwrap();
        assert_eq!(run(&tiny, &model, KvCacheDtype::Auto), (expected.clone(), INTEGERS, Vec::new()));
    }
}
