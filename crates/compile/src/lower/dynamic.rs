//! The dynamic variant: one graph with symbolic shapes, for the CPU, WebGPU, CUDA and DirectML.
//!
//! Attention with RoPE is one operator over a cache that is updated in place. The head computes only the requested
//! rows.

use std::collections::BTreeMap;

use narthex_graph::typed::{KeyValue, Reduction, Scope, Tensor, TensorType};
use narthex_spec::{
    DType, Variant,
    arch::{Attention, DecoderArch, EncoderArch, EncoderHead, KvSource, Pooling, Recurrence, Rotation},
    dtype::Dim,
    manifest::{GraphEntry, HostTable, KvLayout, Part, RecurrentStateShape, Slot},
};

use super::{
    LoweredModel,
    decoder::{ConvolutionInputs, DecoderLayers, MixerLowering},
    encoder::{self, EncoderInput, EncoderLayers},
    io::GraphIo,
};
use crate::{
    emit::Emitter,
    error::Result,
    layer::{
        attention::AttentionLayer,
        delta_rule::DeltaRuleLayer,
        embed,
        encoder_attention::{EncoderRotary, padding_scores},
        encoder_head::{self, VectorLength},
        group_query_attention::{CacheInputs, group_query_attention},
        head::head_with_table,
        layer_scope,
        mamba::MambaLayer,
        norm::{Norm, ResidualForm, ResidualStream, StreamNorms},
        recurrence::{RecurrentState, TokenPlaces},
        rope,
    },
    package::GRAPH_FILE,
    rotary,
};

/// Returns a single-precision type.
pub(super) fn f32(shape: &[Dim]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// Lowers a decoder.
///
/// ```text
/// embeds ── Mul(scale) ── norm ── layers ── Gather(logits_rows) ── norm ── head ── logits
/// ```
pub(crate) fn decoder(e: &mut Emitter<'_>, arch: &DecoderArch) -> Result<LoweredModel> {
    e.compute = DType::F32;
    let mut io = GraphIo::default();
    let rows: [Dim; 2] = ["batch".into(), "sequence".into()];
    let [batch, sequence] = rows.clone();
    let embeds = io.input(e, Slot::Embeds, "embeds", f32(&[batch.clone(), sequence, arch.hidden.into()]));
    let seqlens_k = io.input(e, Slot::SeqlensK, "seqlens_k", TensorType::new(DType::I32, &[batch]));
    let total_length = io.input(e, Slot::TotalLength, "total_length", TensorType::new(DType::I32, &[]));
    let logits_rows =
        io.input(e, Slot::LogitsRows, "logits_rows", TensorType::new(DType::I64, &["rows".into()]));

    let mut angles = rope::Angles::write(e, arch)?;
    if let (Some(_), Some(pairs)) = (arch.switch(), rotary::pairs(arch, Rotation::Global)) {
        // The length of the sequence selects one of two sets, so the host supplies the angles.
        let kind = f32(&["positions".into(), pairs.into()]);
        let cos = io.input(e, Slot::CosTable, "cos", kind.clone());
        let sin = io.input(e, Slot::SinTable, "sin", kind);
        angles.insert(Rotation::Global, [cos, sin]);
    }

    let x = embed::scaled(e, embeds, arch, 1.0)?;
    let norms = StreamNorms::new(Norm::of(arch), 1.0);
    let layers = DecoderLayers { arch, range: 0..arch.layers.len(), rows, norms, form: ResidualForm::Fused };
    let entries = BTreeMap::new();
    let mut mixers = CachedMixers { arch, seqlens_k, total_length, angles, entries, places: None };
    let stream = layers.lower(e, &mut io, &mut mixers, x)?;
    let mut tables = vec![logits(e, &mut io, arch, &stream, logits_rows)?];
    if let Some(per_layer) = &arch.per_layer {
        tables.push(embed::per_layer_table(arch.layers.len(), per_layer).write_planned(e)?);
    }
    if arch.learned_positions() {
        tables.push(embed::position_table(arch).write(e, DType::F32)?);
    }
    if arch.switch().is_some() {
        tables.extend(rope::host_tables(e, arch));
    }
    close(e, io.entry(GRAPH_FILE, Variant::Dynamic, Part::Whole), tables)
}

/// Attention with a cache that is updated in place.
struct CachedMixers<'a> {
    arch: &'a DecoderArch,
    seqlens_k: Tensor,
    total_length: Tensor,
    angles: rope::Angles,
    /// Keys and values by cache entry.
    entries: BTreeMap<usize, CacheEntry>,
    /// Places of the tokens, if a recurrence has read them.
    places: Option<TokenPlaces>,
}

/// An entry of the KV cache.
struct CacheEntry {
    past: KeyValue,
    /// New tokens' keys and values, for layers that share the entry.
    new: Option<KeyValue>,
}

impl MixerLowering for CachedMixers<'_> {
    fn attend(
        &mut self,
        e: &mut Emitter<'_>,
        io: &mut GraphIo,
        index: usize,
        spec: &Attention,
        x: Tensor,
    ) -> Result<Tensor> {
        let entry = self.arch.kv_index(index);
        let kind = f32(&["batch".into(), spec.kv_heads.into(), "capacity".into(), spec.head_size.into()]);
        let known = self.entries.get(&entry);
        let past = match known {
            Some(known) => known.past,
            None => {
                let key = Slot::PastKey { layer: entry };
                let value = Slot::PastValue { layer: entry };
                KeyValue {
                    key: io.input(e, key, &format!("past.{entry}.key"), kind.clone()),
                    value: io.input(e, value, &format!("past.{entry}.value"), kind.clone()),
                }
            }
        };

        let cache = CacheInputs {
            seqlens_k: self.seqlens_k,
            total_length: self.total_length,
            rotary: self.angles.of(spec.rotation),
            past,
            shared: known.and_then(|known| known.new),
        };

        let scope = layer_scope(index).child("attn");
        let norm = Norm::of(self.arch);
        let layer = AttentionLayer { scope: &scope, spec, norm, qkv_bias: spec.qkv_bias.into() };
        let attended = group_query_attention(e, &layer, x, &cache)?;
        let shared = if spec.kv == KvSource::Own { String::new() } else { format!(".by.{index}") };
        let KeyValue { key, value } = attended.present;
        let outputs = [
            (Slot::PresentKey { layer: entry }, "key", key),
            (Slot::PresentValue { layer: entry }, "value", value),
        ];
        for (slot, part, tensor) in outputs {
            io.output(e, slot, &format!("present.{entry}.{part}{shared}"), tensor, &kind)?;
        }

        if known.is_none() {
            self.entries.insert(entry, CacheEntry { past, new: attended.key_value });
            let layout = KvLayout::plain(spec.kv_heads, spec.head_size);
            io.cache_entry(KvLayout { window: spec.window, ..layout });
        }
        Ok(attended.output)
    }

    fn convolved_rows(
        &mut self,
        _: &mut Emitter<'_>,
        _: &mut GraphIo,
        _: &Scope,
        rows: ConvolutionInputs,
    ) -> Result<Tensor> {
        Ok(rows.joined)
    }

    fn recurrence(
        &mut self,
        e: &mut Emitter<'_>,
        io: &mut GraphIo,
        index: usize,
        spec: Recurrence<'_>,
        x: Tensor,
    ) -> Result<Tensor> {
        let layer = self.arch.kv_index(index);
        let RecurrentStateShape { recurrent, convolution } = RecurrentStateShape::of(spec);
        let kind = |extents: &[usize]| {
            let extents = extents.iter().map(|&extent| extent.into());
            f32(&[Dim::from("batch")].into_iter().chain(extents).collect::<Vec<_>>())
        };
        let kinds = [kind(&recurrent), kind(&convolution)];
        let [state, rows] = kinds.clone();
        let past = RecurrentState {
            recurrent: io.input(e, Slot::PastState { layer }, &format!("past.{layer}.state"), state),
            convolution: io.input(
                e,
                Slot::PastConvolutionState { layer },
                &format!("past.{layer}.conv"),
                rows,
            ),
        };

        let places = self.token_places(e, io, convolution[0])?;
        let norm = Norm::of(self.arch);
        let (output, present) = match spec {
            Recurrence::DeltaRule(spec) => {
                let scope = layer_scope(index).child("delta");
                DeltaRuleLayer { scope: &scope, spec, norm }.apply(e, x, places, past)?
            }
            Recurrence::Mamba2(spec) => {
                let scope = layer_scope(index).child("mamba");
                MambaLayer { scope: &scope, spec, norm }.apply(e, x, places, past)?
            }
        };
        let [state, rows] = kinds;
        let outputs = [
            (Slot::PresentState { layer }, "state", present.recurrent, state),
            (Slot::PresentConvolutionState { layer }, "conv", present.convolution, rows),
        ];
        for (slot, part, tensor, kind) in outputs {
            io.output(e, slot, &format!("present.{layer}.{part}"), tensor, &kind)?;
        }
        io.cache_entry(KvLayout::recurrence(spec));
        Ok(output)
    }
}

impl CachedMixers<'_> {
    /// Returns the places of the tokens, from an input that all recurrences share.
    ///
    /// ```text
    /// token_mask ─┬─ Unsqueeze ── mask
    ///             └─ ReduceSum ── Cast ── Unsqueeze ── Add(0, 1, …, rows - 1) ── last
    /// ```
    fn token_places(&mut self, e: &mut Emitter<'_>, io: &mut GraphIo, rows: usize) -> Result<TokenPlaces> {
        if let Some(places) = self.places {
            return Ok(places);
        }
        let scope = Scope::root().child("token_mask");
        let kind = f32(&["batch".into(), "sequence".into()]);
        let tokens = io.input(e, Slot::TokenMask, "token_mask", kind);
        let mask = e.graph.unsqueeze(&scope.child("heads"), tokens, &[2])?;

        let count = e.graph.reduce_away(&scope.child("count"), Reduction::Sum, tokens, 1)?;
        let count = e.graph.cast(&scope.child("count"), count, DType::I64)?;
        let count = e.graph.unsqueeze(&scope.child("count"), count, &[1, 2])?;
        let steps: Vec<i64> = (0..rows as i64).collect();
        let steps = e.graph.ints(&[1, steps.len(), 1], &steps);
        let last = e.graph.add(&scope.child("last"), count, steps)?;
        Ok(*self.places.insert(TokenPlaces { mask, last }))
    }
}

/// Adds the last norm and the head for the requested rows. Returns the token table.
fn logits(
    e: &mut Emitter<'_>,
    io: &mut GraphIo,
    arch: &DecoderArch,
    stream: &ResidualStream,
    logits_rows: Tensor,
) -> Result<HostTable> {
    let mut asked = stream.map_rows(|part, x| {
        let scope = Scope::root().child("rows").child(part);
        let rows = e.graph.reshape(&scope, x, &[-1, arch.hidden as i64])?;
        Ok(e.graph.gather(&scope, rows, logits_rows, 0)?)
    })?;
    let normed = asked.normed(e, &Scope::root().child("norm"))?;
    let head = head_with_table(e, normed, arch)?;
    io.output(e, Slot::Logits, "logits", head.logits, &f32(&["rows".into(), arch.head_rows().into()]))?;
    Ok(head.table)
}

/// Lowers an encoder.
///
/// ```text
/// embeds ── norm ── layers ── vector, scores, spans or token_scores
///                         └── Gather(logits_rows) ── logits
/// ```
pub(crate) fn encoder(e: &mut Emitter<'_>, arch: &EncoderArch) -> Result<LoweredModel> {
    e.compute = DType::F32;
    let mut io = GraphIo::default();
    let texts: [Dim; 2] = ["batch".into(), "sequence".into()];
    let embedded = encoder::embedded(e, &mut io, arch, &texts)?;
    let padding = io.input(e, Slot::PaddingMask, "padding_mask", TensorType::new(DType::I32, &texts));
    let mask = padding_scores(e, padding)?;
    let shape = [arch.positions, arch.head_size() / 2];
    let rotary = EncoderRotary::angles(e, arch, arch.positions, &shape)?.map(|angles| {
        let kind = TensorType::new(DType::I64, &texts);
        EncoderRotary::Dynamic { positions: io.input(e, Slot::Positions, "positions", kind), angles }
    });
    let x = EncoderLayers { arch, input: EncoderInput { mask, length: None, rotary } }.lower(e, embedded)?;
    let tokens = encoder_output(e, &mut io, arch, x, padding)?;
    let tables = encoder::tables(e, arch, tokens)?;
    close(e, io.entry(GRAPH_FILE, Variant::Dynamic, Part::Whole), tables)
}

/// Adds the head of an encoder. Returns the token table if the head has written it.
fn encoder_output(
    e: &mut Emitter<'_>,
    io: &mut GraphIo,
    arch: &EncoderArch,
    x: Tensor,
    padding: Tensor,
) -> Result<Option<HostTable>> {
    let hidden = arch.hidden;
    match arch.head {
        EncoderHead::Embedding { pooling, normalize } => {
            let pooled = encoder_head::pool(e, x, pooling, padding)?;
            let length = if normalize { VectorLength::Unit } else { VectorLength::Unchanged };
            let vector = encoder_head::vector(e, pooled, length)?;
            io.output(e, Slot::Embedding, "embedding", vector, &f32(&["batch".into(), hidden.into()]))?;
        }
        EncoderHead::Score { labels, dense } => {
            let first = encoder_head::pool(e, x, Pooling::Cls, padding)?;
            let scores = encoder_head::score(e, first, hidden, dense)?;
            io.output(e, Slot::Scores, "scores", scores, &f32(&["batch".into(), labels.into()]))?;
        }
        EncoderHead::Spans {} => {
            let spans = encoder_head::spans(e, x, hidden)?;
            let kind = f32(&["batch".into(), "sequence".into(), 2.into()]);
            io.output(e, Slot::Spans, "spans", spans, &kind)?;
        }
        EncoderHead::Tokens { labels } => {
            let scores = encoder_head::tokens(e, x, hidden)?;
            let kind = f32(&["batch".into(), "sequence".into(), labels.into()]);
            io.output(e, Slot::TokenScores, "token_scores", scores, &kind)?;
        }
        EncoderHead::MaskedLm { activation } => {
            let kind = TensorType::new(DType::I64, &["rows".into()]);
            let asked = io.input(e, Slot::LogitsRows, "logits_rows", kind);
            let scope = Scope::root().child("rows");
            let rows = e.graph.reshape(&scope, x, &[-1, hidden as i64])?;

            let rows = e.graph.gather(&scope, rows, asked, 0)?;
            let table = encoder_head::shared_token_table(e, arch)?;
            let logits = encoder_head::masked_lm(e, rows, arch, activation)?;
            io.output(e, Slot::Logits, "logits", logits, &f32(&["rows".into(), arch.vocab.into()]))?;
            return Ok(Some(table));
        }
    }
    Ok(None)
}

fn close(e: &mut Emitter<'_>, entry: GraphEntry, tables: Vec<HostTable>) -> Result<LoweredModel> {
    Ok(LoweredModel { graphs: vec![(e.finish_graph()?, entry)], tables, towers: Vec::new() })
}
