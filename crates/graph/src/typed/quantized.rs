//! Operators on integers with scales. The integers are not tensors of the typed graph: the methods return the values
//! that they represent.

use narthex_spec::{ActivationBits, DType, dtype::Dim};

use super::{Result, Scope, Tensor, TensorType, TypedBuilder, mismatch};
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

/// Unsigned integers that represent activations: `x ≈ (q − zero) · scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rounding {
    /// Width of the integers.
    pub bits: ActivationBits,
    /// Bits of the scale in half precision (IEEE 754 binary16).
    pub scale: u16,
    /// Integer that represents 0, within the width.
    pub zero: u16,
}

impl TypedBuilder {
    /// Adds the rounding of activations in half precision to integers. Compilers of NPUs compute an operator in integers
    /// if its operands come from such nodes and its result goes to them.
    ///
    /// ```text
    /// x ── QuantizeLinear(scale, zero) ── DequantizeLinear(scale, zero)
    /// ```
    pub fn rounded(&mut self, scope: &Scope, x: Tensor, rounding: Rounding) -> Result<Tensor> {
        let [kind] = self.types(scope, "QuantizeLinear", [x])?;
        if kind.dtype != DType::F16 {
            return Err(mismatch(scope, "QuantizeLinear", "half precision", &[&kind]));
        }
        let Rounding { bits, scale, zero } = rounding;
        let scale = self.builder.half_scalar(scale);
        let bytes = zero.to_le_bytes();
        let zero = match bits {
            ActivationBits::Eight => {
                let name = format!("const/u8/{zero}");
                self.builder.constant(name, DType::U8, &[], vec![bytes[0]])
            }
            ActivationBits::Sixteen => {
                let name = format!("const/u16/{zero}");
                self.builder.constant(name, Element::U16, &[], bytes.to_vec())
            }
        };
        let path = scope.to_string();
        let x = self.values.get(x.index as usize).map_or("", |(name, _)| name.as_str());
        let integers = self.builder.op(&path, "QuantizeLinear", &[x, &scale, &zero]);
        let values = self.builder.op(&path, "DequantizeLinear", &[&integers, &scale, &zero]);
        Ok(self.value(values, kind))
    }

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
