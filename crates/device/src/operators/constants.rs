//! Small constants in the file of a graph.

use std::collections::HashMap;

use narthex_graph::{Graph, Initializer, InitializerData};
use narthex_spec::DType;

/// ONNX's number of the element type of single precision.
pub(super) const SINGLE_PRECISION: i64 = 1;

/// Constants of a graph that no input replaces.
pub(super) struct SmallConstants<'a>(HashMap<&'a str, &'a Initializer>);

impl<'a> SmallConstants<'a> {
    pub(super) fn of(graph: &'a Graph) -> Self {
        let fixed = graph
            .initializers
            .iter()
            .filter(|constant| graph.inputs.iter().all(|input| input.name != constant.name));
        Self(fixed.map(|constant| (constant.name.as_str(), constant)).collect())
    }

    /// Returns the rank of a constant.
    pub(super) fn rank(&self, name: &str) -> Option<usize> {
        self.0.get(name).map(|constant| constant.shape.len())
    }

    /// Returns the bytes of a constant of this type.
    fn bytes(&self, name: &str, dtype: DType) -> Option<&'a [u8]> {
        let constant = self.0.get(name).filter(|constant| constant.dtype == dtype)?;
        match &constant.data {
            InitializerData::Inline(bytes) => Some(bytes),
            InitializerData::External { .. } => None,
        }
    }

    /// Returns a single-precision constant with one element.
    pub(super) fn float(&self, name: &str) -> Option<f32> {
        Some(f32::from_le_bytes(self.bytes(name, DType::F32)?.try_into().ok()?))
    }

    /// Returns a constant of 64-bit integers.
    pub(super) fn ints(&self, name: &str) -> Option<Vec<i64>> {
        let (words, rest) = self.bytes(name, DType::I64)?.as_chunks();
        rest.is_empty().then(|| words.iter().map(|&word| i64::from_le_bytes(word)).collect())
    }
}
