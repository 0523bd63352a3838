//! Feed-forward networks.

use narthex_graph::typed::{Reduction, Scope, Tensor};
use narthex_spec::{
    Pass,
    arch::{Activation, FeedForward, Mlp},
};

use super::{
    experts::experts,
    linear::{StackedLinear, linear, stacked_linear},
};
use crate::{emit::Emitter, error::Result};

/// Adds a feed-forward network over rows of `width` elements.
///
/// ```text
/// gated:    x ─┬─ gate_proj ── (cutoff) ── act ─┐
///              └─ up_proj ──────────────────────┴─ Mul ── down_proj
/// grouped:  x ─── gate_up_proj ─┬─ (cutoff) ── act ─┐
///                               └───────────────────┴─ Mul ── down_proj
/// plain:    x ─── up_proj ── (cutoff) ── act ─── down_proj
/// ```
pub(crate) fn mlp(e: &mut Emitter<'_>, scope: &Scope, x: Tensor, width: usize, mlp: &Mlp) -> Result<Tensor> {
    let bias = mlp.bias.into();
    let hidden = if mlp.gated {
        let [gate, up] = if e.recipe.passes.contains(&Pass::GroupedProjections) {
            let both = scope.child("gate_up_proj");
            let parts = ["gate_proj", "up_proj"].map(|part| scope.child(part));
            let rows =
                stacked_linear(e, x, &StackedLinear { scope: &both, parts: &parts, cols: width, bias })?;
            e.graph.split_into(&both, rows, 2, [mlp.inner; 2])?
        } else {
            [
                linear(e, &scope.child("gate_proj"), x, width, bias)?,
                linear(e, &scope.child("up_proj"), x, width, bias)?,
            ]
        };
        let gate = activated(e, scope, gate, mlp)?;
        e.graph.mul(scope, gate, up)?
    } else {
        let up = linear(e, &scope.child("up_proj"), x, width, bias)?;
        activated(e, scope, up, mlp)?
    };
    linear(e, &scope.child("down_proj"), hidden, mlp.inner, bias)
}

/// Returns the feed-forward part of a decoder's layer.
pub(crate) fn feed_forward(
    e: &mut Emitter<'_>,
    scope: &Scope,
    x: Tensor,
    width: usize,
    part: &FeedForward,
) -> Result<Tensor> {
    match part {
        FeedForward::Dense(part) => mlp(e, scope, x, width, part),
        FeedForward::Experts(part) => {
            let mixed = experts(e, scope, x, width, part)?;
            let Some(shared) = part.shared_mlp() else { return Ok(mixed) };
            let scope = scope.child("shared");
            let beside = mlp(e, &scope, x, width, &shared)?;
            Ok(e.graph.add(&scope.child("sum"), mixed, beside)?)
        }
    }
}

/// Returns the activation of `x`, or of the part of `x` above the cutoff if the layer has one.
fn activated(e: &mut Emitter<'_>, scope: &Scope, x: Tensor, mlp: &Mlp) -> Result<Tensor> {
    let x = match mlp.cutoff {
        Some(cutoff) => above(e, &scope.child("cutoff"), x, mlp.inner, cutoff)?,
        None => x,
    };
    activation(e, &scope.child("act"), x, mlp.activation)
}

/// Epsilon that is added to the variance, so that a constant row has deviation 0.
const VARIANCE_EPSILON: f32 = 1e-6;

/// Returns `max(x - mean - cutoff · deviation, 0)`. The deviation of a row is computed as the mean of `x` times the
/// normalised `x`, because its squares may overflow in half precision.
///
/// ```text
/// x ─┬─ LayerNormalization ─┬─ Sub(cutoff) ── Relu ─┐
///    └──────────────────────┴─ Mul ── ReduceMean ───┴─ Mul
/// ```
fn above(e: &mut Emitter<'_>, scope: &Scope, x: Tensor, width: usize, cutoff: f32) -> Result<Tensor> {
    let ones = e.ones(&scope.node("ones"), width)?;
    let normed = e.graph.layer_norm(scope, x, ones, None, VARIANCE_EPSILON)?;
    let deviation = scope.child("deviation");
    let product = e.graph.mul(&deviation, x, normed)?;
    let deviation = e.graph.reduce(&deviation, Reduction::Mean, product, -1)?;
    let cutoff = e.number(f64::from(cutoff));
    let over = e.graph.sub(scope, normed, cutoff)?;
    let over = e.graph.relu(scope, over)?;
    Ok(e.graph.mul(scope, over, deviation)?)
}

/// Adds an activation. SiLU is `Sigmoid` and `Mul`, which ONNX Runtime fuses; the others are one node.
pub(crate) fn activation(
    e: &mut Emitter<'_>,
    scope: &Scope,
    x: Tensor,
    activation: Activation,
) -> Result<Tensor> {
    let g = &mut e.graph;
    Ok(match activation {
        Activation::Silu => {
            let sigmoid = g.sigmoid(scope, x)?;
            g.mul(scope, x, sigmoid)?
        }
        Activation::Gelu => g.gelu(scope, x, "none")?,
        Activation::GeluTanh => g.gelu(scope, x, "tanh")?,
        Activation::Relu => g.relu(scope, x)?,
        Activation::Tanh => g.tanh(scope, x)?,
    })
}
