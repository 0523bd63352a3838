//! The node that computes each value of a graph, and the number of times that it is read.

use std::collections::HashMap;

use narthex_graph::{Graph, Node};

/// The node that computes each value, and the number of times that it is read.
pub(super) struct Links<'a> {
    pub(super) nodes: &'a [Node],
    /// Index of the node that computes each value.
    pub(super) producers: HashMap<&'a str, usize>,
    /// Number of reads of each value by nodes, their bodies and the graph's outputs.
    pub(super) reads: HashMap<String, usize>,
}

impl<'a> Links<'a> {
    pub(super) fn of(graph: &'a Graph) -> Self {
        let mut producers = HashMap::new();
        for (at, node) in graph.nodes.iter().enumerate() {
            producers.extend(node.outputs.iter().map(|name| (name.as_str(), at)));
        }
        Self { nodes: &graph.nodes, producers, reads: graph.read_counts() }
    }

    /// Returns the node that computes a value, if it has one output, which is read `reads` times.
    pub(super) fn producer(&self, value: &str, reads: usize) -> Option<&'a Node> {
        let node = self.any_producer(value)?;
        (self.reads.get(value) == Some(&reads)).then_some(node)
    }

    /// Returns the node that computes a value, if it has one output.
    pub(super) fn any_producer(&self, value: &str) -> Option<&'a Node> {
        let node = &self.nodes[*self.producers.get(value)?];
        (node.outputs.len() == 1).then_some(node)
    }
}
