//! Inference of element types, shapes and small integer constants.
//!
//! A symbol has the extent that the caller binds; an unbound symbol is unknown. The outputs of an unknown operator are
//! unknown too; nothing is guessed. Start at [`Graph::infer`].

mod compute;
mod ints;
mod layout;

use std::collections::HashMap;

use narthex_spec::{DType, dtype::Dim};

use crate::{
    element::Element,
    formula::evaluate,
    graph::{Attribute, Graph, Initializer, InitializerData, Node, Value},
};

/// A shape whose unknown extents are `None`.
pub type Shape = Vec<Option<u64>>;

/// Maximum number of integers of one tensor that are tracked: shapes, axes and indices, but not data.
const MAX_INTS: usize = 1024;

/// Inferred properties of a tensor.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TensorInfo {
    /// Element type.
    pub element: Option<Element>,
    /// Shape, if the rank is known.
    pub shape: Option<Shape>,
    /// Elements, if they are few known integers.
    pub ints: Option<Vec<i64>>,
    /// `true` if ONNX Runtime computes the tensor once, when it loads the graph.
    pub constant: bool,
}

impl TensorInfo {
    /// Returns the number of elements, if every extent is known.
    pub fn count(&self) -> Option<u64> {
        self.shape.as_ref()?.iter().try_fold(1u64, |count, extent| count.checked_mul((*extent)?))
    }

    /// Returns the number of bytes, if type and shape are known.
    pub fn bytes(&self) -> Option<u64> {
        self.element?.bytes(self.count()?)
    }

    /// Returns whether every extent is known.
    pub fn is_fixed(&self) -> bool {
        self.count().is_some()
    }
}

/// Inferred properties of every tensor of a graph.
#[derive(Debug, Clone, Default)]
pub struct InferredTensors {
    tensors: HashMap<String, TensorInfo>,
    nothing: TensorInfo,
}

impl InferredTensors {
    /// Returns the properties of a tensor by name; all of them are unknown if the tensor is absent.
    pub fn get(&self, name: &str) -> &TensorInfo {
        self.tensors.get(name).unwrap_or(&self.nothing)
    }

    /// Returns a node's input, or `None` if the node omits it.
    pub fn input(&self, node: &Node, index: usize) -> Option<&TensorInfo> {
        node.input(index).map(|name| self.get(name))
    }

    /// Returns a node's first output.
    pub fn output(&self, node: &Node) -> &TensorInfo {
        node.outputs.first().map_or(&self.nothing, |name| self.get(name))
    }
}

impl Graph {
    /// Infers shapes, types and small integers. `bind` returns the extents of symbols.
    pub fn infer(&self, bind: &dyn Fn(&str) -> Option<u64>) -> InferredTensors {
        let mut known = InferredTensors::default();
        for input in &self.inputs {
            let tensor = declared(self, input, bind);
            known.tensors.insert(input.name.clone(), tensor);
        }
        for constant in &self.initializers {
            known.tensors.insert(constant.name.clone(), of_constant(constant));
        }
        let stated: HashMap<&str, &Value> =
            self.values.iter().chain(&self.outputs).map(|value| (value.name.as_str(), value)).collect();
        for node in &self.nodes {
            for (index, mut tensor) in infer_node(node, &known).into_iter().enumerate() {
                let Some(name) = node.outputs.get(index).filter(|name| !name.is_empty()) else { continue };
                if let Some(value) = stated.get(name.as_str()) {
                    complete(&mut tensor, &declared(self, value, bind));
                }
                known.tensors.insert(name.clone(), tensor);
            }
        }
        known
    }
}

/// Returns the properties that a file declares for a value.
fn declared(graph: &Graph, value: &Value, bind: &dyn Fn(&str) -> Option<u64>) -> TensorInfo {
    TensorInfo {
        element: (value.dtype != Element::NONE).then_some(value.dtype),
        shape: (!graph.unranked.contains(&value.name)).then(|| {
            value
                .shape
                .iter()
                .map(|dim| match dim {
                    Dim::Fixed(extent) => Some(*extent),
                    Dim::Symbol(name) => evaluate(name, bind),
                })
                .collect()
        }),
        ..TensorInfo::default()
    }
}

/// Replaces unknown properties by those that the file declares.
fn complete(tensor: &mut TensorInfo, stated: &TensorInfo) {
    tensor.element = tensor.element.or(stated.element);
    match (&mut tensor.shape, &stated.shape) {
        (Some(found), Some(said)) if found.len() == said.len() => {
            found.iter_mut().zip(said).for_each(|(found, said)| *found = found.or(*said));
        }
        (None, Some(said)) => tensor.shape = Some(said.clone()),
        _ => {}
    }
}

fn of_constant(constant: &Initializer) -> TensorInfo {
    TensorInfo {
        element: Some(constant.dtype),
        shape: Some(constant.shape.iter().map(|&extent| Some(extent as u64)).collect()),
        ints: constant.ints(),
        constant: true,
    }
}

impl Initializer {
    /// Returns the elements, if they are few integers inside the file.
    pub fn ints(&self) -> Option<Vec<i64>> {
        let InitializerData::Inline(bytes) = &self.data else { return None };
        if bytes.len() > MAX_INTS * 8 || self.expected_bytes() != Some(bytes.len() as u64) {
            return None;
        }
        match self.dtype.dtype()? {
            DType::I64 => {
                Some(bytes.as_chunks::<8>().0.iter().map(|chunk| i64::from_le_bytes(*chunk)).collect())
            }
            DType::I32 => {
                Some(bytes.as_chunks::<4>().0.iter().map(|c| i64::from(i32::from_le_bytes(*c))).collect())
            }
            DType::Bool | DType::U8 => Some(bytes.iter().map(|&byte| i64::from(byte)).collect()),
            _ => None,
        }
    }
}

/// A node with the inferred properties of its inputs.
struct NodeContext<'a> {
    node: &'a Node,
    inputs: Vec<Option<&'a TensorInfo>>,
}

impl NodeContext<'_> {
    fn shape(&self, index: usize) -> Option<&Shape> {
        self.inputs.get(index).copied().flatten()?.shape.as_ref()
    }

    fn ints(&self, index: usize) -> Option<&[i64]> {
        self.inputs.get(index).copied().flatten()?.ints.as_deref()
    }

    fn element(&self, index: usize) -> Option<Element> {
        self.inputs.get(index).copied().flatten()?.element
    }

    /// Returns integers that are an attribute in older operator sets and an input in newer ones.
    fn listed(&self, attribute: &str, index: usize) -> Option<Vec<i64>> {
        self.node.ints(attribute).map(<[i64]>::to_vec).or_else(|| self.ints(index).map(<[i64]>::to_vec))
    }

    fn has(&self, index: usize) -> bool {
        self.inputs.get(index).copied().flatten().is_some()
    }
}

/// Returns an axis counted from the front.
fn axis_of(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 { axis.checked_add(rank as i64)? } else { axis };
    usize::try_from(axis).ok().filter(|&axis| axis < rank)
}

fn infer_node(node: &Node, known: &InferredTensors) -> Vec<TensorInfo> {
    let inputs = (0..node.inputs.len()).map(|index| known.input(node, index)).collect();
    let at = NodeContext { node, inputs };
    let standard = node.domain.is_empty();
    if standard && node.op == "Constant" {
        return vec![constant_node(node)];
    }
    let shapes = layout::shapes(&at).or_else(|| compute::shapes(&at)).unwrap_or_default();
    let is_random = node.op.starts_with("Random") || matches!(node.op.as_str(), "Bernoulli" | "Multinomial");
    let reads_shape_alone = standard
        && matches!(node.op.as_str(), "Shape" | "Size")
        && at.inputs.first().copied().flatten().is_some_and(TensorInfo::is_fixed);
    let has_body = node.attributes.iter().any(|(_, value)| matches!(value, Attribute::Graph(_)));
    let constant = reads_shape_alone
        || (!is_random && !has_body && at.inputs.iter().flatten().all(|input| input.constant));
    let ints = if standard { ints::ints(&at, shapes.first().and_then(Option::as_ref)) } else { None };
    (0..node.outputs.len())
        .map(|index| TensorInfo {
            element: compute::element(&at, index),
            shape: shapes.get(index).cloned().flatten(),
            ints: ints.as_ref().and_then(|all| all.get(index).cloned()),
            constant,
        })
        .collect()
}

fn constant_node(node: &Node) -> TensorInfo {
    match node.attributes.first().map(|(_, value)| value) {
        Some(Attribute::Tensor(tensor)) => of_constant(tensor),
        Some(Attribute::Int(value)) => known_constant(DType::I64, Vec::new(), Some(vec![*value])),
        Some(Attribute::Float(_)) => known_constant(DType::F32, Vec::new(), None),
        Some(Attribute::Ints(values)) => {
            let ints = (values.len() <= MAX_INTS).then(|| values.clone());
            known_constant(DType::I64, vec![Some(values.len() as u64)], ints)
        }
        Some(Attribute::Floats(values)) => known_constant(DType::F32, vec![Some(values.len() as u64)], None),
        _ => TensorInfo { constant: true, ..TensorInfo::default() },
    }
}

fn known_constant(dtype: DType, shape: Shape, ints: Option<Vec<i64>>) -> TensorInfo {
    TensorInfo { element: Some(dtype.into()), shape: Some(shape), ints, constant: true }
}

/// Returns the shapes of the outputs of a node with one output.
fn one(shape: Option<Shape>) -> Option<Vec<Option<Shape>>> {
    Some(vec![shape])
}

#[cfg(test)]
mod tests;
