//! The static variant of encoders: a graph for each text length, and one for the logits over the vocabulary.

use narthex_spec::{
    Variant,
    arch::{Activation, EncoderArch, EncoderHead, Pooling},
    manifest::{GraphEntry, Part, Slot},
    recipe::FixedShapes,
};

use super::{
    LoweredModel,
    encoder::{self, EncoderInput, EncoderLayers},
    io::{GraphIo, f16},
};
use crate::{
    emit::Emitter,
    error::Result,
    layer::{encoder_attention::EncoderRotary, encoder_head},
};

/// Lowers the graphs of an encoder: one for each length, and the head if it runs on single rows.
pub(super) fn graphs(e: &mut Emitter<'_>, arch: &EncoderArch, shapes: &FixedShapes) -> Result<LoweredModel> {
    let mut graphs = Vec::new();
    for &length in &shapes.buckets {
        let entry = bucket(e, arch, length)?;
        graphs.push((e.finish_graph()?, entry));
    }
    if let EncoderHead::MaskedLm { activation } = arch.head {
        let entry = masked_lm(e, arch, activation)?;
        graphs.push((e.finish_graph()?, entry));
    }
    Ok(LoweredModel { graphs, tables: Vec::new(), towers: Vec::new() })
}

/// Lowers an encoder for one text of at most `length` tokens.
///
/// ```text
/// embeds ── norm ── (attention ── Add ── norm ── mlp ── Add ── norm) × layers ── MatMul(pool weights) ── vector, scores
///                                                                            └── spans, or the rows themselves
/// ```
fn bucket(e: &mut Emitter<'_>, arch: &EncoderArch, length: usize) -> Result<GraphEntry> {
    e.begin_graph(&format!("encoder-{length}"));
    let mut io = GraphIo::default();
    let embedded = encoder::embedded(e, &mut io, arch, &[1.into(), length.into()])?;
    let mask = io.input(e, Slot::Mask { window: None }, "mask", f16([1, 1, 1, length]));
    let pool = pools(arch.head).then(|| io.input(e, Slot::PoolWeights, "pool", f16([1, 1, length])));
    let pairs = arch.head_size() / 2;
    let angles = EncoderRotary::angles(e, arch, length, &[1, length, 1, pairs])?;
    let input = EncoderInput { mask, length: Some(length), rotary: angles.map(EncoderRotary::Static) };
    let x = EncoderLayers { arch, input }.lower(e, embedded)?;
    let hidden = arch.hidden;
    let pooled = pool.map(|pool| encoder_head::pool_weighted(e, x, pool)).transpose()?;
    match arch.head {
        EncoderHead::Embedding { .. } => {
            let pooled = match pooled {
                Some(pooled) => pooled,
                None => encoder_head::pool_max(e, x, length, mask)?,
            };
            io.output(e, Slot::Embedding, "embedding", pooled, &f16([1, 1, hidden]))?;
        }
        EncoderHead::Score { labels, dense } => {
            let scores = encoder_head::score(e, pooled.unwrap_or(x), hidden, dense)?;
            io.output(e, Slot::Scores, "scores", scores, &f16([1, 1, labels]))?;
        }
        EncoderHead::Spans {} => {
            let spans = encoder_head::spans(e, x, hidden)?;
            io.output(e, Slot::Spans, "spans", spans, &f16([1, length, 2]))?;
        }
        EncoderHead::Tokens { labels } => {
            let scores = encoder_head::tokens(e, x, hidden)?;
            io.output(e, Slot::TokenScores, "token_scores", scores, &f16([1, length, labels]))?;
        }
        EncoderHead::MaskedLm { .. } => {
            io.output(e, Slot::Hidden, "hidden", x, &f16([1, length, hidden]))?;
        }
    }

    let file = format!("encoder-{length}.onnx");
    Ok(io.entry(&file, Variant::Static, Part::Bucket { length }))
}

/// Returns whether the head reads a weighted sum of rows.
fn pools(head: EncoderHead) -> bool {
    match head {
        EncoderHead::Embedding { pooling, .. } => pooling != Pooling::Max,
        EncoderHead::Score { .. } => true,
        EncoderHead::Spans {} | EncoderHead::Tokens { .. } | EncoderHead::MaskedLm { .. } => false,
    }
}

/// Lowers the logits over the vocabulary for one row.
fn masked_lm(e: &mut Emitter<'_>, arch: &EncoderArch, activation: Option<Activation>) -> Result<GraphEntry> {
    let (mut io, hidden) = GraphIo::head(e, arch.hidden);
    let logits = encoder_head::masked_lm(e, hidden, arch, activation)?;
    io.output(e, Slot::Logits, "logits", logits, &f16([1, 1, arch.vocab]))?;
    Ok(io.entry("head.onnx", Variant::Static, Part::Head { rows: 1 }))
}
