//! The small files of a safetensors folder: configuration, tokenizer and template, and those of sentence-transformers.
//!
//! An input contains files with names, as described in `scratch::files`; files with other names are ignored. The
//! weights do not change: they are those of a tiny BERT if the configuration mentions it, otherwise those of a tiny
//! Llama.
#![no_main]

use std::{fs, sync::OnceLock};

use libfuzzer_sys::fuzz_target;
use narthex_checkpoint as checkpoint;
use narthex_fuzz::{
    exhaust,
    scratch::{self, Tail},
};
use narthex_testkit::checkpoint::{tiny_bert_safetensors, tiny_llama_safetensors};

const CONFIG: &str = "config.json";

const FILES: [&str; 10] = [
    CONFIG,
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
    "chat_template.jinja",
    "README.md",
];

/// Writes both models once. Every input replaces their small files.
fn weights() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let folder = |name: &str| {
            let folder = scratch::folder().join(name);
            fs::create_dir_all(folder.join("1_Pooling")).expect("a folder");
            folder
        };
        tiny_llama_safetensors(&folder("llama"), 1).expect("a tiny checkpoint");
        tiny_bert_safetensors(&folder("bert"), 1).expect("a tiny checkpoint");
    });
}

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    weights();
    let files = scratch::files(data);
    let is_bert = files.iter().any(|(name, bytes)| *name == CONFIG && bytes.windows(4).any(|w| w == b"bert"));
    let model = if is_bert { "bert" } else { "llama" };
    for name in FILES {
        scratch::remove(&format!("{model}/{name}"));
    }
    for (name, bytes) in files.into_iter().filter(|(name, _)| FILES.contains(name)) {
        scratch::write(&format!("{model}/{name}"), bytes, Tail::Nothing);
    }
    if let Ok(checkpoint) = checkpoint::open(&scratch::folder().join(model)) {
        exhaust::checkpoint(&checkpoint);
    }
});
