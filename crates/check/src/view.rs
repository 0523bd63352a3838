//! One graph of a model as the rules look at it: what is inferred of it, and where each node goes.

use std::collections::{BTreeSet, HashMap};

use narthex_graph::{
    Graph, Initializer, Node,
    infer::{Inferred, TensorInfo},
    onnx::files::OnnxFile,
    work::multiply_accumulates,
};

use super::{
    extents::Extents,
    facts::Facts,
    operators,
    record::Compiled,
    report::{Fix, Rule, Severity},
};

/// Where a node goes.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    /// ONNX Runtime computes it when it loads the graph.
    Folded,
    /// The NPU takes it.
    Npu,
    /// It reads or makes an extent that is open.
    Dynamic,
    /// It runs elsewhere, or stops the compile.
    Problem(Problem),
    /// The vendor's compiler left it to another device, for a reason that no rule knows.
    Left,
}

/// Why the NPU does not take a node.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Problem {
    pub(super) rule: Rule,
    pub(super) severity: Severity,
    /// What is wrong, without the node's name.
    pub(super) why: String,
    pub(super) fix: Option<Fix>,
}

impl Problem {
    /// A problem for which the node runs on another device.
    pub(super) fn falls(rule: Rule, why: impl Into<String>) -> Self {
        Self { rule, severity: Severity::Falls, why: why.into(), fix: None }
    }

    /// A problem that stops the whole graph.
    pub(super) fn refuses(rule: Rule, why: impl Into<String>) -> Self {
        Self { severity: Severity::Refuses, ..Self::falls(rule, why) }
    }

    pub(super) fn fix(self, fix: Fix) -> Self {
        Self { fix: Some(fix), ..self }
    }
}

/// A graph with everything that rules ask of it.
pub(super) struct View<'a> {
    pub(super) part: &'a OnnxFile,
    pub(super) facts: Facts,
    /// What is known with every extent given or assumed.
    pub(super) known: Inferred,
    /// What is known of the graph as it is.
    pub(super) open: Inferred,
    /// For each value, the nodes that read it, by position.
    pub(super) readers: HashMap<&'a str, Vec<usize>>,
    /// For each value, the node that makes it.
    pub(super) makers: HashMap<&'a str, usize>,
    /// Constants by name.
    pub(super) constants: HashMap<&'a str, &'a Initializer>,
    /// Where each node goes.
    pub(super) outcomes: Vec<Outcome>,
    /// What the rules expected of nodes that the vendor's compiler took all the same, by position.
    pub(super) overruled: Vec<(usize, Problem)>,
    /// Nodes elsewhere that are none of the graph's: ONNX Runtime made them.
    pub(super) made: usize,
    /// Multiply-accumulates of each node; nothing where they cannot be counted.
    pub(super) work: Vec<Option<u64>>,
}

impl<'a> View<'a> {
    pub(super) fn new(part: &'a OnnxFile, facts: Facts, extents: &Extents) -> Self {
        let graph = &part.graph;
        let (mut readers, mut makers): (HashMap<&str, Vec<usize>>, HashMap<&str, usize>) = Default::default();
        for (index, node) in graph.nodes.iter().enumerate() {
            for name in node.inputs.iter().filter(|name| !name.is_empty()) {
                readers.entry(name).or_default().push(index);
            }
            makers.extend(node.outputs.iter().map(|name| (name.as_str(), index)));
        }
        let known = graph.infer(&|symbol| extents.get(symbol));
        let open = graph.infer(&|_| None);
        let constants =
            graph.initializers.iter().map(|constant| (constant.name.as_str(), constant)).collect();
        let work = graph.nodes.iter().map(|node| multiply_accumulates(node, &known)).collect();
        let (outcomes, overruled, made) = (Vec::new(), Vec::new(), 0);
        let mut view =
            Self { part, facts, known, open, readers, makers, constants, outcomes, overruled, made, work };
        view.outcomes = graph.nodes.iter().map(|node| operators::place(&view, node)).collect();
        view
    }

    /// Puts what the vendor's compiler made of each node in the place of what the rules expected. Where it left nodes that
    /// ONNX Runtime made of the graph's, nobody knows which those were, and the expectations stand.
    pub(super) fn overrule(&mut self, compiled: &Compiled) {
        let left: BTreeSet<&str> = match compiled {
            Compiled::Whole { .. } => BTreeSet::new(),
            Compiled::Partly { elsewhere, .. } => elsewhere.iter().map(|left| left.path.as_str()).collect(),
            // That it fails is a finding of its own.
            Compiled::Failed { .. } | Compiled::Ended { .. } => return,
        };
        let paths: Vec<String> = self.graph().nodes.iter().map(Node::path).collect();
        let own = paths.iter().filter(|path| left.contains(path.as_str())).count();
        self.made = left.len().saturating_sub(own);
        for (index, (path, outcome)) in paths.iter().zip(&mut self.outcomes).enumerate() {
            match outcome {
                Outcome::Npu | Outcome::Folded if left.contains(path.as_str()) => *outcome = Outcome::Left,
                Outcome::Dynamic | Outcome::Problem(_) if self.made == 0 && !left.contains(path.as_str()) => {
                    let expected = std::mem::replace(outcome, Outcome::Npu);
                    self.overruled.extend(match expected {
                        Outcome::Problem(problem) => Some((index, problem)),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
    }

    /// What is wrong with nodes, by position; what the compiler overruled is worth a note.
    pub(super) fn problems(&self) -> impl Iterator<Item = (&'a Node, Problem)> {
        let standing = self.outcomes.iter().enumerate().filter_map(|(index, outcome)| match outcome {
            Outcome::Problem(problem) => Some((index, problem.clone())),
            _ => None,
        });
        let overruled = self.overruled.iter().map(|(index, expected)| {
            let why = format!(
                "the vendor's compiler took it, where the rules expected otherwise: {}",
                expected.why
            );
            (*index, Problem { rule: expected.rule, severity: Severity::Notes, why, fix: None })
        });
        let graph = self.graph();
        standing.chain(overruled).filter_map(|(index, problem)| Some((graph.nodes.get(index)?, problem)))
    }

    pub(super) fn graph(&self) -> &'a Graph {
        &self.part.graph
    }

    /// Nodes with where they go, in order.
    pub(super) fn placed(&self) -> impl Iterator<Item = (usize, &'a Node, &Outcome)> {
        self.graph().nodes.iter().zip(&self.outcomes).enumerate().map(|(index, (node, at))| (index, node, at))
    }

    /// What is known of a node's input, with extents given or assumed.
    pub(super) fn input(&self, node: &Node, index: usize) -> Option<&TensorInfo> {
        self.known.input(node, index)
    }

    /// The node that makes a value.
    pub(super) fn maker(&self, value: &str) -> Option<&'a Node> {
        self.graph().nodes.get(*self.makers.get(value)?)
    }

    /// The nodes that read a value.
    pub(super) fn readers_of(&self, value: &str) -> impl Iterator<Item = &'a Node> {
        let positions = self.readers.get(value).map(Vec::as_slice).unwrap_or_default();
        positions.iter().filter_map(|&index| self.graph().nodes.get(index))
    }

    /// Whether a value is an output of the graph.
    pub(super) fn is_output(&self, value: &str) -> bool {
        self.graph().outputs.iter().any(|output| output.name == value)
    }
}
