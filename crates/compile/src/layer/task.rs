//! What an encoder gives of its rows: a vector, numbers, spans, or logits at some tokens.

use narthex_graph::{Attribute, Builder, build::NodeSpec, onnx::external::Place};
use narthex_spec::{
    DType,
    arch::{Activation, EncoderArch, Pooling},
    manifest::{HostTable, TableEncoding, TableRole},
};

use super::{
    embed::{blocks, of_rows, product, table, table_dtype},
    linear::{Bias, Linear, linear, quantized_linear},
    mlp::activation,
    norm, plain,
};
use crate::{emit::Emitter, error::CompileError, quant::Storage};

/// One row per text from `x [batch, sequence, hidden]`.
///
/// ```text
/// mean:  x ── Mul(mask) ── ReduceSum ── Div(ReduceSum(mask))
/// cls:   x ── Gather(0)
/// max:   x ── Add(far below zero for padding) ── ReduceMax
/// last:  x ── Mul(mask - next token's mask) ── ReduceSum
/// ```
pub(crate) fn pool(e: &mut Emitter<'_>, x: &str, pooling: Pooling, padding_mask: &str) -> String {
    let g = &mut e.graph;
    let sequence = g.ints(&[1], &[1]);
    let drop_axis = [("keepdims", Attribute::Int(0))];
    let mask = |g: &mut Builder| {
        let column = g.ints(&[1], &[-1]);
        let mask = g.op_with("/pool/mask", "Cast", &[padding_mask], &[("to", Attribute::Int(1))]);
        g.op("/pool/mask", "Unsqueeze", &[&mask, &column])
    };
    let weighed = |g: &mut Builder, mask: &str| {
        let masked = g.op("/pool", "Mul", &[x, mask]);
        g.op_with("/pool", "ReduceSum", &[&masked, &sequence], &drop_axis)
    };
    match pooling {
        Pooling::Cls => {
            let first = g.ints(&[], &[0]);
            g.op_with("/pool", "Gather", &[x, &first], &[("axis", Attribute::Int(1))])
        }
        Pooling::Mean => {
            let mask = mask(g);
            let sum = weighed(g, &mask);
            let count = g.op_with("/pool/mask", "ReduceSum", &[&mask, &sequence], &drop_axis);
            g.op("/pool", "Div", &[&sum, &count])
        }
        Pooling::Max => {
            let (mask, one, far) = (mask(g), g.scalar(1.0), g.scalar(1e9));
            let below = g.op("/pool/mask", "Sub", &[&mask, &one]);
            let below = g.op("/pool/mask", "Mul", &[&below, &far]);
            let masked = g.op("/pool", "Add", &[x, &below]);
            g.op_with("/pool", "ReduceMax", &[&masked, &sequence], &drop_axis)
        }
        Pooling::Last => {
            let mask = mask(g);
            let (end, one_more) = (g.ints(&[1], &[i64::MAX]), g.ints(&[6], &[0, 0, 0, 0, 1, 0]));
            let padded = g.op("/pool/next", "Pad", &[&mask, &one_more]);
            let next = g.op("/pool/next", "Slice", &[&padded, &sequence, &end, &sequence]);
            let last = g.op("/pool/last", "Sub", &[&mask, &next]);
            weighed(g, &last)
        }
    }
}

/// The greatest of each element over one text of fixed length: `x [1, length, hidden]` → `[1, 1, hidden]`.
pub(crate) fn pool_max(e: &mut Emitter<'_>, x: &str, length: usize, mask: &str) -> String {
    let column = plain::reshape(e, "/pool/mask", mask, &[1, length, 1]);
    let masked = e.graph.op("/pool", "Add", &[x, &column]);
    let sequence = e.graph.ints(&[1], &[1]);
    e.graph.op_with("/pool", "ReduceMax", &[&masked, &sequence], &[("keepdims", Attribute::Int(1))])
}

/// A vector under the name of an output, scaled to unit length where asked.
pub(crate) fn vector(e: &mut Emitter<'_>, pooled: &str, unit: Unit, output: &str) {
    let (op, attributes): (&str, &[(&str, Attribute)]) = match unit {
        Unit::Length => ("LpNormalization", &[("axis", Attribute::Int(-1)), ("p", Attribute::Int(2))]),
        Unit::AsIs => ("Identity", &[]),
    };
    let name = format!("/pool/{op}");
    let spec = NodeSpec { name: &name, op, domain: "", inputs: &[pooled], attributes };
    e.graph.node_to(spec, &[output]);
}

/// Whether a vector is scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Length,
    AsIs,
}

/// A linear layer of a head.
fn dense(e: &mut Emitter<'_>, x: &str, name: &str, cols: usize) -> Result<String, CompileError> {
    let (scope, parts) = (format!("/{}", name.replace('.', "/")), [name.to_owned()]);
    linear(e, x, &Linear { scope: &scope, parts: &parts, cols, bias: Bias::With })
}

/// A text's numbers from its first row, `[.., hidden]` → `[.., labels]`.
///
/// ```text
/// first ── (dense ── act) ── out
/// ```
pub(crate) fn score(
    e: &mut Emitter<'_>,
    first: &str,
    hidden: usize,
    act: Option<Activation>,
    output: &str,
) -> Result<(), CompileError> {
    let mut x = first.to_owned();
    if let Some(act) = act {
        let wide = dense(e, &x, "score.dense", hidden)?;
        x = activation(e, "/score/act", &wide, act);
    }
    let out = dense(e, &x, "score.out", hidden)?;
    e.graph.rename(&out, output);
    Ok(())
}

/// Where an answer begins and ends: `x [.., sequence, hidden]` → `[.., sequence, 2]`.
pub(crate) fn spans(e: &mut Emitter<'_>, x: &str, hidden: usize, output: &str) -> Result<(), CompileError> {
    let out = dense(e, x, "spans", hidden)?;
    e.graph.rename(&out, output);
    Ok(())
}

/// Logits over the vocabulary, `rows [.., hidden]` → `[.., vocab]`.
///
/// ```text
/// rows ── dense ── act ── norm ─┬─ MatMul(token table) ─┬─ Add(bias)
///                               └─ MatMul(rest) ────────┘  (factored embeddings: the width that tokens lack)
/// ```
pub(crate) fn masked(
    e: &mut Emitter<'_>,
    rows: &str,
    arch: &EncoderArch,
    act: Option<Activation>,
    output: &str,
) -> Result<(), CompileError> {
    let (hidden, width) = (arch.hidden, arch.token_width());
    let x = dense(e, rows, "mlm.dense", hidden)?;
    let x = act.map_or_else(|| x.clone(), |act| activation(e, "/mlm/act", &x, act));
    let x = norm::layer_norm(e, &x, ("/mlm/norm", "mlm.norm"), hidden, arch.norm_epsilon)?;
    let logits = if width == hidden {
        by_tokens(e, &x, arch)?
    } else {
        let parts = plain::split(e, "/mlm", &x, -1, &[width, hidden - width]);
        let shape = [hidden - width, arch.vocab];
        let rest = e.tensor("/mlm/rest/weight", &shape, |e| e.values("mlm.rest.weight", &shape))?;
        let rest = e.graph.op("/mlm/rest", "MatMul", &[&parts[1], &rest]);
        let tokens = by_tokens(e, &parts[0], arch)?;
        e.graph.op("/mlm/sum", "Add", &[&tokens, &rest])
    };
    let bias = e.vector("mlm.bias", arch.vocab)?;
    let spec =
        NodeSpec { name: "/mlm/Add", op: "Add", domain: "", inputs: &[&logits, &bias], attributes: &[] };
    e.graph.node_to(spec, &[output]);
    Ok(())
}

const TOKENS: &str = "embed.word.weight";

/// The vocabulary's weight where it is not in blocks.
const VOCABULARY: &str = "/mlm/tokens/weight";

/// Writes the token table, which a vocabulary's logits are multiplied with too.
pub(crate) fn token_table(e: &mut Emitter<'_>, arch: &EncoderArch) -> Result<HostTable, CompileError> {
    let (rows, cols) = (arch.vocab, arch.token_width());
    let storage = e.plan.get(TOKENS).map_or(Storage::F32, |planned| planned.storage);
    if let Some(dtype) = storage.plain() {
        let table = table(e, (TableRole::Token, TOKENS), (rows, cols), dtype)?;
        if let TableEncoding::Plain { data, .. } = &table.encoding {
            e.once(VOCABULARY, dtype, |_| Ok(Place { offset: data.offset, length: data.length }))?;
        }
        return Ok(table);
    }
    let weight = e.quantize(&[TOKENS.to_owned()], cols, storage)?;
    if cols.is_multiple_of(e.recipe.block) {
        Ok(HostTable { role: TableRole::Token, rows, cols, encoding: blocks(e, &weight) })
    } else {
        table(e, (TableRole::Token, TOKENS), (rows, cols), table_dtype(e.recipe.scheme))
    }
}

/// Rows by the weight that [`token_table`] wrote: `[rows, width]`, or `[1, 1, width]` in variant B.
fn by_tokens(e: &mut Emitter<'_>, x: &str, arch: &EncoderArch) -> Result<String, CompileError> {
    let (rows, cols) = (arch.vocab, arch.token_width());
    let storage = e.plan.get(TOKENS).map_or(Storage::F32, |planned| planned.storage);
    let Some(dtype) = storage.plain() else {
        let weight = e.quantize(&[TOKENS.to_owned()], cols, storage)?;
        return Ok(quantized_linear(e, x, ("/mlm/tokens", rows, cols), &weight, None));
    };
    let write = |e: &mut Emitter<'_>| e.rows(TOKENS, (rows, 0..rows, cols), dtype);
    let weight = e.stored(VOCABULARY, dtype, &[rows, cols], write)?;
    Ok(match e.compute {
        DType::F16 => of_rows(e, "/mlm/tokens", x, &weight, (rows, cols)),
        _ => product(e, "/mlm/tokens", x, &weight),
    })
}
