//! Variant B of encoders: a graph for each length of text, and one for a vocabulary's logits where it gives them.

use narthex_graph::Builder;
use narthex_spec::{
    Variant,
    arch::{Activation, EncoderArch, EncoderHead, Pooling},
    dtype::Dim,
    manifest::{GraphEntry, Part, Slot},
    recipe::FixedShapes,
};

use super::{Lowered, encoder, fixed::F16, io::Io};
use crate::{emit::Emitter, error::CompileError, layer::task, lower::dynamic::OPSETS};

/// The graphs of an encoder: one for each length, and the head where it is asked for single rows.
pub(super) fn graphs(
    e: &mut Emitter<'_>,
    arch: &EncoderArch,
    shapes: &FixedShapes,
) -> Result<Lowered, CompileError> {
    let mut graphs = Vec::new();
    for &length in &shapes.buckets {
        let entry = bucket(e, arch, length)?;
        graphs.push((e.next_graph(Builder::default())?, entry));
    }
    if let EncoderHead::MaskedLm { activation } = arch.head {
        let entry = masked_head(e, arch, activation)?;
        graphs.push((e.next_graph(Builder::default())?, entry));
    }
    Ok(Lowered { graphs, tables: Vec::new() })
}

/// An encoder for one text of at most `length` tokens.
///
/// ```text
/// embeds ── norm ── (attention ── Add ── norm ── mlp ── Add ── norm) × layers ── MatMul(pool weights) ── vector, numbers
///                                                                            └── spans, or the rows themselves
/// ```
fn bucket(e: &mut Emitter<'_>, arch: &EncoderArch, length: usize) -> Result<GraphEntry, CompileError> {
    e.graph = Builder::new(&format!("encoder-{length}"), &OPSETS);
    let mut io = Io::default();
    let embedded = encoder::embedded(e, &mut io, arch, [1.into(), length.into()])?;
    let mask_shape = [1.into(), 1.into(), 1.into(), length.into()];
    let mask = io.input(e, Slot::Mask { window: None }, "mask", F16, &mask_shape);
    let pool = pools(arch.head)
        .then(|| io.input(e, Slot::PoolWeights, "pool", F16, &[1.into(), 1.into(), length.into()]));
    let form = encoder::Form::Fixed { mask: &mask, length };
    let x = encoder::Body { e, arch, form }.rows(&embedded)?;
    let hidden = arch.hidden;
    let one = |width: usize| [1, 1, width].map(Dim::from);
    let pooled = pool.map(|pool| e.graph.op("/pool", "MatMul", &[&pool, &x]));
    match arch.head {
        EncoderHead::Embedding { .. } => {
            let pooled = pooled.unwrap_or_else(|| task::pool_max(e, &x, length, &mask));
            e.graph.rename(&pooled, "embedding");
            io.output(e, Slot::Embedding, "embedding", F16, &one(hidden));
        }
        EncoderHead::Score { labels, dense } => {
            task::score(e, &pooled.unwrap_or(x), hidden, dense, "scores")?;
            io.output(e, Slot::Scores, "scores", F16, &one(labels));
        }
        EncoderHead::Spans {} => {
            task::spans(e, &x, hidden, "spans")?;
            io.output(e, Slot::Spans, "spans", F16, &[1, length, 2].map(Dim::from));
        }
        EncoderHead::MaskedLm { .. } => {
            e.graph.rename(&x, "hidden");
            io.output(e, Slot::Hidden, "hidden", F16, &[1, length, hidden].map(Dim::from));
        }
    }
    let file = format!("encoder-{length}.onnx");
    Ok(io.entry(&file, Variant::Static, Part::Bucket { length }, Vec::new()))
}

/// Whether a head takes a weighted sum of rows.
fn pools(head: EncoderHead) -> bool {
    match head {
        EncoderHead::Embedding { pooling, .. } => pooling != Pooling::Max,
        EncoderHead::Score { .. } => true,
        EncoderHead::Spans {} | EncoderHead::MaskedLm { .. } => false,
    }
}

/// A vocabulary's logits for one row.
fn masked_head(
    e: &mut Emitter<'_>,
    arch: &EncoderArch,
    activation: Option<Activation>,
) -> Result<GraphEntry, CompileError> {
    e.graph = Builder::new("head", &OPSETS);
    let mut io = Io::default();
    let rows = 1;
    let hidden = io.input(e, Slot::Hidden, "hidden", F16, &[1, rows, arch.hidden].map(Dim::from));
    task::masked(e, &hidden, arch, activation, "logits")?;
    io.output(e, Slot::Logits, "logits", F16, &[1, rows, arch.vocab].map(Dim::from));
    Ok(io.entry("head.onnx", Variant::Static, Part::Head { rows }, Vec::new()))
}
