//! Operators on integers with scales. The integers are not tensors of the typed graph: the methods return the values
//! that they represent.

use narthex_spec::{DType, dtype::Dim};

use super::{Scope, Tensor, TensorType, TypedBuilder};
use crate::{
    build::{External, NodeSpec},
    element::Element,
    graph::Attribute,
};

/// Number of bits of an unsigned integer in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IntegerBits {
    /// Two integers in a byte, the first in its low half.
    Four,
    /// One byte.
    Eight,
}

impl IntegerBits {
    fn element(self) -> Element {
        match self {
            Self::Four => Element::U4,
            Self::Eight => DType::U8.into(),
        }
    }
}

/// A weight `[rows, cols]` of integers in a file, with one scale and zero point for each row.
#[derive(Debug, Clone, Copy)]
pub struct RowWeight<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Width of the integers and zero points.
    pub bits: IntegerBits,
    /// The integers.
    pub quants: External<'a>,
    /// Scales in half precision.
    pub scales: External<'a>,
    /// Zero points.
    pub zeros: External<'a>,
}

impl TypedBuilder {
    /// Adds the values of a weight in half precision, transposed for a product: `[cols, rows]`.
    ///
    /// ```text
    /// quants [rows, cols] ── DequantizeLinear(scales, zeros) ── Transpose
    /// ```
    pub fn transposed_row_weight(&mut self, scope: &Scope, weight: &RowWeight<'_>) -> Tensor {
        let &RowWeight { rows, cols, bits, .. } = weight;
        let element = bits.element();
        let quants = self.builder.external(&scope.node("quants"), element, &[rows, cols], weight.quants);
        let scales = self.builder.external(&scope.node("row_scales"), DType::F16, &[rows], weight.scales);
        let zeros = self.builder.external(&scope.node("row_zeros"), element, &[rows], weight.zeros);

        let values = self.builder.node(NodeSpec {
            name: &scope.node("DequantizeLinear"),
            op: "DequantizeLinear",
            domain: "",
            inputs: &[&quants, &scales, &zeros],
            attributes: &[("axis", Attribute::Int(0))],
        });
        let columns =
            self.builder.op_with(&scope.to_string(), "Transpose", &[&values], &[("perm", [1, 0].into())]);
        self.value(columns, TensorType::new(DType::F16, &[cols, rows].map(Dim::from)))
    }
}
