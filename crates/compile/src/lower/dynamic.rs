//! Variant A: one graph with symbolic shapes, for the CPU, WebGPU, CUDA and DirectML.
//!
//! Attention and its rotation are one operator over a cache that is updated in place; the head computes only the rows
//! asked for.

use narthex_graph::Builder;
use narthex_spec::{
    DType, Variant,
    arch::{DecoderArch, DecoderLayer, EncoderArch, EncoderHead, Pooling, Residual, Rotation},
    dtype::Dim,
    manifest::{GraphEntry, HostTable, KeyOrder, KeyRotation, KvLayout, Part, Slot, TableRole},
};

use super::{Lowered, encoder, io::Io};
use crate::{
    emit::Emitter,
    error::CompileError,
    layer::{
        attention, embed, mlp,
        norm::{Norm, Stream},
        rope, task,
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
    let lengths = [seqlens_k, total_length];
    let x = embed::scaled(e, embeds, arch.embed_scale.unwrap_or(1.0));
    let mut stream = Stream::new(x, Norm::of(arch));
    let mut kv = Vec::new();
    for (index, layer) in arch.layers.iter().enumerate() {
        let cache = cache_names(e, &mut io, index, &layer.attention);
        let cache = attention::Cache {
            lengths: lengths.each_ref().map(String::as_str),
            angles: angles.of(layer.attention.rotation),
            past: [&cache[0], &cache[1]],
            present: [&cache[2], &cache[3]],
        };
        decoder_layer(e, &mut stream, (index, layer), &cache)?;
        kv.push(KvLayout {
            heads: layer.attention.kv_heads,
            head_size: layer.attention.head_size,
            window: layer.attention.window,
            dtype: DType::F32,
            keys: KeyRotation::After,
            order: KeyOrder::Rows,
        });
    }
    let mut tables = vec![finish(e, &mut io, arch, (&stream, &logits_rows))?];
    if arch.learned_positions() {
        let shape = (arch.context, arch.hidden);
        tables.push(embed::table(e, (TableRole::Position, "position.weight"), shape, DType::F32)?);
    }
    if arch.switch().is_some() {
        tables.extend(rope::host_tables(e, arch));
    }
    close(e, io.entry(GRAPH_FILE, Variant::Dynamic, Part::Whole, kv), tables)
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
    cache: &attention::Cache<'_>,
) -> Result<(), CompileError> {
    let at = |part: &str| (format!("/layers.{index}/{part}"), format!("layers.{index}.{part}"));
    let norm = stream.norm();
    let (scope, weights) = at("attn_norm");
    let normed = stream.normed(e, (&scope, &weights))?;
    let (scope, weights) = at("attn");
    let mut attended = attention::cached(e, &normed, (&scope, &weights), (norm, &layer.attention), cache)?;
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

/// Declares one layer's cache; gives the names of past and present key and value.
fn cache_names(
    e: &mut Emitter<'_>,
    io: &mut Io,
    layer: usize,
    attention: &narthex_spec::arch::Attention,
) -> [String; 4] {
    let shape: [Dim; 4] =
        ["batch".into(), attention.kv_heads.into(), "capacity".into(), attention.head_size.into()];
    let past_key = io.input(e, Slot::PastKey { layer }, &format!("past.{layer}.key"), DType::F32, &shape);
    let past_value =
        io.input(e, Slot::PastValue { layer }, &format!("past.{layer}.value"), DType::F32, &shape);
    let (key, value) = (format!("present.{layer}.key"), format!("present.{layer}.value"));
    io.output(e, Slot::PresentKey { layer }, &key, DType::F32, &shape);
    io.output(e, Slot::PresentValue { layer }, &value, DType::F32, &shape);
    [past_key, past_value, key, value]
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
    io.output(e, Slot::Logits, "logits", DType::F32, &["rows".into(), arch.vocab.into()]);
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
    let form = encoder::Form::Dynamic { padding: &padding };
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
            let (weight, table) = task::TokenWeight::write(e, arch)?;
            task::masked(e, &rows, arch, activation, (&weight, "logits"))?;
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
