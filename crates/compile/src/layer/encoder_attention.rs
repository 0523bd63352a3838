//! Bidirectional attention of encoders, for both variants.

use narthex_graph::typed::{Scope, Tensor};
use narthex_spec::{DType, arch::EncoderArch};

use super::{
    attention::{PADDING_SCORE, Projection, join_heads, masked_softmax},
    linear::{Bias, linear},
    rope::apply_rope,
};
use crate::{
    emit::Emitter,
    error::Result,
    rotary::{LengthRange, Trigonometric, table},
};

/// Rows and their width.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    /// `[batch, sequence, width]`.
    pub(crate) x: Tensor,
    /// Elements of a row.
    pub(crate) width: usize,
}

/// The operands of bidirectional attention.
pub(crate) struct BidirectionalAttention {
    /// Input rows of the query and key projections.
    pub(crate) keys: Rows,
    /// Input rows of the value projection.
    pub(crate) values: Rows,
    /// Number of elements of all heads together.
    pub(crate) width: usize,
    pub(crate) heads: usize,
    /// Mask that is added to scores, `[batch, 1, 1, sequence]`.
    pub(crate) mask: Tensor,
    /// Number of texts and their padded length; 0 keeps the extent of the rows.
    pub(crate) extents: [usize; 2],
    /// Rotary positions of queries and keys.
    pub(crate) rotary: Option<EncoderRotary>,
    /// Biases of the linear layers.
    pub(crate) bias: Bias,
}

/// Rotary positions of an encoder's queries and keys.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EncoderRotary {
    /// For texts of any length.
    Dynamic {
        /// Position of each row, `[batch, sequence]`.
        positions: Tensor,
        /// Cosines and sines of all positions, `[positions, size / 2]`.
        angles: [Tensor; 2],
    },
    /// For one text of fixed length: cosines and sines, `[1, length, 1, size / 2]`.
    Static([Tensor; 2]),
}

impl EncoderRotary {
    /// Returns the cosines and sines of the first `positions` positions as constants `shape`, or `None` for an encoder
    /// with learned positions.
    pub(crate) fn angles(
        e: &mut Emitter<'_>,
        arch: &EncoderArch,
        positions: usize,
        shape: &[usize],
    ) -> Result<Option<[Tensor; 2]>> {
        let Some(rope) = &arch.rope else { return Ok(None) };
        let pairs = arch.head_size() / 2;
        let mut constant = |name: &str, wave: Trigonometric| {
            let name = format!("rope/{name}/{positions}");
            e.tensor(&name, shape, |_| Ok(table(rope, LengthRange::Short, wave, 0..positions, pairs)))
        };
        let cos = constant("cos", Trigonometric::Cos)?;
        Ok(Some([cos, constant("sin", Trigonometric::Sin)?]))
    }
}

/// Returns the mask `[batch, 1, 1, sequence]` to add to scores, from a padding mask `[batch, sequence]`.
///
/// ```text
/// mask ── Cast ── Sub(1) ── Mul(10⁴) ── Unsqueeze
/// ```
pub(crate) fn padding_scores(e: &mut Emitter<'_>, padding_mask: Tensor) -> Result<Tensor> {
    let scope = Scope::root().child("padding");
    let mask = e.graph.cast(&scope, padding_mask, DType::F32)?;
    let one = e.number(1.0);
    let far = e.number(-PADDING_SCORE);
    let below = e.graph.sub(&scope, mask, one)?;
    let scores = e.graph.mul(&scope, below, far)?;
    Ok(e.graph.unsqueeze(&scope, scores, &[1, 2])?)
}

/// Adds attention of every token to every token of its text, with padding masked. Of the fused operators, ONNX
/// Runtime's `MultiHeadAttention` does not support a padding mask on WebGPU, and is not faster than these nodes on a
/// CPU.
///
/// ```text
/// keys ───┬─ q_proj ─ (rotate) ─ scale ───── MatMul ── Add(mask) ── Softmax ── MatMul ── o_proj
///         ├─ k_proj ─ (rotate) ─ transpose ──┘                                 │
/// values ─┴─ v_proj ───────────────────────────────────────────────────────────┘
/// ```
pub(crate) fn bidirectional_attention(
    e: &mut Emitter<'_>,
    scope: &Scope,
    attention: &BidirectionalAttention,
) -> Result<Tensor> {
    let width = attention.width;
    let [batch, length] = attention.extents;
    let q = attention.heads_of(e, scope, Projection::Query, &[0, 2, 1, 3])?;
    let k = attention.heads_of(e, scope, Projection::Key, &[0, 2, 3, 1])?;
    let v = attention.heads_of(e, scope, Projection::Value, &[0, 2, 1, 3])?;
    let size = width / attention.heads;
    let q = e.scale(&scope.child("q").child("scale"), q, (size as f64).sqrt().recip())?;
    let scores = e.graph.mat_mul(&scope.child("scores"), q, k)?;
    let weights = masked_softmax(e, scope, scores, attention.mask)?;
    let mixed = e.graph.mat_mul(&scope.child("mix"), weights, v)?;
    let rows = join_heads(e, scope, mixed, [batch, length, width])?;
    linear(e, &scope.child("o_proj"), rows, width, attention.bias)
}

impl BidirectionalAttention {
    /// Projects rows to queries, keys or values, rotates queries and keys, and divides them into heads. `order` is the order
    /// of the axes `[batch, sequence, heads, size]` in the result.
    fn heads_of(
        &self,
        e: &mut Emitter<'_>,
        scope: &Scope,
        projection: Projection,
        order: &[usize],
    ) -> Result<Tensor> {
        let part = projection.letter();
        let rows = if projection == Projection::Value { self.values } else { self.keys };
        let rotary = self.rotary.filter(|_| projection != Projection::Value);
        let [batch, length] = self.extents;
        let size = self.width / self.heads;

        let mut x = linear(e, &scope.child(format_args!("{part}_proj")), rows.x, rows.width, self.bias)?;
        if let Some(EncoderRotary::Dynamic { positions, angles }) = rotary {
            x = e.graph.rotary_embedding(&scope.child(part), x, positions, angles)?;
        }

        let heads = scope.child(part).child("heads");
        let shape = [batch, length, self.heads, size].map(|extent| extent as i64);
        let mut x = e.graph.reshape(&heads, x, &shape)?;
        if let Some(EncoderRotary::Static(angles)) = rotary {
            x = apply_rope(e, &scope.child(part).child("rotate"), x, size, angles)?;
        }
        Ok(e.graph.transpose(&heads, x, order)?)
    }
}
