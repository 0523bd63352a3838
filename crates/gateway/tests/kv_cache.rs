//! Element type of the KV cache on the CPU: named, or chosen by a comparison that is stored.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    fs,
    path::{Path, PathBuf},
};

use narthex_gateway::{Config, Gateway};
use narthex_spec::KvCacheDtype;
use serde_json::Value;
use support::{Tiny, ask, greedy, question};

/// Bytes of a token in single precision: 2 layers, keys and values, 2 heads of 16 elements.
const SINGLE: usize = 2 * 2 * 2 * 16 * 4;

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
fn half_precision_is_chosen_once_where_answers_stay_the_same() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let (expected, bytes, notes) = run(&tiny, &model, KvCacheDtype::F32);
    assert_eq!((bytes, notes.len(), record(&tiny.home())), (SINGLE, 0, None));
    assert_eq!(run(&tiny, &model, KvCacheDtype::Auto), (expected.clone(), SINGLE / 2, Vec::new()));

    // A stored refusal is used, and the reason is reported.
    let path = record(&tiny.home()).unwrap();
    let mut stored: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert!(stored["refused"].is_null() && stored["positions"].as_array().unwrap().len() > 4, "{stored}");
    stored["refused"] = "its best token differs".into();
    fs::write(&path, stored.to_string()).unwrap();
    let (text, bytes, notes) = run(&tiny, &model, KvCacheDtype::Auto);
    assert_eq!((text, bytes), (expected.clone(), SINGLE));
    assert!(notes[0].contains("in f32 and not in f16, because with f16 its best token differs"), "{notes:?}");
    assert_eq!(run(&tiny, &model, KvCacheDtype::F16), (expected.clone(), SINGLE / 2, Vec::new()));

    // A record that cannot be read, or that belongs to another kind of comparison, is replaced by a new comparison.
    stored["edition"] = 0.into();
    for unknown in ["{", &stored.to_string()] {
        fs::write(&path, unknown).unwrap();
        assert_eq!(run(&tiny, &model, KvCacheDtype::Auto), (expected.clone(), SINGLE / 2, Vec::new()));
    }
}
