//! One graph of a model with the placement of each node.

use std::{collections::BTreeSet, ops::Deref};

use narthex_graph::{Node, Value, onnx::files::OnnxFile};

use crate::{
    compiler::compiler_result::CompilerResult,
    dim_bindings::DimBindings,
    facts::Facts,
    placement::{
        operators,
        problem::{NodePlacement, Problem},
    },
    report::Severity,
    view::View,
};

/// A graph and the placement of its nodes: predicted by the rules, or reported by the vendor's compiler.
pub(crate) struct PlacedGraph<'a> {
    view: View<'a>,
    pub(crate) outcomes: Vec<NodePlacement>,
    /// Problems that the rules predicted for nodes that the vendor's compiler accepted, by position.
    pub(crate) overruled: Vec<(usize, Problem)>,
    /// Number of nodes on other devices that ONNX Runtime added to the graph.
    pub(crate) made: usize,
}

impl<'a> Deref for PlacedGraph<'a> {
    type Target = View<'a>;

    fn deref(&self) -> &View<'a> {
        &self.view
    }
}

impl<'a> PlacedGraph<'a> {
    /// Places the nodes of a graph by the rules.
    pub(crate) fn new(part: &'a OnnxFile, facts: Facts, extents: &DimBindings) -> Self {
        let view = View::new(part, facts, extents);
        let outcomes = view.graph().nodes.iter().map(|node| operators::place(&view, node)).collect();
        Self { view, outcomes, overruled: Vec::new(), made: 0 }
    }

    /// Replaces the predicted placement of each node by that of the vendor's compiler. If the compiler left nodes to
    /// other devices that ONNX Runtime created, their original nodes are unknown, and the predicted problems stay.
    pub(crate) fn overrule(&mut self, compiled: &CompilerResult) {
        let left: BTreeSet<&str> = match compiled {
            CompilerResult::Whole { .. } => BTreeSet::new(),
            CompilerResult::Partly { elsewhere, .. } => {
                elsewhere.iter().map(|left| left.path.as_str()).collect()
            }
            // A failure is reported as a separate finding.
            CompilerResult::Failed { .. } | CompilerResult::Ended { .. } => return,
        };

        let paths: Vec<String> = self.graph().nodes.iter().map(Node::path).collect();
        let own = paths.iter().filter(|path| left.contains(path.as_str())).count();
        self.made = left.len().saturating_sub(own);

        for (index, (path, outcome)) in paths.iter().zip(&mut self.outcomes).enumerate() {
            match outcome {
                NodePlacement::Npu | NodePlacement::Folded if left.contains(path.as_str()) => {
                    *outcome = NodePlacement::Fallback
                }
                NodePlacement::Dynamic | NodePlacement::Problem(_)
                    if self.made == 0 && !left.contains(path.as_str()) =>
                {
                    let expected = std::mem::replace(outcome, NodePlacement::Npu);
                    self.overruled.extend(match expected {
                        NodePlacement::Problem(problem) => Some((index, problem)),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
    }

    /// Returns the names of the inputs that `wanted` selects.
    pub(crate) fn input_names(&self, wanted: impl Fn(&Value) -> bool) -> Vec<String> {
        let inputs = self.graph().inputs.iter().filter(|input| wanted(input));
        inputs.map(|input| input.name.clone()).collect()
    }

    /// Returns the problems of nodes in order of position. Problems that the compiler overruled become notes.
    pub(crate) fn problems(&self) -> impl Iterator<Item = (&'a Node, Problem)> {
        let standing = self.outcomes.iter().enumerate().filter_map(|(index, outcome)| match outcome {
            NodePlacement::Problem(problem) => Some((index, problem.clone())),
            _ => None,
        });
        let overruled = self.overruled.iter().map(|(index, expected)| {
            let why = format!(
                "the vendor's compiler accepted it, although the rules expected otherwise: {}",
                expected.why
            );
            (*index, Problem { rule: expected.rule, severity: Severity::Note, why, fix: None })
        });
        let graph = self.graph();
        standing.chain(overruled).filter_map(|(index, problem)| Some((graph.nodes.get(index)?, problem)))
    }

    /// Returns the nodes with their placements, in order.
    pub(crate) fn placed(&self) -> impl Iterator<Item = (usize, &'a Node, &NodePlacement)> {
        self.graph().nodes.iter().zip(&self.outcomes).enumerate().map(|(index, (node, at))| (index, node, at))
    }
}
