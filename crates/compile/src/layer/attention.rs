//! Attention for the dynamic variant.

use narthex_graph::{Attribute, build::NodeSpec, graph::MICROSOFT};
use narthex_spec::arch::Attention;

use super::linear::{Bias, Linear, linear};
use crate::{emit::Emitter, error::CompileError};

/// The graph inputs that every decoder layer's attention reads.
pub(crate) struct Cache<'a> {
    pub(crate) seqlens_k: &'a str,
    pub(crate) total_length: &'a str,
    pub(crate) cos: &'a str,
    pub(crate) sin: &'a str,
    pub(crate) past_key: &'a str,
    pub(crate) past_value: &'a str,
    pub(crate) present_key: &'a str,
    pub(crate) present_value: &'a str,
}

/// Causal attention over the cache, rotation inside.
///
/// ```text
/// x ── qkv_proj ── GroupQueryAttention(past, lengths, cos, sin) ─┬─ o_proj
///                                                                └─ present (in place of past)
/// ```
pub(crate) fn cached(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weights): (&str, &str),
    (width, attention): (usize, &Attention),
    cache: &Cache<'_>,
) -> Result<String, CompileError> {
    let parts = ["q_proj", "k_proj", "v_proj"].map(|part| format!("{weights}.{part}"));
    let qkv_scope = format!("{scope}/qkv_proj");
    let qkv = Linear { scope: &qkv_scope, parts: &parts, cols: width, bias: attention.qkv_bias.into() };
    let qkv = linear(e, x, &qkv)?;
    let name = format!("{scope}/GroupQueryAttention");
    let output = format!("{name}/out");
    let mut attributes = vec![
        ("num_heads", Attribute::from(attention.heads)),
        ("kv_num_heads", attention.kv_heads.into()),
        ("do_rotary", 1i64.into()),
        ("rotary_interleaved", 0i64.into()),
    ];
    if let Some(window) = attention.window {
        attributes.push(("local_window_size", window.into()));
    }
    let inputs = [
        &qkv,
        "",
        "",
        cache.past_key,
        cache.past_value,
        cache.seqlens_k,
        cache.total_length,
        cache.cos,
        cache.sin,
    ];
    let spec = NodeSpec {
        name: &name,
        op: "GroupQueryAttention",
        domain: MICROSOFT,
        inputs: &inputs,
        attributes: &attributes,
    };
    e.graph.node_to(spec, &[&output, cache.present_key, cache.present_value]);
    let parts = [format!("{weights}.o_proj")];
    let o_scope = format!("{scope}/o_proj");
    let cols = attention.heads * attention.head_size;
    linear(e, &output, &Linear { scope: &o_scope, parts: &parts, cols, bias: attention.output_bias.into() })
}

/// Attention of every token to every token of its text.
///
/// ```text
/// x ─┬─ q_proj ─┐
///    ├─ k_proj ─┼─ MultiHeadAttention(padding mask) ── o_proj
///    └─ v_proj ─┘
/// ```
pub(crate) fn bidirectional(
    e: &mut Emitter<'_>,
    x: &str,
    (scope, weights): (&str, &str),
    (width, heads): (usize, usize),
    padding_mask: &str,
) -> Result<String, CompileError> {
    let project = |e: &mut Emitter<'_>, part: &str, x: &str| {
        let scope = format!("{scope}/{part}");
        let parts = [format!("{weights}.{part}")];
        linear(e, x, &Linear { scope: &scope, parts: &parts, cols: width, bias: Bias::With })
    };
    let q = project(e, "q_proj", x)?;
    let k = project(e, "k_proj", x)?;
    let v = project(e, "v_proj", x)?;
    let name = format!("{scope}/MultiHeadAttention");
    let output = e.graph.node(NodeSpec {
        name: &name,
        op: "MultiHeadAttention",
        domain: MICROSOFT,
        inputs: &[&q, &k, &v, "", padding_mask],
        attributes: &[("num_heads", heads.into())],
    });
    project(e, "o_proj", &output)
}
