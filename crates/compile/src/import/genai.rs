//! Folders of onnxruntime-genai: `genai_config.json` contains the graph's name, its inputs and outputs, and the
//! settings.

use serde::Deserialize;
use serde_json::Value;

use super::{
    names::TensorNames,
    pipeline, refused,
    selection::Composition,
    settings::{GENAI_CONFIG, Settings, checked},
};
use crate::error::Result;
use narthex_checkpoint::{
    hf::{
        config::TokenIds,
        folder::{Folder, inside},
    },
    limits::{CONTEXT, HEADS, VOCAB, WIDTH},
};

#[derive(Deserialize)]
struct GenaiConfig {
    model: GenaiModel,
}

#[derive(Deserialize)]
struct GenaiModel {
    #[serde(rename = "type", default)]
    kind: String,
    context_length: Option<usize>,
    vocab_size: Option<usize>,
    #[serde(flatten)]
    ids: TokenIds,
    decoder: Option<GenaiDecoder>,
    /// Other parts of a model, by name.
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
struct GenaiDecoder {
    filename: Option<String>,
    hidden_size: Option<usize>,
    head_size: Option<usize>,
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    #[serde(default)]
    inputs: serde_json::Map<String, Value>,
    #[serde(default)]
    outputs: serde_json::Map<String, Value>,
    #[serde(default)]
    session_options: Value,
    pipeline: Option<Value>,
    sliding_window: Option<SlidingWindow>,
}

/// The window in which onnxruntime-genai passes a prompt to graphs with fixed shapes.
#[derive(Deserialize)]
struct SlidingWindow {
    /// Value of empty slots in an integer past.
    #[serde(default)]
    pad_value: u8,
}

/// Contents of the file.
pub(super) struct GenaiExport {
    /// File names of the graphs, relative to the folder.
    pub(super) graphs: Vec<String>,
    pub(super) form: Composition,
    /// Session options of a pipeline's stages.
    pub(super) pipeline: Option<Value>,
    pub(super) names: TensorNames,
    pub(super) settings: Settings,
    /// Options of the session.
    pub(super) options: Value,
}

/// Reads `genai_config.json`. `file` replaces the graph in the configuration.
///
/// # Errors
/// A refusal of models other than one decoder, and of a graph that is not a stage of the pipeline.
pub(super) fn read(folder: &mut Folder, file: Option<&str>) -> Result<GenaiExport> {
    let expected = "the configuration of a model of onnxruntime-genai";
    let GenaiConfig { model } = folder
        .json(GENAI_CONFIG, expected)?
        .ok_or_else(|| refused(format!("content of {}", folder.path().display()), GENAI_CONFIG, "none"))?;
    let parts = ["encoder", "vision", "speech", "embedding"];
    if let Some(part) = parts.into_iter().find(|part| model.rest.contains_key(*part)) {
        return Err(refused(format!("model.{part} of {GENAI_CONFIG}"), "a decoder alone", &model.kind));
    }

    let decoder =
        model.decoder.ok_or_else(|| refused(format!("model of {GENAI_CONFIG}"), "a decoder", "none"))?;
    let path = folder.file(GENAI_CONFIG);
    let (graphs, form) = match &decoder.pipeline {
        Some(pipeline) => {
            let stages = pipeline::stages(pipeline)?;
            let graphs: Vec<String> = stages.iter().map(|stage| stage.file.clone()).collect();
            if let Some(file) = file.filter(|file| graphs.iter().all(|graph| graph != file)) {
                let stages = graphs.join(", ");
                return Err(refused(
                    format!("graph of {GENAI_CONFIG}"),
                    format!("a stage of it: {stages}"),
                    file,
                ));
            }
            (graphs, Composition::Stages(stages))
        }
        None => {
            let file = file.map(str::to_owned).or(decoder.filename);
            (vec![file.unwrap_or_else(|| "model.onnx".to_owned())], Composition::Single)
        }
    };

    if let Some(graph) = graphs.iter().find(|graph| graph.is_empty() || !inside(graph)) {
        return Err(refused(format!("filename of {GENAI_CONFIG}"), "a file in the folder", graph));
    }

    let settings = Settings {
        file: GENAI_CONFIG.to_owned(),
        vocab: checked(&path, "a vocab_size", model.vocab_size, &VOCAB)?,
        hidden: checked(&path, "a hidden_size", decoder.hidden_size, &WIDTH)?,
        heads: checked(&path, "num_attention_heads", decoder.num_attention_heads, &HEADS)?,
        kv_heads: checked(&path, "num_key_value_heads", decoder.num_key_value_heads, &HEADS)?,
        head_size: checked(&path, "a head_size", decoder.head_size, &WIDTH)?,
        context: checked(&path, "a context_length", model.context_length, &CONTEXT)?,
        ids: model.ids,
        empty: decoder.sliding_window.map_or(0.0, |window| window.pad_value.into()),
        ..Settings::default()
    };

    let names = names(&decoder.inputs, &decoder.outputs);
    Ok(GenaiExport {
        graphs,
        form,
        pipeline: decoder.pipeline,
        names,
        settings,
        options: decoder.session_options,
    })
}

/// Returns the names in the file, with onnxruntime-genai's defaults.
fn names(inputs: &serde_json::Map<String, Value>, outputs: &serde_json::Map<String, Value>) -> TensorNames {
    let usual = TensorNames::default();
    let name = |from: &serde_json::Map<String, Value>, key: &str, usual: String| {
        from.get(key).and_then(Value::as_str).map_or(usual, str::to_owned)
    };
    let [past_key, past_value] = usual.past;
    let [key, value] = usual.present;
    let [total, current] = usual.totals;
    TensorNames {
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
