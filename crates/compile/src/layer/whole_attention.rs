//! Attention over whole texts with the heads of a decoder, without a cache, for both variants.

use narthex_graph::typed::{Scope, Tensor};

use super::{
    attention::{AttentionLayer, Projection, join_heads},
    linear::linear,
    rope::apply_rope,
};
use crate::{emit::Emitter, error::Result};

/// Inputs of a layer's attention except its rows.
#[derive(Clone, Copy)]
pub(crate) struct WholeText {
    /// Cosines and sines of all positions, `[batch, sequence, 1, pairs]`, if the layer uses RoPE.
    pub(crate) rotary: Option<[Tensor; 2]>,
    /// Mask that is added to scores: `[batch, 1, 1, sequence or 1, sequence]`, without the third axis in the static variant.
    pub(crate) mask: Tensor,
    /// Fixed number of tokens in the static variant.
    pub(crate) length: Option<usize>,
}

/// Adds attention of the tokens of a text to each other. In grouped queries (Ainslie et al. 2023, arXiv:2305.13245), several
/// heads read the same keys.
///
/// ```text
/// x ─┬─ q_proj ─ norm ─ rope ─ scale ─────── MatMul ── Add(mask) ── Softmax ── MatMul ── o_proj
///    ├─ k_proj ─ norm ─ rope ─ transpose ────┘                                 │
///    └─ v_proj ────────────────────────────────────────────────────────────────┘
/// ```
pub(crate) fn whole_attention(
    e: &mut Emitter<'_>,
    layer: &AttentionLayer<'_>,
    x: Tensor,
    text: &WholeText,
) -> Result<Tensor> {
    let q = projected(e, layer, Projection::Query, x, text)?;
    let q = e.scale(&layer.scope.child("q").child("scale"), q, layer.spec.scale())?;
    let k = projected(e, layer, Projection::Key, x, text)?;
    let v = projected(e, layer, Projection::Value, x, text)?;
    let rows = match text.length {
        None => grouped(e, layer, [q, k, v], text.mask)?,
        Some(length) => flat(e, layer, [q, k, v], text.mask, length)?,
    };
    layer.output(e, rows, x)
}

/// Returns queries, keys or values `[batch, sequence, heads, size]`, normed and rotated.
fn projected(
    e: &mut Emitter<'_>,
    layer: &AttentionLayer<'_>,
    projection: Projection,
    x: Tensor,
    text: &WholeText,
) -> Result<Tensor> {
    let heads = layer.heads(projection);
    let size = layer.spec.head_size;
    let scope = layer.scope.child(projection.letter());
    let rows = linear(e, &layer.projection(projection), x, layer.norm.width, layer.qkv_bias)?;
    let [batch, sequence] = text.length.map_or([0, 0], |length| [1, length as i64]);
    let rows = e.graph.reshape(&scope.child("heads"), rows, &[batch, sequence, heads as i64, size as i64])?;
    let rows = layer.normed(e, projection, rows)?;
    match text.rotary.filter(|_| projection != Projection::Value) {
        Some(angles) => apply_rope(e, &scope.child("rotate"), rows, size, angles),
        None => Ok(rows),
    }
}

/// Returns the mixed values `[batch, sequence, heads · size]`. Heads that share keys are an axis of their own.
fn grouped(
    e: &mut Emitter<'_>,
    layer: &AttentionLayer<'_>,
    [q, k, v]: [Tensor; 3],
    mask: Tensor,
) -> Result<Tensor> {
    let scope = layer.scope;
    let kv_heads = layer.spec.kv_heads;
    let group = layer.spec.heads / kv_heads;
    let size = layer.spec.head_size;
    let mut ordered = |part: &str, x: Tensor, group: usize, order: [usize; 5]| {
        let scope = scope.child(part).child("groups");
        let shape = [0, 0, kv_heads, group, size].map(|extent| extent as i64);
        let groups = e.graph.reshape(&scope, x, &shape)?;
        e.graph.transpose(&scope, groups, &order)
    };
    let q = ordered("q", q, group, [0, 2, 3, 1, 4])?;
    let k = ordered("k", k, 1, [0, 2, 3, 4, 1])?;
    let v = ordered("v", v, 1, [0, 2, 3, 1, 4])?;

    let scores = e.graph.mat_mul(&scope.child("scores"), q, k)?;
    let weights = layer.weights(e, scores, mask)?;
    let mix = scope.child("mix");
    let mixed = e.graph.mat_mul(&mix, weights, v)?;
    let rows = e.graph.transpose(&mix, mixed, &[0, 3, 1, 2, 4])?;
    let width = layer.spec.heads * size;
    Ok(e.graph.reshape(&mix.child("flat"), rows, &[0, 0, width as i64])?)
}

/// Returns the mixed values `[1, length, heads · size]` with tensors of rank 4 at most. Heads share keys by a reshape.
fn flat(
    e: &mut Emitter<'_>,
    layer: &AttentionLayer<'_>,
    [q, k, v]: [Tensor; 3],
    mask: Tensor,
    length: usize,
) -> Result<Tensor> {
    let scope = layer.scope;
    let heads = layer.spec.heads;
    let kv_heads = layer.spec.kv_heads;
    let size = layer.spec.head_size;
    let mut ordered = |part: &str, x: Tensor, order: [usize; 4]| {
        e.graph.transpose(&scope.child(part).child("heads"), x, &order)
    };
    let q = ordered("q", q, [0, 2, 1, 3])?;
    let k = ordered("k", k, [0, 2, 3, 1])?;
    let v = ordered("v", v, [0, 2, 1, 3])?;

    let rows = heads / kv_heads * length;
    let q = regrouped(e, &scope.child("q").child("groups"), q, [1, kv_heads, rows, size])?;
    let scores = e.graph.mat_mul(&scope.child("scores"), q, k)?;
    let scores = regrouped(e, &scope.child("scores"), scores, [1, heads, length, length])?;
    let weights = layer.weights(e, scores, mask)?;
    let weights = regrouped(e, &scope.child("groups"), weights, [1, kv_heads, rows, length])?;
    let mixed = e.graph.mat_mul(&scope.child("mix"), weights, v)?;
    let mixed = regrouped(e, &scope.child("mix").child("heads"), mixed, [1, heads, length, size])?;
    join_heads(e, scope, mixed, [1, length, heads * size])
}

/// Reshapes a tensor unless it has the shape.
fn regrouped(e: &mut Emitter<'_>, scope: &Scope, x: Tensor, shape: [usize; 4]) -> Result<Tensor> {
    if e.graph.fixed_shape(x).is_some_and(|known| known == shape) {
        return Ok(x);
    }
    Ok(e.graph.reshape(scope, x, &shape.map(|extent| extent as i64))?)
}
