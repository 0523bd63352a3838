//! Number of multiply-accumulates of a node, from the shapes of its tensors.
//!
//! Only matrix products and convolutions are counted; everything else in a model is negligible compared with them.

use crate::{
    graph::Node,
    infer::{InferredTensors, Shape, TensorInfo},
};

/// Returns the number of multiply-accumulates of one run of a node: 0 for operators with few of them, `None` if a shape
/// is unknown.
pub fn multiply_accumulates(node: &Node, known: &InferredTensors) -> Option<u64> {
    let shape = |index| known.input(node, index).and_then(|tensor| tensor.shape.as_ref());
    let output = known.output(node);
    match node.op.as_str() {
        "MatMul" | "MatMulInteger" | "FusedMatMul" | "QLinearMatMul" => {
            let rank = shape(0)?.len();
            let inner =
                if node.int("transA") == Some(1) && rank >= 2 { rank - 2 } else { rank.checked_sub(1)? };
            output.count()?.checked_mul((*shape(0)?.get(inner)?)?)
        }
        "MatMulNBits" => output.count()?.checked_mul(u64::try_from(node.int("K")?).ok()?),
        // Only the experts of a row compute it.
        "MoE" => experts(node, known, shape(4)?),
        "QMoE" => {
            let bits = u64::try_from(node.int("expert_weight_bits")?).ok().filter(|&bits| bits > 0)?;
            experts(node, known, shape(5)?)?.checked_mul(8 / bits)
        }
        "Gemm" => {
            let inner = if node.int("transA") == Some(1) { 0 } else { 1 };
            output.count()?.checked_mul((*shape(0)?.get(inner)?)?)
        }
        "Conv" | "ConvInteger" | "FusedConv" => output.count()?.checked_mul(per_window(shape(1)?)?),
        "QLinearConv" => output.count()?.checked_mul(per_window(shape(3)?)?),
        "ConvTranspose" => known.input(node, 0)?.count()?.checked_mul(per_window(shape(1)?)?),
        "Attention" if node.domain.is_empty() => attention(shape(0)?, shape(1)?, shape(2)?),
        "GroupQueryAttention" => grouped(node, output, known),
        // A token reads the state twice, and adds a product to it.
        "LinearAttention" => {
            let heads = u64::try_from(node.int("kv_num_heads")?).ok()?;
            output.count()?.checked_mul(last(shape(1)?)?)?.checked_mul(3)?.checked_div(heads)
        }
        "MultiHeadAttention" => match shape(1)?.as_slice() {
            // Keys of separate heads: each query attends to all of them twice, for the scores and for the values.
            [_, _, keys, _] => output.count()?.checked_mul((*keys)?)?.checked_mul(2),
            _ => attention(shape(0)?, shape(1)?, shape(2).or(shape(1))?),
        },
        "LSTM" | "GRU" | "RNN" => recurrent(shape(0)?, shape(1)?, shape(2)?),
        "Einsum" => einsum(node, known),
        _ => Some(0),
    }
}

fn per_window(weight: &Shape) -> Option<u64> {
    weight.get(1..)?.iter().try_fold(1u64, |count, extent| count.checked_mul((*extent)?))
}

fn last(shape: &Shape) -> Option<u64> {
    *shape.last()?
}

/// Counts the scores and their product with the values: each combines every query with every key.
fn attention(q: &Shape, k: &Shape, v: &Shape) -> Option<u64> {
    let keys = (*k.get(k.len().checked_sub(2)?)?)?;
    let queries = q.iter().try_fold(1u64, |count, extent| count.checked_mul((*extent)?))?;
    let scores = queries.checked_mul(keys)?;
    scores.checked_add(scores.checked_div(last(q)?)?.checked_mul(last(v)?)?)
}

/// Counts grouped-query attention: each query attends to the whole cache, which past and present share.
fn grouped(node: &Node, output: &TensorInfo, known: &InferredTensors) -> Option<u64> {
    let past = known.input(node, 3)?.shape.as_ref()?;
    let capacity = (*past.get(2)?)?;
    let queries = output.count()?;
    queries.checked_mul(capacity)?.checked_mul(2)
}

/// Counts the products of a mixture of experts with alternating gate and up projections, and with the weights `down`
/// `[experts, width, inner]`.
fn experts(node: &Node, known: &InferredTensors, down: &Shape) -> Option<u64> {
    let per_row = u64::try_from(node.int("k")?).ok()?.checked_mul(3)?;
    known.input(node, 0)?.count()?.checked_mul(last(down)?)?.checked_mul(per_row)
}

fn recurrent(x: &Shape, w: &Shape, r: &Shape) -> Option<u64> {
    let steps = x.iter().take(2).try_fold(1u64, |count, extent| count.checked_mul((*extent)?))?;
    steps.checked_mul(element_count(w)?.checked_add(element_count(r)?)?)
}

fn element_count(shape: &Shape) -> Option<u64> {
    shape.iter().try_fold(1u64, |count, extent| count.checked_mul((*extent)?))
}

/// Counts all combinations of the letters in the equation, as in nested loops over them.
fn einsum(node: &Node, known: &InferredTensors) -> Option<u64> {
    let (operands, _) = node.text("equation")?.split_once("->")?;
    let mut extents = std::collections::BTreeMap::new();
    for (index, letters) in operands.split(',').enumerate() {
        let shape = known.input(node, index)?.shape.as_ref()?;
        let letters: Vec<char> = letters.chars().filter(|c| !c.is_whitespace()).collect();
        if letters.len() != shape.len() || letters.contains(&'.') {
            return None;
        }
        for (letter, extent) in letters.into_iter().zip(shape) {
            extents.insert(letter, (*extent)?);
        }
    }
    extents.values().try_fold(1u64, |count, extent| count.checked_mul(*extent))
}

#[cfg(test)]
mod tests {
    use narthex_spec::{DType, dtype::Dim};

    use super::*;
    use crate::{
        build::{Builder, NodeSpec},
        graph::{Attribute, MICROSOFT},
    };

    fn check(op: (&str, &str), inputs: &[&[usize]], attributes: &[(&str, Attribute)], expect: Option<u64>) {
        let mut b = Builder::new("g", &[("", 23), (MICROSOFT, 1)]);
        let names: Vec<String> = inputs
            .iter()
            .enumerate()
            .map(|(i, shape)| {
                let dims: Vec<Dim> = shape.iter().map(|&extent| extent.into()).collect();
                b.input(&format!("x{i}"), DType::F32, &dims)
            })
            .collect();
        let inputs: Vec<&str> = names.iter().map(String::as_str).collect();
        b.node(NodeSpec { name: "/n", op: op.1, domain: op.0, inputs: &inputs, attributes });
        let graph = b.finish();
        let known = graph.infer(&|_| None);
        assert_eq!(multiply_accumulates(&graph.nodes[0], &known), expect, "{op:?}");
    }

    #[test]
    fn products_are_counted() {
        check(("", "MatMul"), &[&[2, 3, 4], &[4, 5]], &[], Some(2 * 3 * 4 * 5));
        check(("", "MatMul"), &[&[4], &[4, 5]], &[], Some(20));
        check(
            ("", "Gemm"),
            &[&[4, 2], &[5, 4]],
            &[("transA", 1i64.into()), ("transB", 1i64.into())],
            Some(40),
        );
        let bits = [("K", Attribute::from(64usize)), ("N", 16usize.into())];
        let experts = [("k", Attribute::from(2usize)), ("expert_weight_bits", 4i64.into())];
        let moe: [&[usize]; 5] = [&[1, 3, 64], &[3, 8], &[8, 96, 64], &[], &[8, 64, 48]];
        check((MICROSOFT, "MoE"), &moe, &experts, Some(3 * 64 * 48 * 3 * 2));
        let qmoe: [&[usize]; 6] = [&[1, 3, 64], &[3, 8], &[8, 96, 32], &[8, 96, 2], &[], &[8, 64, 24]];
        check((MICROSOFT, "QMoE"), &qmoe, &experts, Some(3 * 64 * 48 * 3 * 2));
        check((MICROSOFT, "MatMulNBits"), &[&[1, 3, 64]], &bits, Some(3 * 64 * 16));
        let heads = [("q_num_heads", Attribute::from(2usize)), ("kv_num_heads", 2usize.into())];
        let linear: [&[usize]; 4] = [&[1, 3, 16], &[1, 3, 16], &[1, 3, 10], &[1, 2, 8, 5]];
        check((MICROSOFT, "LinearAttention"), &linear, &heads, Some(3 * 2 * 8 * 5 * 3));
        check(("", "Conv"), &[&[1, 4, 8, 8], &[6, 4, 3, 3]], &[], Some(6 * 6 * 6 * 36));
        check(("", "Conv"), &[&[1, 4, 8, 8], &[4, 1, 3, 3]], &[("group", 4i64.into())], Some(4 * 36 * 9));
        check(("", "Attention"), &[&[1, 2, 3, 8], &[1, 2, 5, 8], &[1, 2, 5, 4]], &[], Some(2 * 3 * 5 * 12));
        let heads = [("num_heads", Attribute::from(2usize))];
        check(
            (MICROSOFT, "MultiHeadAttention"),
            &[&[1, 3, 8], &[1, 5, 8], &[1, 5, 8]],
            &heads,
            Some(2 * 3 * 5 * 8),
        );
        let cached: &[&[usize]] = &[&[1, 3, 8], &[1, 2, 5, 4], &[1, 2, 5, 4]];
        check((MICROSOFT, "MultiHeadAttention"), cached, &heads, Some(2 * 3 * 5 * 8));
        let equation = [("equation", Attribute::String("bhqd,bhkd->bhqk".into()))];
        check(("", "Einsum"), &[&[1, 2, 3, 8], &[1, 2, 5, 8]], &equation, Some(2 * 3 * 5 * 8));
        check(("", "Relu"), &[&[4]], &[], Some(0));
        check(("", "MatMul"), &[&[usize::MAX, 3], &[3, 2]], &[], None);
    }
}
