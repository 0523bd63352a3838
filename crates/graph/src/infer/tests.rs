//! Tests of shapes that can be inferred, and of shapes that cannot.

use narthex_spec::{DType, dtype::Dim};

use super::*;
use crate::{
    build::{Builder, NodeSpec},
    graph::MICROSOFT,
};

/// Checks the shape of one node's first output for inputs of these shapes. Integers are constants.
fn check(op: &str, inputs: &[Input<'_>], attributes: &[(&str, Attribute)], expect: &str) {
    let (domain, op) = op.split_once('/').unwrap_or(("", op));
    let mut b = Builder::new("g", &[("", 23), (MICROSOFT, 1)]);
    let names: Vec<String> = inputs
        .iter()
        .enumerate()
        .map(|(i, input)| match input {
            Input::Of(shape) => {
                let dims: Vec<Dim> = shape
                    .split_whitespace()
                    .map(|d| d.parse().map_or_else(|_| d.into(), Dim::Fixed))
                    .collect();
                b.input(&format!("x{i}"), DType::F32, &dims)
            }
            Input::Ints(values) => b.ints(&[values.len()], values),
            Input::Scalar(value) => b.ints(&[], &[*value]),
            Input::None => String::new(),
        })
        .collect();
    let inputs: Vec<&str> = names.iter().map(String::as_str).collect();
    b.node(NodeSpec { name: "/n", op, domain, inputs: &inputs, attributes });
    let graph = b.finish();
    let known = graph.infer(&|symbol| (symbol == "s").then_some(7));
    let found = known.output(&graph.nodes[0]).shape.as_ref().map(|shape| {
        let words: Vec<String> =
            shape.iter().map(|extent| extent.map_or("?".into(), |extent| extent.to_string())).collect();
        words.join(" ")
    });
    assert_eq!(found.as_deref().unwrap_or("unknown"), expect, "{op} {names:?}");
}

enum Input<'a> {
    Of(&'a str),
    Ints(&'a [i64]),
    Scalar(i64),
    None,
}

use Input::{Ints, Of, Scalar};

#[test]
fn data_is_moved() {
    check("Reshape", &[Of("2 s 4"), Ints(&[0, -1])], &[], "2 28");
    check("Reshape", &[Of("n 4"), Ints(&[-1, 2])], &[], "? 2");
    check("Reshape", &[Of("0 4"), Ints(&[0, -1, 0])], &[], "0 ? ?");
    check("Transpose", &[Of("1 2 n")], &[("perm", [2, 0, 1].into())], "? 1 2");
    check("Squeeze", &[Of("1 2 1")], &[], "2");
    check("Squeeze", &[Of("1 n 1"), Ints(&[-1])], &[], "1 ?");
    check("Squeeze", &[Of("1 n 1")], &[], "unknown");
    check("Unsqueeze", &[Of("2 3"), Ints(&[0, -1])], &[], "1 2 3 1");
    check("Concat", &[Of("1 n 3"), Of("1 2 3")], &[("axis", 2i64.into())], "1 2 6");
    check("Concat", &[Of("1 n 3"), Of("1 2 3")], &[("axis", 1i64.into())], "1 ? 3");
    check("Slice", &[Of("2 9"), Ints(&[1]), Ints(&[i64::MAX]), Ints(&[-1]), Ints(&[2])], &[], "2 4");
    check("Slice", &[Of("9"), Ints(&[-1]), Ints(&[i64::MIN]), Ints(&[0]), Ints(&[-1])], &[], "9");
    check("Split", &[Of("2 5")], &[("axis", 1i64.into()), ("num_outputs", 1i64.into())], "2 5");
    check("Expand", &[Of("1 3"), Ints(&[2, 4, 1])], &[], "2 4 3");
    check("Tile", &[Of("2 n"), Ints(&[3, 2])], &[], "6 ?");
    check("Pad", &[Of("2 3"), Ints(&[0, 1, 0, -2])], &[], "2 2");
    check("Gather", &[Of("10 4"), Of("2 s")], &[], "2 7 4");
    check("GatherND", &[Of("2 3 4"), Of("5 2")], &[], "5 4");
    check("Range", &[Scalar(2), Scalar(9), Scalar(3)], &[], "3");
    check("ConstantOfShape", &[Ints(&[2, 3])], &[], "2 3");
    check("Flatten", &[Of("2 3 4")], &[], "2 12");
}

#[test]
fn data_is_computed() {
    check("Add", &[Of("2 1 4"), Of("n 4")], &[], "2 ? 4");
    check("Add", &[Of("3"), Of("4")], &[], "?");
    check("Where", &[Of("1"), Of("2 3"), Of("3")], &[], "2 3");
    check("MatMul", &[Of("5 1 2 3"), Of("4 3 6")], &[], "5 4 2 6");
    check("MatMul", &[Of("3"), Of("3")], &[], "");
    check("Gemm", &[Of("2 3"), Of("5 3")], &[("transB", 1i64.into())], "2 5");
    let bits = [("N", Attribute::from(16usize)), ("K", 64usize.into())];
    check("com.microsoft/MatMulNBits", &[Of("1 s 64")], &bits, "1 7 16");
    check("com.microsoft/QMoE", &[Of("1 s 64"), Of("s 8")], &[("k", 2i64.into())], "1 7 64");
    check("Conv", &[Of("1 3 10"), Of("8 3 3")], &[("strides", [2].into()), ("pads", [1, 1].into())], "1 8 5");
    check("DynamicQuantizeLinear", &[Of("2 s")], &[], "2 7");
    check("MatMulInteger", &[Of("1 s 3"), Of("3 5")], &[], "1 7 5");
    check("com.microsoft/QLinearAdd", &[Of("2 1 4"), Of(""), Of(""), Of("3 1")], &[], "2 3 4");
    check("com.microsoft/QLinearSoftmax", &[Of("2 s")], &[], "2 7");
    check("ReduceMean", &[Of("2 3 4"), Ints(&[-1])], &[], "2 3 1");
    check("ReduceSum", &[Of("2 3 4")], &[("keepdims", 0i64.into())], "");
    check("ArgMax", &[Of("2 3")], &[("axis", 1i64.into()), ("keepdims", 0i64.into())], "2");
    check("TopK", &[Of("2 9"), Ints(&[4])], &[], "2 4");
    check("OneHot", &[Of("2"), Ints(&[5]), Of("2")], &[], "2 5");
    check(
        "com.microsoft/SkipSimplifiedLayerNormalization",
        &[Of("1 s 4"), Of("1 s 4"), Of("4")],
        &[],
        "1 7 4",
    );
    check(
        "com.microsoft/MultiHeadAttention",
        &[Of("1 2 8"), Of("1 3 8"), Of("1 3 6")],
        &[("num_heads", 2i64.into())],
        "1 2 6",
    );
    check("Attention", &[Of("1 2 3 8"), Of("1 2 5 8"), Of("1 2 5 4"), Input::None], &[], "1 2 3 4");
    let heads = [("num_heads", Attribute::from(4usize)), ("kv_num_heads", 2usize.into())];
    check("com.microsoft/GroupQueryAttention", &[Of("1 3 64")], &heads, "1 3 32");
    let heads = [("q_num_heads", Attribute::from(4usize)), ("kv_num_heads", 2usize.into())];
    let linear = [Of("1 s 32"), Of("1 s 16"), Of("1 s 10"), Of("1 2 8 5"), Of("1 s 2"), Of("1 s 2")];
    check("com.microsoft/LinearAttention", &linear, &heads, "1 7 20");
    check("Bespoke", &[Of("2 3")], &[], "unknown");
}

#[test]
fn shape_arithmetic_of_exporters_is_followed() {
    let mut b = Builder::new("g", &[("", 17)]);
    let x = b.input("x", DType::F32, &["batch".into(), "seq".into(), 12usize.into()]);
    let shape = b.op("/shape", "Shape", &[&x]);
    let (zero, one) = (b.ints(&[], &[0]), b.ints(&[1], &[1]));
    let batch = b.op("/batch", "Gather", &[&shape, &zero]);
    let axis = b.ints(&[1], &[0]);
    let batch = b.op("/u", "Unsqueeze", &[&batch, &axis]);
    let two = b.ints(&[1], &[2]);
    let seq = b.op("/seq", "Slice", &[&shape, &one, &two]);
    let twice = b.op("/twice", "Mul", &[&seq, &two]);
    let (heads, rest) = (b.ints(&[1], &[3]), b.ints(&[1], &[-1]));
    let wanted = b.op_with("/wanted", "Concat", &[&batch, &twice, &heads, &rest], &[("axis", 0i64.into())]);
    let y = b.op("/y", "Reshape", &[&x, &wanted]);
    b.output(&y, DType::F32, &[]);
    let graph = b.finish();

    let open = graph.infer(&|_| None);
    assert_eq!(open.get(&y).shape, Some(vec![None; 4]));
    assert!(!open.get(&wanted).constant, "it depends on the input's shape");
    let bound = graph.infer(&|symbol| match symbol {
        "batch" => Some(2),
        "seq" => Some(8),
        _ => None,
    });
    assert_eq!(bound.get(&y).shape, Some(vec![Some(2), Some(16), Some(3), Some(2)]));
    assert!(bound.get(&wanted).constant && !bound.get(&y).constant);
}

#[test]
fn what_a_file_states_fills_the_gaps() {
    let mut b = Builder::new("g", &[("", 17), ("other", 1)]);
    let x = b.input("x", DType::F32, &["n".into()]);
    let y = b.node(NodeSpec { name: "/y", op: "Bespoke", domain: "other", inputs: &[&x], attributes: &[] });
    let z = b.op("/z", "Relu", &[&y]);
    b.output(&z, DType::F32, &[4usize.into()]);
    let mut graph = b.finish();
    let shape = vec!["past + n".into(), 3usize.into()];
    graph.values.push(Value { name: y.clone(), dtype: DType::F16.into(), shape });
    let known = graph.infer(&|symbol| match symbol {
        "past" => Some(5),
        "n" => Some(2),
        _ => None,
    });
    assert_eq!(known.get(&z).shape, Some(vec![Some(7), Some(3)]));
    assert_eq!(known.get(&z).element, Some(DType::F16.into()));
}
