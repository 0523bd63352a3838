//! Connects an imported graph to the slots of a package by nodes before and after it.

use std::collections::{HashMap, HashSet};

use narthex_graph::{Builder, Graph, Value};
use narthex_spec::{
    DType, Variant,
    dtype::Dim,
    manifest::{Binding, GraphEntry, KvLayout, Part, Slot},
};

use super::{device_bundle, graphs::remove_constant_inputs, refused};
use crate::{error::Result, package::GRAPH_FILE};

/// Prefix of the names of added nodes and values. A graph that already has such names is refused.
pub(super) const PREFIX: &str = "/import/";

/// An imported graph with added nodes before and after it.
pub(super) struct GraphAdapter {
    /// The imported graph.
    pub(super) inner: Graph,
    /// Nodes before the imported ones, and the new inputs.
    pub(super) prologue: Builder,
    /// Nodes after them, and the new outputs.
    pub(super) epilogue: Builder,
    inputs: Vec<Binding>,
    outputs: Vec<Binding>,
}

impl GraphAdapter {
    /// Creates an adapter for the graph of a file.
    ///
    /// # Errors
    /// A refusal of graphs with content that cannot be written back, of operator sets before 11, and of names with our
    /// prefix.
    pub(super) fn new(file: &str, mut inner: Graph) -> Result<Self> {
        if let Some(what) = inner.unread.first() {
            return Err(refused(
                format!("content of {file}"),
                "only contents that Narthex can write back",
                what,
            ));
        }

        match inner.opset() {
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

        let made = inner.nodes.iter().flat_map(|node| &node.outputs);
        let named = inner.inputs.iter().map(|input| &input.name);
        let constants = inner.initializers.iter().map(|constant| &constant.name);
        if let Some(name) = made.chain(named).chain(constants).find(|name| name.starts_with(PREFIX)) {
            return Err(refused(
                format!("value of {file}"),
                format!("names that do not begin with {PREFIX}"),
                name,
            ));
        }

        remove_constant_inputs(&mut inner);
        // Declarations of intermediate values refer to symbols of the old inputs. Only those of contexts are still
        // needed.
        let bound = device_bundle::values(&inner);
        inner.values.retain(|value| bound.contains(&value.name));
        Ok(Self {
            inner,
            prologue: Builder::new("", &[]),
            epilogue: Builder::new("", &[]),
            inputs: Vec::new(),
            outputs: Vec::new(),
        })
    }

    /// Declares an input of the package.
    pub(super) fn input(&mut self, slot: Slot, name: &str, dtype: DType, shape: &[Dim]) -> String {
        let name = format!("{PREFIX}{name}");
        self.inputs.push(Binding { slot, name: name.clone(), dtype, shape: shape.to_vec() });
        self.prologue.input(&name, dtype, shape)
    }

    /// Keeps an input of the imported graph as an input of the package.
    pub(super) fn keep_cache_input(&mut self, slot: Slot, name: &str, shape: &[Dim]) {
        let dtype = DType::F32;
        self.inputs.push(Binding { slot, name: name.to_owned(), dtype, shape: shape.to_vec() });
        self.prologue.input(name, dtype, shape);
    }

    /// Declares an output of the package with the contents of `value`.
    pub(super) fn output(&mut self, slot: Slot, value: &str, name: &str, dtype: DType, shape: &[Dim]) {
        let name = format!("{PREFIX}{name}");
        let made = self.epilogue.cast(&name, value, dtype);
        self.epilogue.rename(&made, &name);
        self.outputs.push(Binding { slot, name: name.clone(), dtype, shape: shape.to_vec() });
        self.epilogue.output(&name, dtype, shape);
    }

    /// Keeps an output of the imported graph, a cache in single precision, as an output of the package.
    pub(super) fn keep_cache_output(&mut self, slot: Slot, name: &str, shape: &[Dim]) {
        let dtype = DType::F32;
        self.outputs.push(Binding { slot, name: name.to_owned(), dtype, shape: shape.to_vec() });
        self.epilogue.output(name, dtype, shape);
    }

    /// Returns an input of the imported graph.
    pub(super) fn imported_input(&self, name: &str) -> Option<&Value> {
        self.inner.inputs.iter().find(|input| input.name == name)
    }

    /// Feeds `value` to the input `name` of the imported graph, if it has that input.
    pub(super) fn feed_if_input(&mut self, name: &str, value: &str) {
        if self.imported_input(name).is_some() {
            self.feed(name, value);
        }
    }

    /// Feeds `value` to the input `name` of the imported graph, converted to its type.
    pub(super) fn feed(&mut self, name: &str, value: &str) {
        let dtype = self.imported_input(name).map(|input| input.dtype);
        let scope = format!("{PREFIX}feed/{name}");
        let converted = self.prologue.cast(&scope, value, dtype.unwrap_or(DType::I64.into()));
        self.prologue.rename(&converted, name);
    }

    /// Returns the complete graph and its entry in the manifest.
    pub(super) fn finish(self, kv: Vec<KvLayout>) -> Result<(Graph, GraphEntry)> {
        let Self { inner: mut graph, prologue, epilogue, inputs, outputs } = self;
        let front = with_prefix(prologue.finish());
        let back = with_prefix(epilogue.finish());
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

/// Adds our prefix to the name of a value or of a scope.
pub(super) fn prefixed(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// Adds our prefix to the names of constants.
fn with_prefix(mut graph: Graph) -> Graph {
    let renamed: HashMap<String, String> = graph
        .initializers
        .iter()
        .map(|constant| (constant.name.clone(), format!("{PREFIX}{}", constant.name)))
        .collect();
    let constants = graph.initializers.iter_mut().map(|constant| &mut constant.name);
    let inputs = graph.nodes.iter_mut().flat_map(|node| &mut node.inputs);
    for name in constants.chain(inputs) {
        if let Some(new) = renamed.get(name) {
            name.clone_from(new);
        }
    }
    graph
}
