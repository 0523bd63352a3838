//! The layers of a decoder, for both variants. A variant supplies its mixers and the form of residual additions.

use std::ops::Range;

use narthex_graph::typed::{Scope, Tensor, TensorType};
use narthex_spec::{
    arch::{AltUp, Attention, DecoderArch, Mixer, NormKind, Recurrence, Residual},
    dtype::Dim,
    manifest::{KvLayout, Slot},
};

use super::io::GraphIo;
use crate::{
    emit::Emitter,
    error::Result,
    layer::{
        altup::Streams,
        layer_scope, mlp,
        norm::{Norm, ResidualForm, ResidualStream, StreamNorms},
        per_layer::{self, PerLayerGate, PerLayerRows},
        short_convolution::{ConvolutionLayer, GatedRows},
    },
};

/// Lowers what differs between the mixers of the variants.
pub(super) trait MixerLowering {
    /// Returns the branch that the attention of layer `index` adds to the residual stream. `x` is the normed stream.
    fn attend(
        &mut self,
        e: &mut Emitter<'_>,
        io: &mut GraphIo,
        index: usize,
        spec: &Attention,
        x: Tensor,
    ) -> Result<Tensor>;

    /// Returns the rows that a short convolution reads, `[batch, kernel - 1 + sequence, width]`.
    fn convolved_rows(
        &mut self,
        e: &mut Emitter<'_>,
        io: &mut GraphIo,
        scope: &Scope,
        rows: ConvolutionInputs,
    ) -> Result<Tensor>;

    /// Returns the branch that the recurrence of layer `index` adds to the residual stream. `x` is the normed stream.
    fn recurrence(
        &mut self,
        e: &mut Emitter<'_>,
        io: &mut GraphIo,
        index: usize,
        spec: Recurrence<'_>,
        x: Tensor,
    ) -> Result<Tensor>;
}

/// Rows of a short convolution.
#[derive(Clone, Copy)]
pub(super) struct ConvolutionInputs {
    /// Number of rows of the past.
    pub(super) count: usize,
    /// Rows of the past, `[batch, count, width]`.
    pub(super) past: Tensor,
    /// Rows of the past, and those of the new tokens after them.
    pub(super) joined: Tensor,
}

/// A range of a decoder's layers.
pub(super) struct DecoderLayers<'a> {
    pub(super) arch: &'a DecoderArch,
    /// Indices of the layers.
    pub(super) range: Range<usize>,
    /// Batch and sequence dimensions.
    pub(super) rows: [Dim; 2],
    /// Norms around the residual stream.
    pub(super) norms: StreamNorms,
    /// Operators of residual additions.
    pub(super) form: ResidualForm,
}

impl DecoderLayers<'_> {
    /// Lowers the layers over embedded tokens, or over the states from earlier layers. The returned stream has the
    /// states for later layers unless the range ends with the last layer.
    pub(super) fn lower(
        &self,
        e: &mut Emitter<'_>,
        io: &mut GraphIo,
        mixers: &mut impl MixerLowering,
        x: Tensor,
    ) -> Result<ResidualStream> {
        if let Some(altup) = &self.arch.altup {
            return self.lower_altup(e, io, mixers, altup, x);
        }
        let rows = self.per_layer_rows(e, io, x)?;
        let mut stream = ResidualStream::new(x, self.norms, self.form);
        for index in self.range.clone() {
            self.layer(e, io, mixers, &mut stream, index)?;
            self.end_layer(e, &mut stream, rows.as_ref(), index)?;
        }
        Ok(stream)
    }

    /// Lowers one layer over the residual stream.
    ///
    /// ```text
    /// sequential:  norm ── mixer ── + ── norm ── mlp ── +
    /// sandwich:    norm ── mixer ── norm ── + ── norm ── mlp ── norm ── +
    /// parallel:    norm ─┬─ mixer ── + ─┐
    ///                    └─ mlp ────────┴─ +
    /// unnormed:    mixer ── + ── norm ── mlp ── +
    /// post:        mixer ── norm ── + ── mlp ── norm ── +
    /// ```
    fn layer(
        &self,
        e: &mut Emitter<'_>,
        io: &mut GraphIo,
        mixers: &mut impl MixerLowering,
        stream: &mut ResidualStream,
        index: usize,
    ) -> Result<()> {
        let layer = &self.arch.layers[index];
        let scope = layer_scope(index);
        let StreamNorms { branch, scale, .. } = self.norms;
        let normed = match layer.residual {
            Residual::Unnormed | Residual::Post => stream.rows(e, &scope)?,
            Residual::Sequential | Residual::Sandwich | Residual::Parallel => {
                stream.normed(e, &scope.child("attn_norm"))?
            }
        };
        let has_post_norms = matches!(layer.residual, Residual::Sandwich | Residual::Post);
        let mut attended = self.mix(e, io, mixers, index, normed)?;
        if has_post_norms {
            attended = branch.apply_scaled(e, &scope.child("attn_post_norm"), attended, scale)?;
        }
        stream.add(e, &scope.child("attn"), attended)?;
        let mlp_input = match layer.residual {
            Residual::Parallel => normed,
            Residual::Post => stream.rows(e, &scope.child("mlp_input"))?,
            Residual::Sequential | Residual::Sandwich | Residual::Unnormed => {
                stream.normed(e, &scope.child("mlp_norm"))?
            }
        };

        let mut fed =
            mlp::feed_forward(e, &scope.child("mlp"), mlp_input, self.arch.hidden, &layer.feed_forward)?;
        if has_post_norms {
            fed = branch.apply_scaled(e, &scope.child("mlp_post_norm"), fed, scale)?;
        }
        stream.add(e, &scope.child("mlp"), fed)
    }

    /// Adds the parts after the feed-forward network that some families have.
    ///
    /// ```text
    /// stream ─┬───────────── + ──[ Mul(scalar) ]
    ///         └─[ gated rows ]
    /// ```
    fn end_layer(
        &self,
        e: &mut Emitter<'_>,
        stream: &mut ResidualStream,
        rows: Option<&PerLayerRows>,
        index: usize,
    ) -> Result<()> {
        let layer = &self.arch.layers[index];
        if let Some(rows) = rows.and_then(|rows| rows.of(index)) {
            let scope = layer_scope(index).child("per_layer");
            let x = stream.rows(e, &scope)?;
            let added = PerLayerGate::of(self.arch, layer, &scope, self.norms).apply(e, x, rows)?;
            stream.add(e, &scope.child("sum"), added)?;
        }
        if self.arch.layer_scalars {
            stream.multiply(e, &layer_scope(index).child("scalar"))?;
        }
        Ok(())
    }

    /// Returns the branch that a layer's mixer adds to the residual stream. `x` is the normed stream.
    ///
    /// For a short convolution, the host supplies the rows of the last tokens, and stores those of the new ones in a
    /// cache entry.
    fn mix(
        &self,
        e: &mut Emitter<'_>,
        io: &mut GraphIo,
        mixers: &mut impl MixerLowering,
        index: usize,
        x: Tensor,
    ) -> Result<Tensor> {
        let spec = match &self.arch.layers[index].mixer {
            Mixer::Attention(attention) => return mixers.attend(e, io, index, attention, x),
            Mixer::Convolution(spec) => spec,
            Mixer::DeltaRule(rule) => return mixers.recurrence(e, io, index, Recurrence::DeltaRule(rule), x),
            Mixer::Mamba2(mamba) => return mixers.recurrence(e, io, index, Recurrence::Mamba2(mamba), x),
        };
        let scope = layer_scope(index).child("conv");
        let width = self.arch.hidden;
        let convolution = ConvolutionLayer { scope: &scope, spec, width };
        let entry = self.arch.kv_index(index);
        let [batch, sequence] = self.rows.clone();
        let count = spec.kernel - 1;
        let past = TensorType::new(e.compute, &[batch.clone(), count.into(), width.into()]);
        let past = io.input(e, Slot::PastConvolution { layer: entry }, &format!("past.{entry}.conv"), past);

        let GatedRows { rows, gate } = convolution.rows(e, x)?;
        let new = TensorType::new(e.compute, &[batch, sequence, width.into()]);
        io.output(e, Slot::NewConvolution { layer: entry }, &format!("new.{entry}.conv"), rows, &new)?;
        io.cache_entry(KvLayout::convolution(width, spec.kernel, e.compute));

        let joined = e.graph.concat(&scope.child("joined"), &[past, rows], 1)?;
        let rows = mixers.convolved_rows(e, io, &scope, ConvolutionInputs { count, past, joined })?;
        convolution.output(e, rows, gate)
    }

    /// Lowers the layers of a model with several residual streams.
    fn lower_altup(
        &self,
        e: &mut Emitter<'_>,
        io: &mut GraphIo,
        mixers: &mut impl MixerLowering,
        altup: &AltUp,
        x: Tensor,
    ) -> Result<ResidualStream> {
        let mut streams = match self.range.start {
            0 => Streams::begin(e, self.arch, altup, self.norms, x)?,
            _ => Streams::resume(e, self.arch, altup, self.norms, x)?,
        };
        let rows = self.per_layer_rows(e, io, x)?;
        for index in self.range.clone() {
            let layer = &self.arch.layers[index];
            streams.layer(e, index, layer, |e, x| self.mix(e, io, mixers, index, x))?;
            if let Some(rows) = rows.as_ref().and_then(|rows| rows.of(index)) {
                streams.add_rows(e, index, layer, rows)?;
            }
        }
        let is_last = self.range.end == self.arch.layers.len();
        let states = if is_last { streams.merged(e)? } else { streams.flat(e)? };
        Ok(ResidualStream::new(states, self.norms, self.form))
    }

    /// Returns the per-layer rows of the layers; `None` without per-layer embeddings. The graph of the first layers computes
    /// those of all layers from embedded tokens `x`; graphs of later layers read them as an input.
    fn per_layer_rows(
        &self,
        e: &mut Emitter<'_>,
        io: &mut GraphIo,
        x: Tensor,
    ) -> Result<Option<PerLayerRows>> {
        let Some(per_layer) = &self.arch.per_layer else { return Ok(None) };
        let layers = self.arch.layers.len();
        let [batch, sequence] = self.rows.clone();
        let kind = TensorType::new(e.compute, &[batch, sequence, (layers * per_layer.width).into()]);
        let rows = if self.range.start > 0 {
            io.input(e, Slot::PerLayerRows, "per_layer.rows", kind)
        } else {
            let table = io.input(e, Slot::PerLayerEmbeds, "per_layer", kind.clone());
            let rows = per_layer::project(e, per_layer, layers, self.norms, [x, table])?;
            if self.range.end < layers {
                io.output(e, Slot::PerLayerRows, "per_layer.rows", rows, &kind)?;
            }
            rows
        };
        PerLayerRows::of_layers(e, per_layer, layers, self.range.clone(), rows).map(Some)
    }
}

/// Scale of a residual stream that would overflow in half precision: with it, values may reach 4 million.
const STREAM_SCALE: f32 = 1.0 / 64.0;

/// Returns the norms around the residual stream.
///
/// If every branch is normed before it is added to the stream, as in Gemma, nothing bounds the stream: that of Gemma 3
/// exceeds the range of half precision within a few layers. Such a stream is scaled down.
pub(super) fn stream_norms(arch: &DecoderArch) -> StreamNorms {
    let sandwiched = arch.layers.iter().all(|layer| layer.residual == Residual::Sandwich);
    let scale = if sandwiched && arch.norm == NormKind::Rms { STREAM_SCALE } else { 1.0 };
    StreamNorms::new(Norm::of(arch), scale)
}
