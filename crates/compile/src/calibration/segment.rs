//! Division of a graph into segments that run one after the other, so that only one segment's weights are in memory at
//! a time.
//!
//! A segment ends when its weights would exceed the limit. Values that later segments read are outputs of the segment
//! that computes them, and inputs of the later ones. This module does not run graphs and does not interpret them.

use std::collections::{BTreeSet, HashMap, HashSet};

use narthex_graph::{Graph, Initializer, Node, Value, infer::InferredTensors};
use narthex_spec::{DType, Fetch, dtype::Dim};

/// A segment of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// Nodes of the segment, with the inputs that they read. Its outputs are the outputs of the whole graph that it
    /// computes and the values that later segments read.
    pub graph: Graph,
    /// Its outputs with their shapes, in order. An unknown extent is 0.
    pub outputs: Vec<Fetch>,
}

/// Divides a graph into segments of about `most` bytes of weights; a single layer may exceed this. A cut is possible
/// only where all values that cross it are `f32` with known shapes. `bind` returns the extents of symbols.
pub fn segments(graph: &Graph, most: u64, bind: &dyn Fn(&str) -> Option<u64>) -> Vec<Segment> {
    let cutter = GraphSegmenter::new(graph, graph.infer(bind));
    let mut starts = vec![0];
    let mut constants = HashSet::new();
    let mut bytes = 0u64;
    for (at, node) in graph.nodes.iter().enumerate() {
        let added = cutter.new_bytes(node, &constants);
        if bytes > 0 && bytes.saturating_add(added) > most && cutter.may_cut(at) {
            starts.push(at);
            constants.clear();
            bytes = 0;
        }
        bytes = bytes.saturating_add(cutter.new_bytes(node, &constants));
        constants.extend(node.inputs.iter().map(String::as_str));
    }

    let ends = starts.iter().skip(1).copied().chain([graph.nodes.len()]);
    starts.iter().zip(ends).map(|(&start, end)| cutter.segment(start, end)).collect()
}

/// A graph with the data needed to cut it.
struct GraphSegmenter<'a> {
    graph: &'a Graph,
    known: InferredTensors,
    constants: HashMap<&'a str, &'a Initializer>,
    /// Index of the last node that reads each value.
    readers: HashMap<&'a str, usize>,
}

impl<'a> GraphSegmenter<'a> {
    fn new(graph: &'a Graph, known: InferredTensors) -> Self {
        let constants =
            graph.initializers.iter().map(|constant| (constant.name.as_str(), constant)).collect();
        let mut readers = HashMap::new();
        for (at, node) in graph.nodes.iter().enumerate() {
            readers.extend(node.inputs.iter().map(|name| (name.as_str(), at)));
        }
        // An empty name is an omitted input.
        readers.remove("");
        Self { graph, known, constants, readers }
    }

    /// Returns the number of bytes of a node's constants that are not in `constants`.
    fn new_bytes(&self, node: &Node, constants: &HashSet<&str>) -> u64 {
        let names: BTreeSet<&str> = node.inputs.iter().map(String::as_str).collect();
        let new = names.into_iter().filter(|name| !constants.contains(name));
        new.filter_map(|name| self.constants.get(name)).map(|constant| constant.bytes()).sum()
    }

    /// Returns the values that nodes before `at` compute and that node `at` or a later one reads, in the order of their
    /// computation.
    fn crossing(&self, at: usize) -> Vec<&'a str> {
        let nodes = self.graph.nodes.iter().take(at);
        let made = nodes.flat_map(|node| &node.outputs).map(String::as_str);
        made.filter(|name| self.readers.get(name).is_some_and(|&last| last >= at)).collect()
    }

    /// Returns the shape of a value if it can be an output of one segment and an input of another.
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let tensor = self.known.get(name);
        let extents = tensor.shape.as_ref().filter(|_| tensor.element == Some(DType::F32.into()))?;
        extents.iter().map(|extent| usize::try_from((*extent)?).ok()).collect()
    }

    /// Declares a value that crosses a cut.
    fn value(&self, name: &str) -> Value {
        Value {
            name: name.to_owned(),
            dtype: DType::F32.into(),
            shape: self.shape(name).unwrap_or_default().into_iter().map(Dim::from).collect(),
        }
    }

    /// Returns whether the graph can be cut before node `at`. A constant must stay in the segment of its readers,
    /// because kernels pack their constant weights.
    fn may_cut(&self, at: usize) -> bool {
        self.crossing(at).iter().all(|name| self.shape(name).is_some() && !self.known.get(name).constant)
    }

    fn segment(&self, start: usize, end: usize) -> Segment {
        let nodes = self.graph.nodes.get(start..end).unwrap_or_default();
        let read: HashSet<&str> = nodes.iter().flat_map(|node| &node.inputs).map(String::as_str).collect();
        let made: HashSet<&str> = nodes.iter().flat_map(|node| &node.outputs).map(String::as_str).collect();
        let fed = self.graph.inputs.iter().filter(|input| read.contains(input.name.as_str())).cloned();
        let entering = self.crossing(start).into_iter().filter(|name| read.contains(name));
        let whole = self.graph.outputs.iter().filter(|output| made.contains(output.name.as_str())).cloned();
        let leaving = self.crossing(end).into_iter().filter(|name| {
            made.contains(name) && self.graph.outputs.iter().all(|output| output.name != *name)
        });
        let outputs: Vec<Value> = whole.chain(leaving.map(|name| self.value(name))).collect();
        let constants =
            self.graph.initializers.iter().filter(|constant| read.contains(constant.name.as_str()));

        Segment {
            outputs: outputs
                .iter()
                .map(|value| {
                    let extents = self.known.get(&value.name).shape.iter().flatten();
                    let shape = extents.map(|extent| extent.unwrap_or(0) as usize).collect();
                    Fetch { name: value.name.clone(), shape }
                })
                .collect(),
            graph: Graph {
                name: self.graph.name.clone(),
                opsets: self.graph.opsets.clone(),
                inputs: fed.chain(entering.map(|name| self.value(name))).collect(),
                outputs,
                initializers: constants.cloned().collect(),
                nodes: nodes.to_vec(),
                ..Graph::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::{Recipe, Scheme, arch::*};
    use narthex_testkit::architecture as example;

    use super::*;
    use crate::dry_run::DryRun;

    fn graph() -> Graph {
        let arch = Architecture::Decoder(DecoderArch {
            context: 64,
            layers: vec![example::layer(); 3],
            ..example::llama()
        });
        DryRun::new("tiny", &arch, &Recipe::new(Scheme::W8)).unwrap().graphs.remove(0).0
    }

    fn bind(symbol: &str) -> Option<u64> {
        Some(if symbol == "batch" { 1 } else { 24 })
    }

    #[test]
    fn segments_are_the_graph_in_order() {
        let whole = graph();
        assert_eq!(segments(&whole, u64::MAX, &bind).len(), 1);
        for most in [1, 10_000, 30_000] {
            let found = segments(&whole, most, &bind);
            assert!(found.len() > 2, "{most}: {}", found.len());
            let nodes: Vec<_> = found.iter().flat_map(|segment| segment.graph.nodes.clone()).collect();
            assert!(nodes == whole.nodes, "{most}");
            let mut made: HashSet<String> = whole.inputs.iter().map(|input| input.name.clone()).collect();
            for segment in &found {
                segment.graph.check().unwrap();
                assert!(segment.graph.inputs.iter().all(|input| made.contains(&input.name)), "{most}");
                let names: Vec<&String> = segment.outputs.iter().map(|fetch| &fetch.name).collect();
                assert_eq!(
                    names,
                    segment.graph.outputs.iter().map(|output| &output.name).collect::<Vec<_>>()
                );
                made.extend(names.into_iter().cloned());
                // A cut is delayed to the end of a linear layer.
                assert!(
                    most < 30_000 || segment.graph.weight_bytes() <= 2 * most,
                    "{}",
                    segment.graph.weight_bytes()
                );
            }
            assert!(whole.outputs.iter().all(|output| made.contains(&output.name)), "{most}");
        }
    }

    #[test]
    fn a_graph_is_cut_only_where_shapes_are_known() {
        let found = segments(&graph(), 1, &|_| None);
        assert_eq!(found.len(), 1);
    }
}
