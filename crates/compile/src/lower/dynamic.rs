//! Variant A: one graph with symbolic shapes, for the CPU, WebGPU, CUDA and DirectML.
//!
//! Attention and its rotation are one operator over a cache that is updated in place; the head computes only the rows
//! asked for.

use narthex_graph::Builder;
use narthex_spec::{
    DType, Variant,
    arch::{
        Attention, DecoderArch, DecoderLayer, EncoderArch, EncoderHead, KvSource, Pooling, Residual, Rotation,
    },
    dtype::Dim,
    manifest::{GraphEntry, HostTable, KeyOrder, KeyRotation, KvLayout, Part, Slot, TableRole},
};

use super::{Lowered, encoder, io::Io};
use crate::{
    emit::Emitter,
    error::CompileError,
    layer::{
        altup::Streams,
        attention, embed, mlp,
        norm::{Carried, Norm, Stream},
        plain, rope, task,
    },
};

/// Operator sets of variant A.
pub(crate) const OPSETS: [(&str, i64); 2] = [("", 20), ("com.microsoft", 1)];

/// The graph's file, relative to the package.
pub(crate) const GRAPH_FILE: &str = "model.onnx";

/// A decoder.
///
/// ```text
/// embeds ── Mul(scale) ── norm ── layers ── Gather(logits_rows) ── norm ── head ── logits
/// ```
pub(crate) fn decoder(e: &mut Emitter<'_>, arch: &DecoderArch) -> Result<Lowered, CompileError> {
    e.compute = DType::F32;
    let mut io = Io::default();
    let rows_dim: [Dim; 1] = ["rows".into()];
    let embeds_shape = ["batch".into(), "sequence".into(), arch.hidden.into()];
    let embeds = io.input(e, Slot::Embeds, "embeds", DType::F32, &embeds_shape);
    let seqlens_k = io.input(e, Slot::SeqlensK, "seqlens_k", DType::I32, &["batch".into()]);
    let total_length = io.input(e, Slot::TotalLength, "total_length", DType::I32, &[]);
    let logits_rows = io.input(e, Slot::LogitsRows, "logits_rows", DType::I64, &rows_dim);
    let mut angles = rope::Angles::write(e, arch)?;
    if let (Some(_), Some(pairs)) = (arch.switch(), rope::pairs(arch, Rotation::Global)) {
        // Which of the two sets is meant depends on the length of the sequence.
        let shape = ["positions".into(), pairs.into()];
        let cos = io.input(e, Slot::CosTable, "cos", DType::F32, &shape);
        let sin = io.input(e, Slot::SinTable, "sin", DType::F32, &shape);
        angles.insert(Rotation::Global, [cos, sin]);
    }
    let x = embed::scaled(e, embeds, arch.embed_scale.unwrap_or(1.0));
    let mut kept = Kept::default();
    let stream =
        Body { arch, lengths: [seqlens_k, total_length], angles }.layers(e, &mut io, x, &mut kept)?;
    let mut tables = vec![finish(e, &mut io, arch, (&stream, &logits_rows))?];
    if let Some(per_layer) = &arch.per_layer {
        tables.push(embed::per_layer_table(e, arch.layers.len(), per_layer)?);
    }
    if arch.learned_positions() {
        let shape = (arch.context, arch.hidden);
        tables.push(embed::table(e, (TableRole::Position, "position.weight"), shape, DType::F32)?);
    }
    if arch.switch().is_some() {
        tables.extend(rope::host_tables(e, arch));
    }
    close(e, io.entry(GRAPH_FILE, Variant::Dynamic, Part::Whole, kept.layouts), tables)
}

/// What the layers of a decoder read besides their rows.
struct Body<'a> {
    arch: &'a DecoderArch,
    lengths: [String; 2],
    angles: rope::Angles,
}

/// The KV cache under construction.
#[derive(Default)]
struct Kept {
    layouts: Vec<KvLayout>,
    /// For each entry, its past, and the new tokens' keys and values.
    entries: Vec<([String; 2], [String; 2])>,
}

impl Body<'_> {
    /// The layers over embedded tokens.
    fn layers(
        &self,
        e: &mut Emitter<'_>,
        io: &mut Io,
        x: String,
        kept: &mut Kept,
    ) -> Result<Stream, CompileError> {
        let norm = Norm::of(self.arch);
        let Some(altup) = &self.arch.altup else {
            let mut stream = Stream::new(x, norm);
            for (index, layer) in self.arch.layers.iter().enumerate() {
                let attend = |e: &mut Emitter<'_>, x: &str| self.attend(e, io, x, (index, layer), kept);
                decoder_layer(e, &mut stream, (index, layer), attend)?;
            }
            return Ok(stream);
        };
        let mut streams = Streams::begin(e, (self.arch, altup), Carried::of(norm, 1.0), &x)?;
        if let Some(per_layer) = &self.arch.per_layer {
            let width = self.arch.layers.len() * per_layer.width;
            let shape = ["batch".into(), "sequence".into(), width.into()];
            let rows = io.input(e, Slot::PerLayerEmbeds, "per_layer", DType::F32, &shape);
            let rows = streams.rows(e, per_layer, (&x, &rows))?;
            streams.take_rows(e, per_layer, (&rows, 0..self.arch.layers.len()));
        }
        for (index, layer) in self.arch.layers.iter().enumerate() {
            let attend = |e: &mut Emitter<'_>, x: &str| self.attend(e, io, x, (index, layer), kept);
            streams.layer(e, (index, layer), attend)?;
        }
        Ok(Stream::new(streams.merged(e)?, norm))
    }

    /// A layer's attention over its own entry of the cache, or over the one that it shares.
    fn attend(
        &self,
        e: &mut Emitter<'_>,
        io: &mut Io,
        x: &str,
        (index, layer): (usize, &DecoderLayer),
        kept: &mut Kept,
    ) -> Result<String, CompileError> {
        let (attention, entry) = (&layer.attention, self.arch.kv_index(index));
        let shared = kept.entries.get(entry).cloned();
        let past = match &shared {
            Some((past, _)) => past.clone(),
            None => past_names(e, io, entry, attention),
        };
        let present = present_names(e, io, (entry, index), attention);
        let cache = attention::Cache {
            lengths: self.lengths.each_ref().map(String::as_str),
            angles: self.angles.of(attention.rotation),
            past: past.each_ref().map(String::as_str),
            present: present.each_ref().map(String::as_str),
            shared: shared.as_ref().map(|(_, kv)| kv),
        };
        let at = (format!("/layers.{index}/attn"), format!("layers.{index}.attn"));
        let norm = Norm::of(self.arch);
        let attended = attention::cached(e, x, (&at.0, &at.1), (norm, attention), &cache)?;
        if shared.is_none() {
            kept.entries.push((past, attended.kv));
            kept.layouts.push(KvLayout {
                heads: attention.kv_heads,
                head_size: attention.head_size,
                window: attention.window,
                dtype: DType::F32,
                keys: KeyRotation::After,
                order: KeyOrder::Rows,
            });
        }
        Ok(attended.output)
    }
}

/// One layer over the stream.
///
/// ```text
/// sequential:  norm ── attention ── + ── norm ── mlp ── +
/// sandwich:    norm ── attention ── norm ── + ── norm ── mlp ── norm ── +
/// parallel:    norm ─┬─ attention ─┬─ +
///                    └─ mlp ───────┘
/// ```
fn decoder_layer(
    e: &mut Emitter<'_>,
    stream: &mut Stream,
    (index, layer): (usize, &DecoderLayer),
    attend: impl FnOnce(&mut Emitter<'_>, &str) -> Result<String, CompileError>,
) -> Result<(), CompileError> {
    let at = |part: &str| (format!("/layers.{index}/{part}"), format!("layers.{index}.{part}"));
    let norm = stream.norm();
    let (scope, weights) = at("attn_norm");
    let normed = stream.normed(e, (&scope, &weights))?;
    let mut attended = attend(e, &normed)?;
    let mlp_input = if layer.residual == Residual::Parallel {
        normed
    } else {
        if layer.residual == Residual::Sandwich {
            let (scope, weights) = at("attn_post_norm");
            attended = norm.of_rows(e, &attended, (&scope, &weights))?;
        }
        stream.add(std::mem::take(&mut attended));
        let (scope, weights) = at("mlp_norm");
        stream.normed(e, (&scope, &weights))?
    };
    let (scope, weights) = at("mlp");
    let fed = mlp::mlp(e, &mlp_input, (&scope, &weights), norm.width, &layer.mlp)?;
    stream.add(match layer.residual {
        Residual::Sequential => fed,
        Residual::Sandwich => {
            let (scope, weights) = at("mlp_post_norm");
            norm.of_rows(e, &fed, (&scope, &weights))?
        }
        Residual::Parallel => e.graph.op(&scope, "Add", &[&attended, &fed]),
    });
    Ok(())
}

/// The shape of an entry of the cache.
fn cache_shape(attention: &Attention) -> [Dim; 4] {
    ["batch".into(), attention.kv_heads.into(), "capacity".into(), attention.head_size.into()]
}

/// Declares an entry's past; gives the names of key and value.
fn past_names(e: &mut Emitter<'_>, io: &mut Io, layer: usize, attention: &Attention) -> [String; 2] {
    let shape = cache_shape(attention);
    [(Slot::PastKey { layer }, "key"), (Slot::PastValue { layer }, "value")]
        .map(|(slot, part)| io.input(e, slot, &format!("past.{layer}.{part}"), DType::F32, &shape))
}

/// Declares what the layer `index` leaves in an entry; gives the names of key and value.
fn present_names(
    e: &mut Emitter<'_>,
    io: &mut Io,
    (layer, index): (usize, usize),
    attention: &Attention,
) -> [String; 2] {
    let shape = cache_shape(attention);
    let shared = if attention.kv == KvSource::Own { String::new() } else { format!(".by.{index}") };
    [(Slot::PresentKey { layer }, "key"), (Slot::PresentValue { layer }, "value")].map(|(slot, part)| {
        let name = format!("present.{layer}.{part}{shared}");
        io.output(e, slot, &name, DType::F32, &shape);
        name
    })
}

/// The last norm and the head, over the rows asked for; gives the token table.
fn finish(
    e: &mut Emitter<'_>,
    io: &mut Io,
    arch: &DecoderArch,
    (stream, logits_rows): (&Stream, &str),
) -> Result<HostTable, CompileError> {
    let flat = e.graph.ints(&[2], &[-1, arch.hidden as i64]);
    let mut asked = stream.rows(|part, x| {
        let scope = format!("/rows/{part}");
        let rows = e.graph.op(&scope, "Reshape", &[x, &flat]);
        e.graph.op(&scope, "Gather", &[&rows, logits_rows])
    });
    let normed = asked.normed(e, ("/norm", "norm"))?;
    let table = embed::head(e, &normed, arch, "logits")?;
    io.output(e, Slot::Logits, "logits", DType::F32, &["rows".into(), arch.head_rows().into()]);
    Ok(table)
}

/// An encoder.
///
/// ```text
/// embeds ── norm ── layers ── vector, numbers or spans
///                         └── Gather(logits_rows) ── logits
/// ```
pub(crate) fn encoder(e: &mut Emitter<'_>, arch: &EncoderArch) -> Result<Lowered, CompileError> {
    e.compute = DType::F32;
    let mut io = Io::default();
    let texts: [Dim; 2] = ["batch".into(), "sequence".into()];
    let embedded = encoder::embedded(e, &mut io, arch, texts.clone())?;
    let padding = io.input(e, Slot::PaddingMask, "padding_mask", DType::I32, &texts);
    let mask = plain::padding_scores(e, &padding);
    let form = encoder::Form::Dynamic { mask: &mask };
    let x = encoder::Body { e, arch, form }.rows(&embedded)?;
    let tokens = encoder_head(e, &mut io, arch, (&x, &padding))?;
    let tables = encoder::tables(e, arch, tokens)?;
    close(e, io.entry(GRAPH_FILE, Variant::Dynamic, Part::Whole, Vec::new()), tables)
}

/// What the encoder gives of its rows; the token table where the head has written it.
fn encoder_head(
    e: &mut Emitter<'_>,
    io: &mut Io,
    arch: &EncoderArch,
    (x, padding): (&str, &str),
) -> Result<Option<HostTable>, CompileError> {
    let hidden = arch.hidden;
    match arch.head {
        EncoderHead::Embedding { pooling, normalize } => {
            let pooled = task::pool(e, x, pooling, padding);
            let unit = if normalize { task::Unit::Length } else { task::Unit::AsIs };
            task::vector(e, &pooled, unit, "embedding");
            io.output(e, Slot::Embedding, "embedding", DType::F32, &["batch".into(), hidden.into()]);
        }
        EncoderHead::Score { labels, dense } => {
            let first = task::pool(e, x, Pooling::Cls, padding);
            task::score(e, &first, hidden, dense, "scores")?;
            io.output(e, Slot::Scores, "scores", DType::F32, &["batch".into(), labels.into()]);
        }
        EncoderHead::Spans {} => {
            task::spans(e, x, hidden, "spans")?;
            let shape = ["batch".into(), "sequence".into(), 2.into()];
            io.output(e, Slot::Spans, "spans", DType::F32, &shape);
        }
        EncoderHead::MaskedLm { activation } => {
            let asked = io.input(e, Slot::LogitsRows, "logits_rows", DType::I64, &["rows".into()]);
            let flat = e.graph.ints(&[2], &[-1, hidden as i64]);
            let rows = e.graph.op("/rows", "Reshape", &[x, &flat]);
            let rows = e.graph.op("/rows", "Gather", &[&rows, &asked]);
            let table = task::token_table(e, arch)?;
            task::masked(e, &rows, arch, activation, "logits")?;
            io.output(e, Slot::Logits, "logits", DType::F32, &["rows".into(), arch.vocab.into()]);
            return Ok(Some(table));
        }
    }
    Ok(None)
}

fn close(e: &mut Emitter<'_>, entry: GraphEntry, tables: Vec<HostTable>) -> Result<Lowered, CompileError> {
    let graph = e.next_graph(Builder::default())?;
    Ok(Lowered { graphs: vec![(graph, entry)], tables })
}
