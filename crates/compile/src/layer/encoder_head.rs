//! Heads of encoders: a vector, scores, spans, or logits of some tokens.

use narthex_graph::{
    onnx::external::ByteRange,
    typed::{Reduction, Scope, Tensor},
};
use narthex_spec::{
    DType,
    arch::{Activation, ClassifierLayers, EncoderArch, NormKind, Pooling},
    manifest::{HostTable, TableEncoding, TableRole},
};

use super::{
    embed::TableSource,
    head::product_of_row,
    linear::{Bias, head_rounding, linear, quantized_linear, rounded_linear},
    mlp::activation,
    norm::Norm,
};
use crate::{emit::Emitter, error::Result, quant::Storage};

fn pool_scope() -> Scope {
    Scope::root().child("pool")
}

/// Pools `x [batch, sequence, hidden]` to one row for each text.
///
/// ```text
/// mean:  x ── Mul(mask) ── ReduceSum ── Div(ReduceSum(mask))
/// cls:   x ── Gather(0)
/// max:   x ── Add(far below zero for padding) ── ReduceMax
/// last:  x ── Mul(mask - next token's mask) ── ReduceSum
/// ```
pub(crate) fn pool(e: &mut Emitter<'_>, x: Tensor, pooling: Pooling, padding_mask: Tensor) -> Result<Tensor> {
    let g = &mut e.graph;
    let scope = pool_scope();
    if pooling == Pooling::Cls {
        let first = g.ints(&[], &[0]);
        return Ok(g.gather(&scope, x, first, 1)?);
    }

    let mask_scope = scope.child("mask");
    let mask = g.cast(&mask_scope, padding_mask, DType::F32)?;
    let mask = g.unsqueeze(&mask_scope, mask, &[2])?;

    Ok(match pooling {
        Pooling::Mean => {
            let masked = g.mul(&scope, x, mask)?;
            let sum = g.reduce_away(&scope, Reduction::Sum, masked, 1)?;
            let count = g.reduce_away(&mask_scope, Reduction::Sum, mask, 1)?;
            g.div(&scope, sum, count)?
        }
        Pooling::Max => {
            let one = g.scalar(1.0);
            let far = g.scalar(1e9);
            let below = g.sub(&mask_scope, mask, one)?;
            let below = g.mul(&mask_scope, below, far)?;
            let masked = g.add(&scope, x, below)?;
            g.reduce_away(&scope, Reduction::Max, masked, 1)?
        }
        Pooling::Cls | Pooling::Last => {
            let next = scope.child("next");
            let padded = g.pad_end(&next, mask, 1, 1)?;
            let shifted = g.slice_from(&next, padded, 1, 1)?;
            let last = g.sub(&scope.child("last"), mask, shifted)?;
            let masked = g.mul(&scope, x, last)?;
            g.reduce_away(&scope, Reduction::Sum, masked, 1)?
        }
    })
}

/// Returns one text's row as a weighted sum: `weights [1, 1, length]` · `x [1, length, hidden]` → `[1, 1, hidden]`.
pub(crate) fn pool_weighted(e: &mut Emitter<'_>, x: Tensor, weights: Tensor) -> Result<Tensor> {
    Ok(e.graph.mat_mul(&pool_scope(), weights, x)?)
}

/// Returns the maximum of each element over one text of fixed length: `x [1, length, hidden]` → `[1, 1, hidden]`.
/// `mask` is the additive mask of attention scores.
pub(crate) fn pool_max(e: &mut Emitter<'_>, x: Tensor, length: usize, mask: Tensor) -> Result<Tensor> {
    let g = &mut e.graph;
    let scope = pool_scope();
    let column = g.reshape(&scope.child("mask"), mask, &[1, length as i64, 1])?;
    let masked = g.add(&scope, x, column)?;
    Ok(g.reduce(&scope, Reduction::Max, masked, 1)?)
}

/// Scaling of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VectorLength {
    /// Scaled to length 1.
    Unit,
    /// Not scaled.
    Unchanged,
}

/// Returns the vector of a text.
pub(crate) fn vector(e: &mut Emitter<'_>, pooled: Tensor, length: VectorLength) -> Result<Tensor> {
    Ok(match length {
        VectorLength::Unit => e.graph.unit_length(&pool_scope(), pooled)?,
        VectorLength::Unchanged => e.graph.identity(&pool_scope(), pooled)?,
    })
}

/// Returns a text's scores from its first row, `[.., hidden]` → `[.., labels]`.
///
/// ```text
/// first ── (dense ── act) ── out
/// ```
pub(crate) fn score(
    e: &mut Emitter<'_>,
    first: Tensor,
    hidden: usize,
    act: Option<Activation>,
) -> Result<Tensor> {
    let scope = Scope::root().child("score");
    let mut x = first;
    if let Some(act) = act {
        let wide = linear(e, &scope.child("dense"), x, hidden, Bias::With)?;
        x = activation(e, &scope.child("act"), wide, act)?;
    }
    linear(e, &scope.child("out"), x, hidden, Bias::With)
}

/// Returns the scores of a classifier with the layers of a decoder, `rows [.., hidden]` → `[.., labels]`.
///
/// ```text
/// rows ── (dense ── act ── norm) ── out
/// ```
pub(crate) fn classifier(
    e: &mut Emitter<'_>,
    rows: Tensor,
    layers: &ClassifierLayers,
    norm: Norm,
) -> Result<Tensor> {
    let scope = Scope::root().child("score");
    let mut x = rows;
    if let Some(hidden) = layers.hidden {
        let wide = linear(e, &scope.child("dense"), x, norm.width, hidden.bias.into())?;
        let active = activation(e, &scope.child("act"), wide, hidden.activation)?;
        x = norm.apply(e, &scope.child("norm"), active)?;
    }
    linear(e, &scope.child("out"), x, norm.width, layers.bias.into())
}

/// Returns the scores of each token as start and end of an answer: `x [.., sequence, hidden]` → `[.., sequence, 2]`.
pub(crate) fn spans(e: &mut Emitter<'_>, x: Tensor, hidden: usize) -> Result<Tensor> {
    linear(e, &Scope::root().child("spans"), x, hidden, Bias::With)
}

/// Returns the scores of each token for each label: `x [.., sequence, hidden]` → `[.., sequence, labels]`.
pub(crate) fn tokens(e: &mut Emitter<'_>, x: Tensor, hidden: usize) -> Result<Tensor> {
    linear(e, &Scope::root().child("tokens"), x, hidden, Bias::With)
}

/// Returns logits over the vocabulary, `rows [.., hidden]` → `[.., vocab]`.
///
/// ```text
/// rows ── dense ── act ── norm ─┬─ MatMul(token table) ─┬─ Add(bias)
///                               └─ MatMul(rest) ────────┘  (factored embeddings: the width that tokens lack)
/// ```
pub(crate) fn masked_lm(
    e: &mut Emitter<'_>,
    rows: Tensor,
    arch: &EncoderArch,
    act: Option<Activation>,
) -> Result<Tensor> {
    let scope = Scope::root().child("mlm");
    let hidden = arch.hidden;
    let width = arch.token_width();
    let mut x = linear(e, &scope.child("dense"), rows, hidden, Bias::With)?;
    if let Some(act) = act {
        x = activation(e, &scope.child("act"), x, act)?;
    }
    let norm = Norm { kind: NormKind::Layer, width: hidden, epsilon: arch.norm_epsilon };
    let x = norm.apply(e, &scope.child("norm"), x)?;
    let logits = if width == hidden {
        token_logits(e, x, arch)?
    } else {
        let [narrow, wide] = e.graph.split_into(&scope, x, -1, [width, hidden - width])?;
        let rest = scope.child("rest");
        let shape = [hidden - width, arch.vocab];
        let weight =
            e.tensor(&rest.node("weight"), &shape, |e| e.values(&rest.parameter("weight"), &shape))?;
        let rest = e.graph.mat_mul(&rest, wide, weight)?;
        let tokens = token_logits(e, narrow, arch)?;
        e.graph.add(&scope.child("sum"), tokens, rest)?
    };

    let bias = e.vector(&scope.parameter("bias"), arch.vocab)?;
    Ok(e.graph.add(&scope, logits, bias)?)
}

/// Weight of an encoder's token table.
pub(crate) const TOKEN_WEIGHT: &str = "embed.word.weight";

/// Returns the scope of the product with the token table.
fn tokens_scope() -> Scope {
    Scope::root().child("mlm").child("tokens")
}

fn token_storage(e: &Emitter<'_>) -> Storage {
    e.plan.storage(TOKEN_WEIGHT).unwrap_or(Storage::F32)
}

/// Writes the token table, which is also the weight of the logits over the vocabulary.
pub(crate) fn shared_token_table(e: &mut Emitter<'_>, arch: &EncoderArch) -> Result<HostTable> {
    let shape = [arch.vocab, arch.token_width()];
    let source = TableSource { role: TableRole::Token, weight: TOKEN_WEIGHT, shape };
    let storage = token_storage(e);
    let Some(dtype) = storage.plain() else {
        // The quantised weight is always written first, whether or not its blocks can serve as the table.
        e.quantize(&[TOKEN_WEIGHT.to_owned()], shape[1], storage)?;
        return source.write_planned(e);
    };
    let table = source.write(e, dtype)?;
    if let TableEncoding::Plain { data, .. } = &table.encoding {
        let range = ByteRange { offset: data.offset, length: data.length };
        e.once(&tokens_scope().node("weight"), dtype, |_| Ok(range))?;
    }
    Ok(table)
}

/// Returns the product of rows with the weight that [`shared_token_table`] wrote: `[rows, vocab]`, or `[1, 1, vocab]`
/// in the static variant.
fn token_logits(e: &mut Emitter<'_>, x: Tensor, arch: &EncoderArch) -> Result<Tensor> {
    let scope = tokens_scope();
    let shape = [arch.vocab, arch.token_width()];
    let storage = token_storage(e);
    let Some(dtype) = storage.plain() else {
        let weight = e.quantize(&[TOKEN_WEIGHT.to_owned()], shape[1], storage)?;
        return match head_rounding(e, &scope)? {
            Some(rounding) => rounded_linear(e, &scope, x, shape, &weight, rounding),
            None => quantized_linear(e, &scope, x, shape, &weight, None),
        };
    };
    let weight = e.stored(&scope.child("weight"), dtype, &shape, |e: &mut Emitter<'_>| {
        e.rows(TOKEN_WEIGHT, shape, 0..shape[0], dtype)
    })?;
    Ok(match e.compute {
        DType::F16 => product_of_row(e, &scope, x, weight, shape)?,
        _ => e.graph.gemm_transposed(&scope, x, weight)?,
    })
}
