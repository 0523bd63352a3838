//! Both ends of a decoder: the tables that the host looks tokens up in, and the head.

use narthex_graph::{Attribute, onnx::external::Place};
use narthex_spec::{
    DType, Scheme,
    arch::{DecoderArch, PerLayer},
    manifest::{HostTable, TableEncoding, TableRole},
};

use super::{
    linear::quantized_linear,
    plain::{capped, reshape},
};
use crate::{
    emit::{Emitter, Quantized},
    error::CompileError,
    quant::Storage,
};

/// Writes a table row by row, in the given element type.
pub(crate) fn table(
    e: &mut Emitter<'_>,
    (role, name): (TableRole, &str),
    (rows, cols): (usize, usize),
    dtype: DType,
) -> Result<HostTable, CompileError> {
    table_from(e, (role, name), (0, rows, cols), dtype)
}

/// Writes `rows` rows of a weight as a table, without those before `first`.
pub(crate) fn table_from(
    e: &mut Emitter<'_>,
    (role, name): (TableRole, &str),
    (first, rows, cols): (usize, usize, usize),
    dtype: DType,
) -> Result<HostTable, CompileError> {
    let all = first + rows;
    let place = e.rows(name, (all, first..all, cols), dtype)?;
    Ok(HostTable { role, rows, cols, encoding: TableEncoding::Plain { dtype, data: e.range(place) } })
}

/// Writes the per-layer table: in blocks of 8 bits where the plan has it so.
pub(crate) fn per_layer_table(
    e: &mut Emitter<'_>,
    layers: usize,
    per_layer: &PerLayer,
) -> Result<HostTable, CompileError> {
    let (role, name) = (TableRole::PerLayer, "per_layer.embed.weight");
    let (rows, cols) = (per_layer.vocab, layers * per_layer.width);
    match e.plan.get(name).map(|planned| planned.storage) {
        None => table(e, (role, name), (rows, cols), table_dtype(e.recipe.scheme)),
        Some(storage) => {
            let weight = e.quantize(&[name.to_owned()], cols, storage)?;
            Ok(HostTable { role, rows, cols, encoding: blocks(e, &weight) })
        }
    }
}

/// Element type of large tables.
pub(crate) fn table_dtype(scheme: Scheme) -> DType {
    if scheme == Scheme::F32 { DType::F32 } else { DType::F16 }
}

/// The head `rows [rows, hidden]` → logits `[rows, tokens]`, and the token table.
///
/// A tied model has one table for both: quantised blocks that the head multiplies with and the host reads rows of. Where
/// the head has lost tokens, it has blocks of its own beside them.
pub(crate) fn head(
    e: &mut Emitter<'_>,
    rows: &str,
    arch: &DecoderArch,
    logits: &str,
) -> Result<HostTable, CompileError> {
    let (name, tokens) = (arch.head_weight(), arch.head_rows());
    let storage = e.plan.get(name).map_or(Storage::F32, |planned| planned.storage);
    if let Some(dtype) = storage.plain() {
        return plain_head(e, rows, (arch, dtype), logits);
    }
    let weight = e.quantize(&[name.to_owned()], arch.hidden, storage)?;
    let out = match e.scaling.head_outliers() {
        [] => quantized_linear(e, rows, ("/head", tokens, arch.hidden), &weight, None),
        outliers => split_head(e, rows, (name, tokens, arch.hidden), &weight, outliers)?,
    };
    name_logits(e, out, arch, logits);
    token_table(e, arch)
}

/// Writes the token table beside a quantised head: in the same blocks where the model ties them.
fn token_table(e: &mut Emitter<'_>, arch: &DecoderArch) -> Result<HostTable, CompileError> {
    let (role, name, rows, cols) = (TableRole::Token, "embed.weight", arch.vocab, arch.hidden);
    match e.plan.get(name).map(|planned| planned.storage) {
        Some(storage) if cols.is_multiple_of(e.recipe.block) => {
            let weight = e.quantize(&[name.to_owned()], cols, storage)?;
            Ok(HostTable { role, rows, cols, encoding: blocks(e, &weight) })
        }
        _ => table(e, (role, name), (rows, cols), table_dtype(e.recipe.scheme)),
    }
}

/// Embedded tokens as the first layer takes them.
pub(crate) fn scaled(e: &mut Emitter<'_>, embeds: String, scale: f32) -> String {
    if scale == 1.0 {
        return embeds;
    }
    let scale = e.number(f64::from(scale));
    e.graph.op("/embed", "Mul", &[&embeds, &scale])
}

/// The head alone, over a weight that [`head`] wrote: `rows [1, rows, hidden]` → `[1, rows, tokens]`.
pub(crate) fn head_only(
    e: &mut Emitter<'_>,
    rows: &str,
    arch: &DecoderArch,
    logits: &str,
) -> Result<(), CompileError> {
    let (name, tokens) = (arch.head_weight(), arch.head_rows());
    let storage = e.plan.get(name).map_or(Storage::F32, |planned| planned.storage);
    let out = match storage.plain() {
        Some(dtype) => {
            let weight = head_weight(e, arch, dtype)?;
            of_rows(e, "/head", rows, &weight, (tokens, arch.hidden))
        }
        None => {
            let weight = e.quantize(&[name.to_owned()], arch.hidden, storage)?;
            quantized_linear(e, rows, ("/head", tokens, arch.hidden), &weight, None)
        }
    };
    name_logits(e, out, arch, logits);
    Ok(())
}

/// Bounds what the head gives, where the model does, and calls it by its name.
fn name_logits(e: &mut Emitter<'_>, mut out: String, arch: &DecoderArch, logits: &str) {
    if let Some(cap) = arch.logit_cap {
        out = capped(e, "/head/cap", &out, cap);
    }
    e.graph.rename(&out, logits);
}

/// A head whose few largest input channels go past the rounding of activations; the blocks round the others.
///
/// ```text
/// rows ─┬─ Mul(1, for an outlier 0) ── MatMulNBits ─┐
///       └─ Gather(outliers) ── MatMul ──────────────┴─ Add
/// ```
fn split_head(
    e: &mut Emitter<'_>,
    rows: &str,
    (name, vocab, hidden): (&str, usize, usize),
    weight: &Quantized,
    outliers: &[usize],
) -> Result<String, CompileError> {
    let mut keep = vec![1.0; hidden];
    outliers.iter().for_each(|&channel| keep[channel] = 0.0);
    let keep = e.tensor("/head/keep", &[hidden], |_| Ok(keep))?;
    let kept = e.graph.op("/head/kept", "Mul", &[rows, &keep]);
    let blocks = quantized_linear(e, &kept, ("/head", vocab, hidden), weight, None);
    let shape = [outliers.len(), vocab];
    let columns = |e: &Emitter<'_>| e.columns(name, (vocab, hidden), outliers);
    let columns = e.tensor("/head/outliers/weight", &shape, columns)?;
    let channels: Vec<i64> = outliers.iter().map(|&channel| channel as i64).collect();
    let channels = e.graph.ints(&[outliers.len()], &channels);
    let axis = [("axis", Attribute::Int(1))];
    let exact = e.graph.op_with("/head/outliers", "Gather", &[rows, &channels], &axis);
    let exact = e.graph.op("/head/outliers", "MatMul", &[&exact, &columns]);
    Ok(e.graph.op("/head", "Add", &[&blocks, &exact]))
}

pub(crate) fn blocks(e: &Emitter<'_>, weight: &Quantized) -> TableEncoding {
    TableEncoding::W8 {
        block: e.recipe.block,
        quants: e.range(weight.quants),
        scales: e.range(weight.scales),
    }
}

/// A head whose weight is not in blocks, and the token table, which is the weight too where the model ties them.
fn plain_head(
    e: &mut Emitter<'_>,
    rows: &str,
    (arch, dtype): (&DecoderArch, DType),
    logits: &str,
) -> Result<HostTable, CompileError> {
    let shape = (arch.vocab, arch.hidden);
    let token = table(e, (TableRole::Token, "embed.weight"), shape, dtype)?;
    if let ("embed.weight", TableEncoding::Plain { data, .. }) = (arch.head_weight(), &token.encoding) {
        e.once(HEAD, dtype, |_| Ok(Place { offset: data.offset, length: data.length }))?;
    }
    let weight = head_weight(e, arch, dtype)?;
    let out = product(e, "/head", rows, &weight);
    name_logits(e, out, arch, logits);
    Ok(token)
}

/// The head's weight where it is not in blocks.
const HEAD: &str = "/head/weight";

/// The head's weight `[tokens, hidden]`, stored in this type.
fn head_weight(e: &mut Emitter<'_>, arch: &DecoderArch, dtype: DType) -> Result<String, CompileError> {
    let (rows, cols) = (arch.head_rows(), arch.hidden);
    e.stored(HEAD, dtype, &[rows, cols], |e| e.rows("head.weight", (rows, 0..rows, cols), dtype))
}

/// `x [rows, cols]` by a weight `[width, cols]`.
pub(crate) fn product(e: &mut Emitter<'_>, scope: &str, x: &str, weight: &str) -> String {
    e.graph.op_with(scope, "Gemm", &[x, weight], &[("transB", Attribute::Int(1))])
}

/// `x [1, 1, cols]` by a weight `[width, cols]`, as `[1, 1, width]`.
pub(crate) fn of_rows(
    e: &mut Emitter<'_>,
    scope: &str,
    x: &str,
    weight: &str,
    (width, cols): (usize, usize),
) -> String {
    let row = reshape(e, &format!("{scope}/row"), x, &[1, cols]);
    let out = product(e, scope, &row, weight);
    reshape(e, &format!("{scope}/rows"), &out, &[1, 1, width])
}
