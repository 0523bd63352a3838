//! Nodes: operators, their forms and types, and the effect of fixes on them.

use super::*;

/// Checks one node with an existing data file, as [`check_graph`].
fn check_one(
    (op, dtype, inputs): (&str, DType, &[&str]),
    attributes: &[(&str, Attribute)],
    verdict: &str,
    finding: Option<(Rule, Severity)>,
    after: Option<&str>,
) {
    let graph = one(op, dtype, inputs, attributes);
    graph.check_values().unwrap();
    let mut subject = part(graph);
    subject.data_files.insert("w.data".into(), Some(1 << 40));
    let report = check("model.onnx", &[subject], &options("qnn:x-elite", &[]));
    let found = report.findings.iter().find(|found| found.severity < Severity::Cost);
    assert_eq!(found.map(|found| (found.rule, found.severity)), finding, "{op} {inputs:?}\n{report}");
    if let Some(found) = found {
        assert!(found.fix.is_some(), "{found:?}");
        assert!(
            found.places.is_empty() || found.places[0].contains(op.rsplit('/').next().unwrap()),
            "{found:?}"
        );
    }
    assert_eq!(report.verdict.to_string(), verdict, "{report}");
    assert_eq!(
        report.after_fix.as_ref().map(|fixed| fixed.verdict.to_string()).as_deref(),
        after,
        "{report}"
    );
}

fn nbits(k: usize, block: usize, bits: usize) -> [(&'static str, Attribute); 4] {
    [("K", k.into()), ("N", 16usize.into()), ("bits", bits.into()), ("block_size", block.into())]
}

#[test]
fn operators_are_judged_by_what_the_compiler_answered() {
    use Rule::*;
    let falls = |rule| Some((rule, Severity::Fallback));
    let fits = |op, dtype, inputs: &[&str]| check_one((op, dtype, inputs), &[], WHOLE, None, None);
    let falls_whole = |op, dtype, inputs: &[&str], rule| {
        check_one((op, dtype, inputs), &[], REFUSED, falls(rule), None);
    };
    fits("Add", F32, &["1 4 8", "8"]);
    fits("MatMul", F16, &["1 4 8", "=8 16"]);
    fits("Softmax", F16, &["1 2 4 8"]);
    fits("Where", F32, &["bool:1 1 4 8", "1 2 4 8", "1"]);
    fits("SimplifiedLayerNormalization", F16, &["1 4 8", "=8"]);
    fits("Attention", F16, &["1 4 8 16", "1 4 8 16", "1 4 8 16", "1 1 8 8"]);
    falls_whole("Erf", F32, &["1 4 8"], UnsupportedOperator);
    falls_whole("NonZero", F32, &["1 4 8"], UnsupportedOperator);
    falls_whole("Bespoke", F32, &["1 4 8"], UnsupportedOperator);
    falls_whole("custom/Thing", F32, &["1 4 8"], UnsupportedOperator);
    falls_whole("com.microsoft/MultiHeadAttention", F32, &["1 4 8", "1 4 8", "1 4 8"], ContribOperator);
    falls_whole(
        "com.microsoft/RotaryEmbedding",
        F16,
        &["1 4 8 16", "i64:1 8", "=32 8", "=32 8"],
        ContribOperator,
    );
    falls_whole("Add", F32, &["1 1 1 2 3 4", "4"], Rank);
    falls_whole("Relu", DType::I32, &["1 4"], ElementType);
    falls_whole("Slice", F32, &["1 4 8", "i64:1", "i64:1"], OperatorForm);
    falls_whole("SimplifiedLayerNormalization", F16, &["1 4 8", "f32:=8"], ElementType);
    check_one(("Sign", F32, &["1 1 2 3 4"]), &[], REFUSED, Some((CompilerFails, Severity::Blocking)), None);
    check_one(
        ("Gemm", F32, &["4 8", "=8 16"]),
        &[("alpha", 0.5f32.into())],
        REFUSED,
        falls(OperatorForm),
        None,
    );
    check_one(
        ("LayerNormalization", F32, &["2 4 8", "=4 8"]),
        &[("axis", 1i64.into())],
        REFUSED,
        falls(OperatorForm),
        None,
    );
    check_one(("Cast", F32, &["1 4"]), &[("to", 7i64.into())], REFUSED, falls(ElementType), None);
    check_one(("Cast", F32, &["1 4"]), &[("to", 10i64.into())], WHOLE, None, None);
    let softcap = [("softcap", Attribute::Float(30.0))];
    check_one(
        ("Attention", F16, &["1 4 8 16", "1 4 8 16", "1 4 8 16"]),
        &softcap,
        REFUSED,
        falls(OperatorForm),
        None,
    );
}

#[test]
fn fixable_forms_are_fixed() {
    use Rule::*;
    let check_fixed = |op, dtype, inputs: &[&str], attributes: &[(&str, Attribute)], rule| {
        check_one((op, dtype, inputs), attributes, REFUSED, Some((rule, Severity::Fallback)), Some(WHOLE));
    };
    let nbits_op = "com.microsoft/MatMulNBits";
    let (quants, scales) = ("u8:=16 2 16", "=16 2");
    check_one((nbits_op, F16, &["1 4 64", quants, scales]), &nbits(64, 32, 4), WHOLE, None, None);
    check_fixed(nbits_op, F16, &["4 64", quants, scales], &nbits(64, 32, 4), MatMulNBitsRank);
    check_fixed(nbits_op, F32, &["1 2 4 64", quants, scales], &nbits(64, 32, 4), MatMulNBitsRank);
    check_fixed(nbits_op, F16, &["1 4 64", quants, scales, "-", "-", "=16"], &nbits(64, 32, 4), OperatorForm);
    check_fixed(
        "com.microsoft/SkipSimplifiedLayerNormalization",
        F16,
        &["1 4 8", "1 4 8", "=8"],
        &[],
        ContribOperator,
    );
    check_fixed(
        "com.microsoft/SkipLayerNormalization",
        F32,
        &["1 4 8", "1 4 8", "=8", "=8", "=8"],
        &[],
        ContribOperator,
    );
    check_fixed("com.microsoft/BiasGelu", F32, &["1 4 8", "=8"], &[], ContribOperator);
    check_fixed("com.microsoft/FastGelu", F32, &["1 4 8"], &[], ContribOperator);
    let qkv = ["1 4 8 16", "1 4 8 16", "1 4 8 16", "bool:1 1 8 8"];
    check_fixed("Attention", F16, &qkv, &[], BooleanMask);
    let picked = ["bool:4 8", "i64:=3 2"];
    check_one(("GatherND", F32, &picked), &[], REFUSED, Some((ElementType, Severity::Fallback)), Some(WHOLE));
    check_one(
        ("GatherND", F32, &["bool:4 8", "i64:=3 1"]),
        &[],
        REFUSED,
        Some((ElementType, Severity::Fallback)),
        None,
    );
    let axes = [("perm", Attribute::Ints(vec![1, 0]))];
    check_one(("Transpose", F32, &["bool:4 8"]), &axes, WHOLE, None, None);
    // Forms that only an exporter can fix are unchanged.
    let grouped = ["1 4 64", quants, scales, "-", "i32:=64"];
    check_one(
        (nbits_op, F16, &grouped),
        &nbits(64, 32, 4),
        REFUSED,
        Some((OperatorForm, Severity::Fallback)),
        None,
    );
    let odd = ["1 4 80", "u8:=16 3 16", "=16 3"];
    check_one(
        (nbits_op, F16, &odd),
        &nbits(80, 32, 4),
        REFUSED,
        Some((OperatorForm, Severity::Fallback)),
        None,
    );
}

/// A boolean mask, a product of rank 2 and a skip norm in one graph.
#[test]
fn a_boolean_mask_a_flat_product_and_a_skip_norm_are_named() {
    let mut b = Builder::new("g", &[("", 23), (MICROSOFT, 1)]);
    let q = b.input("q", F16, &dims("1 4 8 16"));
    let mask = b.input("mask", DType::Bool, &dims("1 1 8 8"));
    let attended = b.op("/layers.0/attn", "Attention", &[&q, &q, &q, &mask]);
    let flat = b.ints(&[2], &[8, 64]);
    let rows = b.op("/layers.0/attn/flat", "Reshape", &[&attended, &flat]);
    let at = |length| External { file: "model.data", offset: 0, length };
    let quants = b.external("quants", DType::U8, &[64, 2, 16], at(2048));
    let scales = b.external("scales", F16, &[64, 2], at(256));
    let product = b.node(NodeSpec {
        name: "/layers.0/attn/o_proj/MatMulNBits",
        op: "MatMulNBits",
        domain: MICROSOFT,
        inputs: &[&rows, &quants, &scales],
        attributes: &[
            ("K", 64usize.into()),
            ("N", 64usize.into()),
            ("bits", 4usize.into()),
            ("block_size", 32usize.into()),
        ],
    });
    let gain = b.external("gain", F16, &[64], at(128));
    let name = "/layers.0/norm/SkipSimplifiedLayerNormalization";
    let spec = NodeSpec {
        name,
        op: "SkipSimplifiedLayerNormalization",
        domain: MICROSOFT,
        inputs: &[&product, &rows, &gain],
        attributes: &[("epsilon", 1e-5f32.into())],
    };
    b.node_to(spec, &["normed", "", "", "sum"]);
    b.output("normed", F16, &dims("8 64"));
    b.output("sum", F16, &dims("8 64"));
    let mut subject = part(b.finish());
    subject.data_files.insert("model.data".into(), Some(2048));
    insta::assert_snapshot!(check("model.onnx", &[subject], &options("qnn:x-elite", &[])));
}

/// Returns an RMS norm in the form of PyTorch's exporter, in one element type and with the weight first or second.
fn written_out_norm(dtype: DType, first: bool) -> Graph {
    let mut b = Builder::new("g", &[("", 18)]);
    let x = b.input("x", dtype, &dims("1 4 8"));
    let (two, tiny) = (b.half_scalar(0x4000), b.half_scalar(0x0100));
    let (two, tiny) = if dtype == F16 { (two, tiny) } else { (b.scalar(2.0), b.scalar(1e-6)) };
    let axis = b.ints(&[1], &[-1]);
    let length = 8 * dtype.size() as u64;
    let weight = b.external("weight", dtype, &[8], External { file: "w.data", offset: 0, length });
    let square = b.op("/norm", "Pow", &[&x, &two]);
    let mean = b.op("/norm", "ReduceMean", &[&square, &axis]);
    let shifted = b.op("/norm", "Add", &[&mean, &tiny]);
    let root = b.op("/norm", "Sqrt", &[&shifted]);
    let scale = b.op("/norm", "Reciprocal", &[&root]);
    let scaled = b.op("/norm", "Mul", &[&x, &scale]);
    let factors = if first { [&*weight, &*scaled] } else { [&*scaled, &*weight] };
    let y = b.op("/norm/weight", "Mul", &factors);
    b.output(&y, dtype, &dims("1 4 8"));
    b.finish()
}

#[test]
fn the_norm_that_breaks_the_compiler_is_known() {
    let judge = |dtype, first| {
        let mut subject = part(written_out_norm(dtype, first));
        subject.data_files.insert("w.data".into(), Some(64));
        check("m", &[subject], &options("qnn:x-elite", &[]))
    };
    let report = judge(F32, true);
    let found = &report.findings[0];
    assert_eq!((found.rule, found.severity), (Rule::CompilerFails, Severity::Blocking), "{report}");
    assert_eq!(found.places, ["/norm/weight/Mul"]);
    assert!(found.message.contains("1002"), "{}", found.message);
    assert_eq!(report.after_fix.map(|after| after.verdict), Some(Verdict::Whole));
    for (dtype, first) in [(F32, false), (F16, true), (F16, false)] {
        assert_eq!(judge(dtype, first).verdict, Verdict::Whole);
    }
}

#[test]
fn what_is_computed_at_load_costs_nothing() {
    let mut b = Builder::new("g", &[("", 17)]);
    let x = b.input("x", F32, &dims("1 4 8"));
    // Shape arithmetic over fixed shapes, with operators that no NPU supports.
    let shape = b.op("/shape", "Shape", &[&x]);
    let ones = b.op("/ones", "ConstantOfShape", &[&shape]);
    let upper = b.op("/upper", "Trilu", &[&ones]);
    let y = b.op("/y", "Add", &[&x, &upper]);
    b.output(&y, F32, &dims("1 4 8"));
    check_graph(b.finish(), WHOLE, &[], None);
}

#[test]
fn gelu_written_with_erf_is_known_as_a_whole() {
    let mut b = Builder::new("g", &[("", 17)]);
    let x = b.input("x", F32, &dims("1 4 8"));
    let (root, one_, half) = (b.scalar(std::f32::consts::SQRT_2), b.scalar(1.0), b.scalar(0.5));
    let scaled = b.op("/a", "Div", &[&x, &root]);
    let erf = b.op("/b", "Erf", &[&scaled]);
    let shifted = b.op("/c", "Add", &[&erf, &one_]);
    let product = b.op("/d", "Mul", &[&x, &shifted]);
    let y = b.op("/e", "Mul", &[&product, &half]);
    b.output(&y, F32, &dims("1 4 8"));
    check_graph(b.finish(), WHOLE, &[], None);
}

#[test]
fn types_beside_the_usual_ones_are_named() {
    let mut b = Builder::new("g", &[("", 17)]);
    let x = b.input("x", F32, &dims("1 4"));
    let y = b.op("/a", "Add", &[&x, &x]);
    b.output(&y, F32, &dims("1 4"));
    let mut graph = b.finish();
    graph.inputs[0].dtype = Element::F64;
    graph.outputs[0].dtype = Element::F64;
    check_graph(graph.clone(), REFUSED, &[(Rule::ElementType, Severity::Fallback, "/a/Add")], None);
    graph.inputs[0].dtype = Element::STRING;
    graph.nodes[0].op = "Identity".into();
    let texts =
        [(Rule::ElementType, Severity::Fallback, "/a/Add"), (Rule::ElementType, Severity::Fallback, "x")];
    check_graph(graph, REFUSED, &texts, None);
}

#[test]
fn a_weight_that_is_dequantised_alone_is_a_trap() {
    let weight = |b: &mut Builder| {
        let at = External { file: "w.data", offset: 0, length: 128 };
        let quants = b.external("w", DType::I8, &[8, 16], at);
        let scale = b.scalar(0.1);
        b.op("/w", "DequantizeLinear", &[&quants, &scale])
    };
    let mut b = Builder::new("g", &[("", 21)]);
    let x = b.input("x", F32, &dims("1 4 8"));
    let w = weight(&mut b);
    let y = b.op("/layers.0/mm", "MatMul", &[&x, &w]);
    b.output(&y, F32, &dims("1 4 16"));
    let mut subject = part(b.finish());
    subject.data_files.insert("w.data".into(), Some(128));
    let report = check("m", &[subject], &options("qnn:x-elite", &[]));
    let trap = report.findings.iter().find(|finding| finding.rule == Rule::WeightOnlyDequantize);
    // Nodes with only constant operands would be folded; QNN's provider exempts quantised constants from this.
    assert!(trap.is_some_and(|trap| trap.message.contains("/layers.0/mm/MatMul")), "{report}");
}

/// The compiler supports dynamic quantisation only as a whole, not its single operators.
#[test]
fn dynamic_quantisation_is_taken_with_its_product() {
    let product = |constant: bool| {
        let mut b = Builder::new("g", &[("", 17)]);
        let x = b.input("x", F32, &dims("1 4 8"));
        let quantise = NodeSpec {
            name: "/quantise",
            op: "DynamicQuantizeLinear",
            domain: "",
            inputs: &[&x],
            attributes: &[],
        };
        b.node_to(quantise, &["q", "scale", "zero"]);
        let at = External { file: "w.data", offset: 0, length: 128 };
        let weight = if constant {
            b.external("w", DType::U8, &[8, 16], at)
        } else {
            b.input("w", DType::U8, &dims("8 16"))
        };
        let sums = b.op("/product", "MatMulInteger", &["q", &weight, "zero"]);
        let sums = b.op_with("/product", "Cast", &[&sums], &[("to", 1i64.into())]);
        let y = b.op("/product", "Mul", &[&sums, "scale"]);
        b.output(&y, F32, &dims("1 4 16"));
        let mut subject = part(b.finish());
        subject.data_files.insert("w.data".into(), Some(128));
        let report = check("m", &[subject], &options("qnn:x-elite", &[]));
        (report.parts[0].npu_nodes, report.parts[0].npu_multiply_accumulates)
    };
    assert_eq!(product(true), (4, 4 * 8 * 16));
    assert_eq!(product(false), (2, 0));
}

#[test]
fn masks_at_the_end_of_the_range_are_named() {
    let mut b = Builder::new("g", &[("", 17)]);
    let (x, mask) = (b.input("x", F32, &dims("1 4")), b.input("mask", DType::Bool, &dims("1 4")));
    let lowest = b.scalar(f32::MIN);
    let y = b.op("/mask", "Where", &[&mask, &x, &lowest]);
    b.output(&y, F32, &dims("1 4"));
    check_graph(b.finish(), WHOLE, &[(Rule::MaskValue, Severity::Cost, "/mask/Where")], None);
}

#[test]
fn control_flow_is_named() {
    let graph = one("If", F32, &["bool:"], &[("then_branch", Attribute::Graph(Box::default()))]);
    check_graph(graph, REFUSED, &[(Rule::ControlFlow, Severity::Fallback, "/layers.0/If")], None);
}

#[test]
fn openvino_has_facts_of_its_own() {
    let verdict = |op: &str, inputs: &[&str]| {
        let graph = one(op, F16, inputs, &[]);
        let mut subject = part(graph);
        subject.data_files.insert("w.data".into(), Some(1 << 20));
        check("m", &[subject], &options("openvino:npu", &[])).verdict.to_string()
    };
    assert_eq!(verdict("com.microsoft/SkipSimplifiedLayerNormalization", &["1 4 8", "1 4 8", "=8"]), WHOLE);
    assert_eq!(verdict("RMSNormalization", &["1 4 8", "=8"]), REFUSED);
    assert_eq!(verdict("com.microsoft/RotaryEmbedding", &["1 4 8 16", "i64:1 8", "=32 8", "=32 8"]), REFUSED);
}
