//! `decoder-pipeline` of onnxruntime-genai, which Olive writes: a decoder in stages, each with its own graph. Later
//! stages read the outputs of earlier ones by name; some stages run for prompts only, some for single tokens only.
//!
//! The stages for prompts and those for tokens are the same graphs with different fixed shapes (a window of tokens, and
//! one). If they differ only in declared shapes, they become one graph for any number of tokens.

use std::{collections::BTreeMap, path::Path};

use narthex_graph::{Graph, Initializer, onnx::files::DataFiles};
use serde::Deserialize;
use serde_json::Value;

use super::{
    chunk, device_bundle, graphs::fixed_extent, merge, names::TensorNames, refused, settings::GENAI_CONFIG,
};
use crate::error::{CompileError, Result};

/// Maximum number of stages.
const MAX_STAGES: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stage {
    /// Its graph, relative to the folder.
    pub(super) file: String,
    /// The phase in which it runs.
    runs: RunPhase,
    /// Names of its outputs in later stages, by their names in its graph.
    renamed: BTreeMap<String, String>,
}

/// The steps in which a stage runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunPhase {
    Always,
    /// Prompts only.
    Prompt,
    /// Single tokens only.
    Token,
}

/// A stage in the configuration.
#[derive(Deserialize)]
struct StageConfig {
    filename: String,
    #[serde(default = "default_run")]
    run_on_prompt: bool,
    #[serde(default = "default_run")]
    run_on_token_gen: bool,
    #[serde(default)]
    output_names_forwarder: BTreeMap<String, String>,
}

fn default_run() -> bool {
    true
}

/// Reads the stages from an object by name or a list of such objects, in the order of the file.
pub(super) fn stages(pipeline: &Value) -> Result<Vec<Stage>> {
    let objects = match pipeline {
        Value::Array(list) => list.iter().collect(),
        other => vec![other],
    };

    let mut stages = Vec::new();
    for object in objects {
        let object =
            object.as_object().ok_or_else(|| wrong_stages(object.to_string().chars().take(80).collect()))?;
        for (name, stage) in object {
            let config =
                StageConfig::deserialize(stage).map_err(|error| wrong_stages(format!("{name}: {error}")))?;
            let runs = match (config.run_on_prompt, config.run_on_token_gen) {
                (true, true) => RunPhase::Always,
                (true, false) => RunPhase::Prompt,
                (false, true) => RunPhase::Token,
                (false, false) => continue,
            };
            stages.push(Stage { file: config.filename, runs, renamed: config.output_names_forwarder });
        }
    }

    match stages.len() {
        1..=MAX_STAGES => Ok(stages),
        count => Err(wrong_stages(format!("{count} stages"))),
    }
}

fn wrong_stages(found: String) -> CompileError {
    refused(format!("pipeline of {GENAI_CONFIG}"), "stages, each with a filename", found)
}

/// Result of joining the stages.
pub(super) enum JoinedPipeline {
    /// One graph for any number of tokens.
    One(Box<Graph>),
    /// Graphs of fixed shapes: one for a single token and one for prompts, or one for both.
    Chunks(Vec<Graph>),
}

/// Joins the graphs of the stages, which are in the same order; data files are in `folder`.
///
/// # Errors
/// A refusal if the stages for prompts and for tokens compute different things, unless their shapes are fixed.
pub(super) fn join(
    stages: &[Stage],
    graphs: Vec<Graph>,
    names: &TensorNames,
    folder: &Path,
) -> Result<JoinedPipeline> {
    let pairs = stages.iter().zip(&graphs);
    let prompt_stages: Vec<_> = pairs.clone().filter(|(stage, _)| stage.runs != RunPhase::Token).collect();
    let token_stages: Vec<_> = pairs.filter(|(stage, _)| stage.runs != RunPhase::Prompt).collect();
    let prompt = chain(&prompt_stages)?;
    let mut token = chain(&token_stages)?;
    let always = stages.iter().all(|stage| stage.runs == RunPhase::Always);
    if graphs.iter().any(device_bundle::is_compiled)
        || [&prompt, &token].iter().all(|graph| has_fixed_past(graph, names))
    {
        let mut chunks = vec![with_length(token, &token_stages, names)];
        if !always {
            chunks.push(with_length(prompt, &prompt_stages, names));
        }
        return Ok(JoinedPipeline::Chunks(chunks));
    }
    if always {
        return Ok(JoinedPipeline::One(Box::new(token)));
    }

    let Some(other) = difference(&prompt, &token, folder)? else {
        // The last stage outputs logits of every token, whatever its declared length.
        for output in token.outputs.iter_mut().filter(|output| output.name == names.logits) {
            output.shape.iter_mut().zip(["batch", "sequence"]).for_each(|(dim, name)| *dim = name.into());
        }
        return Ok(JoinedPipeline::One(Box::new(token)));
    };
    if names.match_decoder(&token) && !names.match_decoder(&prompt) && chunk::tokens(&prompt, names).is_none()
    {
        return Ok(JoinedPipeline::One(Box::new(merge::merge_branches(prompt, token)?)));
    }

    let expected = "stages for prompts and for tokens that differ in declared shapes alone, or those for prompts \
                    without a past and of any length";
    Err(refused(format!("pipeline of {GENAI_CONFIG}"), expected, other))
}

/// Merges the graphs of consecutive stages.
fn chain(stages: &[(&Stage, &Graph)]) -> Result<Graph> {
    merge::chain_stages(stages.iter().map(|(stage, graph)| ((*graph).clone(), &stage.renamed)))
}

/// Returns whether a graph has a past of fixed length.
fn has_fixed_past(graph: &Graph, names: &TensorNames) -> bool {
    let past = graph.inputs.iter().find(|input| input.name == names.past_key());
    past.is_some_and(|past| past.shape.iter().all(|dim| fixed_extent(dim).is_some()))
}

/// Declares the number of tokens of a chain if its stages state it: in the shape of the tokens, or in the rows
/// `[1, tokens, hidden]` after an embedding of any length.
fn with_length(mut chain: Graph, stages: &[(&Stage, &Graph)], names: &TensorNames) -> Graph {
    let length = stages.iter().find_map(|(_, graph)| {
        let mut rows = graph.inputs.iter().filter(|input| input.shape.len() == 3);
        chunk::tokens(graph, names).or_else(|| rows.find_map(|input| fixed_extent(&input.shape[1])))
    });
    let tokens = chain.inputs.iter_mut().filter(|input| input.name == names.tokens);
    for (dim, length) in tokens.filter_map(|input| input.shape.get_mut(1)).zip(length) {
        *dim = length.into();
    }
    chain
}

/// Describes the first difference between the computations of two graphs, ignoring declared shapes.
fn difference(one: &Graph, other: &Graph, folder: &Path) -> Result<Option<String>> {
    if let Some((node, _)) = one.nodes.iter().zip(&other.nodes).find(|(a, b)| a != b) {
        return Ok(Some(format!("a node that differs from {} ({})", node.name, node.op)));
    }
    if one.nodes.len() != other.nodes.len() {
        return Ok(Some(format!("{} and {} nodes", one.nodes.len(), other.nodes.len())));
    }

    let ours = constants(one);
    let theirs = constants(other);
    let mut left = DataFiles::default();
    let mut right = DataFiles::default();
    for (name, constant) in &ours {
        let same = match theirs.get(name) {
            Some(twin) if twin == constant => true,
            Some(twin) if (twin.dtype, &twin.shape) == (constant.dtype, &constant.shape) => {
                left.bytes(folder, constant)? == right.bytes(folder, twin)?
            }
            _ => false,
        };
        if !same {
            return Ok(Some(format!("a different constant {name}")));
        }
    }
    Ok((ours.len() != theirs.len()).then(|| format!("{} and {} constants", ours.len(), theirs.len())))
}

/// Returns the constants of a graph by name.
fn constants(graph: &Graph) -> BTreeMap<&str, &Initializer> {
    graph.initializers.iter().map(|constant| (constant.name.as_str(), constant)).collect()
}
