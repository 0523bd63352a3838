//! Attention for the dynamic variant.

use narthex_graph::{Attribute, build::NodeSpec, graph::MICROSOFT};
use narthex_spec::arch::{Attention, QkNorm, Rotation};

use super::{
    linear::{Bias, Linear, linear},
    norm::{Norm, head_norm},
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
}

/// Causal attention over the cache, rotation inside.
///
/// ```text
/// x ── qkv_proj ─[ Split ─┬─ q ─ head norm ─┐ ]─ GroupQueryAttention(past, lengths, cos, sin) ─┬─ o_proj
///                         ├─ k ─ head norm ─┤                                                  └─ present (in place
///                         └─ v ─────────────┘                                                     of past)
/// ```
pub(crate) fn cached(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weights): (&str, &str),
    (norm, attention): (Norm, &Attention),
    cache: &Cache<'_>,
) -> Result<String, CompileError> {
    let parts = ["q_proj", "k_proj", "v_proj"].map(|part| format!("{weights}.{part}"));
    let qkv_scope = format!("{scope}/qkv_proj");
    let qkv = Linear { scope: &qkv_scope, parts: &parts, cols: norm.width, bias: attention.qkv_bias.into() };
    let qkv = linear(e, x, &qkv)?;
    let [q, k, v] = match attention.qk_norm {
        QkNorm::None => [qkv, String::new(), String::new()],
        _ => normed_parts(e, &qkv, (scope, weights), (norm, attention))?,
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
    linear(e, &output, &Linear { scope: &o_scope, parts: &parts, cols, bias: attention.output_bias.into() })
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

/// Queries, keys and values `[batch, sequence, heads · size]` apart, the first two normed.
fn normed_parts(
    e: &mut Emitter<'_>,
    qkv: &str,
    (scope, weights): (&str, &str),
    (norm, attention): (Norm, &Attention),
) -> Result<[String; 3], CompileError> {
    let (size, kv) = (attention.head_size, attention.kv_heads);
    let parts =
        split(e, &format!("{scope}/qkv_proj"), qkv, 2, &[attention.heads * size, kv * size, kv * size]);
    let mut normed = parts.clone();
    for (part, (index, heads)) in [("q", (0, attention.heads)), ("k", (1, kv))] {
        let at = format!("{scope}/{part}_norm");
        let apart = e.graph.ints(&[4], &[0, 0, heads as i64, size as i64]);
        let x = e.graph.op(&format!("{at}/heads"), "Reshape", &[&parts[index], &apart]);
        let weight = format!("{weights}.{part}_norm.weight");
        let x = head_norm(e, &x, (&at, &weight), (heads, size), (attention.qk_norm, norm.epsilon))?;
        let flat = e.graph.ints(&[3], &[0, 0, (heads * size) as i64]);
        normed[index] = e.graph.op(&format!("{at}/flat"), "Reshape", &[&x, &flat]);
    }
    Ok(normed)
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

/// Attention of every token to every token of its text.
///
/// ```text
/// keys ───┬─ q_proj ─┐
///         ├─ k_proj ─┼─ MultiHeadAttention(padding mask) ── o_proj
/// values ─┴─ v_proj ─┘
/// ```
pub(crate) fn bidirectional(
    e: &mut Emitter<'_>,
    attention: &Bidirectional<'_>,
    (scope, weights): (&str, &str),
    padding_mask: &str,
) -> Result<String, CompileError> {
    let q = attention.project(e, (scope, weights), "q_proj")?;
    let k = attention.project(e, (scope, weights), "k_proj")?;
    let v = attention.project(e, (scope, weights), "v_proj")?;
    let name = format!("{scope}/MultiHeadAttention");
    let output = e.graph.node(NodeSpec {
        name: &name,
        op: "MultiHeadAttention",
        domain: MICROSOFT,
        inputs: &[&q, &k, &v, "", padding_mask],
        attributes: &[("num_heads", attention.heads.into())],
    });
    let (scope, parts) = (format!("{scope}/o_proj"), [format!("{weights}.o_proj")]);
    linear(e, &output, &Linear { scope: &scope, parts: &parts, cols: attention.width, bias: Bias::With })
}
