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
/// gated:    x ─┬─ gate_proj ── act ─┐
///              └─ up_proj ──────────┴─ Mul ── down_proj
/// grouped:  x ─── gate_up_proj ─┬─ act ─┐
///                               └───────┴─ Mul ── down_proj
/// plain:    x ─── up_proj ── act ─── down_proj
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
        let gate = activation(e, &format!("{scope}/act"), &gate, mlp.activation);
        e.graph.op(scope, "Mul", &[&gate, &up])
    } else {
        let up = project(e, "up_proj", x, width)?;
        activation(e, &format!("{scope}/act"), &up, mlp.activation)
    };
    project(e, "down_proj", &hidden, mlp.inner)
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
