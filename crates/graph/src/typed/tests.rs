//! Operands of wrong types are refused where they are used.

use narthex_spec::DType;

use super::*;

/// Declares inputs: `[batch, sequence, 64]`, `[1, 4, 8, 16]` and integers `[rows]`.
fn inputs(b: &mut TypedBuilder) -> [Tensor; 3] {
    let rows = TensorType::new(DType::F32, &["batch".into(), "sequence".into(), 64.into()]);
    let heads = TensorType::new(DType::F16, &[1.into(), 4.into(), 8.into(), 16.into()]);
    let indices = TensorType::new(DType::I64, &["rows".into()]);
    [b.input("x", rows), b.input("heads", heads), b.input("indices", indices)]
}

fn builder() -> TypedBuilder {
    TypedBuilder::new("g", &[("", 20), ("com.microsoft", 1)])
}

#[test]
fn a_wrong_tensor_is_named_with_its_place() {
    type Build = fn(&mut TypedBuilder, &Scope, [Tensor; 3]) -> Result<Tensor>;
    let scope = Scope::root().child("layers.3").child("attn");
    let check = |build: Build, expected: &str| {
        let mut b = builder();
        let inputs = inputs(&mut b);
        assert_eq!(build(&mut b, &scope, inputs).unwrap_err().to_string(), expected);
    };
    check(
        |b, scope, [x, heads, _]| b.add(scope, x, heads),
        "/layers.3/attn/Add: expected one element type and shapes that broadcast, found f32 [batch, sequence, 64] \
         and f16 [1, 4, 8, 16]",
    );
    check(
        |b, scope, [_, heads, _]| b.mat_mul(&scope.child("scores"), heads, heads),
        "/layers.3/attn/scores/MatMul: expected [.., m, k] and [.., k, n] of one element type, found \
         f16 [1, 4, 8, 16] and f16 [1, 4, 8, 16]",
    );
    check(
        |b, scope, [x, ..]| b.reshape(scope, x, &[0, 0, 4, 8]),
        "/layers.3/attn/Reshape: expected as many elements as [0, 0, 4, 8], found f32 [batch, sequence, 64]",
    );
    check(
        |b, scope, [x, _, indices]| b.gather(scope, indices, x, 0),
        "/layers.3/attn/Gather: expected elements along axis 0 and integers, found i64 [rows] and \
         f32 [batch, sequence, 64]",
    );
    check(
        |b, scope, [x, ..]| b.split_into(scope, x, 2, [32, 16]).map(|[first, _]| first),
        "/layers.3/attn/Split: expected 48 elements along axis 2, found f32 [batch, sequence, 64]",
    );
    check(
        |b, scope, [x, ..]| {
            let gain = b.scalar(1.0);
            b.rms_norm(scope, x, gain, 1e-5)
        },
        "/layers.3/attn/SimplifiedLayerNormalization: expected rows and a vector of their width and element type, \
         found f32 [batch, sequence, 64] and f32 []",
    );
    check(
        |b, scope, _| {
            let mut other = builder();
            let [x, ..] = inputs(&mut other);
            b.tanh(scope, x)
        },
        "/layers.3/attn/Tanh: expected tensors of this graph, found one of another",
    );
}

#[test]
fn outputs_have_their_declared_type() {
    let mut b = builder();
    let [x, _, indices] = inputs(&mut b);
    let scope = Scope::root().child("rows");
    let flat = b.reshape(&scope, x, &[-1, 64]).unwrap();
    let rows = b.gather(&scope, flat, indices, 0).unwrap();
    let kind = |rows: &str| TensorType::new(DType::F32, &[rows.into(), 64.into()]);
    let error = b.output("hidden", rows, &kind("sequence")).unwrap_err().to_string();
    assert_eq!(error, "output hidden: expected f32 [sequence, 64], found f32 [rows, 64]");
    b.output("hidden", rows, &kind("rows")).unwrap();
    let again = b.tanh(&scope, rows).unwrap();
    b.output("bounded", again, &kind("rows")).unwrap();
    let graph = b.finish();
    graph.check().unwrap();
    assert_eq!((graph.nodes[1].outputs[0].as_str(), graph.nodes[2].inputs[0].as_str()), ("hidden", "hidden"));
}

#[test]
fn types_follow_the_operators() {
    let mut b = builder();
    let [x, heads, _] = inputs(&mut b);
    let scope = Scope::root();
    let kind = |b: &TypedBuilder, tensor: Tensor| b.get(tensor).unwrap().to_string();
    let turned = b.transpose(&scope, heads, &[0, 1, 3, 2]).unwrap();
    let scores = b.mat_mul(&scope, heads, turned).unwrap();
    assert_eq!(kind(&b, scores), "f16 [1, 4, 8, 8]");
    let joined = b.concat(&scope, &[heads, heads], 2).unwrap();
    assert_eq!(kind(&b, joined), "f16 [1, 4, 16, 16]");
    let padded = b.pad_end(&scope, x, 1, 1).unwrap();
    assert_eq!(kind(&b, padded), "f32 [batch, sequence+1, 64]");
    let next = b.slice_from(&scope, padded, 1, 1).unwrap();
    assert_eq!(kind(&b, next), "f32 [batch, sequence, 64]");
    let mean = b.reduce_away(&scope, Reduction::Mean, x, 1).unwrap();
    assert_eq!(kind(&b, mean), "f32 [batch, 64]");
    let cast = b.cast(&scope, x, DType::F16).unwrap();
    let wide = b.unsqueeze(&scope, cast, &[1, 2]).unwrap();
    assert_eq!(kind(&b, wide), "f16 [batch, 1, 1, sequence, 64]");
}

#[test]
fn convolutions_and_slices_divide_symbols() {
    let mut b = builder();
    let scope = Scope::root().child("conv");
    let kind = |shape: &[&str]| {
        let dims = shape.iter().map(|word| word.parse().map_or_else(|_| Dim::symbol(word), Dim::Fixed));
        TensorType::new(DType::F32, &dims.collect::<Vec<_>>())
    };
    let x = b.input("x", kind(&["1", "1", "48*units", "16"]));
    let weight = b.input("w", kind(&["4", "1", "3", "3"]));
    let conv =
        PaddedConv { x, weight, bias: None, strides: [2; 2], before: [0, 1], after: [2, 1], groups: 1 };
    let found = b.padded_conv(&scope, &conv).unwrap();
    assert_eq!(b.get(found), Some(&kind(&["1", "4", "24*units", "8"])));
    // The number of windows of a symbol would be unknown.
    assert!(b.padded_conv(&scope, &PaddedConv { after: [1, 1], ..conv }).is_err());
    assert!(b.padded_conv(&scope, &PaddedConv { strides: [5, 2], ..conv }).is_err());
    assert!(b.padded_conv(&scope, &PaddedConv { groups: 2, ..conv }).is_err());

    let chunks = b.input("chunks", kind(&["units", "12", "16"]));
    let padded = b.pad(&scope, chunks, 0, [2, 1]).unwrap();
    assert_eq!(b.get(padded), Some(&kind(&["units+3", "12", "16"])));
    let later = b.slice_from(&scope, padded, 0, 1).unwrap();
    let part = b.slice_but_last(&scope, later, 0, 2).unwrap();
    assert_eq!(b.get(part), Some(&kind(&["units", "12", "16"])));
    assert!(b.slice_but_last(&scope, padded, 0, 0).is_err());
    assert!(b.clip(&scope, chunks, x, x).is_err());
}

#[test]
fn linear_attention_takes_the_heads_of_its_state() {
    let kind = |last: usize| TensorType::new(DType::F32, &["batch".into(), "sequence".into(), last.into()]);
    let build = |key: usize, decay: usize, is_delta: bool| {
        let mut b = builder();
        let scope = Scope::root().child("delta");
        let [query, value] = [("q", 16), ("v", 10)].map(|(name, width)| b.input(name, kind(width)));
        let [key, decay] = [("k", key), ("g", decay)].map(|(name, width)| b.input(name, kind(width)));
        let state = TensorType::new(DType::F32, &["batch".into(), 2.into(), 8.into(), 5.into()]);
        let past = b.input("past", state);
        let rule = if is_delta { UpdateRule::GatedDelta(decay) } else { UpdateRule::Gated };
        let attention = LinearAttention { query, key, value, past, decay, rule, heads: 2 };
        let [out, present] = b.linear_attention(&scope, &attention)?;
        Ok::<_, BuildError>([out, present].map(|tensor| b.get(tensor).unwrap().to_string()))
    };
    for is_delta in [true, false] {
        let expected = ["f32 [batch, sequence, 10]", "f32 [batch, 2, 8, 5]"];
        assert_eq!(build(16, 2, is_delta).unwrap(), expected);
    }
    for error in [build(8, 2, true), build(16, 16, false)].map(Result::unwrap_err) {
        let expected = "queries, keys and values [batch, sequence, ..] of 2 heads for f32 [batch, 2, 8, 5]";
        assert_eq!((error.node.as_str(), error.expected.as_str()), ("/delta/LinearAttention", expected));
    }
}

#[test]
fn rows_are_gathered_from_each_member_of_a_batch() {
    let mut b = builder();
    let [x, ..] = inputs(&mut b);
    let scope = Scope::root();
    let indices =
        |batch: &str, depth: usize| TensorType::new(DType::I64, &[batch.into(), 3.into(), depth.into()]);
    let at = b.input("at", indices("batch", 1));
    let rows = b.gather_rows(&scope, x, at).unwrap();
    assert_eq!(b.get(rows).unwrap().to_string(), "f32 [batch, 3, 64]");
    for (name, kind) in [("other", indices("rows", 1)), ("deep", indices("batch", 2))] {
        let at = b.input(name, kind);
        assert!(b.gather_rows(&scope, x, at).is_err(), "{name}");
    }
}
