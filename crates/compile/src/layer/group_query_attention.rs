//! Attention of the dynamic variant: one operator with a cache that is updated in place.

use narthex_graph::typed::{GroupQueryAttention, KeyValue, Tensor};
use narthex_spec::arch::{KvSource, QkNorm};

use super::{
    attention::{AttentionLayer, Projection},
    linear::{StackedLinear, linear, stacked_linear},
};
use crate::{emit::Emitter, error::Result};

/// Inputs of a layer's attention, except its rows.
pub(crate) struct CacheInputs {
    /// Number of tokens of each sequence minus one, `[batch]`.
    pub(crate) seqlens_k: Tensor,
    /// Number of tokens of the longest sequence.
    pub(crate) total_length: Tensor,
    /// Cosines and sines `[positions, pairs]`, if the layer uses RoPE.
    pub(crate) rotary: Option<[Tensor; 2]>,
    pub(crate) past: KeyValue,
    /// New tokens' keys and values of the layer whose cache is shared.
    pub(crate) shared: Option<KeyValue>,
}

/// Result of a layer's attention over the cache.
pub(crate) struct CachedAttentionOutput {
    /// Branch that is added to the residual stream.
    pub(crate) output: Tensor,
    /// New tokens' keys and values, which later layers may share; `None` if they are packed with the queries.
    pub(crate) key_value: Option<KeyValue>,
    /// Updated keys and values, in the buffer of the past.
    pub(crate) present: KeyValue,
}

/// Queries, and keys and values unless they are packed after the queries.
struct QueryKeyValue {
    query: Tensor,
    key_value: Option<KeyValue>,
}

/// Adds causal attention over the cache; the operator applies RoPE.
///
/// ```text
/// x ── qkv_proj ─[ Split ─┬─ q ─ head norm ─┐ ]─ GroupQueryAttention(past, lengths, cos, sin, sinks) ─┬─ o_proj
///                         ├─ k ─ head norm ─┤                                                         └─ present (in place
///                         └─ v ─(head norm)─┘                                                            of past)
/// ```
/// A layer that shares its keys and values with an earlier one projects only `q`. It reads that layer's `k` and `v`,
/// and writes them to the same cache slots again.
pub(crate) fn group_query_attention(
    e: &mut Emitter<'_>,
    layer: &AttentionLayer<'_>,
    x: Tensor,
    cache: &CacheInputs,
) -> Result<CachedAttentionOutput> {
    let spec = layer.spec;
    let QueryKeyValue { query, key_value } = match spec.kv {
        KvSource::Own => query_key_value(e, layer, x)?,
        KvSource::Layer(_) => {
            let scope = layer.projection(Projection::Query);
            let q = linear(e, &scope, x, layer.norm.width, layer.qkv_bias)?;
            QueryKeyValue { query: norm_heads(e, layer, Projection::Query, q)?, key_value: cache.shared }
        }
    };

    let sinks = layer.sinks();
    let sinks = if spec.sinks { Some(e.vector(&sinks, spec.heads)?) } else { None };
    let operands = GroupQueryAttention {
        query,
        key_value,
        past: cache.past,
        seqlens_k: cache.seqlens_k,
        total_length: cache.total_length,
        rotary: cache.rotary,
        heads: spec.heads,
        kv_heads: spec.kv_heads,
        window: spec.window,
        scale: spec.scale,
        softcap: spec.score_cap,
        sinks,
    };

    let (mixed, present) = e.graph.group_query_attention(layer.scope, &operands)?;
    Ok(CachedAttentionOutput { output: layer.output(e, mixed, x)?, key_value, present })
}

/// Returns the layer's own queries, keys and values `[batch, sequence, heads · size]`. They are separate tensors if one
/// of them is normed, otherwise packed.
fn query_key_value(e: &mut Emitter<'_>, layer: &AttentionLayer<'_>, x: Tensor) -> Result<QueryKeyValue> {
    let scope = layer.scope.child("qkv_proj");
    let spec = layer.spec;
    let parts = [Projection::Query, Projection::Key, Projection::Value].map(|part| layer.projection(part));
    let all = StackedLinear { scope: &scope, parts: &parts, cols: layer.norm.width, bias: layer.qkv_bias };
    let all = stacked_linear(e, x, &all)?;
    if spec.qk_norm == QkNorm::None && !spec.value_norm {
        return Ok(QueryKeyValue { query: all, key_value: None });
    }
    let [q, kv] = [spec.heads, spec.kv_heads].map(|heads| heads * spec.head_size);
    let [q, k, mut v] = e.graph.split_into(&scope, all, 2, [q, kv, kv])?;
    let q = norm_heads(e, layer, Projection::Query, q)?;
    let k = norm_heads(e, layer, Projection::Key, k)?;
    if spec.value_norm {
        v = norm_heads(e, layer, Projection::Value, v)?;
    }
    Ok(QueryKeyValue { query: q, key_value: Some(KeyValue { key: k, value: v }) })
}

/// Returns a projection `[batch, sequence, heads · size]`, normed per head.
fn norm_heads(
    e: &mut Emitter<'_>,
    layer: &AttentionLayer<'_>,
    projection: Projection,
    x: Tensor,
) -> Result<Tensor> {
    let scope = layer.scope.child(format_args!("{}_norm", projection.letter()));
    let [heads, size] = [layer.heads(projection), layer.spec.head_size].map(|extent| extent as i64);
    let x = e.graph.reshape(&scope.child("heads"), x, &[0, 0, heads, size])?;
    let x = layer.normed(e, projection, x)?;
    Ok(e.graph.reshape(&scope.child("flat"), x, &[0, 0, heads * size])?)
}
