//! Nodes between the slots of a package and a graph that somebody else made: before it, and behind it.

use std::collections::{HashMap, HashSet};

use narthex_graph::{Attribute, Builder, Element, Graph, Node};
use narthex_spec::{
    DType, Variant,
    dtype::Dim,
    manifest::{Binding, GraphEntry, KvLayout, Part, Slot},
};

use super::{bound, merge::constants_are_no_inputs, refused};
use crate::{error::CompileError, lower::dynamic::GRAPH_FILE};

/// What every name of the nodes put in begins with; a graph that has such names already is refused.
pub(super) const OURS: &str = "/import/";

/// ONNX's numbers of element types, for `Cast`.
pub(super) const TO_F32: i64 = 1;
pub(super) const TO_I64: i64 = 7;

/// A foreign graph between nodes of ours.
pub(super) struct Glue {
    foreign: Graph,
    /// Nodes before the foreign ones, and the new inputs.
    pub(super) front: Builder,
    /// Nodes behind them, and the new outputs.
    pub(super) back: Builder,
    inputs: Vec<Binding>,
    outputs: Vec<Binding>,
}

impl Glue {
    /// Around a graph whose file is `file`.
    ///
    /// # Errors
    /// A refusal of a graph that cannot be written back whole, of operator sets before 11, and of names that are ours.
    pub(super) fn around(file: &str, mut foreign: Graph) -> Result<Self, CompileError> {
        if let Some(what) = foreign.unread.first() {
            return Err(refused(format!("content of {file}"), "what Narthex can write back whole", what));
        }
        let opset = foreign.opsets.iter().find(|(domain, _)| domain.is_empty()).map(|(_, version)| *version);
        match opset {
            Some(11..) => {}
            found => {
                let found = found.map_or_else(|| "none".to_owned(), |version| version.to_string());
                return Err(refused(
                    format!("operator set of {file}"),
                    "11 or newer; export it again",
                    found,
                ));
            }
        }
        let made = foreign.nodes.iter().flat_map(|node| &node.outputs);
        let named = foreign.inputs.iter().map(|input| &input.name);
        let constants = foreign.initializers.iter().map(|constant| &constant.name);
        if let Some(name) = made.chain(named).chain(constants).find(|name| name.starts_with(OURS)) {
            return Err(refused(
                format!("value of {file}"),
                format!("names that do not begin with {OURS}"),
                name,
            ));
        }
        constants_are_no_inputs(&mut foreign);
        // What is declared of values between nodes speaks of symbols that are inputs no more, but for those of contexts.
        let bound = bound::values(&foreign);
        foreign.values.retain(|value| bound.contains(&value.name));
        let builder = || Builder::new("", &[]);
        let (front, back) = (builder(), builder());
        Ok(Self { foreign, front, back, inputs: Vec::new(), outputs: Vec::new() })
    }

    /// The foreign graph.
    pub(super) fn foreign(&self) -> &Graph {
        &self.foreign
    }

    /// The same, to be changed.
    pub(super) fn foreign_mut(&mut self) -> &mut Graph {
        &mut self.foreign
    }

    /// The version of ONNX's own operators.
    pub(super) fn opset(&self) -> i64 {
        self.foreign.opsets.iter().find(|(domain, _)| domain.is_empty()).map_or(0, |(_, version)| *version)
    }

    /// Declares an input of the package.
    pub(super) fn input(&mut self, slot: Slot, name: &str, dtype: DType, shape: &[Dim]) -> String {
        let name = format!("{OURS}{name}");
        self.inputs.push(Binding { slot, name: name.clone(), dtype, shape: shape.to_vec() });
        self.front.input(&name, dtype, shape)
    }

    /// Keeps an input of the foreign graph as one of the package.
    pub(super) fn keep_input(&mut self, slot: Slot, name: &str, dtype: DType, shape: &[Dim]) {
        self.inputs.push(Binding { slot, name: name.to_owned(), dtype, shape: shape.to_vec() });
        self.front.input(name, dtype, shape);
    }

    /// Declares an output of the package, which `value` becomes.
    pub(super) fn output(&mut self, slot: Slot, (value, name): (&str, &str), dtype: DType, shape: &[Dim]) {
        let name = format!("{OURS}{name}");
        let cast = [("to", Attribute::Int(Element::from(dtype).code().into()))];
        let node = format!("{name}/Cast");
        let made = self.back.op_with(&name, "Cast", &[value], &cast);
        debug_assert_eq!(made, format!("{node}/out"));
        self.back.rename(&made, &name);
        self.outputs.push(Binding { slot, name: name.clone(), dtype, shape: shape.to_vec() });
        self.back.output(&name, dtype, shape);
    }

    /// Keeps an output of the foreign graph as one of the package.
    pub(super) fn keep_output(&mut self, slot: Slot, name: &str, dtype: DType, shape: &[Dim]) {
        self.outputs.push(Binding { slot, name: name.to_owned(), dtype, shape: shape.to_vec() });
        self.back.output(name, dtype, shape);
    }

    /// Makes `value` what the foreign graph reads as its input `name`, in the type that it wants.
    pub(super) fn feed(&mut self, name: &str, value: &str) {
        let wanted = self.foreign.inputs.iter().find(|input| input.name == name).map(|input| input.dtype);
        let code = wanted.map_or(TO_I64, |dtype| dtype.code().into());
        let scope = format!("{OURS}feed/{name}");
        let fed = self.front.op_with(&scope, "Cast", &[value], &[("to", Attribute::Int(code))]);
        self.front.rename(&fed, name);
    }

    /// The whole graph, and its entry in the manifest.
    pub(super) fn finish(self, kv: Vec<KvLayout>) -> Result<(Graph, GraphEntry), CompileError> {
        let Self { foreign: mut graph, front, back, inputs, outputs } = self;
        let (front, back) = (ours(front.finish()), ours(back.finish()));
        graph.inputs = front.inputs;
        graph.outputs = back.outputs;
        graph.unranked.clear();
        let mut known: HashSet<String> = HashSet::new();
        let constants = front.initializers.into_iter().chain(back.initializers);
        graph.initializers.extend(constants.filter(|constant| known.insert(constant.name.clone())));
        let behind = back.nodes;
        graph.nodes = front.nodes.into_iter().chain(graph.nodes).chain(behind).collect();
        graph.check_values().map_err(|error| refused("the graph", "one that is well-formed", error))?;
        let entry = GraphEntry {
            file: GRAPH_FILE.to_owned(),
            variant: Variant::Dynamic,
            part: Part::Whole,
            inputs,
            outputs,
            kv,
        };
        Ok((graph, entry))
    }
}

/// Constants of ours under names of ours.
fn ours(mut graph: Graph) -> Graph {
    let renamed: HashMap<String, String> = graph
        .initializers
        .iter()
        .map(|constant| (constant.name.clone(), format!("{OURS}{}", constant.name)))
        .collect();
    let rename = |name: &mut String| {
        if let Some(new) = renamed.get(name) {
            name.clone_from(new);
        }
    };
    graph.initializers.iter_mut().for_each(|constant| rename(&mut constant.name));
    graph.nodes.iter_mut().flat_map(|node: &mut Node| &mut node.inputs).for_each(rename);
    graph
}
