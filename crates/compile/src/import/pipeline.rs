//! `decoder-pipeline` of onnxruntime-genai: a decoder in stages, each a graph of its own, as Olive makes them. What a stage
//! gives under a name, a later one takes by it; some stages run for prompts alone, some for single tokens alone.
//!
//! The stages for prompts and those for tokens are the same graphs at other fixed shapes (a window of tokens, and one). Where
//! nothing but declared shapes tells them apart, they become one graph that takes any number of tokens.

use std::{collections::BTreeMap, path::Path};

use narthex_graph::{Graph, Initializer, onnx::files::DataFiles};
use serde::Deserialize;
use serde_json::Value;

use super::{bound, chunk, decoder::Names, fixed, genai::CONFIG, merge, refused};
use crate::error::CompileError;

/// The most stages of a pipeline.
const MOST: usize = 64;

/// One stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stage {
    /// Its graph, relative to the folder.
    pub(super) file: String,
    /// When it runs.
    runs: Runs,
    /// What later stages call its outputs, by their own names.
    renamed: BTreeMap<String, String>,
}

/// When a stage runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runs {
    Always,
    /// For prompts.
    Prompt,
    /// For single tokens.
    Token,
}

/// A stage as the configuration has it.
#[derive(Deserialize)]
struct Keys {
    filename: String,
    #[serde(default = "yes")]
    run_on_prompt: bool,
    #[serde(default = "yes")]
    run_on_token_gen: bool,
    #[serde(default)]
    output_names_forwarder: BTreeMap<String, String>,
}

fn yes() -> bool {
    true
}

/// Reads the stages: an object of them by name, or a list of such objects; their order is that of the file.
pub(super) fn stages(pipeline: &Value) -> Result<Vec<Stage>, CompileError> {
    let wrong =
        |found: String| refused(format!("pipeline of {CONFIG}"), "stages, each with a filename", found);
    let objects = match pipeline {
        Value::Array(list) => list.iter().collect(),
        other => vec![other],
    };
    let mut stages = Vec::new();
    for object in objects {
        let object =
            object.as_object().ok_or_else(|| wrong(object.to_string().chars().take(80).collect()))?;
        for (name, stage) in object {
            let keys = Keys::deserialize(stage).map_err(|error| wrong(format!("{name}: {error}")))?;
            let runs = match (keys.run_on_prompt, keys.run_on_token_gen) {
                (true, true) => Runs::Always,
                (true, false) => Runs::Prompt,
                (false, true) => Runs::Token,
                (false, false) => continue,
            };
            stages.push(Stage { file: keys.filename, runs, renamed: keys.output_names_forwarder });
        }
    }
    match stages.len() {
        1..=MOST => Ok(stages),
        found => Err(wrong(format!("{found} of them"))),
    }
}

/// What the stages' graphs become.
pub(super) enum Unified {
    /// One graph that takes any number of tokens.
    One(Box<Graph>),
    /// Graphs of fixed shapes: one that takes a single token, and one for prompts; or the only one that there is.
    Chunks(Vec<Graph>),
}

/// Joins the stages' graphs, which are in the same order; data files lie in `folder`.
///
/// # Errors
/// A refusal where the stages for prompts and for tokens compute different things, but for graphs of fixed shapes.
pub(super) fn unified(
    (stages, graphs): (&[Stage], Vec<Graph>),
    names: &Names,
    folder: &Path,
) -> Result<Unified, CompileError> {
    let run = |skipped: Runs| stages.iter().zip(&graphs).filter(move |(stage, _)| stage.runs != skipped);
    let chain = |skipped| merge::chained(run(skipped).map(|(stage, graph)| (graph.clone(), &stage.renamed)));
    let (prompt, mut token) = (chain(Runs::Token)?, chain(Runs::Prompt)?);
    let always = stages.iter().all(|stage| stage.runs == Runs::Always);
    if graphs.iter().any(bound::is_compiled)
        || [&prompt, &token].iter().all(|graph| has_fixed_past(graph, names))
    {
        let chunk = |graph, skipped| of_length(graph, run(skipped).map(|(_, graph)| graph), names);
        let token = chunk(token, Runs::Prompt);
        return Ok(Unified::Chunks(if always {
            vec![token]
        } else {
            vec![token, chunk(prompt, Runs::Token)]
        }));
    }
    if always {
        return Ok(Unified::One(Box::new(token)));
    }
    let Some(other) = difference(&prompt, &token, folder)? else {
        // Whatever length its last stage was declared for, it gives logits of every token.
        for output in token.outputs.iter_mut().filter(|output| output.name == names.logits) {
            output.shape.iter_mut().zip(["batch", "sequence"]).for_each(|(dim, name)| *dim = name.into());
        }
        return Ok(Unified::One(Box::new(token)));
    };
    if names.fit(&token) && !names.fit(&prompt) && chunk::tokens(&prompt, names).is_none() {
        return Ok(Unified::One(Box::new(merge::branches(prompt, token)?)));
    }
    let expected = "stages for prompts and for tokens that differ in declared shapes alone, or those for prompts \
                    without a past and of any length";
    Err(refused(format!("pipeline of {CONFIG}"), expected, other))
}

/// Whether a graph takes a past of fixed width.
fn has_fixed_past(graph: &Graph, names: &Names) -> bool {
    let past = graph.inputs.iter().find(|input| input.name == names.past_key());
    past.is_some_and(|past| past.shape.iter().all(|dim| fixed(dim).is_some()))
}

/// A chain of stages with the number of tokens that it takes, where its stages say it: of the tokens, or of the rows
/// `[1, tokens, hidden]` that an embedding of any length makes of them.
fn of_length<'a>(mut chain: Graph, stages: impl Iterator<Item = &'a Graph>, names: &Names) -> Graph {
    let length = |graph: &Graph| {
        let rows = graph.inputs.iter().filter(|input| input.shape.len() == 3);
        chunk::tokens(graph, names).or_else(|| rows.filter_map(|input| fixed(&input.shape[1])).next())
    };
    let length = stages.filter_map(length).next();
    let tokens = chain.inputs.iter_mut().filter(|input| input.name == names.tokens);
    for (dim, length) in tokens.filter_map(|input| input.shape.get_mut(1)).zip(length) {
        *dim = length.into();
    }
    chain
}

/// Where two graphs compute different things, in words; declared shapes do not count.
fn difference(one: &Graph, other: &Graph, folder: &Path) -> Result<Option<String>, CompileError> {
    if let Some((node, _)) = one.nodes.iter().zip(&other.nodes).find(|(a, b)| a != b) {
        return Ok(Some(format!("another node than {} ({})", node.name, node.op)));
    }
    if one.nodes.len() != other.nodes.len() {
        return Ok(Some(format!("{} and {} nodes", one.nodes.len(), other.nodes.len())));
    }
    let by_name = |graph: &Graph| -> BTreeMap<String, Initializer> {
        graph.initializers.iter().map(|constant| (constant.name.clone(), constant.clone())).collect()
    };
    let (ours, theirs) = (by_name(one), by_name(other));
    let (mut left, mut right) = (DataFiles::default(), DataFiles::default());
    for (name, constant) in &ours {
        let same = match theirs.get(name) {
            Some(twin) if twin == constant => true,
            Some(twin) if (twin.dtype, &twin.shape) == (constant.dtype, &constant.shape) => {
                left.bytes(folder, constant)? == right.bytes(folder, twin)?
            }
            _ => false,
        };
        if !same {
            return Ok(Some(format!("another constant {name}")));
        }
    }
    Ok((ours.len() != theirs.len()).then(|| format!("{} and {} constants", ours.len(), theirs.len())))
}
