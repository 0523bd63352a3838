//! Both ends of a decoder: the tables that the host looks tokens up in, and the head.

use narthex_graph::Attribute;
use narthex_spec::{
    DType, Scheme,
    arch::{DecoderArch, PerLayer},
    manifest::{HostTable, TableEncoding, TableRole},
};

use super::{linear::quantized_linear, plain::capped};
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

/// The head `rows [rows, hidden]` → logits `[rows, vocab]`, and the token table.
///
/// A tied model has one table for both: quantised blocks that the head multiplies with and the host reads rows of.
pub(crate) fn head(
    e: &mut Emitter<'_>,
    rows: &str,
    arch: &DecoderArch,
    logits: &str,
) -> Result<HostTable, CompileError> {
    let shape = (arch.vocab, arch.hidden);
    let name = if arch.tied_head { "embed.weight" } else { "head.weight" };
    let storage = e.plan.get(name).map_or(Storage::F32, |planned| planned.storage);
    if storage == Storage::F32 {
        return f32_head(e, rows, arch, logits);
    }
    let weight = e.quantize(&[name.to_owned()], arch.hidden, storage)?;
    let out = match e.scaling.head_outliers() {
        [] => quantized_linear(e, rows, ("/head", arch.vocab, arch.hidden), &weight, None),
        outliers => split_head(e, rows, (name, arch.vocab, arch.hidden), &weight, outliers)?,
    };
    name_logits(e, out, arch, logits);
    if arch.tied_head && arch.hidden.is_multiple_of(e.recipe.block) {
        Ok(HostTable {
            role: TableRole::Token,
            rows: arch.vocab,
            cols: arch.hidden,
            encoding: blocks(e, &weight),
        })
    } else {
        table(e, (TableRole::Token, "embed.weight"), shape, table_dtype(e.recipe.scheme))
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

/// The head alone, over a weight that [`head`] wrote: `rows [1, rows, hidden]` → `[1, rows, vocab]`.
pub(crate) fn head_only(
    e: &mut Emitter<'_>,
    rows: &str,
    arch: &DecoderArch,
    logits: &str,
) -> Result<(), CompileError> {
    let name = if arch.tied_head { "embed.weight" } else { "head.weight" };
    let storage = e.plan.get(name).map_or(Storage::F32, |planned| planned.storage);
    let weight = e.quantize(&[name.to_owned()], arch.hidden, storage)?;
    let out = quantized_linear(e, rows, ("/head", arch.vocab, arch.hidden), &weight, None);
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

fn f32_head(
    e: &mut Emitter<'_>,
    rows: &str,
    arch: &DecoderArch,
    logits: &str,
) -> Result<HostTable, CompileError> {
    let shape = (arch.vocab, arch.hidden);
    let token = table(e, (TableRole::Token, "embed.weight"), shape, DType::F32)?;
    let TableEncoding::Plain { data, .. } = &token.encoding else { return Ok(token) };
    let weight = if arch.tied_head {
        let place = narthex_graph::onnx::external::Place { offset: data.offset, length: data.length };
        e.external("/head/weight", DType::F32, &[arch.vocab, arch.hidden], place)
    } else {
        let place = e.rows("head.weight", (arch.vocab, 0..arch.vocab, arch.hidden), DType::F32)?;
        e.external("/head/weight", DType::F32, &[arch.vocab, arch.hidden], place)
    };
    let out = e.graph.op_with("/head", "Gemm", &[rows, &weight], &[("transB", Attribute::Int(1))]);
    name_logits(e, out, arch, logits);
    Ok(token)
}
