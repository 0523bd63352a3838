//! A graph under construction whose tensors have types. Each operator checks its operands when it is added.
//!
//! A wrong tensor causes an error where it is used, which names the node and the types. Symbolic dimensions compare by
//! name. The operators are methods of [`TypedBuilder`]: those that compute are in `onnx`, those that move elements in
//! `layout`, those on integers in `quantized`, those of ONNX Runtime in `contrib`, `experts` and `linear_attention`. To add nodes to a foreign graph, whose types are not known, use
//! [`Builder`].

mod contrib;
mod experts;
mod layout;
mod linear_attention;
mod onnx;
mod quantized;
mod scope;
mod shape;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fmt,
    sync::atomic::{AtomicU32, Ordering},
};

use narthex_spec::{DType, dtype::Dim};

pub use self::{
    contrib::{GroupQueryAttention, KeyValue, MatMulNBits, SkipNorm},
    experts::{ExpertBlocks, ExpertMixture, QuantizedExperts},
    linear_attention::{LinearAttention, UpdateRule},
    onnx::{Conv1d, Conv2d, PaddedConv, PatchConv, Reduction},
    quantized::{IntegerBits, Rounding, RowWeight},
    scope::Scope,
};
use crate::{
    build::{Builder, External, NodeSpec},
    element::Element,
    graph::{Attribute, Graph},
};

/// A tensor of the graph under construction. The [`TypedBuilder`] that created it knows its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tensor {
    graph: u32,
    index: u32,
}

/// Element type and shape of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<Dim>,
}

impl TensorType {
    /// Creates a type.
    pub fn new(dtype: DType, shape: &[Dim]) -> Self {
        Self { dtype, shape: shape.to_vec() }
    }

    fn last(&self) -> Option<&Dim> {
        self.shape.last()
    }

    /// Returns the type with another last dimension.
    fn with_last(&self, last: Dim) -> Self {
        let mut kind = self.clone();
        if let Some(dim) = kind.shape.last_mut() {
            *dim = last;
        }
        kind
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape: Vec<String> = self.shape.iter().map(Dim::to_string).collect();
        write!(f, "{} [{}]", Element::from(self.dtype), shape.join(", "))
    }
}

/// Result of adding an operator.
pub type Result<T, E = BuildError> = std::result::Result<T, E>;

/// Error for a tensor that an operator or output does not accept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{node}: expected {expected}, found {found}")]
pub struct BuildError {
    /// Path of the node, ending in its operator, or the name of the output.
    pub node: String,
    /// Types that it accepts.
    pub expected: String,
    /// Types of its operands.
    pub found: String,
}

/// A graph under construction.
#[derive(Debug)]
pub struct TypedBuilder {
    builder: Builder,
    /// Distinguishes this graph's tensors from those of others.
    id: u32,
    /// Name and type of each tensor.
    values: Vec<(String, TensorType)>,
    /// Small constants by name.
    constants: BTreeMap<String, Tensor>,
}

/// A node to add, whose operands have been checked.
struct CheckedNode<'a> {
    scope: &'a Scope,
    op: &'static str,
    domain: &'static str,
    inputs: &'a [Option<Tensor>],
    attributes: &'a [(&'static str, Attribute)],
}

impl TypedBuilder {
    /// Creates an empty graph with its operator sets.
    pub fn new(name: &str, opsets: &[(&str, i64)]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self {
            builder: Builder::new(name, opsets),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            values: Vec::new(),
            constants: BTreeMap::new(),
        }
    }

    /// Declares an input.
    pub fn input(&mut self, name: &str, kind: TensorType) -> Tensor {
        self.builder.input(name, kind.dtype, &kind.shape);
        self.value(name.to_owned(), kind)
    }

    /// Declares a tensor as an output under this name.
    ///
    /// # Errors
    /// [`BuildError`] if the tensor is not of the declared type.
    pub fn output(&mut self, name: &str, tensor: Tensor, kind: &TensorType) -> Result<()> {
        let node = format!("output {name}");
        let found = self.get(tensor).ok_or_else(|| foreign(node.clone()))?;
        if found != kind {
            return Err(BuildError { node, expected: kind.to_string(), found: found.to_string() });
        }
        self.builder.output(name, kind.dtype, &kind.shape);
        if let Some((known, _)) = self.values.get_mut(tensor.index as usize) {
            self.builder.rename(known, name);
            name.clone_into(known);
        }
        Ok(())
    }

    /// Declares a constant whose elements are in a file.
    pub fn external(&mut self, name: &str, dtype: DType, shape: &[usize], at: External<'_>) -> Tensor {
        self.builder.external(name, dtype, shape, at);
        self.value(name.to_owned(), fixed(dtype, shape))
    }

    /// Returns a small integer constant; each value is stored once.
    pub fn ints(&mut self, shape: &[usize], values: &[i64]) -> Tensor {
        let name = self.builder.ints(shape, values);
        self.constant(name, fixed(DType::I64, shape))
    }

    /// Returns a single-precision scalar constant; each value is stored once.
    pub fn scalar(&mut self, value: f32) -> Tensor {
        let name = self.builder.scalar(value);
        self.constant(name, fixed(DType::F32, &[]))
    }

    /// Returns a half-precision scalar constant from its bits (IEEE 754 binary16); each value is stored once.
    pub fn half_scalar(&mut self, bits: u16) -> Tensor {
        let name = self.builder.half_scalar(bits);
        self.constant(name, fixed(DType::F16, &[]))
    }

    /// Returns the finished graph.
    pub fn finish(self) -> Graph {
        self.builder.finish()
    }

    fn constant(&mut self, name: String, kind: TensorType) -> Tensor {
        if let Some(known) = self.constants.get(&name) {
            return *known;
        }
        let tensor = self.value(name.clone(), kind);
        self.constants.insert(name, tensor);
        tensor
    }

    fn value(&mut self, name: String, kind: TensorType) -> Tensor {
        let index = self.values.len() as u32;
        self.values.push((name, kind));
        Tensor { graph: self.id, index }
    }

    /// Returns the shape of a tensor of this graph, if all its dimensions are fixed.
    pub fn fixed_shape(&self, tensor: Tensor) -> Option<Vec<usize>> {
        self.get(tensor)?
            .shape
            .iter()
            .map(|dim| match dim {
                Dim::Fixed(extent) => usize::try_from(*extent).ok(),
                Dim::Symbol(_) => None,
            })
            .collect()
    }

    /// Returns the last extent of a tensor of this graph, if it is fixed.
    pub fn last_extent(&self, tensor: Tensor) -> Option<usize> {
        match self.get(tensor)?.last()? {
            Dim::Fixed(extent) => usize::try_from(*extent).ok(),
            Dim::Symbol(_) => None,
        }
    }

    fn get(&self, tensor: Tensor) -> Option<&TensorType> {
        let (_, kind) = self.values.get(tensor.index as usize).filter(|_| tensor.graph == self.id)?;
        Some(kind)
    }

    /// Returns the types of a node's operands.
    fn types<const N: usize>(
        &self,
        scope: &Scope,
        op: &str,
        tensors: [Tensor; N],
    ) -> Result<[TensorType; N]> {
        let mut failed = None;
        let kinds = tensors.map(|tensor| match self.get(tensor) {
            Some(kind) => kind.clone(),
            None => {
                failed = Some(foreign(scope.node(op)));
                TensorType::new(DType::F32, &[])
            }
        });
        failed.map_or(Ok(kinds), Err)
    }

    /// Checks that a tensor is a vector with the length of the last axis of `x` and its element type.
    fn check_vector(&self, scope: &Scope, op: &str, x: &TensorType, vector: Tensor) -> Result<()> {
        let [kind] = self.types(scope, op, [vector])?;
        if kind.dtype == x.dtype && kind.shape.len() == 1 && kind.last() == x.last() {
            return Ok(());
        }
        Err(mismatch(scope, op, "rows and a vector of their width and element type", &[x, &kind]))
    }

    /// Adds a node with one output, which has the node's name plus `/out` as its name.
    fn add_node(&mut self, node: &CheckedNode<'_>, kind: TensorType) -> Tensor {
        let output = format!("{}/{}/out", node.scope, node.op);
        self.write(node, &[&output]);
        self.value(output, kind)
    }

    /// Adds a node with these outputs; an empty name omits one.
    fn write(&mut self, node: &CheckedNode<'_>, outputs: &[&str]) {
        let name = |tensor: &Option<Tensor>| match tensor {
            Some(tensor) => self.values.get(tensor.index as usize).map_or("", |(name, _)| name.as_str()),
            None => "",
        };
        let inputs: Vec<&str> = node.inputs.iter().map(name).collect();
        let path = node.scope.node(node.op);
        let spec = NodeSpec {
            name: &path,
            op: node.op,
            domain: node.domain,
            inputs: &inputs,
            attributes: node.attributes,
        };
        self.builder.node_to(spec, outputs);
    }
}

fn fixed(dtype: DType, shape: &[usize]) -> TensorType {
    TensorType { dtype, shape: shape.iter().map(|&extent| Dim::from(extent)).collect() }
}

/// Returns the error for a node that reads a tensor of another graph.
fn foreign(node: String) -> BuildError {
    BuildError { node, expected: "tensors of this graph".to_owned(), found: "one of another".to_owned() }
}

/// Returns the error for a node with operands of wrong types.
fn mismatch(scope: &Scope, op: &str, expected: impl Into<String>, found: &[&TensorType]) -> BuildError {
    let found: Vec<String> = found.iter().map(|kind| kind.to_string()).collect();
    BuildError { node: scope.node(op), expected: expected.into(), found: found.join(" and ") }
}
