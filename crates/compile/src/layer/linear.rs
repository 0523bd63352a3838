//! Linear layers, with weights in the storage of the plan.

use narthex_graph::{
    build::External,
    onnx::external::ByteRange,
    typed::{IntegerBits, MatMulNBits, Reduction, RowWeight, Scope, Tensor},
};
use narthex_spec::{DType, IntegerActivations};

use crate::{
    emit::{Emitter, QuantizedWeight, RowScales},
    error::{CompileError, Result, RunnerError},
    quant::{
        Storage,
        activations::{self, LinearRounding},
    },
};

/// Several linear layers over the same rows as one product: their weights are concatenated along the rows.
pub(crate) struct StackedLinear<'a> {
    /// Path of the nodes.
    pub(crate) scope: &'a Scope,
    /// Layers whose weights are concatenated, in this order.
    pub(crate) parts: &'a [Scope],
    /// Number of inputs.
    pub(crate) cols: usize,
    /// Biases of the layers.
    pub(crate) bias: Bias,
}

/// Presence of a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bias {
    Without,
    With,
    /// Every part has a bias except the one with this index, whose bias is zero.
    Except(usize),
}

impl From<bool> for Bias {
    fn from(bias: bool) -> Self {
        if bias { Self::With } else { Self::Without }
    }
}

/// Adds the linear layer of a scope: `x [.., cols]` → `[.., rows]`.
pub(crate) fn linear(
    e: &mut Emitter<'_>,
    scope: &Scope,
    x: Tensor,
    cols: usize,
    bias: Bias,
) -> Result<Tensor> {
    stacked_linear(e, x, &StackedLinear { scope, parts: std::slice::from_ref(scope), cols, bias })
}

/// Adds several linear layers as one: `x [.., cols]` → `[.., rows]`, with the outputs of the parts concatenated.
///
/// ```text
/// quantised, f32:  x ── MatMulNBits(quants, Cast(scales), zeros, bias)
/// with offsets:    x ─┬─ MatMulNBits(quants, scales, bias) ──────────────────────────────────┐
///                     └─ Reshape [.., blocks, block] ── ReduceSum ── MatMul(offsets) ─────── Add
/// quantised, f16:  x ── MatMulNBits(quants, scales, zeros) ── Add(bias)
/// f16, row scales: x ── MatMul(Transpose(DequantizeLinear(quants, scales, zeros))) ── Add(bias)
/// integers:        x ── rounded ── product as in f16 ── rounded ── Add(bias)
/// plain:           x ── MatMul(weight, or Cast(weight)) ── Add(bias)
/// ```
/// Parts with different storage are separate products whose outputs are concatenated.
pub(crate) fn stacked_linear(e: &mut Emitter<'_>, x: Tensor, layer: &StackedLinear<'_>) -> Result<Tensor> {
    let names: Vec<String> = layer.parts.iter().map(|part| part.parameter("weight")).collect();
    let shape = [e.stacked_rows(&names), layer.cols];
    let storages: Vec<Storage> =
        names.iter().map(|name| e.plan.get(name).map_or(Storage::F32, |weight| weight.storage)).collect();
    let storage = storages.first().copied().unwrap_or(Storage::F32);
    if storages.iter().any(|other| *other != storage) {
        let mut outputs = Vec::with_capacity(layer.parts.len());
        for (index, part) in layer.parts.iter().enumerate() {
            let bias = match layer.bias {
                Bias::Except(absent) if absent == index => Bias::Without,
                Bias::Except(_) => Bias::With,
                bias => bias,
            };
            outputs.push(linear(e, part, x, layer.cols, bias)?);
        }
        return Ok(e.graph.concat_last(layer.scope, &outputs)?);
    }
    let bias = match layer.bias {
        Bias::With | Bias::Except(_) => Some(stacked_bias(e, layer)?),
        Bias::Without => None,
    };
    e.written.products.insert(layer.scope.to_string(), names.clone());
    match storage.plain() {
        Some(dtype) => plain_linear(e, x, layer, &names, dtype, bias),
        None => {
            let weight = e.quantize(&names, layer.cols, storage)?;
            let Some(settings) = integer_activations(e) else {
                return quantized_linear(e, layer.scope, x, shape, &weight, bias);
            };
            let rounding = rounding(e, layer.scope, layer.parts, settings)?;
            let product = rounded_linear(e, layer.scope, x, shape, &weight, rounding)?;
            with_bias(e, layer.scope, product, bias)
        }
    }
}

/// Returns the settings of integer activations in the static variant; `None` for floats.
fn integer_activations(e: &Emitter<'_>) -> Option<IntegerActivations> {
    e.recipe.activations.filter(|_| e.compute == DType::F16)
}

/// Returns the integers for the activations around linear layers.
///
/// # Errors
/// [`CompileError::Calibration`] if they were not measured.
fn rounding(
    e: &Emitter<'_>,
    scope: &Scope,
    parts: &[Scope],
    settings: IntegerActivations,
) -> Result<LinearRounding> {
    if e.is_dry_run() {
        return Ok(LinearRounding::unmeasured(settings));
    }
    e.ranges.rounding(scope, parts, settings).ok_or_else(|| {
        let reason = format!("the activations of {scope} were not measured");
        CompileError::Calibration(RunnerError { reason, hint: None })
    })
}

/// Returns the integers for the activations around the head, whose errors reach the logits directly: 16 bits in every
/// scheme with integer activations.
pub(crate) fn head_rounding(e: &Emitter<'_>, scope: &Scope) -> Result<Option<LinearRounding>> {
    integer_activations(e).map(|_| rounding(e, scope, &[], activations::WIDE)).transpose()
}

/// Adds a linear layer without bias that compilers of NPUs compute in integers.
///
/// ```text
/// x ── rounded ─┬─ MatMul or MatMulNBits ── rounded ─┐
///               └─ offsets, if there are any ─────── Add
/// ```
pub(crate) fn rounded_linear(
    e: &mut Emitter<'_>,
    scope: &Scope,
    x: Tensor,
    shape: [usize; 2],
    weight: &QuantizedWeight,
    rounding: LinearRounding,
) -> Result<Tensor> {
    let x = e.graph.rounded(&scope.child("input"), x, rounding.input)?;
    let product = quantized_product(e, scope, x, shape, weight, None)?;
    let product = e.graph.rounded(&scope.child("output"), product, rounding.output)?;
    with_offsets(e, scope, x, product, shape, weight)
}

fn stacked_bias(e: &mut Emitter<'_>, layer: &StackedLinear<'_>) -> Result<Tensor> {
    let rows: Vec<usize> = layer
        .parts
        .iter()
        .map(|part| e.plan.get(&part.parameter("weight")).map_or(0, |weight| weight.rows))
        .collect();
    let length = rows.iter().sum();
    e.tensor(&layer.scope.node("bias"), &[length], |e| {
        let mut values = Vec::with_capacity(length);
        for (index, (part, rows)) in layer.parts.iter().zip(rows).enumerate() {
            if layer.bias == Bias::Except(index) {
                values.extend(std::iter::repeat_n(0.0, rows));
                continue;
            }
            let mut bias = e.values(&part.parameter("bias"), &[rows])?;
            // The divisors of a weight's rows also divide its bias.
            e.scaling.divide(&part.parameter("weight"), &mut bias);
            values.extend(bias);
        }
        Ok(values)
    })
}

fn plain_linear(
    e: &mut Emitter<'_>,
    x: Tensor,
    layer: &StackedLinear<'_>,
    names: &[String],
    dtype: DType,
    bias: Option<Tensor>,
) -> Result<Tensor> {
    let dtype = if e.compute == DType::F16 { DType::F16 } else { dtype };
    let shape = [layer.cols, e.stacked_rows(names)];
    let weight = e.stored(&layer.scope.child("weight"), dtype, &shape, |e: &mut Emitter<'_>| {
        e.transposed(names, layer.cols, dtype)
    })?;
    let product = e.graph.mat_mul(layer.scope, x, weight)?;
    with_bias(e, layer.scope, product, bias)
}

fn with_bias(e: &mut Emitter<'_>, scope: &Scope, product: Tensor, bias: Option<Tensor>) -> Result<Tensor> {
    Ok(match bias {
        Some(bias) => e.graph.add(scope, product, bias)?,
        None => product,
    })
}

/// Adds a weight with one scale per row: `[cols, rows]`.
fn row_weight(
    e: &mut Emitter<'_>,
    scope: &Scope,
    [rows, cols]: [usize; 2],
    weight: &QuantizedWeight,
    row_scales: RowScales,
) -> Tensor {
    let bits = if weight.storage.bits() == 4 { IntegerBits::Four } else { IntegerBits::Eight };
    let external =
        |range: ByteRange| External { file: e.data_file, offset: range.offset, length: range.length };
    let weight = RowWeight {
        rows,
        cols,
        bits,
        quants: external(weight.quants),
        scales: external(row_scales.scales),
        zeros: external(row_scales.zeros),
    };
    e.graph.transposed_row_weight(&scope.child("weight"), &weight)
}

/// Adds a linear layer whose weight `[rows, cols]` has been quantised and written.
pub(crate) fn quantized_linear(
    e: &mut Emitter<'_>,
    scope: &Scope,
    x: Tensor,
    shape: [usize; 2],
    weight: &QuantizedWeight,
    bias: Option<Tensor>,
) -> Result<Tensor> {
    let product = quantized_product(e, scope, x, shape, weight, bias)?;
    with_offsets(e, scope, x, product, shape, weight)
}

/// Adds the product of a linear layer without the offsets of the weight's blocks.
fn quantized_product(
    e: &mut Emitter<'_>,
    scope: &Scope,
    x: Tensor,
    [rows, cols]: [usize; 2],
    weight: &QuantizedWeight,
    bias: Option<Tensor>,
) -> Result<Tensor> {
    let bits = weight.storage.bits();
    if let (DType::F16, Some(row_scales)) = (e.compute, weight.row_scales) {
        let weight = row_weight(e, scope, [rows, cols], weight, row_scales);
        let product = e.graph.mat_mul(scope, x, weight)?;
        return with_bias(e, scope, product, bias);
    }
    let block = e.recipe.block.operator_block(cols);
    let blocks = cols.div_ceil(block);
    let quants_shape = [rows, blocks, block * bits / 8];
    let quants = e.external(&scope.node("quants"), DType::U8, &quants_shape, weight.quants);
    let scales = e.external(&scope.node("scales"), DType::F16, &[rows, blocks], weight.scales);
    let zeros_shape = [rows, (blocks * bits).div_ceil(8)];
    let zeros = weight.zeros.map(|range| e.external(&scope.node("zeros"), DType::U8, &zeros_shape, range));
    let product =
        MatMulNBits { x, quants, scales, zeros, bias: None, rows, cols, bits, block, accuracy_level: None };
    if e.compute == DType::F16 {
        // NPUs support no bias here, and compute in the type of the activations.
        let product = e.graph.mat_mul_n_bits(scope, &product)?;
        return with_bias(e, scope, product, bias);
    }

    // Both variants share the f16 scales of the file; ONNX Runtime folds the cast when it loads the graph.
    let scales = e.graph.cast(&scope.child("scales"), scales, DType::F32)?;
    let accuracy_level = Some(i64::from(e.recipe.accuracy_level));
    // Integers represent the product without its bias, so it must be a value of its own that can be measured.
    let (inner, outer) = if e.recipe.activations.is_some() { (None, bias) } else { (bias, None) };
    let operands = MatMulNBits { scales, bias: inner, accuracy_level, ..product };
    let product = e.graph.mat_mul_n_bits(scope, &operands)?;
    with_bias(e, scope, product, outer)
}

/// Adds the sums of the blocks of `x`, multiplied by the offsets of the weight's blocks, to its product, if there are
/// offsets.
///
/// Zero points in the type of the activations would be the same, but some providers do not support them, and others
/// compute them slowly.
fn with_offsets(
    e: &mut Emitter<'_>,
    scope: &Scope,
    x: Tensor,
    product: Tensor,
    [rows, cols]: [usize; 2],
    weight: &QuantizedWeight,
) -> Result<Tensor> {
    let Some(range) = weight.offsets else { return Ok(product) };
    let part = scope.child("offsets");
    let block = e.recipe.block.operator_block(cols);
    let blocks = e.graph.blocks(&part, x, block)?;
    let sums = e.graph.reduce_away(&part, Reduction::Sum, blocks, -1)?;
    let stored = e.external(&scope.node("offsets"), DType::F16, &[cols.div_ceil(block), rows], range);
    let offsets = match e.compute {
        DType::F16 => stored,
        compute => e.graph.cast(&part, stored, compute)?,
    };
    let shift = e.graph.mat_mul(&part, sums, offsets)?;
    Ok(e.graph.add(&part, product, shift)?)
}
