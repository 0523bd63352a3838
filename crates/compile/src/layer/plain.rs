//! Attention in plain operators and fixed shapes, for the static variant: rank 4 at most, additive masks, no positions.

use narthex_graph::{Attribute, build::NodeSpec};
use narthex_spec::arch::{Attention, QkNorm};

use super::{
    attention::Bidirectional,
    linear::{Bias, Linear, linear},
    norm::{Norm, head_norm},
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

/// `Split` along an axis into parts of the given sizes.
pub(crate) fn split<const PARTS: usize>(
    e: &mut Emitter<'_>,
    scope: &str,
    x: &str,
    axis: i64,
    sizes: &[usize; PARTS],
) -> [String; PARTS] {
    let name = format!("{scope}/Split");
    let outputs = std::array::from_fn(|part| format!("{name}/out.{part}"));
    let lengths: Vec<i64> = sizes.iter().map(|&size| size as i64).collect();
    let lengths = e.graph.ints(&[sizes.len()], &lengths);
    let spec = NodeSpec {
        name: &name,
        op: "Split",
        domain: "",
        inputs: &[x, &lengths],
        attributes: &[("axis", Attribute::Int(axis))],
    };
    e.graph.node_to(spec, &outputs.each_ref().map(String::as_str));
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
/// the transposes, and without the reshapes between heads and groups.
///
/// ```text
/// x ── qkv_proj ─┬─ q ─ rotate ─ scale ────────────── MatMul ── Add(mask) ── Softmax ── MatMul ── o_proj
///                ├─ k ─ rotate ─ transpose ─┬─ Concat(past) ┘                           │
///                │                          └─ new key                                  │
///                └─ v ──────────────────────┬─ Concat(past) ────────────────────────────┘
///                                           └─ new value
/// ```
pub(crate) fn cached(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weights): (&str, &str),
    (norm, attention): (Norm, &Attention),
    (step, past): (&Step<'_>, &Past<'_>),
) -> Result<String, CompileError> {
    let (size, kv, tokens) = (attention.head_size, attention.kv_heads, step.tokens);
    let [q, k, v] = rotated(e, x, (scope, weights), (norm, attention), step)?;
    let new_key = NodeSpec {
        name: &format!("{scope}/k/columns/Transpose"),
        op: "Transpose",
        domain: "",
        inputs: &[&k],
        attributes: &[("perm", Attribute::Ints(vec![0, 1, 3, 2]))],
    };
    e.graph.node_to(new_key, &[past.new_key]);
    heads_to(e, &format!("{scope}/v/heads"), &v, (tokens, kv, size), past.new_value);
    let joined = |e: &mut Emitter<'_>, scope: &str, parts: [&str; 2], axis| {
        e.graph.op_with(scope, "Concat", &parts, &[("axis", Attribute::Int(axis))])
    };
    let keys = joined(e, &format!("{scope}/keys"), [past.key, past.new_key], 3);
    let values = joined(e, &format!("{scope}/values"), [past.value, past.new_value], 2);
    let seen = step.past + tokens;
    let grouped = attention.heads / kv * tokens;
    let between = |e: &mut Emitter<'_>, part: &str, x: String, shape: [usize; 4]| {
        if tokens == 1 { x } else { reshape(e, &format!("{scope}/{part}"), &x, &shape) }
    };
    let q = between(e, "q/groups", q, [1, kv, grouped, size]);
    let scores = e.graph.op(&format!("{scope}/scores"), "MatMul", &[&q, &keys]);
    let scores = between(e, "scores", scores, [1, attention.heads, tokens, seen]);
    let scores = match attention.score_cap {
        Some(cap) => capped(e, &format!("{scope}/cap"), &scores, cap),
        None => scores,
    };
    let weighed = weigh(e, scope, &scores, step.mask);
    let weighed = between(e, "groups", weighed, [1, kv, grouped, seen]);
    let mixed = e.graph.op(&format!("{scope}/mix"), "MatMul", &[&weighed, &values]);
    let mixed = between(e, "mix/heads", mixed, [1, attention.heads, tokens, size]);
    let flat = [1, tokens, attention.heads * size];
    project_out(e, &mixed, (scope, weights), flat, attention.output_bias.into())
}

/// `[1, tokens, heads · size]` as `output` of `[1, heads, tokens, size]`.
fn heads_to(
    e: &mut Emitter<'_>,
    scope: &str,
    x: &str,
    (tokens, heads, size): (usize, usize, usize),
    output: &str,
) {
    let (op, x, parameter, attributes) = if tokens == 1 {
        let shape = [1, heads, 1, size].map(|extent| extent as i64);
        ("Reshape", x.to_owned(), Some(e.graph.ints(&[4], &shape)), Vec::new())
    } else {
        let rows = reshape(e, scope, x, &[1, tokens, heads, size]);
        ("Transpose", rows, None, vec![("perm", Attribute::Ints(vec![0, 2, 1, 3]))])
    };
    let name = format!("{scope}/{op}");
    let inputs: Vec<&str> = [x.as_str()].into_iter().chain(parameter.as_deref()).collect();
    let spec = NodeSpec { name: &name, op, domain: "", inputs: &inputs, attributes: &attributes };
    e.graph.node_to(spec, &[output]);
}

/// Queries, rotated and scaled, `[1, heads, tokens, size]`, or those of one token by groups,
/// `[1, kv_heads, heads / kv_heads, size]`; keys, rotated, `[1, kv_heads, tokens, size]`; and values,
/// `[1, tokens, kv_heads · size]`.
fn rotated(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weights): (&str, &str),
    (norm, attention): (Norm, &Attention),
    step: &Step<'_>,
) -> Result<[String; 3], CompileError> {
    let (size, kv, tokens) = (attention.head_size, attention.kv_heads, step.tokens);
    let parts = ["q_proj", "k_proj", "v_proj"].map(|part| format!("{weights}.{part}"));
    let qkv_scope = format!("{scope}/qkv_proj");
    let qkv = Linear { scope: &qkv_scope, parts: &parts, cols: norm.width, bias: attention.qkv_bias.into() };
    let qkv = linear(e, x, &qkv)?;
    let [q, k, v] = split(e, &qkv_scope, &qkv, 2, &[attention.heads * size, kv * size, kv * size]);
    let turned = |e: &mut Emitter<'_>, part: &str, x: &str, heads: usize| {
        let at = format!("{scope}/{part}");
        let groups = [1, kv, heads / kv, size];
        // A norm with a gain for each head wants the heads in a row.
        let direct = tokens == 1 && attention.qk_norm != QkNorm::LayerPerHead;
        let rows = if direct { groups } else { [1, tokens, heads, size] };
        let x = reshape(e, &format!("{at}/heads"), x, &rows);
        let (named, weight) = (format!("{at}_norm"), format!("{weights}.{part}_norm.weight"));
        let x = head_norm(e, &x, (&named, &weight), (heads, size), (attention.qk_norm, norm.epsilon))?;
        let x = match (tokens, direct) {
            (1, true) => x,
            (1, false) => reshape(e, &format!("{at}/groups"), &x, &groups),
            _ => transpose(e, &format!("{at}/heads"), &x, &[0, 2, 1, 3]),
        };
        Ok::<_, CompileError>(match step.angles {
            Some(angles) => rotate(e, &format!("{at}/rotate"), &x, size, angles),
            None => x,
        })
    };
    let q = turned(e, "q", &q, attention.heads)?;
    // Scaled before the product, which half precision might not hold otherwise.
    let q = scale(e, &format!("{scope}/q/scale"), &q, attention.scale());
    let k = turned(e, "k", &k, kv)?;
    Ok([q, k, v])
}

/// `x · factor`.
fn scale(e: &mut Emitter<'_>, scope: &str, x: &str, factor: f64) -> String {
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

/// Attention of every token to every token of one text of fixed length, padding masked.
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
    (length, mask): (usize, &str),
) -> Result<String, CompileError> {
    let (width, count) = (attention.width, attention.heads);
    let size = width / count;
    let project = |e: &mut Emitter<'_>, part: &str, order: &[i64]| {
        let rows = attention.project(e, (scope, weights), &format!("{part}_proj"))?;
        let split = format!("{scope}/{part}/heads");
        let rows = reshape(e, &split, &rows, &[1, length, count, size]);
        Ok::<_, CompileError>(transpose(e, &split, &rows, order))
    };
    let q = project(e, "q", &[0, 2, 1, 3])?;
    let k = project(e, "k", &[0, 2, 3, 1])?;
    let v = project(e, "v", &[0, 2, 1, 3])?;
    let q = scale(e, &format!("{scope}/q/scale"), &q, (size as f64).sqrt().recip());
    let scores = e.graph.op(&format!("{scope}/scores"), "MatMul", &[&q, &k]);
    let weighed = weigh(e, scope, &scores, mask);
    let mixed = e.graph.op(&format!("{scope}/mix"), "MatMul", &[&weighed, &v]);
    project_out(e, &mixed, (scope, weights), [1, length, width], Bias::With)
}
