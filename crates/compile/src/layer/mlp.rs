//! Feed-forward parts.

use narthex_graph::Attribute;
use narthex_spec::{
    Pass,
    arch::{Activation, Mlp},
};

use super::{
    linear::{Linear, linear},
    plain,
};
use crate::{emit::Emitter, error::CompileError};

/// A feed-forward part.
///
/// ```text
/// gated:    x ─┬─ gate_proj ── (cut off) ── act ─┐
///              └─ up_proj ───────────────────────┴─ Mul ── down_proj
/// grouped:  x ─── gate_up_proj ─┬─ (cut off) ── act ─┐
///                               └────────────────────┴─ Mul ── down_proj
/// plain:    x ─── up_proj ── (cut off) ── act ─── down_proj
/// ```
pub(crate) fn mlp(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weights): (&str, &str),
    width: usize,
    mlp: &Mlp,
) -> Result<String, CompileError> {
    let project = |e: &mut Emitter<'_>, part: &str, x: &str, cols: usize| {
        let scope = format!("{scope}/{part}");
        let parts = [format!("{weights}.{part}")];
        linear(e, x, &Linear { scope: &scope, parts: &parts, cols, bias: mlp.bias.into() })
    };
    let hidden = if mlp.gated {
        let [gate, up] = if e.recipe.passes.contains(&Pass::GroupedProjections) {
            let scope = format!("{scope}/gate_up_proj");
            let parts = ["gate_proj", "up_proj"].map(|part| format!("{weights}.{part}"));
            let both =
                linear(e, x, &Linear { scope: &scope, parts: &parts, cols: width, bias: mlp.bias.into() })?;
            plain::split(e, &scope, &both, 2, &[mlp.inner; 2])
        } else {
            [project(e, "gate_proj", x, width)?, project(e, "up_proj", x, width)?]
        };
        let gate = activated(e, scope, gate, mlp)?;
        e.graph.op(scope, "Mul", &[&gate, &up])
    } else {
        let up = project(e, "up_proj", x, width)?;
        activated(e, scope, up, mlp)?
    };
    project(e, "down_proj", &hidden, mlp.inner)
}

/// The activation of what is above the cutoff, where there is one.
fn activated(e: &mut Emitter<'_>, scope: &str, x: String, mlp: &Mlp) -> Result<String, CompileError> {
    let x = match mlp.cutoff {
        Some(cutoff) => above(e, &format!("{scope}/cutoff"), &x, (mlp.inner, cutoff))?,
        None => x,
    };
    Ok(activation(e, &format!("{scope}/act"), &x, mlp.activation))
}

/// What is added to the variance that a cutoff is measured in, so that a row of one number has none.
const VARIANCE_EPSILON: f32 = 1e-6;

/// `max(x - mean - cutoff · deviation, 0)`, without a square that half precision might not hold: a row's deviation is the
/// mean of `x` times `x` normalised.
///
/// ```text
/// x ─┬─ LayerNormalization ─┬─ Sub(cutoff) ── Relu ─┐
///    └──────────────────────┴─ Mul ── ReduceMean ───┴─ Mul
/// ```
fn above(
    e: &mut Emitter<'_>,
    scope: &str,
    x: &str,
    (width, cutoff): (usize, f32),
) -> Result<String, CompileError> {
    let ones = e.tensor(&format!("{scope}/ones"), &[width], |_| Ok(vec![1.0; width]))?;
    let attributes = [("axis", Attribute::Int(-1)), ("epsilon", VARIANCE_EPSILON.into())];
    let normed = e.graph.op_with(scope, "LayerNormalization", &[x, &ones], &attributes);
    let product = e.graph.op(&format!("{scope}/deviation"), "Mul", &[x, &normed]);
    let last = e.graph.ints(&[1], &[-1]);
    let deviation = e.graph.op(&format!("{scope}/deviation"), "ReduceMean", &[&product, &last]);
    let cutoff = e.number(f64::from(cutoff));
    let over = e.graph.op(scope, "Sub", &[&normed, &cutoff]);
    let kept = e.graph.op(scope, "Relu", &[&over]);
    Ok(e.graph.op(scope, "Mul", &[&kept, &deviation]))
}

/// SiLU is `Sigmoid` and `Mul`, which ONNX Runtime fuses; the others are one node.
pub(crate) fn activation(e: &mut Emitter<'_>, scope: &str, x: &str, activation: Activation) -> String {
    let gelu = |approximate: &str| [("approximate", Attribute::String(approximate.to_owned()))];
    match activation {
        Activation::Silu => {
            let sigmoid = e.graph.op(scope, "Sigmoid", &[x]);
            e.graph.op(scope, "Mul", &[x, &sigmoid])
        }
        Activation::Gelu => e.graph.op_with(scope, "Gelu", &[x], &gelu("none")),
        Activation::GeluTanh => e.graph.op_with(scope, "Gelu", &[x], &gelu("tanh")),
        Activation::Relu => e.graph.op(scope, "Relu", &[x]),
        Activation::Tanh => e.graph.op(scope, "Tanh", &[x]),
    }
}
