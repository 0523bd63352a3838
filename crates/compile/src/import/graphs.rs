//! Queries and small changes of imported graphs.

use std::collections::HashSet;

use narthex_graph::{Graph, Value};
use narthex_spec::{DType, dtype::Dim};

use super::refused;
use crate::error::Result;

/// Removes the constants from the inputs; old files list them there.
pub(super) fn remove_constant_inputs(graph: &mut Graph) {
    let constants: HashSet<&str> = graph.initializers.iter().map(|constant| constant.name.as_str()).collect();
    graph.inputs.retain(|input| !constants.contains(input.name.as_str()));
}

/// Returns the extent of a fixed dimension.
pub(super) fn fixed_extent(dim: &Dim) -> Option<usize> {
    match dim {
        Dim::Fixed(extent) => usize::try_from(*extent).ok(),
        Dim::Symbol(_) => None,
    }
}

/// Returns the extent of an axis of a value, if it is fixed.
pub(super) fn fixed_axis(value: &Value, axis: usize) -> Option<usize> {
    value.shape.get(axis).and_then(fixed_extent)
}

/// Returns the value with a name.
pub(super) fn named<'a>(values: &'a [Value], name: &str) -> Option<&'a Value> {
    values.iter().find(|value| value.name == name)
}

/// Returns the type of a floating-point value; other types are refused.
pub(super) fn float_dtype(file: &str, value: &Value) -> Result<DType> {
    match value.dtype.dtype() {
        Some(dtype @ (DType::F32 | DType::F16)) => Ok(dtype),
        _ => Err(refused(format!("{:?} of {file}", value.name), "f32 or f16", value.dtype)),
    }
}

/// Refuses a graph with inputs that the package does not feed.
pub(super) fn reject_unknown_inputs(file: &str, graph: &Graph, known: &[&str]) -> Result<()> {
    match graph.inputs.iter().find(|input| !known.contains(&input.name.as_str())) {
        None => Ok(()),
        Some(input) => {
            let known: Vec<&str> = known.iter().copied().filter(|name| !name.contains('.')).collect();
            Err(refused(format!("input of {file}"), known.join(", "), &input.name))
        }
    }
}
