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
/// quantised:  x ── MatMulNBits(quants, Cast(scales), zeros, bias)
/// f32:        x ── MatMul(weight) ── Add(bias)
/// ```
pub(crate) fn linear(e: &mut Emitter<'_>, x: &str, spec: &Linear<'_>) -> Result<String, CompileError> {
    let names: Vec<String> = spec.parts.iter().map(|part| format!("{part}.weight")).collect();
    let planned: Vec<_> = names.iter().filter_map(|name| e.plan.get(name)).collect();
    let rows: usize = planned.iter().map(|planned| planned.rows).sum();
    let storage = planned.first().map_or(Storage::F32, |planned| planned.storage);
    let bias = match spec.bias {
        Bias::With => Some(stacked_bias(e, spec)?),
        Bias::Without => None,
    };
    if storage == Storage::F32 {
        return f32_linear(e, x, spec, &names, bias);
    }
    let quantized = e.quantize(&names, spec.cols, storage)?;
    Ok(quantized_linear(e, x, (spec.scope, rows, spec.cols), &quantized, bias.as_deref()))
}

fn stacked_bias(e: &mut Emitter<'_>, spec: &Linear<'_>) -> Result<String, CompileError> {
    let mut values = Vec::new();
    for part in spec.parts {
        let rows = e.plan.get(&format!("{part}.weight")).map_or(0, |planned| planned.rows);
        values.extend(e.weight(&format!("{part}.bias"), &[rows])?.to_f32());
    }
    e.f32_tensor(&format!("{}/bias", spec.scope), &[values.len()], &values)
}

fn f32_linear(
    e: &mut Emitter<'_>,
    x: &str,
    spec: &Linear<'_>,
    names: &[String],
    bias: Option<String>,
) -> Result<String, CompileError> {
    let mut rows = 0;
    let mut stacked = Vec::new();
    for name in names {
        let planned = e.plan.get(name).map_or(0, |planned| planned.rows);
        stacked.extend(e.weight(name, &[planned, spec.cols])?.to_f32());
        rows += planned;
    }
    let transposed = transpose(&stacked, rows, spec.cols);
    let weight = e.f32_tensor(&format!("{}/weight", spec.scope), &[spec.cols, rows], &transposed)?;
    let product = e.graph.op(spec.scope, "MatMul", &[x, &weight]);
    Ok(match bias {
        Some(bias) => e.graph.op(spec.scope, "Add", &[&product, &bias]),
        None => product,
    })
}

fn transpose(values: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|col| (0..rows).map(move |row| values[row * cols + col])).collect()
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
    let stored = e.external(&format!("{scope}/scales"), DType::F16, &[rows, blocks], weight.scales);
    // The file keeps f16 scales, which graphs for NPUs share; ONNX Runtime folds this cast when it loads the graph.
    let scales =
        e.graph.op_with(&format!("{scope}/scales"), "Cast", &[&stored], &[("to", Attribute::Int(1))]);
    let zeros = match weight.zeros {
        Some(place) => {
            e.external(&format!("{scope}/zeros"), DType::U8, &[rows, (blocks * bits).div_ceil(8)], place)
        }
        None => String::new(),
    };
    let mut inputs = vec![x, &quants, &scales, &zeros];
    if let Some(bias) = bias {
        inputs.extend(["", bias]);
    }
    while inputs.last() == Some(&"") {
        inputs.pop();
    }
    let attributes = [
        ("K", Attribute::from(cols)),
        ("N", rows.into()),
        ("bits", bits.into()),
        ("block_size", block.into()),
        ("accuracy_level", i64::from(e.recipe.accuracy_level).into()),
    ];
    let name = format!("{scope}/MatMulNBits");
    e.graph.node(NodeSpec {
        name: &name,
        op: "MatMulNBits",
        domain: MICROSOFT,
        inputs: &inputs,
        attributes: &attributes,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn transposes() {
        assert_eq!(super::transpose(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
