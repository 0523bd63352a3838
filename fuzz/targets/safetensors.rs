//! Safetensors: one file, or an index and its shards, with a configuration that does not change.
//!
//! An input contains files with names, as described in `scratch::files`; files with other names are ignored.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use narthex_checkpoint as checkpoint;
use narthex_fuzz::{
    exhaust,
    scratch::{self, Tail},
};
use narthex_testkit::checkpoint::tiny_llama_safetensors;

const FILES: [&str; 4] = [
    "model.safetensors",
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
];

/// Maximum number of zero bytes that replace the tensors.
const ROOM: u64 = 1 << 20;

/// Writes the configuration and the tokenizer once.
fn settings() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| tiny_llama_safetensors(scratch::folder(), 1).expect("a tiny checkpoint"));
}

/// Returns the length of the file whose header is in `bytes`, if the header can be parsed.
fn stated_length(bytes: &[u8]) -> Option<u64> {
    let length = u64::from_le_bytes(*bytes.first_chunk()?);
    let header = bytes.get(8..)?.get(..usize::try_from(length).ok()?)?;
    let header: serde_json::Value = serde_json::from_slice(header).ok()?;
    let ends = header.as_object()?.values().filter_map(|tensor| tensor.get("data_offsets")?.get(1)?.as_u64());
    Some(8 + length + ends.max()?.min(ROOM))
}

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    settings();
    FILES.into_iter().for_each(scratch::remove);
    for (name, bytes) in scratch::files(data).into_iter().filter(|(name, _)| FILES.contains(name)) {
        scratch::write(name, bytes, stated_length(bytes).map_or(Tail::Nothing, Tail::UpTo));
    }
    if let Ok(checkpoint) = checkpoint::open(scratch::folder()) {
        exhaust::checkpoint(&checkpoint);
    }
});
