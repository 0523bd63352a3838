//! Folders of onnxruntime-genai: `genai_config.json` names the graph, its inputs and outputs, and the model's numbers.

use serde::Deserialize;
use serde_json::Value;

use super::{choice::Form, decoder::Names, pipeline, refused, settings::Settings};
use crate::error::CompileError;
use narthex_checkpoint::{
    hf::{
        config::TokenIds,
        folder::{Folder, inside},
    },
    limits::{CONTEXT, HEADS, VOCAB, WIDTH, bounded},
};

/// The file that makes a folder one of onnxruntime-genai.
pub(super) const CONFIG: &str = "genai_config.json";

#[derive(Deserialize)]
struct File {
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    context_length: Option<usize>,
    #[serde(default)]
    vocab_size: Option<usize>,
    #[serde(flatten)]
    ids: TokenIds,
    #[serde(default)]
    decoder: Option<Decoder>,
    /// Other parts of a model, by name.
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
struct Decoder {
    #[serde(default)]
    filename: Option<String>,
    #[serde(default)]
    hidden_size: Option<usize>,
    #[serde(default)]
    head_size: Option<usize>,
    #[serde(default)]
    num_attention_heads: Option<usize>,
    #[serde(default)]
    num_key_value_heads: Option<usize>,
    #[serde(default)]
    inputs: serde_json::Map<String, Value>,
    #[serde(default)]
    outputs: serde_json::Map<String, Value>,
    #[serde(default)]
    session_options: Value,
    #[serde(default)]
    pipeline: Option<Value>,
    #[serde(default)]
    sliding_window: Option<Window>,
}

/// How onnxruntime-genai hands a prompt to graphs of fixed shapes.
#[derive(Deserialize)]
struct Window {
    /// Fills places of a past of integers that no token has.
    #[serde(default)]
    pad_value: u8,
}

/// What the file says.
pub(super) struct Genai {
    /// The graphs, relative to the folder.
    pub(super) graphs: Vec<String>,
    /// How they make the model.
    pub(super) form: Form,
    /// What the sessions of a pipeline are told.
    pub(super) pipeline: Option<Value>,
    pub(super) names: Names,
    pub(super) settings: Settings,
    /// What its session is told.
    pub(super) options: Value,
}

/// Reads `genai_config.json`. `file` names a graph that stands in the place of the one in the configuration.
///
/// # Errors
/// A refusal of what is not one decoder, and of a graph that is no stage of a pipeline; [`CompileError::Bound`] for graphs that need a vendor's own operators.
pub(super) fn read(folder: &mut Folder, file: Option<&str>) -> Result<Genai, CompileError> {
    let expected = "the configuration of a model of onnxruntime-genai";
    let File { model } = folder
        .json(CONFIG, expected)?
        .ok_or_else(|| refused(format!("content of {}", folder.path().display()), CONFIG, "none"))?;
    let parts = ["encoder", "vision", "speech", "embedding"];
    if let Some(part) = parts.into_iter().find(|part| model.rest.contains_key(*part)) {
        return Err(refused(format!("model.{part} of {CONFIG}"), "a decoder alone", &model.kind));
    }
    let decoder = model.decoder.ok_or_else(|| refused(format!("model of {CONFIG}"), "a decoder", "none"))?;
    let path = folder.file(CONFIG);
    let checked = |what: &str, value: Option<usize>, range| {
        value.map(|value| bounded(&path, what, value, range)).transpose()
    };
    let (graphs, form) = match &decoder.pipeline {
        Some(pipeline) => {
            let stages = pipeline::stages(pipeline)?;
            let graphs: Vec<String> = stages.iter().map(|stage| stage.file.clone()).collect();
            if let Some(file) = file.filter(|file| graphs.iter().all(|graph| graph != file)) {
                let stages = graphs.join(", ");
                return Err(refused(format!("graph of {CONFIG}"), format!("a stage of it: {stages}"), file));
            }
            (graphs, Form::Stages(stages))
        }
        None => {
            let own = || decoder.filename.unwrap_or_else(|| "model.onnx".to_owned());
            (vec![file.map_or_else(own, str::to_owned)], Form::One)
        }
    };
    if let Some(graph) = graphs.iter().find(|graph| graph.is_empty() || !inside(graph)) {
        return Err(refused(format!("filename of {CONFIG}"), "a file in the folder", graph));
    }
    let settings = Settings {
        file: CONFIG.to_owned(),
        vocab: checked("a vocab_size", model.vocab_size, &VOCAB)?,
        hidden: checked("a hidden_size", decoder.hidden_size, &WIDTH)?,
        heads: checked("num_attention_heads", decoder.num_attention_heads, &HEADS)?,
        kv_heads: checked("num_key_value_heads", decoder.num_key_value_heads, &HEADS)?,
        head_size: checked("a head_size", decoder.head_size, &WIDTH)?,
        context: checked("a context_length", model.context_length, &CONTEXT)?,
        labels: Vec::new(),
        class: None,
        ids: model.ids,
        empty: decoder.sliding_window.map_or(0.0, |window| window.pad_value.into()),
    };
    let names = names(&decoder.inputs, &decoder.outputs);
    Ok(Genai { graphs, form, pipeline: decoder.pipeline, names, settings, options: decoder.session_options })
}

/// The names that the file gives, and the usual ones of onnxruntime-genai for the others.
fn names(inputs: &serde_json::Map<String, Value>, outputs: &serde_json::Map<String, Value>) -> Names {
    let usual = Names::default();
    let name = |from: &serde_json::Map<String, Value>, key: &str, usual: String| {
        from.get(key).and_then(Value::as_str).map_or(usual, str::to_owned)
    };
    let [past_key, past_value] = usual.past;
    let [key, value] = usual.present;
    let [total, current] = usual.totals;
    Names {
        tokens: name(inputs, "input_ids", usual.tokens),
        mask: name(inputs, "attention_mask", usual.mask),
        positions: name(inputs, "position_ids", usual.positions),
        last: name(inputs, "past_sequence_length", usual.last),
        totals: [
            name(inputs, "total_sequence_length", total),
            name(inputs, "current_sequence_length", current),
        ],
        past: [name(inputs, "past_key_names", past_key), name(inputs, "past_value_names", past_value)],
        present: [name(outputs, "present_key_names", key), name(outputs, "present_value_names", value)],
        logits: name(outputs, "logits", usual.logits),
    }
}
