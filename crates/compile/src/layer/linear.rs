//! Linear layers, in the storage that the plan gives their weights.

use narthex_graph::{Attribute, build::NodeSpec, graph::MICROSOFT};
use narthex_spec::DType;

use crate::{
    emit::{Emitter, Quantized},
    error::CompileError,
    quant::Storage,
};

/// A linear layer over the last dimension; several weights are stacked into one.
pub(crate) struct Linear<'a> {
    /// Path of its nodes.
    pub(crate) scope: &'a str,
    /// Canonical names of its weights without `.weight`, stacked in this order.
    pub(crate) parts: &'a [String],
    /// Inputs.
    pub(crate) cols: usize,
    /// Whether each part has a bias.
    pub(crate) bias: Bias,
}

/// Whether a linear layer adds a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bias {
    Without,
    With,
}

impl From<bool> for Bias {
    fn from(bias: bool) -> Self {
        if bias { Self::With } else { Self::Without }
    }
}

/// Adds a linear layer to `x [.., cols]`; gives `[.., rows]`.
///
/// ```text
/// quantised, f32:  x ── MatMulNBits(quants, Cast(scales), zeros, bias)
/// quantised, f16:  x ── MatMulNBits(quants, scales, zeros) ── Add(bias)
/// plain:           x ── MatMul(weight, or Cast(weight)) ── Add(bias)
/// ```
pub(crate) fn linear(e: &mut Emitter<'_>, x: &str, spec: &Linear<'_>) -> Result<String, CompileError> {
    let names: Vec<String> = spec.parts.iter().map(|part| format!("{part}.weight")).collect();
    let rows = e.stacked_rows(&names);
    let first = names.first().and_then(|name| e.plan.get(name));
    let storage = first.map_or(Storage::F32, |planned| planned.storage);
    let bias = match spec.bias {
        Bias::With => Some(stacked_bias(e, spec)?),
        Bias::Without => None,
    };
    if let Some(dtype) = storage.plain() {
        return plain_linear(e, x, spec, (&names, dtype), bias);
    }
    let quantized = e.quantize(&names, spec.cols, storage)?;
    Ok(quantized_linear(e, x, (spec.scope, rows, spec.cols), &quantized, bias.as_deref()))
}

fn stacked_bias(e: &mut Emitter<'_>, spec: &Linear<'_>) -> Result<String, CompileError> {
    let rows = |e: &Emitter<'_>, part: &String| e.plan.get(&format!("{part}.weight")).map_or(0, |w| w.rows);
    let length = spec.parts.iter().map(|part| rows(e, part)).sum();
    e.tensor(&format!("{}/bias", spec.scope), &[length], |e| {
        let mut values = Vec::with_capacity(length);
        for part in spec.parts {
            let mut bias = e.values(&format!("{part}.bias"), &[rows(e, part)])?;
            // What divides a weight's rows divides their bias.
            e.scaling.divide(&format!("{part}.weight"), &mut bias);
            values.extend(bias);
        }
        Ok(values)
    })
}

fn plain_linear(
    e: &mut Emitter<'_>,
    x: &str,
    spec: &Linear<'_>,
    (names, dtype): (&[String], DType),
    bias: Option<String>,
) -> Result<String, CompileError> {
    let name = format!("{}/weight", spec.scope);
    let dtype = if e.compute == DType::F16 { DType::F16 } else { dtype };
    let shape = [spec.cols, e.stacked_rows(names)];
    let weight = e.stored(&name, dtype, &shape, |e| e.transposed(names, spec.cols, dtype))?;
    let product = e.graph.op(spec.scope, "MatMul", &[x, &weight]);
    Ok(match bias {
        Some(bias) => e.graph.op(spec.scope, "Add", &[&product, &bias]),
        None => product,
    })
}

/// Adds a linear layer whose weight `[rows, cols]` is quantised already.
pub(crate) fn quantized_linear(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, rows, cols): (&str, usize, usize),
    weight: &Quantized,
    bias: Option<&str>,
) -> String {
    let bits: usize = if weight.storage == Storage::W4 { 4 } else { 8 };
    let block = e.recipe.block;
    let blocks = cols.div_ceil(block);
    let quants =
        e.external(&format!("{scope}/quants"), DType::U8, &[rows, blocks, block * bits / 8], weight.quants);
    let scales = e.external(&format!("{scope}/scales"), DType::F16, &[rows, blocks], weight.scales);
    let zeros = match weight.zeros {
        Some(place) => {
            e.external(&format!("{scope}/zeros"), DType::U8, &[rows, (blocks * bits).div_ceil(8)], place)
        }
        None => String::new(),
    };
    let mut attributes = vec![
        ("K", Attribute::from(cols)),
        ("N", rows.into()),
        ("bits", bits.into()),
        ("block_size", block.into()),
    ];
    let name = format!("{scope}/MatMulNBits");
    let add = |e: &mut Emitter<'_>, inputs: &[&str], attributes: &[(&str, Attribute)]| {
        let inputs = inputs.strip_suffix(&[""]).unwrap_or(inputs);
        let spec = NodeSpec { name: &name, op: "MatMulNBits", domain: MICROSOFT, inputs, attributes };
        e.graph.node(spec)
    };
    if e.compute == DType::F16 {
        // NPUs take no bias here, and compute in the activations' own type.
        let product = add(e, &[x, &quants, &scales, &zeros], &attributes);
        return match bias {
            Some(bias) => e.graph.op(scope, "Add", &[&product, bias]),
            None => product,
        };
    }
    // The file keeps f16 scales, which both variants share; ONNX Runtime folds this cast when it loads the graph.
    let scales =
        e.graph.op_with(&format!("{scope}/scales"), "Cast", &[&scales], &[("to", Attribute::Int(1))]);
    attributes.push(("accuracy_level", i64::from(e.recipe.accuracy_level).into()));
    match bias {
        Some(bias) => add(e, &[x, &quants, &scales, &zeros, "", bias], &attributes),
        None => add(e, &[x, &quants, &scales, &zeros], &attributes),
    }
}
