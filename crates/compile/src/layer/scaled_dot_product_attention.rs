//! Attention of the static variant: plain operators with fixed shapes of rank 4 at most.

use narthex_graph::typed::{KeyValue, Scope, Tensor};
use narthex_spec::{HeadOrder, arch::QkNorm};

use super::{
    attention::{AttentionLayer, Projection, join_heads},
    linear::{StackedLinear, stacked_linear},
    rope::apply_rope,
};
use crate::{emit::Emitter, error::Result};

/// Inputs of a layer's attention, except its rows and its past.
pub(crate) struct StaticStep {
    /// Number of new tokens.
    pub(crate) tokens: usize,
    /// Number of columns of the past.
    pub(crate) past: usize,
    /// Cosines and sines of the new tokens' positions, if the layer uses RoPE: `[1, 1, tokens, pairs]`, or
    /// `[1, tokens, 1, pairs]` in [`HeadOrder::TokensFirst`].
    pub(crate) rotary: Option<[Tensor; 2]>,
    /// Mask that is added to scores, `[1, 1, tokens, past + tokens]`.
    pub(crate) mask: Tensor,
}

/// Keys and values that a layer attends to.
pub(crate) enum StaticCache {
    /// The layer's own past: keys `[1, kv_heads, size, past]` and values `[1, kv_heads, past, size]`.
    Own(KeyValue),
    /// Keys and values of past and new tokens, concatenated by an earlier layer.
    Shared(KeyValue),
}

/// Result of a layer's attention with fixed shapes.
pub(crate) struct StaticAttentionOutput {
    /// Branch that is added to the residual stream.
    pub(crate) output: Tensor,
    /// Keys and values of the past and of the new tokens, which later layers may share.
    pub(crate) joined: KeyValue,
    /// Keys and values of the new tokens, if they are the layer's own.
    pub(crate) new: Option<KeyValue>,
}

/// Adds causal attention of a fixed number of new tokens to a past of fixed width and to themselves. In grouped queries
/// (Ainslie et al. 2023, arXiv:2305.13245), heads share keys by a reshape: `[1, kv_heads, group · tokens, size]`.
///
/// For one token, the order of the elements is the same whether heads or tokens come first, so its graph needs no
/// transposes, and no reshapes between heads and groups. If a transpose follows a projection, Qualcomm's compiler
/// splits the projection into one product per head, with its weights split accordingly. The graph of one token is
/// written in that form too, so that the shared context stores these weights once.
///
/// ```text
/// x ── qkv_proj ─┬─ q ─ rope ─ scale ─────────────── MatMul ── Add(mask) ── Softmax ── MatMul ── o_proj
///                ├─ k ─ rope ─ transpose ─┬─ Concat(past) ┘                            │
///                │                        └─ new key                                   │
///                └─ v ────────────────────┬─ Concat(past) ─────────────────────────────┘
///                                         └─ new value
/// ```
/// In [`HeadOrder::TokensFirst`], a projection is not divided into heads, and `rope` comes before heads and tokens are
/// transposed. A layer that shares its keys and values with an earlier one projects only `q`.
pub(crate) fn scaled_dot_product_attention(
    e: &mut Emitter<'_>,
    layer: &AttentionLayer<'_>,
    x: Tensor,
    step: &StaticStep,
    cache: &StaticCache,
) -> Result<StaticAttentionOutput> {
    let (q, kv, new) = match *cache {
        StaticCache::Own(past) => {
            let parts = [Projection::Query, Projection::Key, Projection::Value];
            let [q, k, v] = project(e, layer, x, step.tokens, parts)?;
            let new = KeyValue { key: new_keys(e, layer, k, step)?, value: new_values(e, layer, v, step)? };
            let key = e.graph.concat(&layer.scope.child("keys"), &[past.key, new.key], 3)?;
            let value = e.graph.concat(&layer.scope.child("values"), &[past.value, new.value], 2)?;
            (q, KeyValue { key, value }, Some(new))
        }
        StaticCache::Shared(kv) => {
            let [q] = project(e, layer, x, step.tokens, [Projection::Query])?;
            (q, kv, None)
        }
    };

    let q = rotated(e, layer, Projection::Query, q, step)?;
    // The queries are scaled before the product, which might otherwise overflow in half precision.
    let q = e.scale(&layer.scope.child("q").child("scale"), q, layer.spec.scale())?;
    let mixed = attend(e, layer, q, kv, step)?;
    let rows = join_heads(e, layer.scope, mixed, [1, step.tokens, layer.spec.heads * layer.spec.head_size])?;
    let output = layer.output(e, rows, x)?;
    Ok(StaticAttentionOutput { output, joined: kv, new })
}

/// Returns values weighted by the scores of queries: `[1, heads, tokens, size]` for both queries and result. For one
/// token, both are in groups `[1, kv_heads, heads / kv_heads, size]`.
fn attend(
    e: &mut Emitter<'_>,
    layer: &AttentionLayer<'_>,
    q: Tensor,
    key_value: KeyValue,
    step: &StaticStep,
) -> Result<Tensor> {
    let scope = layer.scope;
    let spec = layer.spec;
    let tokens = step.tokens;
    let size = spec.head_size;
    let kv = spec.kv_heads;
    let seen = step.past + tokens;
    let grouped = spec.heads / kv * tokens;
    let regroup = |e: &mut Emitter<'_>, scope: &Scope, x: Tensor, shape: [usize; 4]| {
        if tokens == 1 { Ok(x) } else { e.graph.reshape(scope, x, &shape.map(|extent| extent as i64)) }
    };

    let q = regroup(e, &scope.child("q").child("groups"), q, [1, kv, grouped, size])?;
    let scores = e.graph.mat_mul(&scope.child("scores"), q, key_value.key)?;
    let scores = regroup(e, &scope.child("scores"), scores, [1, spec.heads, tokens, seen])?;
    let weights = layer.weights(e, scores, step.mask)?;
    let weights = regroup(e, &scope.child("groups"), weights, [1, kv, grouped, seen])?;
    let mixed = e.graph.mat_mul(&scope.child("mix"), weights, key_value.value)?;
    Ok(regroup(e, &scope.child("mix").child("heads"), mixed, [1, spec.heads, tokens, size])?)
}

/// Returns some projections of the rows, each `[1, tokens, heads · size]`. For one token, projections without a norm
/// are `[1, heads, size]`.
fn project<const PARTS: usize>(
    e: &mut Emitter<'_>,
    layer: &AttentionLayer<'_>,
    x: Tensor,
    tokens: usize,
    parts: [Projection; PARTS],
) -> Result<[Tensor; PARTS]> {
    let size = layer.spec.head_size;
    let scope = layer.scope.child(format_args!("{}_proj", parts.map(Projection::letter).concat()));
    let weights = parts.map(|part| layer.projection(part));
    let all = StackedLinear { scope: &scope, parts: &weights, cols: layer.norm.width, bias: layer.qkv_bias };
    let all = stacked_linear(e, x, &all)?;
    let sizes = parts.map(|part| {
        let heads = layer.heads(part);
        let is_whole = tokens > 1 || layer.has_norm(part) || e.recipe.head_order == HeadOrder::TokensFirst;
        if is_whole { vec![heads * size] } else { vec![size; heads] }
    });

    let mut pieces = e.graph.split(&scope, all, 2, &sizes.concat())?.into_iter();
    let mut joined = [x; PARTS];
    for ((part, sizes), joined) in parts.into_iter().zip(&sizes).zip(&mut joined) {
        let heads: Vec<Tensor> = pieces.by_ref().take(sizes.len()).collect();
        *joined = match heads[..] {
            [whole] => whole,
            _ => e.graph.concat(&layer.scope.child(part.letter()).child("heads"), &heads, 1)?,
        };
    }
    Ok(joined)
}

/// Returns the new tokens' keys, rotated: `[1, kv_heads, size, tokens]`.
fn new_keys(e: &mut Emitter<'_>, layer: &AttentionLayer<'_>, k: Tensor, step: &StaticStep) -> Result<Tensor> {
    let k = rotated(e, layer, Projection::Key, k, step)?;
    Ok(e.graph.transpose(&layer.scope.child("k").child("columns"), k, &[0, 1, 3, 2])?)
}

/// Returns the new tokens' values: `[1, kv_heads, tokens, size]`.
fn new_values(
    e: &mut Emitter<'_>,
    layer: &AttentionLayer<'_>,
    v: Tensor,
    step: &StaticStep,
) -> Result<Tensor> {
    let scope = layer.scope.child("v").child("heads");
    let [kv, size, tokens] = [layer.spec.kv_heads, layer.spec.head_size, step.tokens].map(|n| n as i64);
    let rows = if tokens == 1 { [1, kv, 1, size] } else { [1, tokens, kv, size] };
    let v = e.graph.reshape(&scope, v, &rows)?;
    let v = layer.normed(e, Projection::Value, v)?;
    Ok(if tokens == 1 { v } else { e.graph.transpose(&scope, v, &[0, 2, 1, 3])? })
}

/// Norms and rotates queries or keys from [`project`]: `[1, heads, tokens, size]`, or in groups for one token:
/// `[1, kv_heads, heads / kv_heads, size]`.
fn rotated(
    e: &mut Emitter<'_>,
    layer: &AttentionLayer<'_>,
    projection: Projection,
    x: Tensor,
    step: &StaticStep,
) -> Result<Tensor> {
    let scope = layer.scope.child(projection.letter());
    let heads = layer.heads(projection);
    let kv = layer.spec.kv_heads;
    let size = layer.spec.head_size;
    let groups = [1, kv, heads / kv, size].map(|extent| extent as i64);
    let order = e.recipe.head_order;
    // A norm with separate gains for the heads needs all heads in one dimension.
    let has_gains_of_heads = matches!(layer.spec.qk_norm, QkNorm::LayerPerHead | QkNorm::RmsOfAllHeads);
    let direct = order == HeadOrder::HeadsFirst && step.tokens == 1 && !has_gains_of_heads;
    let rows = if direct { groups } else { [1, step.tokens, heads, size].map(|extent| extent as i64) };
    let x = e.graph.reshape(&scope.child("heads"), x, &rows)?;
    let mut x = layer.normed(e, projection, x)?;

    let rotate = |e: &mut Emitter<'_>, x: Tensor| match step.rotary {
        Some(rotary) => apply_rope(e, &scope.child("rotate"), x, size, rotary),
        None => Ok(x),
    };
    if order == HeadOrder::TokensFirst {
        x = rotate(e, x)?;
    }
    x = match (step.tokens, direct) {
        (1, true) => x,
        (1, false) => e.graph.reshape(&scope.child("groups"), x, &groups)?,
        _ => e.graph.transpose(&scope.child("heads"), x, &[0, 2, 1, 3])?,
    };
    if order == HeadOrder::HeadsFirst {
        x = rotate(e, x)?;
    }
    Ok(x)
}
