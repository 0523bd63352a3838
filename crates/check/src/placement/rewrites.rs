//! Replacements for operators that a compiler refuses.

use narthex_graph::{Node, graph::MICROSOFT};

use crate::view::View;

/// Returns the replacement that `--fix` writes for an operator that the compiler refuses.
pub(crate) fn narthex_rewrites(view: &View<'_>, node: &Node) -> Option<&'static str> {
    let opset = view.graph().opset();
    match (node.domain.as_str(), node.op.as_str()) {
        (MICROSOFT, "SkipSimplifiedLayerNormalization")
            if is_unread(view, node, 1) && is_unread(view, node, 2) =>
        {
            Some("replace it with Add and SimplifiedLayerNormalization")
        }
        (MICROSOFT, "SkipLayerNormalization")
            if opset >= Some(17) && is_unread(view, node, 1) && is_unread(view, node, 2) =>
        {
            Some("replace it with Add and LayerNormalization")
        }
        (MICROSOFT, "BiasGelu") => Some("replace it with Add and Gelu"),
        (MICROSOFT, "FastGelu") if opset >= Some(20) => {
            Some("replace it with Gelu with the tanh approximation")
        }
        _ => None,
    }
}

/// Returns true if nothing reads an output of a node.
fn is_unread(view: &View<'_>, node: &Node, index: usize) -> bool {
    node.outputs.get(index).is_none_or(|name| {
        name.is_empty() || (!view.readers.contains_key(name.as_str()) && !view.is_output(name))
    })
}

/// Returns the replacement that an exporter can write for an operator.
pub(crate) fn rewrite(node: &Node) -> Option<&'static str> {
    Some(match node.op.as_str() {
        "SkipLayerNormalization" => "replace it with Add and LayerNormalization",
        "RotaryEmbedding" => {
            "write the rotation as Split, Mul, Sub, Add and Concat with cos and sin as inputs"
        }
        "MultiHeadAttention" | "Attention" | "GroupQueryAttention" => {
            "write attention as MatMul, Add of a float mask, Softmax and MatMul; with the model builder, export without fused attention"
        }
        "Erf" => {
            "write the activation as Gelu, or as x/2 · (1 + Erf(x/√2)), which the compiler recognises as a whole"
        }
        "FastGelu" => "replace it with Gelu with approximate=tanh (operator set 20)",
        "GatherBlockQuantized" => "keep the token table on the host and pass embedded tokens as an input",
        "Trilu" | "EyeLike" => "compute the mask on the host and pass it as a float input",
        "NonZero" | "Unique" | "Compress" | "NonMaxSuppression" => {
            "the size of its result depends on the data; compute it on the host"
        }
        "Mean" => "replace it with Add and Mul, or with ReduceMean",
        "GroupNormalization" => "replace it with Reshape, InstanceNormalization, Reshape, Mul and Add",
        "MatMulInteger" | "ConvInteger" | "DynamicQuantizeLinear" => {
            "dynamic quantisation suits CPUs; quantise statically with QuantizeLinear and DequantizeLinear pairs, or use MatMulNBits"
        }
        _ => return None,
    })
}
