//! Attention in plain operators and fixed shapes, for the static variant: rank 4 at most, additive masks, no positions.

use half::f16;
use narthex_graph::{Attribute, build::NodeSpec};
use narthex_spec::arch::{Attention, Rope};

use super::linear::{Bias, Linear, linear};
use crate::{emit::Emitter, error::CompileError};

/// What every decoder layer's attention reads besides its own past.
pub(crate) struct Step<'a> {
    /// New tokens.
    pub(crate) tokens: usize,
    /// Columns of the past.
    pub(crate) past: usize,
    pub(crate) rope: &'a Rope,
    pub(crate) cos: &'a str,
    pub(crate) sin: &'a str,
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
fn split(e: &mut Emitter<'_>, scope: &str, x: &str, axis: i64, sizes: &[usize]) -> Vec<String> {
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

fn reshape(e: &mut Emitter<'_>, scope: &str, x: &str, shape: &[usize]) -> String {
    let extents: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
    let extents = e.graph.ints(&[shape.len()], &extents);
    e.graph.op(scope, "Reshape", &[x, &extents])
}

fn transpose(e: &mut Emitter<'_>, scope: &str, x: &str, order: &[i64]) -> String {
    e.graph.op_with(scope, "Transpose", &[x], &[("perm", Attribute::Ints(order.to_vec()))])
}

/// `x [1, tokens, heads · size]` → `[1, heads, tokens, size]`.
fn heads(e: &mut Emitter<'_>, scope: &str, x: &str, (tokens, heads, size): (usize, usize, usize)) -> String {
    let x = reshape(e, scope, x, &[1, tokens, heads, size]);
    transpose(e, scope, &x, &[0, 2, 1, 3])
}

/// The two halves of each head's first `dims` elements rotated against each other; the rest stays.
///
/// ```text
/// x ── Split ─┬─ a ─ a·cos − b·sin ─┐
///             ├─ b ─ b·cos + a·sin ─┼─ Concat
///             └─ rest ──────────────┘
/// ```
fn rotate(e: &mut Emitter<'_>, scope: &str, x: &str, size: usize, step: &Step<'_>) -> String {
    let half = step.rope.dims / 2;
    let rest = size - 2 * half;
    let sizes = if rest == 0 { vec![half, half] } else { vec![half, half, rest] };
    let parts = split(e, scope, x, 3, &sizes);
    let turned = |e: &mut Emitter<'_>, scope: &str, x: &str, y: &str, op: &str| {
        let along = e.graph.op(&format!("{scope}/cos"), "Mul", &[x, step.cos]);
        let across = e.graph.op(&format!("{scope}/sin"), "Mul", &[y, step.sin]);
        e.graph.op(scope, op, &[&along, &across])
    };
    let low = turned(e, &format!("{scope}/low"), &parts[0], &parts[1], "Sub");
    let high = turned(e, &format!("{scope}/high"), &parts[1], &parts[0], "Add");
    let mut inputs = vec![low.as_str(), &high];
    inputs.extend(parts.get(2).map(String::as_str));
    e.graph.op_with(scope, "Concat", &inputs, &[("axis", Attribute::Int(3))])
}

/// Causal attention of a fixed number of new tokens to a past of fixed width and to themselves. Grouped queries
/// (Ainslie et al. 2023, arXiv:2305.13245) share keys by a reshape: `[1, kv_heads, group · tokens, size]`.
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
    (width, attention): (usize, &Attention),
    (step, past): (&Step<'_>, &Past<'_>),
) -> Result<String, CompileError> {
    let (size, kv, tokens) = (attention.head_size, attention.kv_heads, step.tokens);
    let q = rotated(e, x, (scope, weights), (width, attention), step)?;
    let [q, k, v] = q;
    let new_key = NodeSpec {
        name: &format!("{scope}/k/columns/Transpose"),
        op: "Transpose",
        domain: "",
        inputs: &[&k],
        attributes: &[("perm", Attribute::Ints(vec![0, 1, 3, 2]))],
    };
    e.graph.node_to(new_key, &[past.new_key]);
    let new_value = NodeSpec {
        name: &format!("{scope}/v/heads/Transpose"),
        op: "Transpose",
        domain: "",
        inputs: &[&v],
        attributes: &[("perm", Attribute::Ints(vec![0, 2, 1, 3]))],
    };
    e.graph.node_to(new_value, &[past.new_value]);
    let joined = |e: &mut Emitter<'_>, scope: &str, parts: [&str; 2], axis| {
        e.graph.op_with(scope, "Concat", &parts, &[("axis", Attribute::Int(axis))])
    };
    let keys = joined(e, &format!("{scope}/keys"), [past.key, past.new_key], 3);
    let values = joined(e, &format!("{scope}/values"), [past.value, past.new_value], 2);
    let seen = step.past + tokens;
    let grouped = attention.heads / kv * tokens;
    let q = reshape(e, &format!("{scope}/q/groups"), &q, &[1, kv, grouped, size]);
    let scores = e.graph.op(&format!("{scope}/scores"), "MatMul", &[&q, &keys]);
    let scores = reshape(e, &format!("{scope}/scores"), &scores, &[1, attention.heads, tokens, seen]);
    let weighed = weigh(e, scope, &scores, step.mask);
    let weighed = reshape(e, &format!("{scope}/groups"), &weighed, &[1, kv, grouped, seen]);
    let mixed = e.graph.op(&format!("{scope}/mix"), "MatMul", &[&weighed, &values]);
    let mixed = reshape(e, &format!("{scope}/mix/heads"), &mixed, &[1, attention.heads, tokens, size]);
    let flat = [1, tokens, attention.heads * size];
    project_out(e, &mixed, (scope, weights), flat, attention.output_bias.into())
}

/// Queries, rotated and scaled, `[1, heads, tokens, size]`; keys, rotated, `[1, kv_heads, tokens, size]`; and values,
/// `[1, tokens, kv_heads, size]`.
fn rotated(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weights): (&str, &str),
    (width, attention): (usize, &Attention),
    step: &Step<'_>,
) -> Result<[String; 3], CompileError> {
    let (size, kv, tokens) = (attention.head_size, attention.kv_heads, step.tokens);
    let parts = ["q_proj", "k_proj", "v_proj"].map(|part| format!("{weights}.{part}"));
    let qkv_scope = format!("{scope}/qkv_proj");
    let qkv = Linear { scope: &qkv_scope, parts: &parts, cols: width, bias: attention.qkv_bias.into() };
    let qkv = linear(e, x, &qkv)?;
    let qkv = split(e, &qkv_scope, &qkv, 2, &[attention.heads * size, kv * size, kv * size]);
    let q = heads(e, &format!("{scope}/q/heads"), &qkv[0], (tokens, attention.heads, size));
    let q = rotate(e, &format!("{scope}/q/rotate"), &q, size, step);
    // Scaled before the product, which half precision might not hold otherwise.
    let q = scale(e, &format!("{scope}/q/scale"), &q, size);
    let k = heads(e, &format!("{scope}/k/heads"), &qkv[1], (tokens, kv, size));
    let k = rotate(e, &format!("{scope}/k/rotate"), &k, size, step);
    let v = reshape(e, &format!("{scope}/v/heads"), &qkv[2], &[1, tokens, kv, size]);
    Ok([q, k, v])
}

/// `x / √size`.
fn scale(e: &mut Emitter<'_>, scope: &str, x: &str, size: usize) -> String {
    let factor = e.graph.half_scalar(f16::from_f64((size as f64).sqrt().recip()).to_bits());
    e.graph.op(scope, "Mul", &[x, &factor])
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
    let rows = transpose(e, &format!("{scope}/mix"), mixed, &[0, 2, 1, 3]);
    let rows = reshape(e, &format!("{scope}/mix/flat"), &rows, &flat);
    let parts = [format!("{weights}.o_proj")];
    let o_scope = format!("{scope}/o_proj");
    linear(e, &rows, &Linear { scope: &o_scope, parts: &parts, cols: flat[2], bias })
}

/// Attention of every token to every token of one text of fixed length, padding masked.
///
/// ```text
/// x ─┬─ q_proj ─ scale ───── MatMul ── Add(mask) ── Softmax ── MatMul ── o_proj
///    ├─ k_proj ─ transpose ──┘                                 │
///    └─ v_proj ────────────────────────────────────────────────┘
/// ```
pub(crate) fn bidirectional(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weights): (&str, &str),
    (length, width, count): (usize, usize, usize),
    mask: &str,
) -> Result<String, CompileError> {
    let size = width / count;
    let project = |e: &mut Emitter<'_>, part: &str, order: &[i64]| {
        let at = format!("{scope}/{part}_proj");
        let parts = [format!("{weights}.{part}_proj")];
        let rows = linear(e, x, &Linear { scope: &at, parts: &parts, cols: width, bias: Bias::With })?;
        let split = format!("{scope}/{part}/heads");
        let rows = reshape(e, &split, &rows, &[1, length, count, size]);
        Ok::<_, CompileError>(transpose(e, &split, &rows, order))
    };
    let q = project(e, "q", &[0, 2, 1, 3])?;
    let k = project(e, "k", &[0, 2, 3, 1])?;
    let v = project(e, "v", &[0, 2, 1, 3])?;
    let q = scale(e, &format!("{scope}/q/scale"), &q, size);
    let scores = e.graph.op(&format!("{scope}/scores"), "MatMul", &[&q, &k]);
    let weighed = weigh(e, scope, &scores, mask);
    let mixed = e.graph.op(&format!("{scope}/mix"), "MatMul", &[&weighed, &v]);
    project_out(e, &mixed, (scope, weights), [1, length, width], Bias::With)
}
