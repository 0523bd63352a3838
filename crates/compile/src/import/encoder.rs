//! Encoders: sentence-transformers exports, Optimum's, and classifiers over a pair of texts.
//!
//! What the graph gives of a text becomes one vector or score behind it, so that it fills the slots of every encoder.

use narthex_graph::{Attribute, Graph, Value};
use narthex_spec::{
    DType,
    arch::{EncoderHead, ImportedEncoder, Pooling},
    dtype::Dim,
    manifest::{GraphEntry, Slot},
};

use super::{
    fixed, floats,
    glue::{Glue, OURS, TO_F32},
    refused,
    settings::Settings,
    unknown_inputs,
};
use crate::{checkpoint::hf::pooling::Sentence, error::CompileError};

const TOKENS: &str = "input_ids";
const MASK: &str = "attention_mask";
const SEGMENTS: &str = "token_type_ids";

/// What an encoder's graph gives of a text.
enum Given {
    /// `[batch, hidden]`: its vector, pooled already.
    Vector,
    /// `[batch, sequence, hidden]`: a row for each token.
    Rows,
    /// `[batch, labels]`: numbers.
    Numbers,
}

/// Puts an encoder's graph behind the slots of a package.
pub(super) fn encoder(
    file: &str,
    graph: Graph,
    settings: &Settings,
    sentence: &Sentence,
) -> Result<(Graph, GraphEntry, ImportedEncoder), CompileError> {
    let (given, output) = given(file, &graph)?;
    let output = output.clone();
    let last = output.shape.last().and_then(fixed);
    let mut glue = Glue::around(file, graph)?;
    unknown_inputs(file, glue.foreign(), &[TOKENS, MASK, SEGMENTS])?;
    let texts: [Dim; 2] = ["batch".into(), "sequence".into()];
    let tokens = glue.input(Slot::Tokens, "tokens", DType::I64, &texts);
    let mask = glue.input(Slot::PaddingMask, "padding_mask", DType::I32, &texts);
    let wants = |glue: &Glue, name: &str| glue.foreign().inputs.iter().any(|input| input.name == name);
    glue.feed(TOKENS, &tokens);
    if wants(&glue, MASK) {
        glue.feed(MASK, &mask);
    }
    if wants(&glue, SEGMENTS) {
        let segments = glue.input(Slot::Segments, "segments", DType::I64, &texts);
        glue.feed(SEGMENTS, &segments);
    }
    let what = || format!("output {:?} of {file}", output.name);
    let (head, width) = match given {
        Given::Numbers => {
            let labels = last.or(settings.labels);
            match labels {
                Some(1) => (EncoderHead::Score { labels: 1, dense: None }, 1),
                found => {
                    let found = found.map_or_else(|| "an unknown number".to_owned(), |n| n.to_string());
                    return Err(refused(what(), "1 label: a reranker", found));
                }
            }
        }
        Given::Vector | Given::Rows => {
            let stated = "a fixed width, or a hidden_size in config.json";
            let width = last.or(settings.hidden).ok_or_else(|| refused(what(), stated, "neither"))?;
            (sentence.embedding(), width)
        }
    };
    let value = match given {
        Given::Rows => {
            let pooled = pooled(&mut glue, &output.name, &mask, sentence.pooling);
            if sentence.normalize { unit(&mut glue, &pooled) } else { pooled }
        }
        Given::Vector | Given::Numbers => output.name.clone(),
    };
    let (slot, name) = match given {
        Given::Numbers => (Slot::Scores, "scores"),
        Given::Vector | Given::Rows => (Slot::Embedding, "embedding"),
    };
    glue.output(slot, (&value, name), DType::F32, &["batch".into(), width.into()]);
    let (graph, entry) = glue.finish(Vec::new())?;
    Ok((graph, entry, ImportedEncoder { vocab: settings.vocab()?, width, head }))
}

/// The output that is taken, by its name or else by its rank.
fn given<'a>(file: &str, graph: &'a Graph) -> Result<(Given, &'a Value), CompileError> {
    let named = |name: &str| graph.outputs.iter().find(|output| output.name == name);
    let rank = |value: &&Value| if graph.unranked.contains(&value.name) { 0 } else { value.shape.len() };
    let vector =
        named("sentence_embedding").filter(|value| rank(value) != 3).map(|value| (Given::Vector, value));
    let rows = ["last_hidden_state", "token_embeddings"].into_iter().find_map(named);
    let rows = rows.or_else(|| graph.outputs.iter().find(|value| rank(value) == 3));
    let numbers = named("logits").filter(|value| rank(value) == 2).map(|value| (Given::Numbers, value));
    let found = vector.or(numbers).or_else(|| rows.map(|value| (Given::Rows, value)));
    let names = || graph.outputs.iter().map(|output| output.name.as_str()).collect::<Vec<_>>().join(", ");
    let found = found.ok_or_else(|| {
        refused(format!("outputs of {file}"), "last_hidden_state, sentence_embedding or logits", names())
    })?;
    floats(file, found.1)?;
    Ok(found)
}

/// One row per text from `x [batch, sequence, hidden]`.
///
/// ```text
/// mean, cls, last:  weights [batch, 1, sequence] ── MatMul(x) (── Div(sum of weights))
/// max:              x ── Add(far below zero for padding) ── ReduceMax
/// ```
fn pooled(glue: &mut Glue, x: &str, mask: &str, pooling: Pooling) -> String {
    let (opset, g) = (glue.opset(), &mut glue.back);
    let scope = format!("{OURS}pool");
    let to = |code: i64| [("to", Attribute::Int(code))];
    let x = g.op_with(&format!("{scope}/x"), "Cast", &[x], &to(TO_F32));
    let ones = g.op_with(&format!("{scope}/mask"), "Cast", &[mask], &to(TO_F32));
    let (row, column, flat) = (g.ints(&[3], &[0, 1, -1]), g.ints(&[3], &[0, -1, 1]), g.ints(&[2], &[0, -1]));
    if pooling == Pooling::Max {
        let (one, far) = (g.scalar(1.0), g.scalar(1e9));
        let column = g.op(&format!("{scope}/column"), "Reshape", &[&ones, &column]);
        let below = g.op(&format!("{scope}/mask"), "Sub", &[&column, &one]);
        let below = g.op(&format!("{scope}/mask"), "Mul", &[&below, &far]);
        let masked = g.op(&scope, "Add", &[&x, &below]);
        let keep = ("keepdims", Attribute::Int(0));
        // The axes became an input with operator set 18.
        if opset < 18 {
            let axes = ("axes", Attribute::Ints(vec![1]));
            return g.op_with(&scope, "ReduceMax", &[&masked], &[axes, keep]);
        }
        let axes = g.ints(&[1], &[1]);
        return g.op_with(&scope, "ReduceMax", &[&masked, &axes], &[keep]);
    }
    let row_of = |g: &mut narthex_graph::Builder, name: &str, values: &str| {
        g.op(&format!("{scope}/{name}"), "Reshape", &[values, &row])
    };
    let all = row_of(g, "all", &ones);
    let column = g.op(&format!("{scope}/column"), "Reshape", &[&ones, &column]);
    let count = g.op(&format!("{scope}/count"), "MatMul", &[&all, &column]);
    let weights = match pooling {
        Pooling::Mean | Pooling::Max => all,
        Pooling::Cls | Pooling::Last => {
            let shape = g.op(&format!("{scope}/places"), "Shape", &[&ones]);
            let (zero, one, axis) = (g.ints(&[], &[0]), g.ints(&[], &[1]), g.ints(&[], &[1]));
            let length = g.op(&format!("{scope}/places"), "Gather", &[&shape, &axis]);
            let places = g.op(&format!("{scope}/places"), "Range", &[&zero, &length, &one]);
            let wanted = if pooling == Pooling::Cls {
                zero
            } else {
                let count = g.op_with(&format!("{scope}/count"), "Cast", &[&count], &to(super::glue::TO_I64));
                g.op(&format!("{scope}/last"), "Sub", &[&count, &one])
            };
            let here = g.op(&format!("{scope}/places"), "Equal", &[&places, &wanted]);
            let here = g.op_with(&format!("{scope}/places"), "Cast", &[&here], &to(TO_F32));
            // One row serves all texts, or each has its own.
            let (lead, zeros) = (g.scalar(0.0), format!("{scope}/each"));
            let zeros = g.op(&zeros, "Mul", &[&all, &lead]);
            g.op(&format!("{scope}/each"), "Add", &[&zeros, &here])
        }
    };
    let sum = g.op(&scope, "MatMul", &[&weights, &x]);
    let vector = if pooling == Pooling::Mean { g.op(&scope, "Div", &[&sum, &count]) } else { sum };
    g.op(&format!("{scope}/vector"), "Reshape", &[&vector, &flat])
}

/// A vector scaled to unit length.
fn unit(glue: &mut Glue, vector: &str) -> String {
    let attributes = [("axis", Attribute::Int(-1)), ("p", Attribute::Int(2))];
    glue.back.op_with(&format!("{OURS}pool"), "LpNormalization", &[vector], &attributes)
}
