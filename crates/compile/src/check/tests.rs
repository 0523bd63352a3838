//! Small graphs, each with one thing wrong, and what the report says of them.

use std::path::PathBuf;

use narthex_graph::{
    Attribute, Builder, Element, Graph,
    build::{External, NodeSpec},
    graph::MICROSOFT,
};
use narthex_spec::{DType, Scheme, dtype::Dim};

use super::*;
use crate::example;

const F32: DType = DType::F32;
const F16: DType = DType::F16;

fn options(target: &str, extents: &[(&str, u64)]) -> Options {
    let extents = extents.iter().map(|&(symbol, extent)| (symbol.to_owned(), extent)).collect();
    Options { target: target.parse().unwrap(), extents }
}

fn part(graph: Graph) -> Part {
    Part { name: "model.onnx".into(), folder: PathBuf::new(), graph, files: BTreeMap::new() }
}

fn report_on(graph: Graph) -> Report {
    check("model.onnx", &[part(graph)], &options("qnn:x-elite", &[]))
}

/// Rule, severity and first place of every finding that is more than a note, and the verdict before and after fixes.
fn check_graph(graph: Graph, verdict: &str, findings: &[(Rule, Severity, &str)], after: Option<&str>) {
    graph.check_values().unwrap();
    let report = report_on(graph);
    let found: Vec<_> = report
        .findings
        .iter()
        .filter(|finding| finding.severity != Severity::Notes)
        .map(|finding| (finding.rule, finding.severity, finding.places.first().map_or("", String::as_str)))
        .collect();
    assert_eq!(found, findings, "{report}");
    assert_eq!(report.verdict.to_string(), verdict, "{report}");
    assert_eq!(
        report.after_fix.as_ref().map(|fixed| fixed.verdict.to_string()).as_deref(),
        after,
        "{report}"
    );
}

fn dims(shape: &str) -> Vec<Dim> {
    shape.split_whitespace().map(|dim| dim.parse().map_or_else(|_| dim.into(), Dim::Fixed)).collect()
}

/// A graph of one node over inputs of these types and shapes; those that begin with `=` are constants.
fn one(op: &str, dtype: DType, inputs: &[&str], attributes: &[(&str, Attribute)]) -> Graph {
    let (domain, op) = op.split_once('/').unwrap_or(("", op));
    let mut b = Builder::new("g", &[("", 23), (MICROSOFT, 1), ("custom", 1)]);
    let names: Vec<String> =
        inputs.iter().enumerate().map(|(index, input)| value(&mut b, dtype, index, input)).collect();
    let inputs: Vec<&str> = names.iter().map(String::as_str).collect();
    let y = b.node(NodeSpec { name: &format!("/layers.0/{op}"), op, domain, inputs: &inputs, attributes });
    b.output(&y, dtype, &[]);
    let mut graph = b.finish();
    graph.unranked.push(y);
    graph
}

fn value(b: &mut Builder, dtype: DType, index: usize, text: &str) -> String {
    let (dtype, text) = match text.split_once(':') {
        Some(("bool", rest)) => (DType::Bool, rest),
        Some(("i64", rest)) => (DType::I64, rest),
        Some(("i32", rest)) => (DType::I32, rest),
        Some(("u8", rest)) => (DType::U8, rest),
        Some(("f32", rest)) => (DType::F32, rest),
        _ => (dtype, text),
    };
    match text.strip_prefix('=') {
        _ if text == "-" => String::new(),
        Some(shape) => {
            let shape: Vec<usize> = shape.split_whitespace().map(|extent| extent.parse().unwrap()).collect();
            let length = (shape.iter().product::<usize>() * dtype.size()) as u64;
            b.external(&format!("w{index}"), dtype, &shape, External { file: "w.data", offset: 0, length })
        }
        None => b.input(&format!("x{index}"), dtype, &dims(text)),
    }
}

/// As [`check_graph`], for one node whose data file is there.
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
    subject.files.insert("w.data".into(), Some(1 << 40));
    let report = check("model.onnx", &[subject], &options("qnn:x-elite", &[]));
    let found = report.findings.iter().find(|found| found.severity < Severity::Costs);
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

const WHOLE: &str = "runs whole";
const REFUSED: &str = "refused";

fn nbits(k: usize, block: usize, bits: usize) -> [(&'static str, Attribute); 4] {
    [("K", k.into()), ("N", 16usize.into()), ("bits", bits.into()), ("block_size", block.into())]
}

#[test]
fn operators_are_judged_by_what_the_compiler_answered() {
    use Rule::*;
    let falls = |rule| Some((rule, Severity::Falls));
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
    check_one(("Sign", F32, &["1 1 2 3 4"]), &[], REFUSED, Some((CompilerFails, Severity::Refuses)), None);
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
fn forms_that_narthex_mends_are_mended() {
    use Rule::*;
    let mended = |op, dtype, inputs: &[&str], attributes: &[(&str, Attribute)], rule| {
        check_one((op, dtype, inputs), attributes, REFUSED, Some((rule, Severity::Falls)), Some(WHOLE));
    };
    let nbits_op = "com.microsoft/MatMulNBits";
    let (quants, scales) = ("u8:=16 2 16", "=16 2");
    check_one((nbits_op, F16, &["1 4 64", quants, scales]), &nbits(64, 32, 4), WHOLE, None, None);
    mended(nbits_op, F16, &["4 64", quants, scales], &nbits(64, 32, 4), MatMulNBitsRank);
    mended(nbits_op, F32, &["1 2 4 64", quants, scales], &nbits(64, 32, 4), MatMulNBitsRank);
    mended(nbits_op, F16, &["1 4 64", quants, scales, "-", "-", "=16"], &nbits(64, 32, 4), OperatorForm);
    mended(
        "com.microsoft/SkipSimplifiedLayerNormalization",
        F16,
        &["1 4 8", "1 4 8", "=8"],
        &[],
        ContribOperator,
    );
    mended(
        "com.microsoft/SkipLayerNormalization",
        F32,
        &["1 4 8", "1 4 8", "=8", "=8", "=8"],
        &[],
        ContribOperator,
    );
    mended("com.microsoft/BiasGelu", F32, &["1 4 8", "=8"], &[], ContribOperator);
    mended("com.microsoft/FastGelu", F32, &["1 4 8"], &[], ContribOperator);
    let qkv = ["1 4 8 16", "1 4 8 16", "1 4 8 16", "bool:1 1 8 8"];
    mended("Attention", F16, &qkv, &[], BooleanMask);
    let picked = ["bool:4 8", "i64:=3 2"];
    check_one(("GatherND", F32, &picked), &[], REFUSED, Some((ElementType, Severity::Falls)), Some(WHOLE));
    check_one(
        ("GatherND", F32, &["bool:4 8", "i64:=3 1"]),
        &[],
        REFUSED,
        Some((ElementType, Severity::Falls)),
        None,
    );
    let axes = [("perm", Attribute::Ints(vec![1, 0]))];
    check_one(("Transpose", F32, &["bool:4 8"]), &axes, WHOLE, None, None);
    // What only an exporter can mend stays as it is.
    let grouped = ["1 4 64", quants, scales, "-", "i32:=64"];
    check_one(
        (nbits_op, F16, &grouped),
        &nbits(64, 32, 4),
        REFUSED,
        Some((OperatorForm, Severity::Falls)),
        None,
    );
    let odd = ["1 4 80", "u8:=16 3 16", "=16 3"];
    check_one((nbits_op, F16, &odd), &nbits(80, 32, 4), REFUSED, Some((OperatorForm, Severity::Falls)), None);
}

/// The first case, and the acceptance script's.
#[test]
fn a_dynamic_dimension_is_named() {
    let mut b = Builder::new("g", &[("", 17)]);
    let x = b.input("x", F32, &dims("batch 4 4"));
    let y = b.op("/layers.0/mm", "MatMul", &[&x, &x]);
    b.output(&y, F32, &dims("batch 4 4"));
    insta::assert_snapshot!(report_on(b.finish()));
}

#[test]
fn many_open_dimensions_are_gathered() {
    let mut b = Builder::new("g", &[("", 17)]);
    for index in 0..40 {
        b.input(&format!("x{index:02}"), F32, &dims(&format!("n{index:02} 4")));
    }
    let y = b.op("/layers.0", "Relu", &["x39"]);
    b.output(&y, F32, &dims("n39 4"));
    let report = report_on(b.finish());
    let dynamic: Vec<_> =
        report.findings.iter().filter(|finding| finding.rule == Rule::DynamicDimension).collect();
    assert_eq!(dynamic.len(), 33);
    assert!(
        dynamic.iter().any(|found| found.message.contains("8 more") && found.places.len() == 8),
        "{report}"
    );
}

#[test]
fn a_dimension_of_many_inputs_is_named_with_some_of_them() {
    let named = |inputs: usize| {
        let mut b = Builder::new("g", &[("", 17)]);
        for index in 0..inputs {
            b.input(&format!("x{index}"), F32, &dims("n 4"));
        }
        let y = b.op("/layers.0", "Relu", &["x0"]);
        b.output(&y, F32, &dims("n 4"));
        let report = report_on(b.finish());
        let mut found = report.findings.iter().filter(|finding| finding.rule == Rule::DynamicDimension);
        found.next().unwrap().message.split(" is dynamic").next().unwrap().to_owned()
    };
    let four = "dimension \"n\" of x0 [n, 4], x1 [n, 4], x2 [n, 4], x3 [n, 4]";
    assert_eq!(named(4), four);
    assert_eq!(named(60), format!("{four}, 56 more inputs"));
}

/// The other three cases in one graph.
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
    subject.files.insert("model.data".into(), Some(2048));
    insta::assert_snapshot!(check("model.onnx", &[subject], &options("qnn:x-elite", &[])));
}

/// A norm as PyTorch's exporter writes it, in one element type and with the weight first or second.
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
        subject.files.insert("w.data".into(), Some(64));
        check("m", &[subject], &options("qnn:x-elite", &[]))
    };
    let report = judge(F32, true);
    let found = &report.findings[0];
    assert_eq!((found.rule, found.severity), (Rule::CompilerFails, Severity::Refuses), "{report}");
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
    // Shape arithmetic over fixed shapes, with operators that no NPU takes.
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
fn work_elsewhere_is_weighed() {
    let report = report_on(cut());
    let summary = &report.parts[0];
    assert_eq!((summary.nodes, summary.npu_nodes, summary.npu_pieces), (3, 2, 2));
    assert_eq!((summary.multiply_accumulates, summary.npu_multiply_accumulates), (1536, 1536));
    // All products are on the NPU, so nothing is lost by weight of work; the nodes and the second piece cost points.
    assert_eq!(report.verdict, Verdict::Partly { elsewhere_percent: 0.0, elsewhere_nodes: 1 });
    let total: f64 = 50.0 + 15.0 * 2.0 / 3.0 + 7.5 + 10.0 + 10.0;
    assert!((report.score.total - total).abs() < 1e-9, "{report}");
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
    check_graph(graph.clone(), REFUSED, &[(Rule::ElementType, Severity::Falls, "/a/Add")], None);
    graph.inputs[0].dtype = Element::STRING;
    graph.nodes[0].op = "Identity".into();
    let texts = [(Rule::ElementType, Severity::Falls, "/a/Add"), (Rule::ElementType, Severity::Falls, "x")];
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
    subject.files.insert("w.data".into(), Some(128));
    let report = check("m", &[subject], &options("qnn:x-elite", &[]));
    let trap = report.findings.iter().find(|finding| finding.rule == Rule::WeightOnlyDequantize);
    // Constant operands alone would be folded, and QNN's provider keeps quantised constants from that.
    assert!(trap.is_some_and(|trap| trap.message.contains("/layers.0/mm/MatMul")), "{report}");
}

/// The compiler takes dynamic quantisation as a whole, and none of its operators alone.
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
        subject.files.insert("w.data".into(), Some(128));
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
    check_graph(b.finish(), WHOLE, &[(Rule::MaskValue, Severity::Costs, "/mask/Where")], None);
}

#[test]
fn control_flow_is_named() {
    let graph = one("If", F32, &["bool:"], &[("then_branch", Attribute::Graph(Box::default()))]);
    check_graph(graph, REFUSED, &[(Rule::ControlFlow, Severity::Falls, "/layers.0/If")], None);
}

/// A step that reads a cache, and gives as many tokens of it as it is told.
fn step(past: &str, present: &str, tokens: u64) -> Report {
    let mut b = Builder::new("g", &[("", 17)]);
    let keys = b.input(past, F16, &dims("1 3 64 112"));
    let picked = b.ints(&[1], &[0]);
    let end = b.ints(&[1], &[tokens as i64]);
    let axis = b.ints(&[1], &[3]);
    b.node_to(
        NodeSpec {
            name: "/new",
            op: "Slice",
            domain: "",
            inputs: &[&keys, &picked, &end, &axis],
            attributes: &[],
        },
        &[present],
    );
    b.output(present, F16, &dims(&format!("1 3 64 {tokens}")));
    report_on(b.finish())
}

#[test]
fn a_loop_as_npus_want_it_needs_no_fix() {
    let told = |report: &Report| {
        let found = report.findings.iter().find(|finding| finding.rule == Rule::DecoderLoop).unwrap();
        (found.message.clone(), found.fix.is_some())
    };
    let both = "a decoder with 1 cache input and 1 cache output".to_owned();
    assert_eq!(told(&step("past.0.key", "new.0.key", 16)), (both.clone(), false));
    assert_eq!(told(&step("past_key_values.0.key", "present.0.key", 112)), (both, true));
}

#[test]
fn malformed_graphs_are_refused() {
    let mut graph = one("Relu", F32, &["1 4"], &[]);
    graph.nodes[0].inputs[0] = "nowhere".into();
    let report = report_on(graph);
    assert_eq!(report.verdict.to_string(), REFUSED);
    assert!(report.findings[0].message.contains("nowhere"), "{report}");
}

#[test]
fn data_files_must_be_whole_and_near() {
    let check_file = |file: &str, bytes: Option<u64>, expect: &str| {
        let mut b = Builder::new("g", &[("", 17)]);
        let x = b.input("x", F32, &dims("1 8"));
        let w = b.external("w", F32, &[8, 16], External { file, offset: 64, length: 512 });
        let y = b.op("/mm", "MatMul", &[&x, &w]);
        b.output(&y, F32, &dims("1 16"));
        let mut subject = part(b.finish());
        subject.files.insert(file.to_owned(), bytes);
        let report = check("m", &[subject], &options("qnn:x-elite", &[]));
        let found = report.findings.iter().find(|finding| finding.rule == Rule::ExternalData);
        assert!(found.map_or("fine", |found| &found.message).contains(expect), "{report}");
        assert_eq!(matches!(report.verdict, Verdict::Refused { .. }), expect != "fine");
    };
    check_file("w.data", Some(576), "fine");
    check_file("w.data", Some(575), "reach to byte 576");
    check_file("w.data", None, "is not there");
    check_file("../w.data", Some(576), "beside the model");
}

#[test]
fn weights_that_are_inputs_are_taken_from_them() {
    let mut graph = one("Add", F32, &["1 8", "=8"], &[]);
    let (name, shape) = ("w1".to_owned(), dims("8"));
    graph.inputs.push(narthex_graph::Value { name, dtype: F32.into(), shape });
    let mut subject = part(graph);
    subject.files.insert("w.data".into(), Some(64));
    let report = check("m", &[subject.clone()], &options("qnn:x-elite", &[]));
    assert!(report.findings.iter().any(|finding| finding.rule == Rule::OverridableWeight), "{report}");
    let (fixed, changes) = fix::fixed(&[subject], &options("qnn:x-elite", &[])).unwrap();
    assert_eq!((fixed[0].graph.inputs.len(), changes.len()), (1, 1));
    fixed[0].graph.check().unwrap();
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let sized = |rows| check("m", &[sized("m", rows)], &options("qnn:x-elite", &[]));
    let severity = |rows| sized(rows).findings.iter().find(|f| f.rule == Rule::PartSize).map(|f| f.severity);
    assert_eq!(severity(1 << 15), None);
    assert_eq!(severity(1 << 16 | 64), Some(Severity::Costs));
    assert_eq!(severity(1 << 18), Some(Severity::Refuses));
    assert!(matches!(sized(1 << 18).verdict, Verdict::Refused { .. }));
}

#[test]
fn several_graphs_are_one_model() {
    let layer = |name: &str, rows: &str| {
        let graph = one("MatMul", F16, &[&format!("1 {rows} 64"), "=64 64"], &[]);
        Part {
            name: name.into(),
            folder: "m".into(),
            graph,
            files: BTreeMap::from([("w.data".into(), Some(8192))]),
        }
    };
    let report =
        check("m", &[layer("decode.onnx", "1"), layer("prefill.onnx", "64")], &options("qnn:x-elite", &[]));
    assert_eq!(report.verdict, Verdict::Whole, "{report}");
    assert!((report.score.total - 100.0).abs() < 1e-9, "{report}");
    let layout = |parts: &[Part]| {
        let report = check("m", parts, &options("qnn:x-elite", &[]));
        report.findings.into_iter().find(|finding| finding.rule == Rule::SeveralFiles).unwrap().message
    };
    // 16.8 MB, however many graphs read them.
    let parts = ["a", "b", "c"].map(|name| Part { name: name.into(), ..sized("m", 1024) });
    assert_eq!(layout(&parts), "the model has 3 graphs, which share 16.8 MB of weights");
    let apart = ["a", "b"].map(|folder| sized(folder, 1024));
    assert_eq!(layout(&apart), "the model has 2 graphs, which share no weights");
}

/// A product over its own weights, in a folder of its own.
fn sized(folder: &str, rows: usize) -> Part {
    let graph = one("MatMul", F16, &["1 8192", &format!("=8192 {rows}")], &[]);
    let files = BTreeMap::from([("w.data".into(), Some(1 << 40))]);
    Part { name: format!("{folder}.onnx"), folder: folder.into(), files, ..part(graph) }
}

#[test]
fn all_parts_together_must_fit() {
    let judge = |folders: &[String]| {
        // A gibibyte each, which is safe for one.
        let parts: Vec<Part> = folders.iter().map(|folder| sized(folder, 1 << 16)).collect();
        check("m", &parts, &options("qnn:x-elite", &[]))
    };
    let fits = |report: &Report| {
        report.score.components.iter().find(|part| part.name == "fits in memory").unwrap().value
    };
    let folders: Vec<String> = (0..16).map(|index| format!("m{index}")).collect();
    let all = judge(&folders);
    assert!(matches!(&all.verdict, Verdict::Refused { reason } if reason.contains("15.0 GB")), "{all}");
    assert!((fits(&all) - 15e9 / (16u64 << 30) as f64).abs() < 1e-9, "{all}");
    let some = judge(&folders[..13]);
    assert_eq!((&some.verdict, fits(&some)), (&Verdict::Whole, 1.0), "{some}");
    let shared = judge(&vec!["m".to_owned(); 16]);
    assert_eq!((&shared.verdict, fits(&shared)), (&Verdict::Whole, 1.0), "{shared}");
}

#[test]
fn a_score_says_no_more_than_its_verdict() {
    let refused = |report: Report| {
        assert!(matches!(report.verdict, Verdict::Refused { .. }), "{report}");
        assert_eq!(report.score.total, 0.0, "{report}");
    };
    refused(report_on(Builder::new("g", &[("", 17)]).finish()));
    refused(report_on(one("MatMul", F16, &["1 8 64", "=64 64"], &[])));
    refused(check("m", &[sized("m", 1 << 18)], &options("qnn:x-elite", &[])));
    let half = compiled(&cut(), partly(&[("/a/MatMul", None)], 3));
    assert_eq!((half.score.total, half.score.sum().round()), (50.0, 70.0), "{half}");
    assert!(half.to_string().contains("score 50.0 of 100: its parts give 70.0"), "{half}");
}

#[test]
fn openvino_has_facts_of_its_own() {
    let verdict = |op: &str, inputs: &[&str]| {
        let graph = one(op, F16, inputs, &[]);
        let mut subject = part(graph);
        subject.files.insert("w.data".into(), Some(1 << 20));
        check("m", &[subject], &options("openvino:npu", &[])).verdict.to_string()
    };
    assert_eq!(verdict("com.microsoft/SkipSimplifiedLayerNormalization", &["1 4 8", "1 4 8", "=8"]), WHOLE);
    assert_eq!(verdict("RMSNormalization", &["1 4 8", "=8"]), REFUSED);
    assert_eq!(verdict("com.microsoft/RotaryEmbedding", &["1 4 8 16", "i64:1 8", "=32 8", "=32 8"]), REFUSED);
}

/// What comes of a graph once a compiler was given it.
fn compiled(graph: &Graph, compiled: Compiled) -> Report {
    let (parts, options) = ([part(graph.clone())], options("qnn:x-elite", &[]));
    let mut report = check("model.onnx", &parts, &options);
    report.record(&parts, &options, &BTreeMap::from([("model.onnx".to_owned(), compiled)]));
    report
}

fn partly(left: &[(&str, Option<&str>)], nodes: usize) -> Compiled {
    let left = left.iter().map(|(path, why)| Left { path: path.to_string(), why: why.map(str::to_owned) });
    Compiled::Partly { elsewhere: left.collect(), nodes }
}

/// Two products with an operator between them that the compiler is known to leave elsewhere.
fn cut() -> Graph {
    let mut b = Builder::new("g", &[("", 17)]);
    let (x, w, v) = (
        b.input("x", F32, &dims("1 4 8")),
        b.input("w", F32, &dims("8 24")),
        b.input("v", F32, &dims("24 8")),
    );
    let a = b.op("/a", "MatMul", &[&x, &w]);
    let cut = b.op("/b", "Erf", &[&a]);
    let y = b.op("/c", "MatMul", &[&cut, &v]);
    b.output(&y, F32, &dims("1 4 8"));
    b.finish()
}

#[test]
fn a_compiler_has_the_last_word() {
    let whole = compiled(&cut(), Compiled::Whole { nodes: 3 });
    assert_eq!(whole.verdict, Verdict::Whole, "{whole}");
    assert_eq!((whole.parts[0].npu_nodes, whole.parts[0].npu_pieces), (3, 1));
    assert!(whole.findings.iter().all(|finding| finding.severity == Severity::Notes), "{whole}");
    let told = &whole.findings[0];
    assert_eq!(
        (told.rule, told.message.as_str()),
        (Rule::Compiler, "the vendor's compiler took all of 3 nodes")
    );
    let expected = whole.findings.iter().find(|finding| finding.rule == Rule::UnsupportedOperator).unwrap();
    assert!(expected.message.contains("took it, where the rules expected otherwise"), "{whole}");
    assert_eq!(expected.places, ["/b/Erf"]);
    // What it leaves elsewhere is weighed, and what the rules expected of other nodes is not.
    let left = compiled(&cut(), partly(&[("/a/MatMul", Some("Cannot get shape"))], 3));
    assert_eq!(left.verdict, Verdict::Partly { elsewhere_percent: 50.0, elsewhere_nodes: 1 }, "{left}");
    assert!(left.findings[0].message.ends_with(": Cannot get shape"), "{left}");
    assert_eq!((left.findings[0].rule, left.findings[0].severity), (Rule::Compiler, Severity::Falls));
    // A node that nobody knows does not excuse the others.
    let unknown = compiled(&cut(), partly(&[("/made", None)], 4));
    assert_eq!(unknown.verdict, Verdict::Partly { elsewhere_percent: 0.0, elsewhere_nodes: 2 }, "{unknown}");
    let none = compiled(&one("Relu", F32, &["1 4"], &[]), partly(&[("/layers.0/Relu", None)], 1));
    assert_eq!(none.verdict.to_string(), REFUSED, "{none}");
    let branch = one("If", F32, &["bool:"], &[("then_branch", Attribute::Graph(Box::default()))]);
    assert_eq!(compiled(&branch, Compiled::Whole { nodes: 1 }).verdict, Verdict::Whole);
}

#[test]
fn a_compiler_s_reasons_are_gathered() {
    let why = Some("Cannot get shape");
    let report = compiled(&cut(), partly(&[("/a/MatMul", why), ("/b/Erf", None), ("/c/MatMul", why)], 3));
    let told =
        report.findings.iter().find(|finding| finding.message.ends_with(": Cannot get shape")).unwrap();
    assert_eq!(told.places, ["/a/MatMul", "/c/MatMul"]);
    assert_eq!(report.verdict.to_string(), REFUSED);
}

/// Weights that no NPU holds stay too large, whatever the compiler makes of the graph.
#[test]
fn a_compiler_says_nothing_of_memory() {
    let parts = [sized("m", 1 << 18)];
    let mut report = check("m", &parts, &options("qnn:x-elite", &[]));
    let answer = BTreeMap::from([("m.onnx".to_owned(), Compiled::Whole { nodes: 1 })]);
    report.record(&parts, &options("qnn:x-elite", &[]), &answer);
    assert!(matches!(report.verdict, Verdict::Refused { .. }), "{report}");
}

#[test]
fn a_compiler_s_failure_is_told_in_words() {
    let relu = one("Relu", F32, &["1 4"], &[]);
    let message = "Failed to finalize QNN graph. Error code: 1002".to_owned();
    let report = compiled(
        &relu,
        Compiled::Failed { message: message.clone(), fault: Fault::NotSought, evidence: None },
    );
    let found = &report.findings[0];
    assert!(found.message.contains("QNN_COMMON_ERROR_MEM_ALLOC"), "{}", found.message);
    assert!(found.fix.as_ref().is_some_and(|fix| fix.text.contains("qnn_op_trace.json")));
    assert!(matches!(report.verdict, Verdict::Refused { .. }));
    let report =
        compiled(&relu, Compiled::Ended { how: Ending::Killed, fault: Fault::NotSought, evidence: None });
    assert!(report.findings.iter().any(|found| found.message.contains("memory ran out")));
    let fault = Fault::Nodes { paths: vec!["/b".into()], fix: None };
    let report = compiled(&relu, Compiled::Failed { message: message.clone(), fault, evidence: None });
    let found = &report.findings[0];
    assert_eq!((found.rule, found.places.as_slice()), (Rule::CompilerFails, ["/b".to_owned()].as_slice()));
    assert!(found.message.ends_with("It fails on /b alone"), "{}", found.message);
    assert!(found.fix.as_ref().is_some_and(|fix| fix.text.contains("other operators")));
    // Where the steps were taken, their outcome is told, and none of them is left to the user.
    let evidence = Evidence {
        folder: "/kept".into(),
        words: vec!["graph prepare failed 13".to_owned()],
        control: Some(Control::Takes),
        again: "narthex check /kept/graph.onnx".to_owned(),
    };
    let fault = Fault::NotSought;
    let report = compiled(&relu, Compiled::Failed { message, fault, evidence: Some(evidence) });
    let found = &report.findings[0];
    for words in ["graph prepare failed 13", "the chip's backend is at fault", "lie in /kept"] {
        assert!(found.message.contains(words), "{}", found.message);
    }
    let fix = &found.fix.as_ref().unwrap().text;
    assert!(!fix.contains("qnn_op_trace") && fix.ends_with("narthex check /kept/graph.onnx"), "{fix}");
}

#[test]
fn architectures_are_told_without_weights() {
    use narthex_spec::arch::*;
    let attention = Attention::plain(9, 3, 64);
    let mlp = Mlp { inner: 1536, activation: Activation::Silu, gated: true, bias: false, cutoff: None };
    let arch = Architecture::Decoder(DecoderArch {
        vocab: 49152,
        hidden: 576,
        context: 8192,
        layers: vec![DecoderLayer { attention, mlp, ..example::layer() }; 30],
        rope: Some(Rope { theta: 1e5, dims: 64, scaling: RopeScaling::None }),
        ..example::llama()
    });
    insta::assert_snapshot!(architecture::check_architecture(
        "smollm2:135m",
        &arch,
        Scheme::W8,
        &options("qnn:x-elite", &[])
    ));
    let unknown = architecture::refused("m", "not yet".to_owned(), &options("qnn:x-elite", &[]));
    assert!(matches!(unknown.verdict, Verdict::Refused { .. }));
}
