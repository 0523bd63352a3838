//! Normalisation, alone and together with the residual addition before it.

use narthex_graph::{Attribute, build::NodeSpec, graph::MICROSOFT};
use narthex_spec::arch::{DecoderArch, NormKind, QkNorm};

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

/// The norms over a residual stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Norm {
    /// Kind.
    pub(crate) kind: NormKind,
    /// Width of the stream.
    pub(crate) width: usize,
    /// Epsilon.
    pub(crate) epsilon: f32,
}

impl Norm {
    /// The norms of a decoder.
    pub(crate) fn of(arch: &DecoderArch) -> Self {
        Self { kind: arch.norm, width: arch.hidden, epsilon: arch.norm_epsilon }
    }

    /// A norm of `x`; `weights` names gain and bias without their leaf.
    pub(crate) fn of_rows(
        self,
        e: &mut Emitter<'_>,
        x: &str,
        (scope, weights): (&str, &str),
    ) -> Result<String, CompileError> {
        match self.kind {
            NormKind::Rms => rms_norm(e, x, (scope, &format!("{weights}.weight")), self.width, self.epsilon),
            NormKind::Layer => layer_norm(e, x, (scope, weights), self.width, self.epsilon),
        }
    }
}

impl Norm {
    /// A norm of a branch; where there is a factor, it is an RMS norm, and its gain is multiplied with it.
    pub(crate) fn of_branch(
        self,
        e: &mut Emitter<'_>,
        x: &str,
        (scope, weights): (&str, &str),
        factor: f32,
    ) -> Result<String, CompileError> {
        if factor == 1.0 {
            return self.of_rows(e, x, (scope, weights));
        }
        let name = format!("{weights}.weight");
        let values = |e: &Emitter<'_>| {
            let gain = e.values(&name, &[self.width])?;
            Ok(gain.into_iter().map(|gain| gain * factor).collect())
        };
        let gain = e.tensor(&format!("{scope}/gain"), &[self.width], values)?;
        let attributes = [("axis", Attribute::Int(-1)), ("epsilon", self.epsilon.into())];
        Ok(e.graph.op_with(scope, "SimplifiedLayerNormalization", &[x, &gain], &attributes))
    }
}

/// RMS norm over the last dimension, without a gain.
pub(crate) fn unit_norm(
    e: &mut Emitter<'_>,
    x: &str,
    scope: &str,
    (width, epsilon): (usize, f32),
) -> Result<String, CompileError> {
    let ones = e.tensor(&format!("{scope}/ones"), &[width], |_| Ok(vec![1.0; width]))?;
    let attributes = [("axis", Attribute::Int(-1)), ("epsilon", epsilon.into())];
    Ok(e.graph.op_with(scope, "SimplifiedLayerNormalization", &[x, &ones], &attributes))
}

/// The norms around a residual stream that is carried smaller than it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Carried {
    /// Norms of the stream.
    pub(crate) norm: Norm,
    /// Norms of everything else.
    pub(crate) branch: Norm,
    /// What the stream is multiplied with.
    pub(crate) shrink: f32,
}

impl Carried {
    /// A stream multiplied with a power of two. The norms over it take that back: gains of what joins it are smaller, and
    /// so is the epsilon of what reads it. No digit changes.
    pub(crate) fn of(branch: Norm, shrink: f32) -> Self {
        Self { norm: Norm { epsilon: branch.epsilon * shrink * shrink, ..branch }, branch, shrink }
    }
}

/// The residual stream of variant A. What a part adds to it waits as a branch, so that the addition and the next norm
/// are one operator.
pub(crate) struct Stream {
    sum: String,
    branch: Option<String>,
    norm: Norm,
}

impl Stream {
    /// A stream that begins with `x`.
    pub(crate) fn new(x: String, norm: Norm) -> Self {
        Self { sum: x, branch: None, norm }
    }

    /// The norms over the stream.
    pub(crate) fn norm(&self) -> Norm {
        self.norm
    }

    /// Adds a branch.
    pub(crate) fn add(&mut self, branch: String) {
        self.branch = Some(branch);
    }

    /// Some rows of the stream.
    pub(crate) fn rows(&self, mut rows: impl FnMut(&str, &str) -> String) -> Self {
        let sum = rows("residual", &self.sum);
        let branch = self.branch.as_ref().map(|branch| rows("branch", branch));
        Self { sum, branch, norm: self.norm }
    }

    /// The norm of the stream.
    ///
    /// ```text
    /// sum ────┐
    ///         ├─ Skip(Simplified)LayerNormalization ─┬─ normed
    /// branch ─┘                                      └─ sum
    /// ```
    pub(crate) fn normed(
        &mut self,
        e: &mut Emitter<'_>,
        (scope, weights): (&str, &str),
    ) -> Result<String, CompileError> {
        let Some(branch) = self.branch.take() else {
            return self.norm.of_rows(e, &self.sum, (scope, weights));
        };
        let (op, mut inputs) = match self.norm.kind {
            NormKind::Rms => {
                let gain = e.vector(&format!("{weights}.weight"), self.norm.width)?;
                ("SkipSimplifiedLayerNormalization", vec![gain])
            }
            NormKind::Layer => {
                ("SkipLayerNormalization", gain_and_bias(e, weights, self.norm.width)?.to_vec())
            }
        };
        inputs.splice(0..0, [self.sum.clone(), branch]);
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let name = format!("{scope}/{op}");
        let (normed, sum) = (format!("{name}/out"), format!("{name}/sum"));
        let attributes = [("epsilon", self.norm.epsilon.into())];
        let spec = NodeSpec { name: &name, op, domain: MICROSOFT, inputs: &inputs, attributes: &attributes };
        e.graph.node_to(spec, &[&normed, "", "", &sum]);
        self.sum = sum;
        Ok(normed)
    }
}

/// Norms queries or keys head by head: `x [.., heads, size]`, the same shape out.
///
/// ```text
/// rms:             x ── SimplifiedLayerNormalization(gain [size])
/// layer per head:  x ── LayerNormalization(1) ── Mul(gain [heads, size])
/// ```
pub(crate) fn head_norm(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weight): (&str, &str),
    (heads, size): (usize, usize),
    (kind, epsilon): (QkNorm, f32),
) -> Result<String, CompileError> {
    match kind {
        QkNorm::None => Ok(x.to_owned()),
        QkNorm::Rms => rms_norm(e, x, (scope, weight), size, epsilon),
        QkNorm::LayerPerHead => {
            let ones = e.tensor(&format!("{scope}/ones"), &[size], |_| Ok(vec![1.0; size]))?;
            let attributes = [("axis", Attribute::Int(-1)), ("epsilon", epsilon.into())];
            let normed = e.graph.op_with(scope, "LayerNormalization", &[x, &ones], &attributes);
            let shape = [heads, size];
            let gain = e.tensor(weight, &shape, |e| e.values(weight, &shape))?;
            Ok(e.graph.op(scope, "Mul", &[&normed, &gain]))
        }
    }
}

fn gain_and_bias(e: &mut Emitter<'_>, weights: &str, width: usize) -> Result<[String; 2], CompileError> {
    let gain = format!("{weights}.weight");
    let bias = format!("{weights}.bias");
    let divided = |e: &Emitter<'_>| {
        let mut values = e.values(&bias, &[width])?;
        // What divides a gain divides the bias beside it.
        e.scaling.divide(&gain, &mut values);
        Ok(values)
    };
    Ok([e.vector(&gain, width)?, e.tensor(&bias, &[width], divided)?])
}

/// Layer norm over the last dimension (Ba et al. 2016, arXiv:1607.06450); `weight` names gain and bias.
pub(crate) fn layer_norm(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weight): (&str, &str),
    width: usize,
    epsilon: f32,
) -> Result<String, CompileError> {
    let [gain, bias] = gain_and_bias(e, weight, width)?;
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
    let [gain, bias] = gain_and_bias(e, weight, width)?;
    let name = format!("{scope}/SkipLayerNormalization");
    Ok(e.graph.node(NodeSpec {
        name: &name,
        op: "SkipLayerNormalization",
        domain: MICROSOFT,
        inputs: &[residual, branch, &gain, &bias],
        attributes: &[("epsilon", epsilon.into())],
    }))
}

/// `x · weight + bias`: what MobileBERT has in a norm's place (Sun et al. 2020, arXiv:2004.02984).
pub(crate) fn affine(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weight): (&str, &str),
    width: usize,
) -> Result<String, CompileError> {
    let gain = e.vector(&format!("{weight}.weight"), width)?;
    let bias = e.vector(&format!("{weight}.bias"), width)?;
    let scaled = e.graph.op(scope, "Mul", &[x, &gain]);
    Ok(e.graph.op(scope, "Add", &[&scaled, &bias]))
}
