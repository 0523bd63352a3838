//! Variant A: one graph with symbolic shapes, for the CPU, WebGPU, CUDA and DirectML.
//!
//! Attention and its rotation are one operator over a cache that is updated in place; the head computes only the rows
//! asked for.

use narthex_graph::Builder;
use narthex_spec::{
    DType, Variant,
    arch::{DecoderArch, EncoderArch},
    dtype::Dim,
    manifest::{GraphEntry, HostTable, KeyOrder, KeyRotation, KvLayout, Part, Slot, TableRole},
};

use super::{Lowered, io::Io};
use crate::{
    emit::Emitter,
    error::CompileError,
    layer::{attention, embed, mlp, norm, rope},
};

/// Operator sets of variant A.
pub(crate) const OPSETS: [(&str, i64); 2] = [("", 20), ("com.microsoft", 1)];

/// The graph's file, relative to the package.
pub(crate) const GRAPH_FILE: &str = "model.onnx";

/// A decoder.
///
/// ```text
/// embeds ── norm ── layers ── Gather(logits_rows) ── norm ── head ── logits
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
    let tables = rope::tables(&arch.rope, arch.context);
    let shape = [arch.context, arch.rope.dims / 2];
    let cos = e.tensor("rope/cos", &shape, |_| Ok(tables.cos))?;
    let sin = e.tensor("rope/sin", &shape, |_| Ok(tables.sin))?;

    let mut residual = embeds;
    let mut branch: Option<String> = None;
    let mut kv = Vec::new();
    for (index, layer) in arch.layers.iter().enumerate() {
        let (scope, weights) = (format!("/layers.{index}"), format!("layers.{index}"));
        let norm_at = (format!("{scope}/attn_norm"), format!("{weights}.attn_norm.weight"));
        let normed = match branch.take() {
            None => norm::rms_norm(e, &residual, (&norm_at.0, &norm_at.1), arch.hidden, arch.norm_epsilon)?,
            Some(branch) => {
                let parts = (residual.as_str(), branch.as_str());
                let step =
                    norm::skip_rms_norm(e, parts, (&norm_at.0, &norm_at.1), arch.hidden, arch.norm_epsilon)?;
                residual = step.sum;
                step.normed
            }
        };
        let cache = cache_names(e, &mut io, index, &layer.attention);
        let cache = attention::Cache {
            seqlens_k: &seqlens_k,
            total_length: &total_length,
            cos: &cos,
            sin: &sin,
            past_key: &cache[0],
            past_value: &cache[1],
            present_key: &cache[2],
            present_value: &cache[3],
        };
        let at = (format!("{scope}/attn"), format!("{weights}.attn"));
        let attended =
            attention::cached(e, &normed, (&at.0, &at.1), (arch.hidden, &layer.attention), &cache)?;
        let at = (format!("{scope}/mlp_norm"), format!("{weights}.mlp_norm.weight"));
        let parts = (residual.as_str(), attended.as_str());
        let step = norm::skip_rms_norm(e, parts, (&at.0, &at.1), arch.hidden, arch.norm_epsilon)?;
        residual = step.sum;
        let at = (format!("{scope}/mlp"), format!("{weights}.mlp"));
        branch = Some(mlp::mlp(e, &step.normed, (&at.0, &at.1), arch.hidden, &layer.mlp)?);
        kv.push(KvLayout {
            heads: layer.attention.kv_heads,
            head_size: layer.attention.head_size,
            window: layer.attention.window,
            dtype: DType::F32,
            keys: KeyRotation::After,
            order: KeyOrder::Rows,
        });
    }
    let table = finish(e, &mut io, arch, (&residual, branch.as_deref()), &logits_rows)?;
    close(e, io.entry(GRAPH_FILE, Variant::Dynamic, Part::Whole, kv), vec![table])
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

/// The last norm and the head, over the rows asked for.
fn finish(
    e: &mut Emitter<'_>,
    io: &mut Io,
    arch: &DecoderArch,
    (residual, branch): (&str, Option<&str>),
    logits_rows: &str,
) -> Result<HostTable, CompileError> {
    let flat = e.graph.ints(&[2], &[-1, arch.hidden as i64]);
    let gather = |e: &mut Emitter<'_>, scope: &str, x: &str| {
        let rows = e.graph.op(scope, "Reshape", &[x, &flat]);
        e.graph.op(scope, "Gather", &[&rows, logits_rows])
    };
    let residual = gather(e, "/rows/residual", residual);
    let at = ("/norm", "norm.weight");
    let normed = match branch {
        Some(branch) => {
            let branch = gather(e, "/rows/branch", branch);
            norm::skip_rms_norm(e, (&residual, &branch), at, arch.hidden, arch.norm_epsilon)?.normed
        }
        None => norm::rms_norm(e, &residual, at, arch.hidden, arch.norm_epsilon)?,
    };
    let table = embed::head(e, &normed, arch, "logits")?;
    io.output(e, Slot::Logits, "logits", DType::F32, &["rows".into(), arch.vocab.into()]);
    Ok(table)
}

/// An encoder.
///
/// ```text
/// embeds ── norm ── layers ── pooling ── embedding
/// ```
pub(crate) fn encoder(e: &mut Emitter<'_>, arch: &EncoderArch) -> Result<Lowered, CompileError> {
    e.compute = DType::F32;
    let mut io = Io::default();
    let embeds_shape = ["batch".into(), "sequence".into(), arch.hidden.into()];
    let mask_shape = ["batch".into(), "sequence".into()];
    let embeds = io.input(e, Slot::Embeds, "embeds", DType::F32, &embeds_shape);
    let mask = io.input(e, Slot::PaddingMask, "padding_mask", DType::I32, &mask_shape);
    let epsilon = arch.norm_epsilon;
    let mut x = norm::layer_norm(e, &embeds, ("/embed/norm", "embed.norm"), arch.hidden, epsilon)?;
    let feed_forward =
        narthex_spec::arch::Mlp { inner: arch.inner, activation: arch.activation, gated: false, bias: true };
    for index in 0..arch.layers {
        let (scope, weights) = (format!("/layers.{index}"), format!("layers.{index}"));
        let at = (format!("{scope}/attn"), format!("{weights}.attn"));
        let attended = attention::bidirectional(e, &x, (&at.0, &at.1), (arch.hidden, arch.heads), &mask)?;
        let at = (format!("{scope}/attn_norm"), format!("{weights}.attn_norm"));
        x = norm::skip_layer_norm(e, (&x, &attended), (&at.0, &at.1), arch.hidden, epsilon)?;
        let at = (format!("{scope}/mlp"), format!("{weights}.mlp"));
        let fed = mlp::mlp(e, &x, (&at.0, &at.1), arch.hidden, &feed_forward)?;
        let at = (format!("{scope}/mlp_norm"), format!("{weights}.mlp_norm"));
        x = norm::skip_layer_norm(e, (&x, &fed), (&at.0, &at.1), arch.hidden, epsilon)?;
    }
    embed::pool(e, &x, arch, &mask, "embedding");
    io.output(e, Slot::Embedding, "embedding", DType::F32, &["batch".into(), arch.hidden.into()]);
    let tables = encoder_tables(e, arch)?;
    close(e, io.entry(GRAPH_FILE, Variant::Dynamic, Part::Whole, Vec::new()), tables)
}

fn encoder_tables(e: &mut Emitter<'_>, arch: &EncoderArch) -> Result<Vec<HostTable>, CompileError> {
    let types = e.weights.weight("embed.type.weight")?.rows_len();
    let word_dtype = embed::table_dtype(e.recipe.scheme);
    Ok(vec![
        embed::table(e, (TableRole::Token, "embed.word.weight"), (arch.vocab, arch.hidden), word_dtype)?,
        embed::table(
            e,
            (TableRole::Position, "embed.position.weight"),
            (arch.positions, arch.hidden),
            DType::F32,
        )?,
        embed::table(e, (TableRole::TokenType, "embed.type.weight"), (types, arch.hidden), DType::F32)?,
    ])
}

fn close(e: &mut Emitter<'_>, entry: GraphEntry, tables: Vec<HostTable>) -> Result<Lowered, CompileError> {
    let graph = e.next_graph(Builder::default())?;
    Ok(Lowered { graphs: vec![(graph, entry)], tables })
}
