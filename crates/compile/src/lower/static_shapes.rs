//! The static variant: fixed shapes and plain operators in half precision, for NPUs.
//!
//! For each context, a decoder becomes a graph for one new token and a graph for each prefill length; all of them share
//! a graph for the head. The host supplies embeddings, rotary angles and masks. The graphs output only the new keys and
//! values. All graphs read the weights that the dynamic variant wrote. Encoders are in `static_encoder`, and models
//! that transcribe speech in `static_speech`.

use std::collections::BTreeMap;

use narthex_graph::typed::{KeyValue, Scope, Tensor};
use narthex_spec::{
    DType, HeadOrder, Scheme, Variant,
    arch::{Architecture, Attention, DecoderArch, DecoderLayer, Recurrence, Rotation},
    dtype::Dim,
    manifest::{GraphEntry, KvLayout, LayerRange, Part, Slot},
    recipe::{FixedShapes, StepShape},
};

use super::{
    LoweredModel,
    decoder::{ConvolutionInputs, DecoderLayers, MixerLowering, stream_norms},
    embedder,
    io::{GraphIo, f16, static_layout},
    parts, static_encoder, static_speech,
};
use crate::{
    emit::Emitter,
    error::{CompileError, Result},
    layer::{
        attention::AttentionLayer,
        embed,
        head::head as lm_head,
        layer_scope,
        norm::{Norm, ResidualForm},
        rope::{self, Angles},
        scaled_dot_product_attention::{StaticCache, StaticStep, scaled_dot_product_attention},
    },
    rotary,
};

/// Lowers the graphs for the given shapes. The dynamic variant must have been lowered with the same emitter.
pub(crate) fn lower(
    e: &mut Emitter<'_>,
    architecture: &Architecture,
    shapes: &FixedShapes,
) -> Result<LoweredModel> {
    if e.recipe.scheme == Scheme::F32 {
        return Err(CompileError::Unsupported {
            what: "scheme f32".to_owned(),
            reason: "NPUs compute in half precision; compile with --scheme w8, w4, f16, w8a16, w8a8 or w4a16"
                .to_owned(),
        });
    }
    if let Some(part) = architecture.dynamic_only() {
        return Err(CompileError::DynamicOnly(part));
    }
    e.compute = DType::F16;
    match architecture {
        Architecture::Decoder(arch) => decoder(e, arch, shapes),
        Architecture::Encoder(arch) => static_encoder::graphs(e, arch, shapes),
        Architecture::Embedder(arch) => embedder::fixed(e, arch, shapes),
        Architecture::Speech(arch) => static_speech::graphs(e, arch, shapes),
    }
}

fn decoder(e: &mut Emitter<'_>, arch: &DecoderArch, shapes: &FixedShapes) -> Result<LoweredModel> {
    let mut graphs = Vec::new();
    let parts = parts::parts(arch, e.plan, e.recipe);
    for StepShape { tokens, past } in shapes.steps() {
        for &range in &parts {
            let entry = LayersGraph { arch, tokens, past, range }.lower(e)?;
            graphs.push((e.finish_graph()?, entry));
        }
    }
    let entry = head(e, arch)?;
    graphs.push((e.finish_graph()?, entry));
    // The dynamic variant wrote the angles of every position. It lists the tables itself if the host supplies the angles to it
    // too.
    let tables = if arch.switch().is_none() { rope::host_tables(e, arch) } else { Vec::new() };
    Ok(LoweredModel { graphs, tables, towers: Vec::new() })
}

/// Slots for cosines and sines, and the prefix of their names in the graph.
const ANGLES: [(Rotation, [Slot; 2], &str); 2] = [
    (Rotation::Global, [Slot::Cos, Slot::Sin], ""),
    (Rotation::Local, [Slot::LocalCos, Slot::LocalSin], "local."),
];

/// Graph of a range of layers for a fixed number of new tokens and a fixed past.
struct LayersGraph<'a> {
    arch: &'a DecoderArch,
    tokens: usize,
    past: usize,
    /// Range of layers; `None` for all layers.
    range: Option<LayerRange>,
}

impl LayersGraph<'_> {
    /// ```text
    /// first part:  embeds ── Mul(scale) ── layers ── hidden
    /// others:      states ── layers ── hidden
    /// ```
    fn lower(&self, e: &mut Emitter<'_>) -> Result<GraphEntry> {
        let &Self { arch, tokens, past, range } = self;
        let LayerRange { first, end } = range.unwrap_or(LayerRange { first: 0, end: arch.layers.len() });
        let part = range.map_or(String::new(), |_| format!(".{first}-{}", end - 1));
        e.begin_graph(&format!("layers-{tokens}{part}"));
        let mut io = GraphIo::default();
        let states = arch.altup.as_ref().map_or(1, |altup| altup.streams) * arch.hidden;
        let norms = stream_norms(arch);
        let x = if first == 0 {
            let embeds = io.input(e, Slot::Embeds, "embeds", f16([1, tokens, arch.hidden]));
            embed::scaled(e, embeds, arch, norms.scale)?
        } else {
            io.input(e, Slot::Hidden, "states", f16([1, tokens, states]))
        };

        let angles = self.angles(e, &mut io, &arch.layers[first..end])?;
        let mut mixers = StaticMixers {
            arch,
            norm: norms.branch,
            tokens,
            past,
            angles,
            masks: Vec::new(),
            entries: BTreeMap::new(),
            places: None,
        };

        let rows = [1, tokens].map(Dim::from);
        let layers = DecoderLayers { arch, range: first..end, rows, norms, form: ResidualForm::Plain };
        let stream = layers.lower(e, &mut io, &mut mixers, x)?;
        let width = if end == arch.layers.len() { arch.hidden } else { states };
        io.output(e, Slot::Hidden, "hidden", stream.sum(), &f16([1, tokens, width]))?;
        let file = format!("layers-{tokens}x{past}{part}.onnx");
        Ok(io.entry(&file, Variant::Static, Part::Layers { tokens, past, range }))
    }

    /// Declares the angles of the new tokens for the rotations that some layers use.
    fn angles(&self, e: &mut Emitter<'_>, io: &mut GraphIo, layers: &[DecoderLayer]) -> Result<Angles> {
        let mut angles = Angles::default();
        for (rotation, [cos, sin], prefix) in ANGLES {
            let is_used =
                layers.iter().filter_map(DecoderLayer::attention).any(|layer| layer.rotation == rotation);
            let Some(pairs) = rotary::pairs(self.arch, rotation).filter(|_| is_used) else { continue };
            let kind = f16([1, 1, self.tokens, pairs]);
            let cos = io.input(e, cos, &format!("{prefix}cos"), kind.clone());
            let sin = io.input(e, sin, &format!("{prefix}sin"), kind);
            let mut tables = [cos, sin];
            if e.recipe.head_order == HeadOrder::TokensFirst && self.tokens > 1 {
                let rows = [1, self.tokens, 1, pairs].map(|extent| extent as i64);
                for (table, name) in tables.iter_mut().zip(["cos", "sin"]) {
                    let scope = Scope::root().child(format_args!("{prefix}{name}"));
                    *table = e.graph.reshape(&scope, *table, &rows)?;
                }
            }
            angles.insert(rotation, tables);
        }
        Ok(angles)
    }
}

/// Attention with plain operators over a past of fixed width, and rows of short convolutions.
struct StaticMixers<'a> {
    arch: &'a DecoderArch,
    norm: Norm,
    tokens: usize,
    past: usize,
    angles: Angles,
    /// Masks by window.
    masks: Vec<(Option<usize>, Tensor)>,
    /// Keys and values of past and new tokens, by cache entry.
    entries: BTreeMap<usize, KeyValue>,
    /// Inputs of convolutions that several tokens share.
    places: Option<[Tensor; 2]>,
}

impl MixerLowering for StaticMixers<'_> {
    fn attend(
        &mut self,
        e: &mut Emitter<'_>,
        io: &mut GraphIo,
        index: usize,
        spec: &Attention,
        x: Tensor,
    ) -> Result<Tensor> {
        let entry = self.arch.kv_index(index);
        let mask = self.mask(e, io, spec.window);
        let rotary = self.angles.of(spec.rotation);
        let step = StaticStep { tokens: self.tokens, past: self.past, rotary, mask };
        let scope = layer_scope(index).child("attn");
        let layer = AttentionLayer { scope: &scope, spec, norm: self.norm, qkv_bias: spec.qkv_bias.into() };
        let cache = match self.entries.get(&entry) {
            Some(&kv) => StaticCache::Shared(kv),
            None => StaticCache::Own(self.past(e, io, entry, spec)),
        };

        let found = scaled_dot_product_attention(e, &layer, x, &step, &cache)?;
        if let Some(KeyValue { key, value }) = found.new {
            let heads = spec.kv_heads;
            let size = spec.head_size;
            let tokens = self.tokens;
            let keys = f16([1, heads, size, tokens]);
            io.output(e, Slot::NewKey { layer: entry }, &format!("new.{entry}.key"), key, &keys)?;
            let values = f16([1, heads, tokens, size]);
            io.output(e, Slot::NewValue { layer: entry }, &format!("new.{entry}.value"), value, &values)?;
            self.entries.insert(entry, found.joined);
            io.cache_entry(KvLayout { window: spec.window, ..static_layout(heads, size) });
        }
        Ok(found.output)
    }

    /// Padding comes before the new tokens, so the rows of the past are moved to the place before the first token:
    ///
    /// ```text
    /// past ── MatMul(shift) ──────┐
    /// joined ── Mul(in place) ─── Add
    /// ```
    fn convolved_rows(
        &mut self,
        e: &mut Emitter<'_>,
        io: &mut GraphIo,
        scope: &Scope,
        rows: ConvolutionInputs,
    ) -> Result<Tensor> {
        let ConvolutionInputs { count, past, joined } = rows;
        if self.tokens == 1 {
            return Ok(joined);
        }
        let [in_place, shift] = self.places(e, io, count);
        let joined = e.graph.mul(&scope.child("in_place"), joined, in_place)?;
        let moved = e.graph.mat_mul(&scope.child("moved"), shift, past)?;
        Ok(e.graph.add(&scope.child("joined"), joined, moved)?)
    }

    fn recurrence(
        &mut self,
        _: &mut Emitter<'_>,
        _: &mut GraphIo,
        index: usize,
        spec: Recurrence<'_>,
        _: Tensor,
    ) -> Result<Tensor> {
        Err(CompileError::Unsupported {
            what: format!("the {} of layer {index}", spec.title()),
            reason: "graphs with fixed shapes have none".to_owned(),
        })
    }
}

impl StaticMixers<'_> {
    /// Returns the rows of a convolution that are read in place, and the matrix that moves those of the past, for `past`
    /// rows.
    fn places(&mut self, e: &mut Emitter<'_>, io: &mut GraphIo, past: usize) -> [Tensor; 2] {
        let tokens = self.tokens;
        *self.places.get_or_insert_with(|| {
            let rows = f16([1, past + tokens, 1]);
            let shift = f16([1, past + tokens, past]);
            [
                io.input(e, Slot::ConvolutionRows, "conv.rows", rows),
                io.input(e, Slot::ConvolutionShift, "conv.shift", shift),
            ]
        })
    }

    /// Returns the mask for layers with this window. Each window has its own input.
    fn mask(&mut self, e: &mut Emitter<'_>, io: &mut GraphIo, window: Option<usize>) -> Tensor {
        if let Some((_, mask)) = self.masks.iter().find(|(other, _)| *other == window) {
            return *mask;
        }
        let name = window.map_or("mask".to_owned(), |window| format!("mask.{window}"));
        let kind = f16([1, 1, self.tokens, self.past + self.tokens]);
        let mask = io.input(e, Slot::Mask { window }, &name, kind);
        self.masks.push((window, mask));
        mask
    }

    /// Declares the past keys and values of a cache entry.
    fn past(&self, e: &mut Emitter<'_>, io: &mut GraphIo, entry: usize, spec: &Attention) -> KeyValue {
        let heads = spec.kv_heads;
        let size = spec.head_size;
        let past = self.past;
        let key = f16([1, heads, size, past]);
        let key = io.input(e, Slot::PastKey { layer: entry }, &format!("past.{entry}.key"), key);
        let value = f16([1, heads, past, size]);
        let value = io.input(e, Slot::PastValue { layer: entry }, &format!("past.{entry}.value"), value);
        KeyValue { key, value }
    }
}

/// Lowers the last norm and the head, for one row.
fn head(e: &mut Emitter<'_>, arch: &DecoderArch) -> Result<GraphEntry> {
    let (mut io, hidden) = GraphIo::head(e, arch.hidden);
    let normed = stream_norms(arch).stream.apply(e, &Scope::root().child("norm"), hidden)?;
    let logits = lm_head(e, normed, arch)?;
    io.output(e, Slot::Logits, "logits", logits, &f16([1, 1, arch.head_rows()]))?;
    Ok(io.entry("head.onnx", Variant::Static, Part::Head { rows: 1 }))
}
