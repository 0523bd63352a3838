//! Normalisation, alone and together with the residual addition before it.

use narthex_graph::{Attribute, build::NodeSpec, graph::MICROSOFT};

use crate::{emit::Emitter, error::CompileError};

/// RMS norm over the last dimension (Zhang and Sennrich 2019, arXiv:1910.07467).
pub(crate) fn rms_norm(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weight): (&str, &str),
    width: usize,
    epsilon: f32,
) -> Result<String, CompileError> {
    let gain = e.vector(weight, width)?;
    let attributes = [("axis", Attribute::Int(-1)), ("epsilon", epsilon.into())];
    Ok(e.graph.op_with(scope, "SimplifiedLayerNormalization", &[x, &gain], &attributes))
}

/// The sum of a residual and a branch, and the RMS norm of the sum.
pub(crate) struct NormedSum {
    /// The norm.
    pub(crate) normed: String,
    /// The sum: the next residual.
    pub(crate) sum: String,
}

/// RMS norm of `residual + branch`.
///
/// ```text
/// residual ─┐
///           ├─ SkipSimplifiedLayerNormalization ─┬─ normed
/// branch ───┘                                    └─ sum
/// ```
pub(crate) fn skip_rms_norm(
    e: &mut Emitter<'_>,
    (residual, branch): (&str, &str),
    (scope, weight): (&str, &str),
    width: usize,
    epsilon: f32,
) -> Result<NormedSum, CompileError> {
    let gain = e.vector(weight, width)?;
    let name = format!("{scope}/SkipSimplifiedLayerNormalization");
    let (normed, sum) = (format!("{name}/out"), format!("{name}/sum"));
    let spec = NodeSpec {
        name: &name,
        op: "SkipSimplifiedLayerNormalization",
        domain: MICROSOFT,
        inputs: &[residual, branch, &gain],
        attributes: &[("epsilon", epsilon.into())],
    };
    e.graph.node_to(spec, &[&normed, "", "", &sum]);
    Ok(NormedSum { normed, sum })
}

/// Layer norm over the last dimension (Ba et al. 2016, arXiv:1607.06450); `weight` names gain and bias.
pub(crate) fn layer_norm(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weight): (&str, &str),
    width: usize,
    epsilon: f32,
) -> Result<String, CompileError> {
    let gain = e.vector(&format!("{weight}.weight"), width)?;
    let bias = e.vector(&format!("{weight}.bias"), width)?;
    let attributes = [("axis", Attribute::Int(-1)), ("epsilon", epsilon.into())];
    Ok(e.graph.op_with(scope, "LayerNormalization", &[x, &gain, &bias], &attributes))
}

/// Layer norm of `residual + branch`.
pub(crate) fn skip_layer_norm(
    e: &mut Emitter<'_>,
    (residual, branch): (&str, &str),
    (scope, weight): (&str, &str),
    width: usize,
    epsilon: f32,
) -> Result<String, CompileError> {
    let gain = e.vector(&format!("{weight}.weight"), width)?;
    let bias = e.vector(&format!("{weight}.bias"), width)?;
    let name = format!("{scope}/SkipLayerNormalization");
    Ok(e.graph.node(NodeSpec {
        name: &name,
        op: "SkipLayerNormalization",
        domain: MICROSOFT,
        inputs: &[residual, branch, &gain, &bias],
        attributes: &[("epsilon", epsilon.into())],
    }))
}
