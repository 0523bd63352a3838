//! Bidirectional attention of encoders, for both variants.

use narthex_graph::typed::{Scope, Tensor};
use narthex_spec::DType;

use super::{
    attention::{join_heads, masked_softmax},
    linear::{Bias, linear},
};
use crate::{
    emit::Emitter,
    error::{CompileError, Result},
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
}

/// Value that is added to the scores of padding, far below the scores of tokens.
const PADDING_SCORE: f64 = -1e4;

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
/// keys ───┬─ q_proj ─ scale ───── MatMul ── Add(mask) ── Softmax ── MatMul ── o_proj
///         ├─ k_proj ─ transpose ──┘                                 │
/// values ─┴─ v_proj ────────────────────────────────────────────────┘
/// ```
pub(crate) fn bidirectional_attention(
    e: &mut Emitter<'_>,
    scope: &Scope,
    attention: &BidirectionalAttention,
) -> Result<Tensor> {
    let width = attention.width;
    let count = attention.heads;
    let [batch, length] = attention.extents;
    let size = width / count;
    let project = |e: &mut Emitter<'_>, part: &str, rows: Rows, order: &[usize]| {
        let projected = linear(e, &scope.child(format_args!("{part}_proj")), rows.x, rows.width, Bias::With)?;
        let heads = scope.child(part).child("heads");
        let shape = [batch, length, count, size].map(|extent| extent as i64);
        let projected = e.graph.reshape(&heads, projected, &shape)?;
        Ok::<_, CompileError>(e.graph.transpose(&heads, projected, order)?)
    };
    let q = project(e, "q", attention.keys, &[0, 2, 1, 3])?;
    let k = project(e, "k", attention.keys, &[0, 2, 3, 1])?;
    let v = project(e, "v", attention.values, &[0, 2, 1, 3])?;
    let q = e.scale(&scope.child("q").child("scale"), q, (size as f64).sqrt().recip())?;
    let scores = e.graph.mat_mul(&scope.child("scores"), q, k)?;
    let weights = masked_softmax(e, scope, scores, attention.mask)?;
    let mixed = e.graph.mat_mul(&scope.child("mix"), weights, v)?;
    let rows = join_heads(e, scope, mixed, [batch, length, width])?;
    linear(e, &scope.child("o_proj"), rows, width, Bias::With)
}
