//! Builder of a patch that replaces one node by several.

use narthex_spec::DType;

use crate::{
    build::NodeSpec,
    element::Element,
    graph::{Attribute, Initializer, InitializerData, Node},
    patch::{Edit, Patch},
};

/// Collects the nodes that replace one node. Their names start with its path.
#[derive(Debug)]
pub struct Replacement<'a> {
    node: &'a Node,
    /// Prefix that no other value has.
    stem: String,
    nodes: Vec<Node>,
    edits: Vec<Edit>,
}

impl<'a> Replacement<'a> {
    /// Creates an empty replacement for a node.
    pub fn of(node: &'a Node) -> Self {
        let value = node.outputs.iter().find(|output| !output.is_empty()).cloned().unwrap_or_default();
        let stem = if node.name.is_empty() { value } else { node.name.clone() };
        Self { node, stem, nodes: Vec::new(), edits: Vec::new() }
    }

    /// Returns the prefix of new values.
    pub fn stem(&self) -> &str {
        &self.stem
    }

    /// Adds a node with a new value and returns the value's name. `op` may have a domain as a prefix:
    /// `com.microsoft/Gelu`.
    pub fn op(&mut self, op: &str, inputs: &[&str], attributes: &[(&str, Attribute)]) -> String {
        let output = format!("{}/{}{}/out", self.stem, op, self.nodes.len());
        self.op_to(op, inputs, attributes, &[&output]);
        output
    }

    /// Adds a node with these output names.
    pub fn op_to(&mut self, op: &str, inputs: &[&str], attributes: &[(&str, Attribute)], outputs: &[&str]) {
        let (domain, op) = op.split_once('/').unwrap_or(("", op));
        let name = format!("{}/{}{}", self.stem, op, self.nodes.len());
        self.nodes.push(NodeSpec { name: &name, op, domain, inputs, attributes }.with_outputs(outputs));
    }

    /// Adds a complete node.
    pub fn push(&mut self, node: Node) {
        self.nodes.push(node);
    }

    /// Removes another node, which the new nodes replace too.
    pub fn takes_over(&mut self, other: &Node) {
        if let Some(making) = other.outputs.first() {
            self.edits.push(Edit::Replace { making: making.clone(), nodes: Vec::new() });
        }
    }

    /// Adds a constant of little-endian elements.
    pub fn constant(&mut self, name: &str, dtype: Element, shape: &[usize], bytes: Vec<u8>) -> String {
        let name = format!("{}/{name}", self.stem);
        let shape = shape.to_vec();
        let data = InitializerData::Inline(bytes.into());
        self.edits.push(Edit::AddConstant(Initializer { name: name.clone(), dtype, shape, data }));
        name
    }

    /// Adds a constant list of 64-bit integers, such as a shape.
    pub fn shape(&mut self, name: &str, extents: &[i64]) -> String {
        let bytes = extents.iter().flat_map(|extent| extent.to_le_bytes()).collect();
        self.constant(name, DType::I64.into(), &[extents.len()], bytes)
    }

    /// Returns the patch, labelled `kind: path of the node`; `None` for a node without outputs.
    pub fn patch(self, kind: &str) -> Option<Patch> {
        let making = self.node.outputs.iter().find(|output| !output.is_empty())?.clone();
        let mut edits = self.edits;
        edits.push(Edit::Replace { making, nodes: self.nodes });
        Some(Patch { label: format!("{kind}: {}", self.node.path()), edits })
    }
}
