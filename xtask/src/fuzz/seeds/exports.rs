//! Existing ONNX exports: the tiny ones that other exporters wrote, and variants with extreme numbers, names and
//! depths.
//!
//! Weights are left out: the target has a data file of zeros for them, so that mutations affect only the parsed parts.

use std::{fs, path::Path};

use anyhow::Context;
use narthex_graph::{Graph, InitializerData};
use serde_json::{Value, json};

use super::Input;

/// Folder of the exports, relative to this package.
const EXPORTS: &str = "../crates/compile/tests/goldens/import";

/// Name of the target's data file, and its size in bytes.
pub(super) const DATA: (&str, u64) = ("model.onnx.data", 128 << 10);

/// Minimum size in bytes of constants that are left out.
const LARGE: usize = 512;

/// Exports, and the files of each that are parsed. A folder in a name is removed for the target.
const FILES: [(&str, &[&str]); 6] = [
    ("genai-cpu", &["genai_config.json", "model.onnx"]),
    ("genai-dml", &["genai_config.json", "model.onnx"]),
    ("optimum-merged", &["config.json", "decoder_model_merged.onnx"]),
    ("optimum-two", &["config.json", "decoder_model.onnx", "decoder_with_past_model.onnx"]),
    ("transformers-js", &["config.json", "onnx/decoder_model_merged.onnx", "onnx/embed_tokens.onnx"]),
    ("sentence", &["config.json", "modules.json", "1_Pooling/config.json", "onnx/model.onnx"]),
];

type Files = Vec<(&'static str, Vec<u8>)>;

pub(super) fn seeds() -> anyhow::Result<Vec<Input>> {
    let mut inputs = Vec::new();
    for (name, files) in FILES {
        inputs.push(Input::valid(name, Input::files(&read(name, files)?)));
    }
    let genai = read(FILES[0].0, FILES[0].1)?;
    let number =
        |name: &str, pointer: &str, value: Value| Input::bomb(name, with_number(&genai, pointer, value));
    let giant = json!(u64::MAX);
    inputs.extend([
        number("context", "/model/context_length", giant.clone()),
        number("vocabulary", "/model/vocab_size", giant.clone()),
        number("hidden", "/model/decoder/hidden_size", giant.clone()),
        number("head-size", "/model/decoder/head_size", giant.clone()),
        number("heads", "/model/decoder/num_attention_heads", giant.clone()),
        number("kv-heads", "/model/decoder/num_key_value_heads", giant),
        number("outside", "/model/decoder/filename", json!("../../../../dev/zero")),
        number("pattern", "/model/decoder/inputs/past_key_names", json!("%d".repeat(2000))),
        Input::bomb("nested", Input::files(&[(genai[0].0, b"[".repeat(5000))])),
        with_graph(&genai, "shape", |graph| {
            graph.initializers.iter_mut().for_each(|constant| constant.shape = vec![usize::MAX >> 1; 8]);
        })?,
        with_graph(&genai, "data", |graph| {
            graph.initializers.iter_mut().for_each(|constant| {
                let (file, offset) = (DATA.0.to_owned(), 0);
                constant.data = InitializerData::External { file, offset, length: u64::MAX >> 1 };
            });
        })?,
        with_graph(&genai, "inputs", |graph| {
            graph.inputs = graph.inputs.iter().cycle().take(graph.inputs.len() * 50).cloned().collect();
        })?,
    ]);
    Ok(inputs)
}

/// Reads the files of an export, named without folders, and its tokenizer.
fn read(export: &str, files: &[&'static str]) -> anyhow::Result<Files> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(EXPORTS).join(export);
    let file = |name: &&'static str| {
        let path = folder.join(name);
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        let flat = name.strip_prefix("onnx/").unwrap_or(name);
        Ok((flat, if name.ends_with(".onnx") { without_weights(&bytes)? } else { bytes }))
    };
    files.iter().chain(&["tokenizer.json", "tokenizer_config.json"]).map(file).collect()
}

/// Returns a graph whose large constants are in the target's data file.
fn without_weights(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut graph = Graph::decode(bytes)?;
    for constant in &mut graph.initializers {
        let length = match &constant.data {
            InitializerData::Inline(bytes) if bytes.len() < LARGE => continue,
            InitializerData::Inline(bytes) => bytes.len() as u64,
            InitializerData::External { length, .. } => *length,
        };
        constant.data = InitializerData::External { file: DATA.0.to_owned(), offset: 0, length };
    }
    Ok(graph.encode())
}

fn with_number(genai: &Files, pointer: &str, value: Value) -> Vec<u8> {
    let mut config: Value = serde_json::from_slice(&genai[0].1).unwrap_or_default();
    if let Some(place) = config.pointer_mut(pointer) {
        *place = value;
    }
    let mut files = genai.clone();
    files[0].1 = config.to_string().into_bytes();
    Input::files(&files)
}

fn with_graph(genai: &Files, name: &str, change: impl FnOnce(&mut Graph)) -> anyhow::Result<Input> {
    let mut graph = Graph::decode(&genai[1].1)?;
    change(&mut graph);
    let mut files = genai.clone();
    files[1].1 = graph.encode();
    Ok(Input::bomb(name, Input::files(&files)))
}
