//! Attention in plain operators: that of the static variant, in fixed shapes of rank 4 at most, and every encoder's. Masks
//! are added; there are no positions.

use narthex_graph::{Attribute, build::NodeSpec};
use narthex_spec::arch::{Attention, QkNorm};

use super::{
    attention::{Attended, Bidirectional, part_norm},
    linear::{Bias, Linear, linear},
    norm::Norm,
};
use crate::{emit::Emitter, error::CompileError};

/// What every decoder layer's attention reads besides its own past.
pub(crate) struct Step<'a> {
    /// New tokens.
    pub(crate) tokens: usize,
    /// Columns of the past.
    pub(crate) past: usize,
    /// Cosines and sines of the new tokens' angles, where the layer is rotated.
    pub(crate) angles: Option<&'a [String; 2]>,
    pub(crate) mask: &'a str,
}

/// One layer's past, and the names that the new tokens' part gets.
pub(crate) struct Past<'a> {
    pub(crate) key: &'a str,
    pub(crate) value: &'a str,
    pub(crate) new_key: &'a str,
    pub(crate) new_value: &'a str,
}

/// Whose keys and values a layer attends to.
pub(crate) enum Kv<'a> {
    /// Its own.
    Own(Past<'a>),
    /// Those that an earlier layer joined.
    Shared(&'a [String; 2]),
}

/// `Split` along an axis into parts of the given sizes.
pub(crate) fn split<const PARTS: usize>(
    e: &mut Emitter<'_>,
    scope: &str,
    x: &str,
    axis: i64,
    sizes: &[usize; PARTS],
) -> [String; PARTS] {
    let parts = split_all(e, scope, x, axis, sizes);
    std::array::from_fn(|part| parts.get(part).cloned().unwrap_or_default())
}

/// [`split`] into as many parts as there are sizes; one part is all of it.
pub(super) fn split_all(
    e: &mut Emitter<'_>,
    scope: &str,
    x: &str,
    axis: i64,
    sizes: &[usize],
) -> Vec<String> {
    if sizes.len() == 1 {
        return vec![x.to_owned()];
    }
    let name = format!("{scope}/Split");
    let outputs: Vec<String> = (0..sizes.len()).map(|part| format!("{name}/out.{part}")).collect();
    let lengths: Vec<i64> = sizes.iter().map(|&size| size as i64).collect();
    let lengths = e.graph.ints(&[sizes.len()], &lengths);
    let spec = NodeSpec {
        name: &name,
        op: "Split",
        domain: "",
        inputs: &[x, &lengths],
        attributes: &[("axis", Attribute::Int(axis))],
    };
    e.graph.node_to(spec, &outputs.iter().map(String::as_str).collect::<Vec<_>>());
    outputs
}

pub(crate) fn reshape(e: &mut Emitter<'_>, scope: &str, x: &str, shape: &[usize]) -> String {
    let extents: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
    let extents = e.graph.ints(&[shape.len()], &extents);
    e.graph.op(scope, "Reshape", &[x, &extents])
}

fn transpose(e: &mut Emitter<'_>, scope: &str, x: &str, order: &[i64]) -> String {
    e.graph.op_with(scope, "Transpose", &[x], &[("perm", Attribute::Ints(order.to_vec()))])
}

/// The two halves of each head rotated against each other.
///
/// ```text
/// x ── Split ─┬─ a ─ a·cos − b·sin ─┬─ Concat
///             └─ b ─ b·cos + a·sin ─┘
/// ```
fn rotate(e: &mut Emitter<'_>, scope: &str, x: &str, size: usize, [cos, sin]: &[String; 2]) -> String {
    let [first, second] = split(e, scope, x, 3, &[size / 2; 2]);
    let turned = |e: &mut Emitter<'_>, scope: &str, x: &str, y: &str, op: &str| {
        let along = e.graph.op(&format!("{scope}/cos"), "Mul", &[x, cos]);
        let across = e.graph.op(&format!("{scope}/sin"), "Mul", &[y, sin]);
        e.graph.op(scope, op, &[&along, &across])
    };
    let low = turned(e, &format!("{scope}/low"), &first, &second, "Sub");
    let high = turned(e, &format!("{scope}/high"), &second, &first, "Add");
    e.graph.op_with(scope, "Concat", &[&low, &high], &[("axis", Attribute::Int(3))])
}

/// Causal attention of a fixed number of new tokens to a past of fixed width and to themselves. Grouped queries
/// (Ainslie et al. 2023, arXiv:2305.13245) share keys by a reshape: `[1, kv_heads, group · tokens, size]`.
///
/// One token has the same elements in the same order whichever of heads and tokens comes first, so its graph goes without
/// the transposes, and without the reshapes between heads and groups. What is transposed right after a projection,
/// Qualcomm's compiler makes of one product for each head, with weights cut to match. The one token's graph is written so,
/// for their context to hold these weights once.
///
/// ```text
/// x ── qkv_proj ─┬─ q ─ rotate ─ scale ────────────── MatMul ── Add(mask) ── Softmax ── MatMul ── o_proj
///                ├─ k ─ rotate ─ transpose ─┬─ Concat(past) ┘                           │
///                │                          └─ new key                                  │
///                └─ v ──────────────────────┬─ Concat(past) ────────────────────────────┘
///                                           └─ new value
/// ```
/// A layer that shares its keys and values with an earlier one makes `q` alone.
pub(crate) fn cached(
    e: &mut Emitter<'_>,
    x: &str,
    at: (&str, &str),
    (norm, attention): (Norm, &Attention),
    (step, kv): (&Step<'_>, &Kv<'_>),
) -> Result<Attended, CompileError> {
    let (q, kv) = match kv {
        Kv::Own(past) => {
            let of = [("q", attention.heads), ("k", attention.kv_heads), ("v", attention.kv_heads)];
            let [q, k, v] = projected(e, x, at, (norm, attention), step.tokens, of)?;
            (q, keys_and_values(e, at, [k, v], (norm, attention), (step, past))?)
        }
        Kv::Shared(kv) => {
            let [q] = projected(e, x, at, (norm, attention), step.tokens, [("q", attention.heads)])?;
            (q, (*kv).clone())
        }
    };
    let q = turned(e, &q, at, ("q", attention.heads), (norm, attention), step)?;
    // Scaled before the product, which half precision might not hold otherwise.
    let q = scale(e, &format!("{}/q/scale", at.0), &q, attention.scale());
    let mixed = mixed(e, at.0, q, &kv, (attention, step));
    let flat = [1, step.tokens, attention.heads * attention.head_size];
    let output = project_out(e, &mixed, at, flat, attention.output_bias.into())?;
    Ok(Attended { output, kv })
}

/// Values weighed by how queries `[1, heads, tokens, size]` and keys agree: `[1, heads, tokens, size]`; for one token both
/// are by groups.
fn mixed(
    e: &mut Emitter<'_>,
    scope: &str,
    q: String,
    [keys, values]: &[String; 2],
    (attention, step): (&Attention, &Step<'_>),
) -> String {
    let (size, kv, tokens) = (attention.head_size, attention.kv_heads, step.tokens);
    let seen = step.past + tokens;
    let grouped = attention.heads / kv * tokens;
    let between = |e: &mut Emitter<'_>, part: &str, x: String, shape: [usize; 4]| {
        if tokens == 1 { x } else { reshape(e, &format!("{scope}/{part}"), &x, &shape) }
    };
    let q = between(e, "q/groups", q, [1, kv, grouped, size]);
    let scores = e.graph.op(&format!("{scope}/scores"), "MatMul", &[&q, keys]);
    let scores = between(e, "scores", scores, [1, attention.heads, tokens, seen]);
    let scores = match attention.score_cap {
        Some(cap) => capped(e, &format!("{scope}/cap"), &scores, cap),
        None => scores,
    };
    let weighed = weigh(e, scope, &scores, step.mask);
    let weighed = between(e, "groups", weighed, [1, kv, grouped, seen]);
    let mixed = e.graph.op(&format!("{scope}/mix"), "MatMul", &[&weighed, values]);
    between(e, "mix/heads", mixed, [1, attention.heads, tokens, size])
}

/// Some of queries, keys and values, by name and heads: each `[1, tokens, heads · size]` of its own; of one token, what is
/// not normed is `[1, heads, size]`.
fn projected<const PARTS: usize>(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weights): (&str, &str),
    (norm, attention): (Norm, &Attention),
    tokens: usize,
    of: [(&str, usize); PARTS],
) -> Result<[String; PARTS], CompileError> {
    let parts = of.map(|(part, _)| format!("{weights}.{part}_proj"));
    let all_scope = format!("{scope}/{}_proj", of.map(|(part, _)| part).concat());
    let bias = attention.qkv_bias.into();
    let all = linear(e, x, &Linear { scope: &all_scope, parts: &parts, cols: norm.width, bias })?;
    let size = attention.head_size;
    let pieces = of.map(|(part, heads)| {
        let normed = if part == "v" { attention.value_norm } else { attention.qk_norm != QkNorm::None };
        (part, if tokens > 1 || normed { vec![heads * size] } else { vec![size; heads] })
    });
    let sizes: Vec<usize> = pieces.iter().flat_map(|(_, sizes)| sizes).copied().collect();
    let mut found = split_all(e, &all_scope, &all, 2, &sizes).into_iter();
    Ok(pieces.map(|(part, sizes)| {
        let own: Vec<String> = found.by_ref().take(sizes.len()).collect();
        together(e, &format!("{scope}/{part}/heads"), &own)
    }))
}

/// Heads `[1, 1, size]` each, one after another: `[1, heads, size]`. One stays as it is.
fn together(e: &mut Emitter<'_>, scope: &str, heads: &[String]) -> String {
    let all: Vec<&str> = heads.iter().map(String::as_str).collect();
    match all[..] {
        [whole] => whole.to_owned(),
        _ => e.graph.op_with(scope, "Concat", &all, &[("axis", Attribute::Int(1))]),
    }
}

/// Keys, rotated, and values of the past and of the new tokens together: `[1, kv_heads, size, past + tokens]` and
/// `[1, kv_heads, past + tokens, size]`.
fn keys_and_values(
    e: &mut Emitter<'_>,
    at: (&str, &str),
    [k, v]: [String; 2],
    (norm, attention): (Norm, &Attention),
    (step, past): (&Step<'_>, &Past<'_>),
) -> Result<[String; 2], CompileError> {
    let (scope, weights) = at;
    let (size, kv, tokens) = (attention.head_size, attention.kv_heads, step.tokens);
    let k = turned(e, &k, at, ("k", kv), (norm, attention), step)?;
    let k = transpose(e, &format!("{scope}/k/columns"), &k, &[0, 1, 3, 2]);
    e.graph.rename(&k, past.new_key);
    let heads = format!("{scope}/v/heads");
    let rows = if tokens == 1 { [1, kv, 1, size] } else { [1, tokens, kv, size] };
    let v = reshape(e, &heads, &v, &rows);
    let v = part_norm(e, &v, (&format!("{scope}/v_norm"), weights), ("v", kv), (norm, attention))?;
    let v = if tokens == 1 { v } else { transpose(e, &heads, &v, &[0, 2, 1, 3]) };
    e.graph.rename(&v, past.new_value);
    let joined = |e: &mut Emitter<'_>, part: &str, parts: [&str; 2], axis| {
        e.graph.op_with(&format!("{scope}/{part}"), "Concat", &parts, &[("axis", Attribute::Int(axis))])
    };
    let keys = joined(e, "keys", [past.key, past.new_key], 3);
    let values = joined(e, "values", [past.value, past.new_value], 2);
    Ok([keys, values])
}

/// Queries (`q`) or keys (`k`), as [`projected`] gives them, normed and rotated: `[1, heads, tokens, size]`, or those of
/// one token by groups: `[1, kv_heads, heads / kv_heads, size]`.
fn turned(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weights): (&str, &str),
    (part, heads): (&str, usize),
    (norm, attention): (Norm, &Attention),
    step: &Step<'_>,
) -> Result<String, CompileError> {
    let (at, size, tokens) = (format!("{scope}/{part}"), attention.head_size, step.tokens);
    let groups = [1, attention.kv_heads, heads / attention.kv_heads, size];
    // A norm with a gain for each head wants the heads in a row.
    let direct = tokens == 1 && attention.qk_norm != QkNorm::LayerPerHead;
    let rows = if direct { groups } else { [1, tokens, heads, size] };
    let x = reshape(e, &format!("{at}/heads"), x, &rows);
    let x = part_norm(e, &x, (&format!("{at}_norm"), weights), (part, heads), (norm, attention))?;
    let x = match (tokens, direct) {
        (1, true) => x,
        (1, false) => reshape(e, &format!("{at}/groups"), &x, &groups),
        _ => transpose(e, &format!("{at}/heads"), &x, &[0, 2, 1, 3]),
    };
    Ok(match step.angles {
        Some(angles) => rotate(e, &format!("{at}/rotate"), &x, size, angles),
        None => x,
    })
}

/// `x · factor`.
pub(super) fn scale(e: &mut Emitter<'_>, scope: &str, x: &str, factor: f64) -> String {
    if factor == 1.0 {
        return x.to_owned();
    }
    let factor = e.number(factor);
    e.graph.op(scope, "Mul", &[x, &factor])
}

/// `cap · tanh(x / cap)`: within ±cap (Bello et al. 2016, arXiv:1611.09940).
pub(crate) fn capped(e: &mut Emitter<'_>, scope: &str, x: &str, cap: f32) -> String {
    let small = scale(e, &format!("{scope}/in"), x, f64::from(cap).recip());
    let bounded = e.graph.op(scope, "Tanh", &[&small]);
    scale(e, &format!("{scope}/out"), &bounded, f64::from(cap))
}

fn weigh(e: &mut Emitter<'_>, scope: &str, scores: &str, mask: &str) -> String {
    let masked = e.graph.op(&format!("{scope}/mask"), "Add", &[scores, mask]);
    e.graph.op_with(scope, "Softmax", &[&masked], &[("axis", Attribute::Int(-1))])
}

fn project_out(
    e: &mut Emitter<'_>,
    mixed: &str,
    (scope, weights): (&str, &str),
    flat: [usize; 3],
    bias: Bias,
) -> Result<String, CompileError> {
    let rows = if flat[1] == 1 {
        mixed.to_owned()
    } else {
        transpose(e, &format!("{scope}/mix"), mixed, &[0, 2, 1, 3])
    };
    let rows = reshape(e, &format!("{scope}/mix/flat"), &rows, &flat);
    let parts = [format!("{weights}.o_proj")];
    let o_scope = format!("{scope}/o_proj");
    linear(e, &rows, &Linear { scope: &o_scope, parts: &parts, cols: flat[2], bias })
}

/// What is added to the scores of padding, far below those of any token.
const PADDING_SCORE: f64 = -1e4;

/// What [`bidirectional`] adds to scores, `[batch, 1, 1, sequence]`, out of a padding mask `[batch, sequence]`.
///
/// ```text
/// mask ── Cast ── Sub(1) ── Mul(far) ── Unsqueeze
/// ```
pub(crate) fn padding_scores(e: &mut Emitter<'_>, padding_mask: &str) -> String {
    let mask = e.graph.op_with("/padding", "Cast", &[padding_mask], &[("to", Attribute::Int(1))]);
    let (one, far, axes) = (e.number(1.0), e.number(-PADDING_SCORE), e.graph.ints(&[2], &[1, 2]));
    let below = e.graph.op("/padding", "Sub", &[&mask, &one]);
    let scores = e.graph.op("/padding", "Mul", &[&below, &far]);
    e.graph.op("/padding", "Unsqueeze", &[&scores, &axes])
}

/// Attention of every token to every token of its text, padding masked, for both variants. Of the operators that fuse it,
/// ONNX Runtime's `MultiHeadAttention` takes no padding mask on WebGPU, and on a CPU it is not faster than these.
///
/// `texts` is how many texts there are and how long they are padded; 0 leaves either as it comes.
///
/// ```text
/// keys ───┬─ q_proj ─ scale ───── MatMul ── Add(mask) ── Softmax ── MatMul ── o_proj
///         ├─ k_proj ─ transpose ──┘                                 │
/// values ─┴─ v_proj ────────────────────────────────────────────────┘
/// ```
pub(crate) fn bidirectional(
    e: &mut Emitter<'_>,
    attention: &Bidirectional<'_>,
    (scope, weights): (&str, &str),
    (texts, mask): ([usize; 2], &str),
) -> Result<String, CompileError> {
    let (width, count) = (attention.width, attention.heads);
    let ([batch, length], size) = (texts, width / count);
    let project = |e: &mut Emitter<'_>, part: &str, order: &[i64]| {
        let rows = attention.project(e, (scope, weights), &format!("{part}_proj"))?;
        let split = format!("{scope}/{part}/heads");
        let rows = reshape(e, &split, &rows, &[batch, length, count, size]);
        Ok::<_, CompileError>(transpose(e, &split, &rows, order))
    };
    let q = project(e, "q", &[0, 2, 1, 3])?;
    let k = project(e, "k", &[0, 2, 3, 1])?;
    let v = project(e, "v", &[0, 2, 1, 3])?;
    let q = scale(e, &format!("{scope}/q/scale"), &q, (size as f64).sqrt().recip());
    let scores = e.graph.op(&format!("{scope}/scores"), "MatMul", &[&q, &k]);
    let weighed = weigh(e, scope, &scores, mask);
    let mixed = e.graph.op(&format!("{scope}/mix"), "MatMul", &[&weighed, &v]);
    project_out(e, &mixed, (scope, weights), [batch, length, width], Bias::With)
}
