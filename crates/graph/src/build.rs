//! Builder that adds a graph node by node. Names are paths: a node's outputs are named after the node.

use std::collections::BTreeMap;

use narthex_spec::{DType, dtype::Dim};

use crate::{
    element::Element,
    graph::{Attribute, Graph, Initializer, InitializerData, Node, Value},
};

/// A graph under construction.
#[derive(Debug, Default)]
pub struct Builder {
    graph: Graph,
    interned: BTreeMap<String, usize>,
}

/// A node to add.
#[derive(Debug)]
pub struct NodeSpec<'a> {
    /// Path that ends in the operator's type.
    pub name: &'a str,
    /// Operator type.
    pub op: &'a str,
    /// Domain; empty for ONNX itself.
    pub domain: &'a str,
    /// Input names; an empty name is an absent optional input.
    pub inputs: &'a [&'a str],
    /// Attributes.
    pub attributes: &'a [(&'a str, Attribute)],
}

impl NodeSpec<'_> {
    /// Returns the node with these outputs.
    pub(crate) fn with_outputs(&self, outputs: &[&str]) -> Node {
        let attributes = self.attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        Node {
            name: self.name.to_owned(),
            op: self.op.to_owned(),
            domain: self.domain.to_owned(),
            inputs: owned(self.inputs),
            outputs: owned(outputs),
            attributes: attributes.collect(),
        }
    }
}

impl Builder {
    /// Creates an empty graph with its operator sets.
    pub fn new(name: &str, opsets: &[(&str, i64)]) -> Self {
        let opsets = opsets.iter().map(|&(domain, version)| (domain.to_owned(), version)).collect();
        Self { graph: Graph { name: name.to_owned(), opsets, ..Graph::default() }, interned: BTreeMap::new() }
    }

    /// Adds an input and returns its name.
    pub fn input(&mut self, name: &str, dtype: DType, shape: &[Dim]) -> String {
        self.graph.inputs.push(Value { name: name.to_owned(), dtype: dtype.into(), shape: shape.to_vec() });
        name.to_owned()
    }

    /// Declares an output; a node must produce the name.
    pub fn output(&mut self, name: &str, dtype: DType, shape: &[Dim]) {
        self.graph.outputs.push(Value { name: name.to_owned(), dtype: dtype.into(), shape: shape.to_vec() });
    }

    /// Adds a node with one output, which has the node's path plus `/out` as its name.
    pub fn node(&mut self, spec: NodeSpec<'_>) -> String {
        let output = format!("{}/out", spec.name);
        self.node_to(spec, &[&output]);
        output
    }

    /// Adds a node with these outputs.
    pub fn node_to(&mut self, spec: NodeSpec<'_>, outputs: &[&str]) {
        self.graph.nodes.push(spec.with_outputs(outputs));
    }

    /// Adds a complete node.
    pub fn push(&mut self, node: Node) {
        self.graph.nodes.push(node);
    }

    /// Adds an ONNX node without attributes; its path is `scope/op`.
    pub fn op(&mut self, scope: &str, op: &str, inputs: &[&str]) -> String {
        self.op_with(scope, op, inputs, &[])
    }

    /// Adds an ONNX node; its path is `scope/op`.
    pub fn op_with(
        &mut self,
        scope: &str,
        op: &str,
        inputs: &[&str],
        attributes: &[(&str, Attribute)],
    ) -> String {
        let name = format!("{scope}/{op}");
        self.node(NodeSpec { name: &name, op, domain: "", inputs, attributes })
    }

    /// Adds a `Cast` to an element type.
    pub fn cast(&mut self, scope: &str, value: &str, to: impl Into<Element>) -> String {
        let to: Element = to.into();
        self.op_with(scope, "Cast", &[value], &[("to", Attribute::Int(to.code().into()))])
    }

    /// Renames a value wherever it occurs.
    pub fn rename(&mut self, from: &str, to: &str) {
        self.graph.nodes.iter_mut().for_each(|node| {
            for name in node.inputs.iter_mut().chain(&mut node.outputs).filter(|name| *name == from) {
                to.clone_into(name);
            }
        });
    }

    /// Adds a constant whose elements are in a file.
    pub fn external(
        &mut self,
        name: &str,
        element: impl Into<Element>,
        shape: &[usize],
        at: External<'_>,
    ) -> String {
        let data =
            InitializerData::External { file: at.file.to_owned(), offset: at.offset, length: at.length };
        self.graph.initializers.push(Initializer {
            name: name.to_owned(),
            dtype: element.into(),
            shape: shape.to_vec(),
            data,
        });
        name.to_owned()
    }

    /// Returns a small integer constant; each value is stored once.
    pub fn ints(&mut self, shape: &[usize], values: &[i64]) -> String {
        let text: Vec<String> = values.iter().map(i64::to_string).collect();
        let name = format!("const/i64/{}x{}", shape.len(), text.join("_"));
        self.constant(name, DType::I64, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// Returns a single-precision scalar constant; each value is stored once.
    pub fn scalar(&mut self, value: f32) -> String {
        self.constant(format!("const/f32/{value}"), DType::F32, &[], value.to_le_bytes().to_vec())
    }

    /// Returns a half-precision scalar constant from its bits (IEEE 754 binary16); each value is stored once.
    pub fn half_scalar(&mut self, bits: u16) -> String {
        self.constant(format!("const/f16/{bits:#06x}"), DType::F16, &[], bits.to_le_bytes().to_vec())
    }

    /// Returns a constant; each name is stored once.
    pub(crate) fn constant(
        &mut self,
        name: String,
        element: impl Into<Element>,
        shape: &[usize],
        bytes: Vec<u8>,
    ) -> String {
        if !self.interned.contains_key(&name) {
            self.interned.insert(name.clone(), self.graph.initializers.len());
            self.graph.initializers.push(Initializer {
                name: name.clone(),
                dtype: element.into(),
                shape: shape.to_vec(),
                data: InitializerData::Inline(bytes.into()),
            });
        }
        name
    }

    /// Returns the finished graph.
    pub fn finish(self) -> Graph {
        self.graph
    }
}

/// Location of an external constant.
#[derive(Debug, Clone, Copy)]
pub struct External<'a> {
    /// File name relative to the model.
    pub file: &'a str,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}
