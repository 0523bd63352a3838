//! Attention for the dynamic variant.

use narthex_graph::{Attribute, build::NodeSpec, graph::MICROSOFT};
use narthex_spec::arch::{Attention, QkNorm, Rotation};

use super::{
    linear::{Bias, Linear, linear},
    norm::{Norm, head_norm, unit_norm},
    plain::split,
};
use crate::{emit::Emitter, error::CompileError};

/// The graph inputs that every decoder layer's attention reads.
pub(crate) struct Cache<'a> {
    /// Each row's tokens minus one, and the longest row's tokens.
    pub(crate) lengths: [&'a str; 2],
    /// Cosines and sines `[positions, head_size / 2]`, where the layer is rotated.
    pub(crate) angles: Option<&'a [String; 2]>,
    /// Keys and values so far.
    pub(crate) past: [&'a str; 2],
    /// Names of keys and values in place of the past.
    pub(crate) present: [&'a str; 2],
    /// The new tokens' keys and values, where an earlier layer made them; past and present are then that layer's.
    pub(crate) shared: Option<&'a [String; 2]>,
}

/// What a layer's attention gives.
pub(crate) struct Attended {
    /// What it adds to the residual stream.
    pub(crate) output: String,
    /// The keys and values that it read, for layers that share them; empty where queries, keys and values stay in one.
    pub(crate) kv: [String; 2],
}

/// Causal attention over the cache, rotation inside.
///
/// ```text
/// x ── qkv_proj ─[ Split ─┬─ q ─ head norm ─┐ ]─ GroupQueryAttention(past, lengths, cos, sin) ─┬─ o_proj
///                         ├─ k ─ head norm ─┤                                                  └─ present (in place
///                         └─ v ─(head norm)─┘                                                     of past)
/// ```
/// A layer that shares its keys and values with an earlier one makes `q` alone, takes that layer's `k` and `v`, and writes
/// them where that layer has written them.
pub(crate) fn cached(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weights): (&str, &str),
    (norm, attention): (Norm, &Attention),
    cache: &Cache<'_>,
) -> Result<Attended, CompileError> {
    let [q, k, v] = match cache.shared {
        Some([k, v]) => {
            let q_scope = format!("{scope}/q_proj");
            let (parts, bias) = ([format!("{weights}.q_proj")], attention.qkv_bias.into());
            let q = linear(e, x, &Linear { scope: &q_scope, parts: &parts, cols: norm.width, bias })?;
            [
                normed(e, &q, (scope, weights), ("q", attention.heads), (norm, attention))?,
                k.clone(),
                v.clone(),
            ]
        }
        None => queries_keys_values(e, x, (scope, weights), (norm, attention))?,
    };
    let name = format!("{scope}/GroupQueryAttention");
    let output = format!("{name}/out");
    let attributes = attributes(attention);
    let mut inputs = vec![q.as_str(), &k, &v];
    inputs.extend(cache.past.into_iter().chain(cache.lengths));
    inputs.extend(cache.angles.iter().flat_map(|angles| angles.iter()).map(String::as_str));
    let spec = NodeSpec {
        name: &name,
        op: "GroupQueryAttention",
        domain: MICROSOFT,
        inputs: &inputs,
        attributes: &attributes,
    };
    e.graph.node_to(spec, &[&output, cache.present[0], cache.present[1]]);
    let parts = [format!("{weights}.o_proj")];
    let o_scope = format!("{scope}/o_proj");
    let cols = attention.heads * attention.head_size;
    let bias = attention.output_bias.into();
    let output = linear(e, &output, &Linear { scope: &o_scope, parts: &parts, cols, bias })?;
    Ok(Attended { output, kv: [k, v] })
}

fn attributes(attention: &Attention) -> Vec<(&'static str, Attribute)> {
    let rotated = attention.rotation != Rotation::None;
    let mut attributes = vec![
        ("num_heads", Attribute::from(attention.heads)),
        ("kv_num_heads", attention.kv_heads.into()),
        ("do_rotary", i64::from(rotated).into()),
        ("rotary_interleaved", 0i64.into()),
    ];
    if let Some(window) = attention.window {
        attributes.push(("local_window_size", window.into()));
    }
    attributes.extend(attention.scale.map(|scale| ("scale", scale.into())));
    attributes.extend(attention.score_cap.map(|cap| ("softcap", cap.into())));
    attributes
}

/// Queries, keys and values `[batch, sequence, heads · size]` apart and normed, or all of them in the first.
fn queries_keys_values(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weights): (&str, &str),
    (norm, attention): (Norm, &Attention),
) -> Result<[String; 3], CompileError> {
    let parts = ["q_proj", "k_proj", "v_proj"].map(|part| format!("{weights}.{part}"));
    let qkv_scope = format!("{scope}/qkv_proj");
    let qkv = Linear { scope: &qkv_scope, parts: &parts, cols: norm.width, bias: attention.qkv_bias.into() };
    let qkv = linear(e, x, &qkv)?;
    if attention.qk_norm == QkNorm::None && !attention.value_norm {
        return Ok([qkv, String::new(), String::new()]);
    }
    let (size, kv) = (attention.head_size, attention.kv_heads);
    let [q, k, v] = split(e, &qkv_scope, &qkv, 2, &[attention.heads * size, kv * size, kv * size]);
    let q = normed(e, &q, (scope, weights), ("q", attention.heads), (norm, attention))?;
    let k = normed(e, &k, (scope, weights), ("k", kv), (norm, attention))?;
    if !attention.value_norm {
        return Ok([q, k, v]);
    }
    let v = normed(e, &v, (scope, weights), ("v", kv), (norm, attention))?;
    Ok([q, k, v])
}

/// Queries (`q`), keys (`k`) or values (`v`) `[batch, sequence, heads · size]`, normed head by head.
fn normed(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weights): (&str, &str),
    (part, heads): (&str, usize),
    (norm, attention): (Norm, &Attention),
) -> Result<String, CompileError> {
    let size = attention.head_size;
    let at = format!("{scope}/{part}_norm");
    let apart = e.graph.ints(&[4], &[0, 0, heads as i64, size as i64]);
    let x = e.graph.op(&format!("{at}/heads"), "Reshape", &[x, &apart]);
    let x = part_norm(e, &x, (&at, weights), (part, heads), (norm, attention))?;
    let flat = e.graph.ints(&[3], &[0, 0, (heads * size) as i64]);
    Ok(e.graph.op(&format!("{at}/flat"), "Reshape", &[&x, &flat]))
}

/// Queries, keys or values `[.., heads, size]`, normed where the layer norms them.
pub(super) fn part_norm(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weights): (&str, &str),
    (part, heads): (&str, usize),
    (norm, attention): (Norm, &Attention),
) -> Result<String, CompileError> {
    let size = attention.head_size;
    match part {
        "v" if attention.value_norm => unit_norm(e, x, scope, (size, norm.epsilon)),
        "v" => Ok(x.to_owned()),
        _ => {
            let weight = format!("{weights}.{part}_norm.weight");
            head_norm(e, x, (scope, &weight), (heads, size), (attention.qk_norm, norm.epsilon))
        }
    }
}

/// What bidirectional attention is made of, and how wide it is.
pub(crate) struct Bidirectional<'a> {
    /// What queries and keys are made of, and its width.
    pub(crate) keys: (&'a str, usize),
    /// What values are made of, and its width.
    pub(crate) values: (&'a str, usize),
    /// Width over all heads, and the heads.
    pub(crate) width: usize,
    pub(crate) heads: usize,
}

impl Bidirectional<'_> {
    /// One of the projections `q_proj`, `k_proj` and `v_proj`.
    pub(crate) fn project(
        &self,
        e: &mut Emitter<'_>,
        (scope, weights): (&str, &str),
        part: &str,
    ) -> Result<String, CompileError> {
        let (x, cols) = if part == "v_proj" { self.values } else { self.keys };
        let scope = format!("{scope}/{part}");
        let parts = [format!("{weights}.{part}")];
        linear(e, x, &Linear { scope: &scope, parts: &parts, cols, bias: Bias::With })
    }
}
