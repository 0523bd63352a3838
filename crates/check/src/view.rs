//! A graph of a model with its inferred properties.

use std::collections::HashMap;

use narthex_graph::{
    Graph, Initializer, Node,
    infer::{InferredTensors, TensorInfo},
    onnx::files::OnnxFile,
    work::multiply_accumulates,
};

use crate::{dim_bindings::DimBindings, facts::Facts};

/// A graph with the indices and inferred shapes that rules need.
pub(super) struct View<'a> {
    pub(super) part: &'a OnnxFile,
    pub(super) facts: Facts,
    /// Inferred tensors, with all given and assumed extents.
    pub(super) known: InferredTensors,
    /// Inferred tensors of the graph without given or assumed extents.
    pub(super) open: InferredTensors,
    /// Positions of the nodes that read each value.
    pub(super) readers: HashMap<&'a str, Vec<usize>>,
    /// Position of the node that produces each value.
    pub(super) producers: HashMap<&'a str, usize>,
    /// Constants by name.
    pub(super) constants: HashMap<&'a str, &'a Initializer>,
    /// Number of multiply-accumulates of each node; `None` if it cannot be counted.
    pub(super) work: Vec<Option<u64>>,
}

impl<'a> View<'a> {
    pub(super) fn new(part: &'a OnnxFile, facts: Facts, extents: &DimBindings) -> Self {
        let graph = &part.graph;
        let (mut readers, mut producers): (HashMap<&str, Vec<usize>>, HashMap<&str, usize>) =
            Default::default();
        for (index, node) in graph.nodes.iter().enumerate() {
            for name in node.inputs.iter().filter(|name| !name.is_empty()) {
                readers.entry(name).or_default().push(index);
            }
            producers.extend(node.outputs.iter().map(|name| (name.as_str(), index)));
        }
        let known = graph.infer(&|symbol| extents.get(symbol));
        let open = graph.infer(&|_| None);
        let constants =
            graph.initializers.iter().map(|constant| (constant.name.as_str(), constant)).collect();
        let work = graph.nodes.iter().map(|node| multiply_accumulates(node, &known)).collect();
        Self { part, facts, known, open, readers, producers, constants, work }
    }

    pub(super) fn graph(&self) -> &'a Graph {
        &self.part.graph
    }

    /// Returns the inferred tensor of a node's input, with given and assumed extents.
    pub(super) fn input(&self, node: &Node, index: usize) -> Option<&TensorInfo> {
        self.known.input(node, index)
    }

    pub(super) fn producer(&self, value: &str) -> Option<&'a Node> {
        self.graph().nodes.get(*self.producers.get(value)?)
    }

    /// Returns the nodes that read a value.
    pub(super) fn readers_of(&self, value: &str) -> impl Iterator<Item = &'a Node> {
        let positions = self.readers.get(value).map(Vec::as_slice).unwrap_or_default();
        positions.iter().filter_map(|&index| self.graph().nodes.get(index))
    }

    /// Returns whether a value is an output of the graph.
    pub(super) fn is_output(&self, value: &str) -> bool {
        self.graph().outputs.iter().any(|output| output.name == value)
    }
}
