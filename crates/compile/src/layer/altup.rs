//! Alternating updates (Baykal et al. 2023, arXiv:2301.13310) as in Gemma 3n: several residual streams, one of which
//! each layer computes, with a learned low-rank residual (LAuReL, Menghani et al. 2024, arXiv:2411.07501). Follows `Gemma3nTextModel` of `transformers`.
//!
//! The nodes keep the batch and sequence dimensions unchanged, so both variants use this module; the caller adds
//! attention.

use narthex_graph::typed::{Reduction, Scope, Tensor};
use narthex_spec::arch::{AltUp, DecoderArch, DecoderLayer};

use super::{
    layer_scope,
    linear::{Bias, StackedLinear, linear, stacked_linear},
    mlp,
    norm::{StreamNorms, unit_norm},
    per_layer::PerLayerGate,
    reshape_rows,
};
use crate::{emit::Emitter, error::Result};

/// Lower bound of the mean square in the normalisation of a projected stream.
const MIN_MEAN_SQUARE: f32 = 1e-5;

/// Residual streams of a decoder under construction.
pub(crate) struct Streams<'a> {
    arch: &'a DecoderArch,
    altup: &'a AltUp,
    norms: StreamNorms,
    /// All streams, `[batch, sequence, streams, hidden]`.
    stack: Tensor,
}

/// Gain and weight of a layer's router.
#[derive(Clone, Copy)]
struct Router {
    gain: Tensor,
    weight: Tensor,
}

fn altup_scope() -> Scope {
    Scope::root().child("altup")
}

impl<'a> Streams<'a> {
    /// Returns the streams before the first layer: the embedded token, and projections of it that are scaled to its
    /// magnitude (root mean square). The magnitude of a row is computed as the mean of the row times the normalised
    /// row, because its squares may overflow in half precision.
    ///
    /// ```text
    /// x ─┬───────────────────────────────────────────────────────┬─ Concat
    ///    ├─ proj (of every other stream) ── unit norm ─┬─ Mul ───┘
    ///    └─ Mul(unit norm) ── ReduceMean ──────────────┘
    /// ```
    pub(crate) fn begin(
        e: &mut Emitter<'_>,
        arch: &'a DecoderArch,
        altup: &'a AltUp,
        norms: StreamNorms,
        x: Tensor,
    ) -> Result<Self> {
        let hidden = arch.hidden;
        let others = altup.streams - 1;
        let scope = altup_scope();
        let proj = scope.child("proj");
        let parts: Vec<Scope> =
            (0..others).map(|stream| scope.child(format_args!("proj.{stream}"))).collect();
        let layer = StackedLinear { scope: &proj, parts: &parts, cols: hidden, bias: Bias::Without };
        let projected = stacked_linear(e, x, &layer)?;
        let projected = reshape_rows(e, &proj.child("streams"), projected, &[others, hidden])?;

        let epsilon = MIN_MEAN_SQUARE * norms.scale * norms.scale;
        let projected = unit_norm(e, &proj.child("norm"), projected, hidden, epsilon)?;
        let first = reshape_rows(e, &scope.child("first"), x, &[1, hidden])?;
        let size = scope.child("size");
        let unit = unit_norm(e, &size, first, hidden, norms.stream.epsilon)?;
        let product = e.graph.mul(&size, first, unit)?;
        let size = e.graph.reduce(&size, Reduction::Mean, product, -1)?;
        let projected = e.graph.mul(&proj, projected, size)?;
        let stack = e.graph.concat(&scope, &[first, projected], 2)?;
        Ok(Self { arch, altup, norms, stack })
    }

    /// Returns the streams before a layer, from the output of [`Self::flat`] after the layer before it.
    pub(crate) fn resume(
        e: &mut Emitter<'_>,
        arch: &'a DecoderArch,
        altup: &'a AltUp,
        norms: StreamNorms,
        states: Tensor,
    ) -> Result<Self> {
        let scope = altup_scope().child("states");
        let stack = reshape_rows(e, &scope, states, &[altup.streams, arch.hidden])?;
        Ok(Self { arch, altup, norms, stack })
    }

    /// Returns the streams concatenated, `[batch, sequence, streams · hidden]`.
    pub(crate) fn flat(&self, e: &mut Emitter<'_>) -> Result<Tensor> {
        let width = self.altup.streams * self.arch.hidden;
        reshape_rows(e, &altup_scope().child("flat"), self.stack, &[width])
    }

    /// Adds one layer. `attend` adds its attention over the normed stream.
    ///
    /// ```text
    /// streams ── predict ─┬─────────────────────── correct ── streams
    ///                     └─ active ── compute ────┘
    /// ```
    pub(crate) fn layer(
        &mut self,
        e: &mut Emitter<'_>,
        index: usize,
        layer: &DecoderLayer,
        attend: impl FnOnce(&mut Emitter<'_>, Tensor) -> Result<Tensor>,
    ) -> Result<()> {
        let scope = layer_scope(index);
        let router = self.router(e, &scope)?;
        let predicted = self.predict(e, &scope, router)?;
        let active = self.active(e, &scope.child("altup").child("predict"), predicted)?;
        let computed = self.compute(e, &scope, layer, active, attend)?;
        self.stack = self.correct(e, &scope, router, predicted, [active, computed])?;
        Ok(())
    }

    /// Returns the stream that layers compute, `[batch, sequence, hidden]`.
    fn active(&self, e: &mut Emitter<'_>, scope: &Scope, stack: Tensor) -> Result<Tensor> {
        let active = self.altup.active;
        let scope = scope.child("active");
        let one = e.graph.slice(&scope, stack, 2, active, active + 1)?;
        reshape_rows(e, &scope, one, &[self.arch.hidden])
    }

    /// Returns a small weight `[rows, cols]`, transposed.
    fn transposed(e: &mut Emitter<'_>, scope: &Scope, [rows, cols]: [usize; 2]) -> Result<Tensor> {
        let name = scope.parameter("weight");
        let all: Vec<usize> = (0..cols).collect();
        e.tensor(&name, &[cols, rows], |e| e.columns(&name, [rows, cols], &all))
    }

    /// Returns a layer's router: its gain, divided by the width, and its weight.
    fn router(&self, e: &mut Emitter<'_>, layer: &Scope) -> Result<Router> {
        let hidden = self.arch.hidden;
        let scope = layer.child("altup");
        let name = scope.child("router_norm").parameter("weight");
        let gain = e.tensor(&name, &[hidden], |e| {
            let gain = e.values(&name, &[hidden])?;
            Ok(gain.into_iter().map(|gain| gain / hidden as f32).collect())
        })?;
        let weight = Self::transposed(e, &scope.child("router"), [self.altup.streams, hidden])?;
        Ok(Router { gain, weight })
    }

    /// Returns the input of the coefficients: `x ── norm ── router ── Tanh`, `[batch, sequence, streams]`.
    fn routed(&self, e: &mut Emitter<'_>, scope: &Scope, router: Router, x: Tensor) -> Result<Tensor> {
        let g = &mut e.graph;
        let scope = scope.child("router");
        let normed = g.rms_norm(&scope, x, router.gain, self.norms.stream.epsilon)?;
        let routed = g.mat_mul(&scope, normed, router.weight)?;
        Ok(g.tanh(&scope, routed)?)
    }

    /// Returns every stream plus a mix of all streams. The coefficients are computed from the active stream.
    ///
    /// ```text
    /// stack ─┬─ active ── router ── predict ─┬─ MatMul ── Add
    ///        └───────────────────────────────┴────────────┘
    /// ```
    fn predict(&self, e: &mut Emitter<'_>, layer: &Scope, router: Router) -> Result<Tensor> {
        let scope = layer.child("altup").child("predict");
        let count = self.altup.streams;
        let active = self.active(e, &scope.child("before"), self.stack)?;
        let routed = self.routed(e, &scope, router, active)?;
        let weight = Self::transposed(e, &scope, [count * count, count])?;
        let mixing = scope.child("mixing");
        let coefficients = e.graph.mat_mul(&mixing, routed, weight)?;
        let coefficients = reshape_rows(e, &mixing, coefficients, &[count, count])?;
        let mixed = e.graph.mat_mul(&scope, coefficients, self.stack)?;
        Ok(e.graph.add(&scope, mixed, self.stack)?)
    }

    /// ```text
    /// active ─┬─ norm ─┬─ attention ── norm ─┬─ Add ── Mul(1 / √2) ─┬─ norm ── mlp ── norm ─┬─ Add
    ///         │        └─ laurel ────────────┤                      └───────────────────────┘
    ///         └──────────────────────────────┘
    /// ```
    fn compute(
        &self,
        e: &mut Emitter<'_>,
        scope: &Scope,
        layer: &DecoderLayer,
        active: Tensor,
        attend: impl FnOnce(&mut Emitter<'_>, Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let StreamNorms { stream, branch, scale } = self.norms;
        let normed = stream.apply(e, &scope.child("attn_norm"), active)?;
        let laurel = self.laurel(e, &scope.child("laurel"), normed)?;
        let attended = attend(e, normed)?;
        let attended = branch.apply_scaled(e, &scope.child("attn_post_norm"), attended, scale)?;
        let gated = e.graph.add(&scope.child("attn"), active, attended)?;
        let sum = scope.child("laurel").child("sum");
        let both = e.graph.add(&sum, gated, laurel)?;
        let x = e.scale(&sum, both, 0.5f64.sqrt())?;
        let normed = stream.apply(e, &scope.child("mlp_norm"), x)?;
        let mlp_scope = scope.child("mlp");
        let fed = mlp::feed_forward(e, &mlp_scope, normed, stream.width, &layer.feed_forward)?;
        let fed = branch.apply_scaled(e, &scope.child("mlp_post_norm"), fed, scale)?;
        Ok(e.graph.add(&mlp_scope, x, fed)?)
    }

    /// Returns the learned residual, `x + norm(right(left(x)))`, with the scale factor of the stream.
    fn laurel(&self, e: &mut Emitter<'_>, scope: &Scope, x: Tensor) -> Result<Tensor> {
        let narrow = linear(e, &scope.child("left"), x, self.arch.hidden, Bias::Without)?;
        let wide = linear(e, &scope.child("right"), narrow, self.altup.rank, Bias::Without)?;
        let scope = scope.child("norm");
        let normed = self.norms.branch.apply(e, &scope, wide)?;
        let sum = e.graph.add(&scope, x, normed)?;
        e.scale(&scope, sum, f64::from(self.norms.scale))
    }

    /// Adds a fraction of the difference between the computed and the predicted stream to every stream.
    ///
    /// ```text
    /// computed ─┬─ router ── correct ── Add(1) ─┬─ Mul ── Add(predicted)
    ///           └─ Sub(active) ─────────────────┘
    /// ```
    fn correct(
        &self,
        e: &mut Emitter<'_>,
        layer: &Scope,
        router: Router,
        predicted: Tensor,
        [active, computed]: [Tensor; 2],
    ) -> Result<Tensor> {
        let scope = layer.child("altup").child("correct");
        let count = self.altup.streams;
        let routed = self.routed(e, &scope, router, computed)?;
        let weight = Self::transposed(e, &scope, [count, count])?;
        let shares_scope = scope.child("shares");
        let shares = e.graph.mat_mul(&shares_scope, routed, weight)?;
        let one = e.number(1.0);
        let shares = e.graph.add(&shares_scope, shares, one)?;
        let shares = reshape_rows(e, &shares_scope, shares, &[count, 1])?;
        let change = e.graph.sub(&scope, computed, active)?;
        let change = reshape_rows(e, &scope.child("news"), change, &[1, self.arch.hidden])?;
        let shared = e.graph.mul(&scope, change, shares)?;
        Ok(e.graph.add(&scope, predicted, shared)?)
    }

    /// Adds a layer's rows, gated by the computed stream, to every stream except the first.
    ///
    /// ```text
    /// streams ─┬─ Split ─┬─ first ────────────────────┬─ Concat
    ///          │         └─ each of the others ── Add ┘
    ///          └─ active ── Mul(scale) ── gated ┘
    /// ```
    pub(crate) fn add_rows(
        &mut self,
        e: &mut Emitter<'_>,
        index: usize,
        layer: &DecoderLayer,
        rows: Tensor,
    ) -> Result<()> {
        let hidden = self.arch.hidden;
        let layer_scope = layer_scope(index);
        let scope = layer_scope.child("per_layer");

        let mut x = self.active(e, &scope, self.stack)?;
        if self.altup.scaled {
            let gain = e.vector(&layer_scope.child("altup").child("scale").parameter("weight"), hidden)?;
            x = e.graph.mul(&scope.child("scale"), x, gain)?;
        }

        let added = PerLayerGate::of(self.arch, layer, &scope, self.norms).apply(e, x, rows)?;
        let added = reshape_rows(e, &scope.child("norm"), added, &[1, hidden])?;
        // Intel's compiler fails on one sum of several streams and a row between this split and the concatenation.
        let sizes = vec![1; self.altup.streams];
        let mut streams = e.graph.split(&scope.child("streams"), self.stack, 2, &sizes)?;
        for (other, stream) in streams.iter_mut().enumerate().skip(1) {
            *stream = e.graph.add(&scope.child(other), *stream, added)?;
        }
        self.stack = e.graph.concat(&scope, &streams, 2)?;
        Ok(())
    }

    /// Returns all streams merged, `[batch, sequence, hidden]`, up to a factor that the last norm removes: the sum of
    /// the first stream and projections of the others that are scaled to its magnitude.
    ///
    /// ```text
    /// first ─────────────── unit norm ─┬─ Add
    /// others ── unembed ── unit norm ──┘
    /// ```
    pub(crate) fn merged(&self, e: &mut Emitter<'_>) -> Result<Tensor> {
        let hidden = self.arch.hidden;
        let count = self.altup.streams;
        let scale = self.norms.scale;
        let flat = self.flat(e)?;
        let merge = altup_scope().child("merge");
        let streams = e.graph.split(&merge, flat, 2, &vec![hidden; count])?;
        let [first, others @ ..] = &streams[..] else { return Ok(flat) };
        let mut sum = unit_norm(e, &merge.child(0), *first, hidden, self.norms.stream.epsilon)?;
        for (other, &stream) in others.iter().enumerate() {
            let projection = altup_scope().child(format_args!("unembed.{other}"));
            let projected = linear(e, &projection, stream, hidden, Bias::Without)?;
            let scope = merge.child(other + 1);
            let unit = unit_norm(e, &scope, projected, hidden, MIN_MEAN_SQUARE * scale * scale)?;
            sum = e.graph.add(&scope, sum, unit)?;
        }
        Ok(sum)
    }
}
