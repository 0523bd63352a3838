//! A run of a probe over sequences of tokens, segment by segment.

use std::{collections::HashMap, fs, path::Path};

use narthex_graph::Graph;
use narthex_spec::{Elements, Feed, Fetch, TokenId, dtype::Dim, manifest::GraphEntry};

use super::{
    GraphRunner, ProbedModel, bad,
    segment::{Segment, segments},
};
use crate::error::{CompileError, Result, unwritable};

/// File of the probe graph. It is written next to the weights and removed after the run.
const PROBE_FILE: &str = "probe.onnx";

/// A run of a probe over a text.
pub(super) struct ProbeRun<'a> {
    pub(super) model: &'a dyn ProbedModel,
    pub(super) entry: &'a GraphEntry,
    /// Number of tokens of a sequence after which logits are computed.
    pub(super) logits: usize,
    /// Folder of the weights.
    pub(super) folder: &'a Path,
    /// Maximum bytes of weights per segment.
    pub(super) most_bytes: u64,
}

impl ProbeRun<'_> {
    /// Runs the probe over a sequence of tokens, and returns its outputs by name.
    pub(super) fn outputs(
        &self,
        runner: &dyn GraphRunner,
        probe: &Graph,
        tokens: Vec<TokenId>,
    ) -> Result<HashMap<String, Vec<f32>>> {
        let mut outputs = HashMap::new();
        self.each_output(runner, probe, &[tokens], &mut |name, values| {
            outputs.insert(name, values);
            Ok(())
        })?;
        Ok(outputs)
    }

    /// Runs the probe in segments, each over all windows before the next. Passes every output of every window to `take`. All
    /// windows have the same number of tokens.
    pub(super) fn each_output(
        &self,
        runner: &dyn GraphRunner,
        probe: &Graph,
        windows: &[Vec<TokenId>],
        take: &mut dyn FnMut(String, Vec<f32>) -> Result<()>,
    ) -> Result<()> {
        let length = windows.first().map_or(0, Vec::len);
        let bind = |symbol: &str| Some(self.extent(symbol, length) as u64);
        let segments = segments(probe, self.most_bytes, &bind);
        let mut crossing: Vec<HashMap<String, Feed>> = vec![HashMap::new(); windows.len()];
        for (at, segment) in segments.iter().enumerate() {
            let later = segments.get(at + 1..).unwrap_or_default();
            for (window, crossing) in windows.iter().zip(&mut crossing) {
                let inputs = segment.graph.inputs.iter();
                let feeds = inputs.map(|input| match crossing.get(&input.name) {
                    Some(feed) => Ok(feed.clone()),
                    None => self.feed(&input.name, window),
                });
                let feeds = feeds.collect::<Result<_>>()?;
                for value in run(runner, self.folder, segment, feeds)? {
                    let is_output = probe.outputs.iter().any(|output| output.name == value.name);
                    match value.elements {
                        Elements::F32(elements) if is_output => take(value.name, elements)?,
                        _ => drop(crossing.insert(value.name.clone(), value)),
                    }
                }
                crossing.retain(|name, _| {
                    later.iter().any(|segment| segment.graph.inputs.iter().any(|input| input.name == *name))
                });
            }
        }
        Ok(())
    }

    /// Returns the extent of a symbolic dimension for one sequence.
    fn extent(&self, symbol: &str, tokens: usize) -> usize {
        match symbol {
            "batch" => 1,
            "rows" => self.logits,
            _ => tokens,
        }
    }

    /// Returns an input of the graph for one sequence without past tokens.
    fn feed(&self, name: &str, tokens: &[TokenId]) -> Result<Feed> {
        let Some(binding) = self.entry.inputs.iter().find(|binding| binding.name == name) else {
            return bad(format!("the probe reads {name}, which has no source"));
        };
        let extents = binding.shape.iter().map(|dim| match dim {
            Dim::Fixed(extent) => *extent as usize,
            Dim::Symbol(symbol) => self.extent(symbol, tokens.len()),
        });
        let shape: Vec<usize> = extents.collect();
        let elements = self
            .model
            .input(binding.slot, tokens, self.logits)?
            .unwrap_or_else(|| Elements::F32(vec![0.0; shape.iter().product()]));
        Ok(Feed { name: binding.name.clone(), shape, elements })
    }
}

/// Runs one segment and returns its outputs as feeds for later segments.
fn run(runner: &dyn GraphRunner, folder: &Path, segment: &Segment, feeds: Vec<Feed>) -> Result<Vec<Feed>> {
    let path = folder.join(PROBE_FILE);
    fs::write(&path, segment.graph.encode()).map_err(unwritable(&path))?;
    let outputs = runner.run(&path, feeds, &segment.outputs).map_err(CompileError::Calibration);
    fs::remove_file(&path).map_err(unwritable(&path))?;
    let outputs = outputs?;
    if outputs.len() != segment.outputs.len() {
        return bad(format!(
            "{} values were requested, and {} were returned",
            segment.outputs.len(),
            outputs.len()
        ));
    }
    Ok(segment
        .outputs
        .iter()
        .zip(outputs)
        .map(|(Fetch { name, shape }, values)| Feed {
            name: name.clone(),
            shape: shape.clone(),
            elements: Elements::F32(values),
        })
        .collect())
}
