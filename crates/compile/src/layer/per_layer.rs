//! Per-layer embeddings, as in Gemma 3n and Gemma 4: each token has a row for each layer, which the layer gates and adds to
//! the residual stream. Follows `Gemma3nTextModel` and `Gemma4TextModel` of `transformers`.
//!
//! The nodes keep the batch and sequence dimensions unchanged, so both variants use this module.

use std::ops::Range;

use narthex_graph::typed::{Scope, Tensor};
use narthex_spec::arch::{Activation, DecoderArch, DecoderLayer, PerLayer};

use super::{
    linear::{Bias, linear},
    mlp,
    norm::StreamNorms,
    reshape_rows,
};
use crate::{emit::Emitter, error::Result};

/// Per-layer embeddings of the tokens of a graph.
pub(crate) struct PerLayerRows {
    /// Index of the first layer in `rows`.
    first: usize,
    /// `[batch, sequence, width]` for each layer.
    rows: Vec<Tensor>,
}

fn per_layer_scope() -> Scope {
    Scope::root().child("per_layer")
}

/// Returns the rows that layers gate, `[batch, sequence, layers · width]`, from the embedded tokens and their rows of
/// the per-layer table.
///
/// The norm's epsilon includes the factor `1 / √hidden` of the projection. The rows have the scale factor of the stream, so
/// that the gated values have it too.
///
/// ```text
/// x ── proj ── norm(each layer's part, gain / √2) ── Add
/// table rows ── Mul(√width / √2) ─────────────────────┘
/// ```
pub(crate) fn project(
    e: &mut Emitter<'_>,
    per_layer: &PerLayer,
    layers: usize,
    norms: StreamNorms,
    [x, table_rows]: [Tensor; 2],
) -> Result<Tensor> {
    let width = per_layer.width;
    let hidden = norms.stream.width;
    let half = 0.5f64.sqrt() * f64::from(norms.scale);
    let scope = per_layer_scope();
    let projected = linear(e, &scope.child("proj"), x, hidden, Bias::Without)?;
    let norm_scope = scope.child("norm");
    let projected = reshape_rows(e, &norm_scope.child("layers"), projected, &[layers, width])?;

    let mut norm = norms.stream;
    (norm.width, norm.epsilon) = (width, norm.epsilon * hidden as f32);
    let projected = norm.apply_scaled(e, &norm_scope, projected, half as f32)?;
    let projected = reshape_rows(e, &norm_scope.child("rows"), projected, &[layers * width])?;
    let rows = e.scale(&scope.child("rows"), table_rows, (width as f64).sqrt() * half)?;
    Ok(e.graph.add(&scope, projected, rows)?)
}

impl PerLayerRows {
    /// Selects the rows of a range of layers from those of all `layers`, the output of [`project`].
    pub(crate) fn of_layers(
        e: &mut Emitter<'_>,
        per_layer: &PerLayer,
        layers: usize,
        range: Range<usize>,
        rows: Tensor,
    ) -> Result<Self> {
        let width = per_layer.width;
        let count = range.len();
        let scope = per_layer_scope();
        let own = if count == layers {
            rows
        } else {
            e.graph.slice(&scope, rows, 2, range.start * width, range.end * width)?
        };
        let rows = e.graph.split(&scope, own, 2, &vec![width; count])?;
        Ok(Self { first: range.start, rows })
    }

    /// Returns the rows of a layer; `None` if it is not in the range.
    pub(crate) fn of(&self, layer: usize) -> Option<Tensor> {
        self.rows.get(layer.checked_sub(self.first)?).copied()
    }
}

/// A layer that gates its rows.
#[derive(Clone, Copy)]
pub(crate) struct PerLayerGate<'a> {
    /// Path of its nodes.
    pub(crate) scope: &'a Scope,
    /// Norms around the residual stream.
    pub(crate) norms: StreamNorms,
    /// Activation function of the gate.
    pub(crate) activation: Activation,
    /// Elements of a row.
    pub(crate) width: usize,
}

impl<'a> PerLayerGate<'a> {
    /// Returns the gate of a layer of `arch`.
    pub(crate) fn of(arch: &DecoderArch, layer: &DecoderLayer, scope: &'a Scope, norms: StreamNorms) -> Self {
        let width = arch.per_layer.as_ref().map_or(0, |per_layer| per_layer.width);
        Self { scope, norms, activation: layer.feed_forward.activation(), width }
    }

    /// Returns the layer's rows, gated by the stream `x`, as a branch of the stream.
    ///
    /// ```text
    /// x ── gate ── act ── Mul(rows) ── proj ── norm
    /// ```
    pub(crate) fn apply(self, e: &mut Emitter<'_>, x: Tensor, rows: Tensor) -> Result<Tensor> {
        let Self { scope, norms: StreamNorms { stream, scale, .. }, activation, width } = self;
        let gate_scope = scope.child("gate");
        let gate = linear(e, &gate_scope, x, stream.width, Bias::Without)?;
        let gate = e.scale(&gate_scope, gate, f64::from(scale).recip())?;
        let gate = mlp::activation(e, &scope.child("act"), gate, activation)?;
        let gated = e.graph.mul(&scope.child("rows"), gate, rows)?;
        let wide = linear(e, &scope.child("proj"), gated, width, Bias::Without)?;
        stream.apply_scaled(e, &scope.child("norm"), wide, scale)
    }
}
