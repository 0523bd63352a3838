//! Folders of existing ONNX exports: their configuration and their graphs, and the package that is written if they are
//! accepted.
//!
//! An input contains files with names, as described in `scratch::files`; files with other names are ignored. The data
//! file to which graphs refer does not change; it contains only zeros.
#![no_main]

use std::{fs, path::PathBuf, sync::atomic::AtomicBool};

use libfuzzer_sys::fuzz_target;
use narthex_compile::import::{self, ImportJob};
use narthex_fuzz::scratch::{self, Tail};
use narthex_graph::Graph;
use narthex_spec::progress::Quiet;

const FILES: [&str; 17] = [
    "genai_config.json",
    "genie_config.json",
    "htp_backend_ext_config.json",
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "modules.json",
    "1_Pooling/config.json",
    "chat_template.jinja",
    "README.md",
    "model.onnx",
    "decoder_model.onnx",
    "decoder_with_past_model.onnx",
    "decoder_model_merged.onnx",
    "embed_tokens.onnx",
];

/// Name of the data file, and its size in bytes. `xtask/src/fuzz/seeds/exports.rs` has the same values.
const DATA: (&str, u64) = ("model.onnx.data", 128 << 10);

/// Folder of the export.
const EXPORT: &str = "export";

/// Replaces the files of the previous input by those of this input.
fn export(data: &[u8]) -> PathBuf {
    let folder = scratch::folder().join(EXPORT);
    fs::create_dir_all(folder.join("1_Pooling")).expect("a folder");
    for name in FILES {
        scratch::remove(&format!("{EXPORT}/{name}"));
    }
    if !folder.join(DATA.0).is_file() {
        scratch::write(&format!("{EXPORT}/{}", DATA.0), b"", Tail::UpTo(DATA.1));
    }
    for (name, bytes) in scratch::files(data).into_iter().filter(|(name, _)| FILES.contains(name)) {
        scratch::write(&format!("{EXPORT}/{name}"), bytes, Tail::Nothing);
    }
    folder
}

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    let Ok(found) = import::open(&export(data), None, None) else { return };
    let out = scratch::folder().join("package");
    let _ = fs::remove_dir_all(&out);
    fs::create_dir(&out).expect("a folder");
    let job = ImportJob {
        name: "fuzzed".parse().expect("a name"),
        out: &out,
        source: "fuzzed".to_owned(),
        compiler: "fuzzed".to_owned(),
    };
    if let Ok(manifest) = found.write(job, &Quiet, &AtomicBool::new(false)) {
        let graph = fs::read(out.join(&manifest.graphs[0].file)).expect("the graph of a whole package");
        let _ = Graph::decode(&graph).expect("a graph that reads its own bytes").check();
    }
});
