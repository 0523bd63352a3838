//! Normalisation, and the residual stream with its norms.

use narthex_graph::typed::{Scope, SkipNorm, Tensor};
use narthex_spec::arch::{DecoderArch, NormKind, QkNorm};

use crate::{emit::Emitter, error::Result};

/// A norm over rows. Its gain and bias belong to the scope in which it is applied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Norm {
    pub(crate) kind: NormKind,
    /// Elements of a row.
    pub(crate) width: usize,
    /// Epsilon that is added to the variance.
    pub(crate) epsilon: f32,
}

impl Norm {
    /// Returns the norm of a decoder.
    pub(crate) fn of(arch: &DecoderArch) -> Self {
        Self { kind: arch.norm, width: arch.hidden, epsilon: arch.norm_epsilon }
    }

    /// Adds the norm of `x`.
    pub(crate) fn apply(self, e: &mut Emitter<'_>, scope: &Scope, x: Tensor) -> Result<Tensor> {
        match self.kind {
            NormKind::Rms => rms_norm(e, scope, x, self.width, self.epsilon),
            NormKind::Gain => {
                let gain = e.vector(&scope.parameter("weight"), self.width)?;
                Ok(e.graph.layer_norm(scope, x, gain, None, self.epsilon)?)
            }
            NormKind::Layer => {
                let [gain, bias] = gain_and_bias(e, scope, self.width)?;
                Ok(e.graph.layer_norm(scope, x, gain, Some(bias), self.epsilon)?)
            }
        }
    }

    /// Adds the norm of `x` with its gain multiplied by a factor, which must be 1 unless it is an RMS norm.
    pub(crate) fn apply_scaled(
        self,
        e: &mut Emitter<'_>,
        scope: &Scope,
        x: Tensor,
        factor: f32,
    ) -> Result<Tensor> {
        if factor == 1.0 {
            return self.apply(e, scope, x);
        }
        let gain = e.tensor(&scope.node("gain"), &[self.width], |e: &Emitter<'_>| {
            let gain = e.values(&scope.parameter("weight"), &[self.width])?;
            Ok(gain.into_iter().map(|gain| gain * factor).collect())
        })?;
        rms_norm_of_rows(e, scope, x, gain, self.epsilon)
    }

    /// Adds the norm of `residual + branch` as one operator.
    pub(crate) fn apply_to_sum(
        self,
        e: &mut Emitter<'_>,
        scope: &Scope,
        residual: Tensor,
        branch: Tensor,
    ) -> Result<Tensor> {
        let norm = self.of_sum(e, scope, residual, branch)?;
        Ok(e.graph.skip_norm(scope, &norm)?)
    }

    fn of_sum(
        self,
        e: &mut Emitter<'_>,
        scope: &Scope,
        residual: Tensor,
        branch: Tensor,
    ) -> Result<SkipNorm> {
        let (gain, bias) = match self.kind {
            NormKind::Rms => (e.vector(&scope.parameter("weight"), self.width)?, None),
            NormKind::Layer => {
                let [gain, bias] = gain_and_bias(e, scope, self.width)?;
                (gain, Some(bias))
            }
            NormKind::Gain => {
                let width = self.width;
                let bias = e.tensor(&scope.node("zeros"), &[width], |_| Ok(vec![0.0; width]))?;
                (e.vector(&scope.parameter("weight"), width)?, Some(bias))
            }
        };
        Ok(SkipNorm { residual, branch, gain, bias, epsilon: self.epsilon })
    }
}

/// Adds an RMS norm over the last axis.
fn rms_norm(e: &mut Emitter<'_>, scope: &Scope, x: Tensor, width: usize, epsilon: f32) -> Result<Tensor> {
    let gain = e.vector(&scope.parameter("weight"), width)?;
    rms_norm_of_rows(e, scope, x, gain, epsilon)
}

/// Adds an RMS norm over the last axis. If the shape is fixed, the rows `[batch, .., width]` get a single axis for the
/// norm: of `[1, 12, 2, 64]`, Qualcomm's HTP backend (QNN 2.7.0) norms the first 8 of 12 correctly and gives wrong values
/// for the rest.
fn rms_norm_of_rows(
    e: &mut Emitter<'_>,
    scope: &Scope,
    x: Tensor,
    gain: Tensor,
    epsilon: f32,
) -> Result<Tensor> {
    let shape = e.graph.fixed_shape(x).unwrap_or_default();
    let [batch, rows @ .., width] = shape.as_slice() else {
        return Ok(e.graph.rms_norm(scope, x, gain, epsilon)?);
    };
    if rows.len() < 2 {
        return Ok(e.graph.rms_norm(scope, x, gain, epsilon)?);
    }
    let one_axis = [*batch, rows.iter().product(), *width];
    let flat = reshape(e, &scope.child("one_axis"), x, &one_axis)?;
    let normed = e.graph.rms_norm(scope, flat, gain, epsilon)?;
    reshape(e, &scope.child("all_axes"), normed, &shape)
}

fn reshape(e: &mut Emitter<'_>, scope: &Scope, x: Tensor, shape: &[usize]) -> Result<Tensor> {
    let extents: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
    Ok(e.graph.reshape(scope, x, &extents)?)
}

/// Adds an RMS norm over the last axis without a gain.
pub(crate) fn unit_norm(
    e: &mut Emitter<'_>,
    scope: &Scope,
    x: Tensor,
    width: usize,
    epsilon: f32,
) -> Result<Tensor> {
    let ones = e.ones(&scope.node("ones"), width)?;
    rms_norm_of_rows(e, scope, x, ones, epsilon)
}

/// Adds `x / √(|x|² + epsilon)` over the last axis, as an RMS norm.
pub(crate) fn unit_length(
    e: &mut Emitter<'_>,
    scope: &Scope,
    x: Tensor,
    width: usize,
    epsilon: f32,
) -> Result<Tensor> {
    let size = width as f32;
    let gain = e.tensor(&scope.node("gain"), &[width], |_| Ok(vec![size.sqrt().recip(); width]))?;
    rms_norm_of_rows(e, scope, x, gain, epsilon / size)
}

/// Norms around a residual stream, whose values may be scaled by a factor below 1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamNorms {
    pub(crate) stream: Norm,
    /// Norm of everything else.
    pub(crate) branch: Norm,
    /// Scale factor of the stream.
    pub(crate) scale: f32,
}

impl StreamNorms {
    /// Returns the norms of a stream that is scaled by a power of two. The gains of branches that are added to it are
    /// multiplied by the same factor, and the epsilon of its norms by the square of it; no mantissa changes.
    pub(crate) fn new(branch: Norm, scale: f32) -> Self {
        Self { stream: Norm { epsilon: branch.epsilon * scale * scale, ..branch }, branch, scale }
    }
}

/// Operators of a residual addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResidualForm {
    /// One operator together with the following norm, for ONNX Runtime's own kernels.
    Fused,
    /// `Add`, for NPU compilers.
    Plain,
}

/// The residual stream of a decoder.
pub(crate) struct ResidualStream {
    sum: Tensor,
    /// Branch that the next norm adds.
    pending: Option<Tensor>,
    norms: StreamNorms,
    form: ResidualForm,
}

impl ResidualStream {
    /// Returns a stream that starts with `x`.
    pub(crate) fn new(x: Tensor, norms: StreamNorms, form: ResidualForm) -> Self {
        Self { sum: x, pending: None, norms, form }
    }

    /// Returns the stream without a pending branch.
    pub(crate) fn sum(&self) -> Tensor {
        self.sum
    }

    /// Adds a branch; `scope` is the part of the layer that computed it.
    pub(crate) fn add(&mut self, e: &mut Emitter<'_>, scope: &Scope, branch: Tensor) -> Result<()> {
        match (self.form, self.pending) {
            (ResidualForm::Plain, _) => self.sum = e.graph.add(scope, self.sum, branch)?,
            (ResidualForm::Fused, None) => self.pending = Some(branch),
            (ResidualForm::Fused, Some(other)) => self.pending = Some(e.graph.add(scope, other, branch)?),
        }
        Ok(())
    }

    /// Applies `rows`, which selects rows, to the stream and to a pending branch.
    pub(crate) fn map_rows(&self, mut rows: impl FnMut(&str, Tensor) -> Result<Tensor>) -> Result<Self> {
        let sum = rows("residual", self.sum)?;
        let pending = self.pending.map(|branch| rows("branch", branch)).transpose()?;
        Ok(Self { sum, pending, ..*self })
    }

    /// Returns the stream with a pending branch.
    pub(crate) fn rows(&mut self, e: &mut Emitter<'_>, scope: &Scope) -> Result<Tensor> {
        if let Some(branch) = self.pending.take() {
            self.sum = e.graph.add(scope, self.sum, branch)?;
        }
        Ok(self.sum)
    }

    /// Multiplies the stream by the learned number of `scope`.
    pub(crate) fn multiply(&mut self, e: &mut Emitter<'_>, scope: &Scope) -> Result<()> {
        let sum = self.rows(e, scope)?;
        let factor = e.vector(&scope.parameter("weight"), 1)?;
        self.sum = e.graph.mul(scope, sum, factor)?;
        Ok(())
    }

    /// Returns the norm of the stream.
    ///
    /// ```text
    /// sum ─────┐
    ///          ├─ Skip(Simplified)LayerNormalization ─┬─ normed
    /// pending ─┘                                      └─ sum
    /// ```
    pub(crate) fn normed(&mut self, e: &mut Emitter<'_>, scope: &Scope) -> Result<Tensor> {
        let Some(branch) = self.pending.take() else {
            return self.norms.stream.apply(e, scope, self.sum);
        };
        let norm = self.norms.stream.of_sum(e, scope, self.sum, branch)?;
        let (normed, sum) = e.graph.skip_norm_with_sum(scope, &norm)?;
        self.sum = sum;
        Ok(normed)
    }
}

/// Norm of queries or keys, applied per head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadNorm {
    pub(crate) kind: QkNorm,
    pub(crate) heads: usize,
    /// Elements of a head.
    pub(crate) size: usize,
    /// Epsilon that is added to the variance.
    pub(crate) epsilon: f32,
}

impl HeadNorm {
    /// Adds the norm of `x [.., heads, size]`, which has the same shape.
    ///
    /// ```text
    /// rms:               x ── SimplifiedLayerNormalization(gain [size])
    /// layer per head:    x ── LayerNormalization(1) ── Mul(gain [heads, size])
    /// rms of all heads:  x ── Reshape ── SimplifiedLayerNormalization(gain [heads · size]) ── Reshape
    /// ```
    pub(crate) fn apply(self, e: &mut Emitter<'_>, scope: &Scope, x: Tensor) -> Result<Tensor> {
        match self.kind {
            QkNorm::None => Ok(x),
            QkNorm::Rms => rms_norm(e, scope, x, self.size, self.epsilon),
            QkNorm::RmsOfAllHeads => {
                let width = self.heads * self.size;
                let flat = e.graph.reshape(&scope.child("all"), x, &[0, 0, width as i64])?;
                let normed = rms_norm(e, scope, flat, width, self.epsilon)?;
                let heads = [0, 0, self.heads as i64, self.size as i64];
                Ok(e.graph.reshape(&scope.child("each"), normed, &heads)?)
            }
            QkNorm::LayerPerHead => {
                let ones = e.ones(&scope.node("ones"), self.size)?;
                let normed = e.graph.layer_norm(scope, x, ones, None, self.epsilon)?;
                let name = scope.parameter("weight");
                let shape = [self.heads, self.size];
                let gain = e.tensor(&name, &shape, |e| {
                    let mut gain = e.values(&name, &shape)?;
                    e.scaling.divide(&name, &mut gain);
                    Ok(gain)
                })?;
                Ok(e.graph.mul(scope, normed, gain)?)
            }
        }
    }
}

fn gain_and_bias(e: &mut Emitter<'_>, scope: &Scope, width: usize) -> Result<[Tensor; 2]> {
    let gain = scope.parameter("weight");
    let bias = scope.parameter("bias");
    Ok([
        e.vector(&gain, width)?,
        e.tensor(&bias, &[width], |e: &Emitter<'_>| {
            let mut values = e.values(&bias, &[width])?;
            // The divisors of a gain also divide its bias.
            e.scaling.divide(&gain, &mut values);
            Ok(values)
        })?,
    ])
}

/// Adds `x · weight + bias`, which MobileBERT uses in place of norms (Sun et al. 2020, arXiv:2004.02984).
pub(crate) fn affine(e: &mut Emitter<'_>, scope: &Scope, x: Tensor, width: usize) -> Result<Tensor> {
    let gain = e.vector(&scope.parameter("weight"), width)?;
    let bias = e.vector(&scope.parameter("bias"), width)?;
    let scaled = e.graph.mul(scope, x, gain)?;
    Ok(e.graph.add(scope, scaled, bias)?)
}
