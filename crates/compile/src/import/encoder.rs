//! Encoders: sentence-transformers exports, and Optimum's: rerankers, classifiers, question answering, masked language
//! models.
//!
//! The outputs of the graph fill the slots of every encoder: rows are pooled to one vector, the two ends of answers are
//! joined, and logits over a vocabulary are computed for the requested tokens.

use std::path::Path;

use narthex_checkpoint::{
    hf::{config::Config, pooling::SentenceEmbedding},
    limits::{WIDTH, bounded},
};
use narthex_graph::{Attribute, Graph, Value};
use narthex_spec::{
    DType,
    arch::{EncoderHead, ImportedEncoder, Pooling},
    dtype::Dim,
    manifest::{GraphEntry, Slot},
};

use super::{
    adapter::{GraphAdapter, PREFIX},
    graphs::{fixed_extent, float_dtype, named, reject_unknown_inputs},
    head::select_rows,
    refused,
    settings::Settings,
};
use crate::error::Result;

const TOKENS: &str = "input_ids";
const MASK: &str = "attention_mask";
const SEGMENTS: &str = "token_type_ids";

/// Output of an encoder's graph for a text.
enum EncoderOutput {
    /// `[batch, hidden]`: the pooled vector.
    Vector(Value),
    /// `[batch, sequence, hidden]`: a row for each token.
    Rows(Value),
    /// `[batch, labels]`: scores.
    Numbers(Value),
    /// `[batch, sequence]` for each of two outputs: scores of each token as the start and as the end of an answer.
    Spans([Value; 2]),
    /// `[batch, sequence, labels]`: scores of each token.
    TokenNumbers(Value),
    /// `[batch, sequence, vocab]`: logits over the vocabulary for each token.
    Logits(Value),
}

/// Connects an encoder's graph to the slots of a package.
pub(super) fn encoder(
    file: &str,
    graph: Graph,
    settings: &Settings,
    sentence: &SentenceEmbedding,
) -> Result<(Graph, GraphEntry, ImportedEncoder)> {
    let given = given(file, &graph, settings)?;
    let mut adapter = GraphAdapter::new(file, graph)?;
    reject_unknown_inputs(file, &adapter.inner, &[TOKENS, MASK, SEGMENTS])?;
    let mask = inputs(&mut adapter);
    let vocab = settings.vocab()?;
    let pooled_by_graph = matches!(given, EncoderOutput::Vector(_));
    let (head, width) = match given {
        EncoderOutput::Vector(value) => {
            let width = width(file, &value, settings)?;
            vector(&mut adapter, &value.name, width);
            (sentence.embedding(), width)
        }
        EncoderOutput::Rows(value) => {
            let width = width(file, &value, settings)?;
            let pooled = pooled(&mut adapter, &value.name, &mask, sentence.known(file)?);
            let pooled = if sentence.normalize { unit(&mut adapter, &pooled) } else { pooled };
            vector(&mut adapter, &pooled, width);
            (sentence.embedding(), width)
        }
        EncoderOutput::Numbers(value) => {
            let labels = labels(file, &value, settings)?;
            let shape = ["batch".into(), labels.into()];
            adapter.output(Slot::Scores, &value.name, "scores", DType::F32, &shape);
            (EncoderHead::Score { labels, dense: None }, labels)
        }
        EncoderOutput::TokenNumbers(value) => {
            let labels = labels(file, &value, settings)?;
            let shape = ["batch".into(), "sequence".into(), labels.into()];
            adapter.output(Slot::TokenScores, &value.name, "token_scores", DType::F32, &shape);
            (EncoderHead::Tokens { labels }, labels)
        }
        EncoderOutput::Spans(ends) => {
            spans(&mut adapter, &ends);
            (EncoderHead::Spans {}, 2)
        }
        EncoderOutput::Logits(value) => {
            let rows = adapter.input(Slot::LogitsRows, "logits_rows", DType::I64, &["rows".into()]);
            let logits = select_rows(&mut adapter, &value.name, &rows);
            adapter.output(Slot::Logits, &logits, "logits", DType::F32, &["rows".into(), vocab.into()]);
            (EncoderHead::MaskedLm { activation: None }, vocab)
        }
    };

    let (graph, entry) = adapter.finish(Vec::new())?;
    Ok((graph, entry, ImportedEncoder { vocab, width, pooled_by_graph, head }))
}

/// Feeds tokens, padding mask and segments from the slots; returns the mask.
fn inputs(adapter: &mut GraphAdapter) -> String {
    let texts: [Dim; 2] = ["batch".into(), "sequence".into()];
    let tokens = adapter.input(Slot::Tokens, "tokens", DType::I64, &texts);
    let mask = adapter.input(Slot::PaddingMask, "padding_mask", DType::I32, &texts);
    adapter.feed(TOKENS, &tokens);
    adapter.feed_if_input(MASK, &mask);
    if adapter.imported_input(SEGMENTS).is_some() {
        let segments = adapter.input(Slot::Segments, "segments", DType::I64, &texts);
        adapter.feed(SEGMENTS, &segments);
    }
    mask
}

/// Selects the output by its name, or else by its rank. Hidden states have priority over logits over the vocabulary,
/// because exporters include hidden states only for embeddings.
fn given(file: &str, graph: &Graph, settings: &Settings) -> Result<EncoderOutput> {
    let vector = named(&graph.outputs, "sentence_embedding").filter(|value| rank(graph, value) != 3);
    let spans = ranked_output(graph, "start_logits", 2).zip(ranked_output(graph, "end_logits", 2));
    let selected = vector
        .map(|value| EncoderOutput::Vector(value.clone()))
        .or_else(|| spans.map(|(start, end)| EncoderOutput::Spans([start, end])))
        .or_else(|| ranked_output(graph, "logits", 2).map(EncoderOutput::Numbers))
        .or_else(|| {
            let rows = ["last_hidden_state", "token_embeddings"];
            rows.into_iter().find_map(|name| named(&graph.outputs, name)).cloned().map(EncoderOutput::Rows)
        });

    let selected = match (selected, ranked_output(graph, "logits", 3)) {
        (Some(selected), _) => selected,
        (None, Some(logits)) if is_over_vocabulary(&logits, settings) => EncoderOutput::Logits(logits),
        (None, Some(logits)) if is_masked(settings) => {
            let found = logits.shape.last().and_then(fixed_extent);
            let found = found.map_or_else(|| "none".to_owned(), |extent| extent.to_string());
            return Err(refused(output(file, &logits), "logits over the vocabulary", found));
        }
        (None, Some(logits)) => EncoderOutput::TokenNumbers(logits),
        (None, None) => match graph.outputs.iter().find(|value| rank(graph, value) == 3) {
            Some(rows) => EncoderOutput::Rows(rows.clone()),
            None => {
                let expected =
                    "last_hidden_state, sentence_embedding, logits, or start_logits and end_logits";
                let names: Vec<&str> = graph.outputs.iter().map(|output| output.name.as_str()).collect();
                let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                return Err(refused(format!("outputs of {file}"), expected, found));
            }
        },
    };

    match &selected {
        EncoderOutput::Vector(value)
        | EncoderOutput::Rows(value)
        | EncoderOutput::Numbers(value)
        | EncoderOutput::TokenNumbers(value)
        | EncoderOutput::Logits(value) => {
            float_dtype(file, value)?;
        }
        EncoderOutput::Spans(ends) => ends.iter().try_for_each(|value| float_dtype(file, value).map(drop))?,
    }
    Ok(selected)
}

/// Returns the output with a name and a rank.
fn ranked_output(graph: &Graph, name: &str, rank: usize) -> Option<Value> {
    named(&graph.outputs, name).filter(|value| self::rank(graph, value) == rank).cloned()
}

/// Returns the number of dimensions of an output; 0 if it is not declared.
fn rank(graph: &Graph, output: &Value) -> usize {
    if graph.unranked.contains(&output.name) { 0 } else { output.shape.len() }
}

/// Returns whether logits of each token are over the vocabulary, and not over labels. The class decides if the graph does
/// not state their number.
fn is_over_vocabulary(logits: &Value, settings: &Settings) -> bool {
    match logits.shape.last().and_then(fixed_extent) {
        Some(last) => Some(last) == settings.vocab,
        None => is_masked(settings),
    }
}

/// Returns `true` if the settings are those of a masked language model.
fn is_masked(settings: &Settings) -> bool {
    let class = settings.config.as_ref().and_then(Config::class);
    class.is_some_and(|class| class.ends_with("ForMaskedLM"))
}

/// Returns the number of a classifier's labels.
fn labels(file: &str, value: &Value, settings: &Settings) -> Result<usize> {
    let stated = "a fixed number of labels, or an id2label in config.json";
    let labels = last_extent(file, value, settings.labels, stated)?;
    Ok(bounded(Path::new(file), "a number of labels", labels, &WIDTH)?)
}

fn output(file: &str, value: &Value) -> String {
    format!("output {:?} of {file}", value.name)
}

/// Returns the width of a vector or a row.
fn width(file: &str, value: &Value, settings: &Settings) -> Result<usize> {
    last_extent(file, value, settings.hidden, "a fixed width, or a hidden_size in config.json")
}

/// Returns the last extent of an output, or else the one that the settings state.
fn last_extent(file: &str, value: &Value, setting: Option<usize>, expected: &str) -> Result<usize> {
    let extent = value.shape.last().and_then(fixed_extent).or(setting);
    extent.ok_or_else(|| refused(output(file, value), expected, "neither"))
}

fn vector(adapter: &mut GraphAdapter, value: &str, width: usize) {
    let shape = ["batch".into(), width.into()];
    adapter.output(Slot::Embedding, value, "embedding", DType::F32, &shape);
}

/// ```text
/// start_logits ── [batch, sequence, 1] ─┬─ Concat ── spans
/// end_logits ──── [batch, sequence, 1] ─┘
/// ```
fn spans(adapter: &mut GraphAdapter, ends: &[Value; 2]) {
    let g = &mut adapter.epilogue;
    let scope = format!("{PREFIX}ends");
    let column = g.ints(&[3], &[0, 0, 1]);
    let ends = ends.each_ref().map(|end| {
        let scope = format!("{scope}/{}", end.name);
        let end = g.cast(&scope, &end.name, DType::F32);
        g.op(&scope, "Reshape", &[&end, &column])
    });
    let axis = [("axis", Attribute::Int(2))];
    let joined = g.op_with(&scope, "Concat", &[&ends[0], &ends[1]], &axis);
    let shape = ["batch".into(), "sequence".into(), 2_usize.into()];
    adapter.output(Slot::Spans, &joined, "spans", DType::F32, &shape);
}

/// Pools `x [batch, sequence, hidden]` to one row per text.
///
/// ```text
/// mean, cls, last:  weights [batch, 1, sequence] ── MatMul(x) (── Div(sum of weights))
/// max:              x ── Add(far below zero for padding) ── ReduceMax
/// ```
fn pooled(adapter: &mut GraphAdapter, x: &str, mask: &str, pooling: Pooling) -> String {
    let opset = adapter.inner.opset();
    let g = &mut adapter.epilogue;
    let scope = format!("{PREFIX}pool");
    let x = g.cast(&format!("{scope}/x"), x, DType::F32);
    let ones = g.cast(&format!("{scope}/mask"), mask, DType::F32);
    let row = g.ints(&[3], &[0, 1, -1]);
    let column = g.ints(&[3], &[0, -1, 1]);
    let flat = g.ints(&[2], &[0, -1]);
    if pooling == Pooling::Max {
        let one = g.scalar(1.0);
        let far = g.scalar(1e9);
        let column = g.op(&format!("{scope}/column"), "Reshape", &[&ones, &column]);
        let below = g.op(&format!("{scope}/mask"), "Sub", &[&column, &one]);
        let below = g.op(&format!("{scope}/mask"), "Mul", &[&below, &far]);
        let masked = g.op(&scope, "Add", &[&x, &below]);
        let keep = ("keepdims", Attribute::Int(0));
        // The axes are an input since operator set 18.
        if opset < Some(18) {
            let axes = ("axes", Attribute::Ints(vec![1]));
            return g.op_with(&scope, "ReduceMax", &[&masked], &[axes, keep]);
        }
        let axes = g.ints(&[1], &[1]);
        return g.op_with(&scope, "ReduceMax", &[&masked, &axes], &[keep]);
    }

    let all = g.op(&format!("{scope}/all"), "Reshape", &[&ones, &row]);
    let column = g.op(&format!("{scope}/column"), "Reshape", &[&ones, &column]);
    let count = g.op(&format!("{scope}/count"), "MatMul", &[&all, &column]);
    let weights = match pooling {
        Pooling::Mean | Pooling::Max => all,
        Pooling::Cls | Pooling::Last => {
            let shape = g.op(&format!("{scope}/places"), "Shape", &[&ones]);
            let zero = g.ints(&[], &[0]);
            let one = g.ints(&[], &[1]);
            let axis = g.ints(&[], &[1]);
            let length = g.op(&format!("{scope}/places"), "Gather", &[&shape, &axis]);
            let places = g.op(&format!("{scope}/places"), "Range", &[&zero, &length, &one]);
            let wanted = if pooling == Pooling::Cls {
                zero
            } else {
                let count = g.cast(&format!("{scope}/count"), &count, DType::I64);
                g.op(&format!("{scope}/last"), "Sub", &[&count, &one])
            };
            let here = g.op(&format!("{scope}/places"), "Equal", &[&places, &wanted]);
            let here = g.cast(&format!("{scope}/places"), &here, DType::F32);
            // Broadcasts one row to all texts, if they share it.
            let lead = g.scalar(0.0);
            let zeros = format!("{scope}/each");
            let zeros = g.op(&zeros, "Mul", &[&all, &lead]);
            g.op(&format!("{scope}/each"), "Add", &[&zeros, &here])
        }
    };

    let sum = g.op(&scope, "MatMul", &[&weights, &x]);
    let vector = if pooling == Pooling::Mean { g.op(&scope, "Div", &[&sum, &count]) } else { sum };
    g.op(&format!("{scope}/vector"), "Reshape", &[&vector, &flat])
}

/// Scales a vector to unit length.
fn unit(adapter: &mut GraphAdapter, vector: &str) -> String {
    let attributes = [("axis", Attribute::Int(-1)), ("p", Attribute::Int(2))];
    adapter.epilogue.op_with(&format!("{PREFIX}pool"), "LpNormalization", &[vector], &attributes)
}
