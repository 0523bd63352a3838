//! The head of a decoder: computes logits from hidden states.

use narthex_graph::{
    onnx::external::ByteRange,
    typed::{Scope, Tensor},
};
use narthex_spec::{
    DType,
    arch::DecoderArch,
    manifest::{HostTable, TableEncoding},
};

use super::{
    attention::soft_cap,
    embed::{self, TOKEN_WEIGHT},
    linear::{head_rounding, quantized_linear, rounded_linear},
};
use crate::{
    emit::{Emitter, QuantizedWeight},
    error::Result,
    quant::Storage,
};

/// Logits, and the host's token table.
pub(crate) struct HeadWithTable {
    /// Logits, `[rows, tokens]`.
    pub(crate) logits: Tensor,
    /// The token table.
    pub(crate) table: HostTable,
}

fn scope() -> Scope {
    Scope::root().child("head")
}

/// Returns the storage of the head's weight.
fn storage(e: &Emitter<'_>, arch: &DecoderArch) -> Storage {
    e.plan.get(arch.head_weight()).map_or(Storage::F32, |planned| planned.storage)
}

/// Adds the head of the dynamic variant, `rows [rows, hidden]` → logits `[rows, tokens]`, and writes the token table.
///
/// A tied model has one tensor for both: the head multiplies by its quantised blocks, and the host reads its rows. A
/// head over a subset of the vocabulary has its own blocks in addition to the table.
pub(crate) fn head_with_table(
    e: &mut Emitter<'_>,
    rows: Tensor,
    arch: &DecoderArch,
) -> Result<HeadWithTable> {
    if let Some(dtype) = storage(e, arch).plain() {
        return plain_head(e, rows, arch, dtype);
    }
    let name = arch.head_weight();
    let shape = [arch.head_rows(), arch.hidden];
    let weight = e.quantize(&[name.to_owned()], arch.hidden, storage(e, arch))?;
    let out = match e.scaling.head_outliers() {
        [] => quantized_linear(e, &scope(), rows, shape, &weight, None)?,
        outliers => head_with_outliers(e, rows, arch, &weight, outliers)?,
    };
    let logits = finish_logits(e, out, arch)?;
    Ok(HeadWithTable { logits, table: embed::token_table(arch).write_planned(e)? })
}

/// Adds the head of the static variant over a weight that [`head_with_table`] wrote: `[1, 1, hidden]` →
/// `[1, 1, tokens]`.
pub(crate) fn head(e: &mut Emitter<'_>, row: Tensor, arch: &DecoderArch) -> Result<Tensor> {
    let storage = storage(e, arch);
    let shape = [arch.head_rows(), arch.hidden];
    let out = match storage.plain() {
        Some(dtype) => {
            let weight = head_weight(e, arch, dtype)?;
            product_of_row(e, &scope(), row, weight, shape)?
        }
        None => {
            let weight = e.quantize(&[arch.head_weight().to_owned()], arch.hidden, storage)?;
            match head_rounding(e, &scope())? {
                Some(rounding) => rounded_linear(e, &scope(), row, shape, &weight, rounding)?,
                None => quantized_linear(e, &scope(), row, shape, &weight, None)?,
            }
        }
    };
    finish_logits(e, out, arch)
}

/// Applies the model's soft cap to the logits, if it has one.
fn finish_logits(e: &mut Emitter<'_>, logits: Tensor, arch: &DecoderArch) -> Result<Tensor> {
    match arch.logit_cap {
        Some(cap) => soft_cap(e, &scope().child("cap"), logits, cap),
        None => Ok(logits),
    }
}

/// Adds a head with outliers: a few large input channels exceed the range to which activations are rounded. They are
/// multiplied separately, in the activations' own precision.
///
/// ```text
/// rows ─┬─ Mul(1, for an outlier 0) ── MatMulNBits ─┐
///       └─ Gather(outliers) ── MatMul ──────────────┴─ Add
/// ```
fn head_with_outliers(
    e: &mut Emitter<'_>,
    rows: Tensor,
    arch: &DecoderArch,
    weight: &QuantizedWeight,
    outliers: &[usize],
) -> Result<Tensor> {
    let scope = scope();
    let name = arch.head_weight();
    let shape = [arch.head_rows(), arch.hidden];
    let mut keep = vec![1.0; arch.hidden];
    outliers.iter().for_each(|&channel| keep[channel] = 0.0);
    let keep = e.tensor(&scope.node("keep"), &[arch.hidden], |_| Ok(keep))?;
    let others = e.graph.mul(&scope.child("kept"), rows, keep)?;
    let others = quantized_linear(e, &scope, others, shape, weight, None)?;
    let exact = scope.child("outliers");
    let columns =
        e.tensor(&exact.node("weight"), &[outliers.len(), shape[0]], |e| e.columns(name, shape, outliers))?;
    let channels: Vec<i64> = outliers.iter().map(|&channel| channel as i64).collect();
    let channels = e.graph.ints(&[outliers.len()], &channels);
    let gathered = e.graph.gather(&exact, rows, channels, 1)?;
    let exact = e.graph.mat_mul(&exact, gathered, columns)?;
    Ok(e.graph.add(&scope, others, exact)?)
}

/// Adds a head whose weight is not quantised, and writes the token table, which is the same tensor if the model ties
/// them.
fn plain_head(e: &mut Emitter<'_>, rows: Tensor, arch: &DecoderArch, dtype: DType) -> Result<HeadWithTable> {
    let table = embed::token_table(arch).write(e, dtype)?;
    if let (TOKEN_WEIGHT, TableEncoding::Plain { data, .. }) = (arch.head_weight(), &table.encoding) {
        let range = ByteRange { offset: data.offset, length: data.length };
        e.once(&scope().node("weight"), dtype, |_| Ok(range))?;
    }
    let weight = head_weight(e, arch, dtype)?;
    let out = e.graph.gemm_transposed(&scope(), rows, weight)?;
    Ok(HeadWithTable { logits: finish_logits(e, out, arch)?, table })
}

/// Returns the head's weight `[tokens, hidden]`, stored in the type `dtype`.
fn head_weight(e: &mut Emitter<'_>, arch: &DecoderArch, dtype: DType) -> Result<Tensor> {
    let shape = [arch.head_rows(), arch.hidden];
    e.stored(&scope().child("weight"), dtype, &shape, |e: &mut Emitter<'_>| {
        e.rows("head.weight", shape, 0..shape[0], dtype)
    })
}

/// Returns the product of `x [1, 1, cols]` with a weight `[width, cols]`, `[1, 1, width]`.
pub(super) fn product_of_row(
    e: &mut Emitter<'_>,
    scope: &Scope,
    x: Tensor,
    weight: Tensor,
    [width, cols]: [usize; 2],
) -> Result<Tensor> {
    let row = e.graph.reshape(&scope.child("row"), x, &[1, cols as i64])?;
    let out = e.graph.gemm_transposed(scope, row, weight)?;
    Ok(e.graph.reshape(&scope.child("rows"), out, &[1, 1, width as i64])?)
}
