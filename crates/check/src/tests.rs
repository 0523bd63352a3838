//! Helpers for tests on small graphs, each with one problem, and for the reports on them. The tests are in one file per
//! subject.

mod compiler;
mod decoders;
mod nodes;
mod score;
mod shapes;
mod storage;

use std::path::PathBuf;

use narthex_graph::{
    Attribute, Builder, Element, Graph,
    build::{External, NodeSpec},
    graph::MICROSOFT,
};
use narthex_spec::{DType, dtype::Dim};

use crate::*;

const F32: DType = DType::F32;
const F16: DType = DType::F16;

const WHOLE: &str = "runs completely on the NPU";
const REFUSED: &str = "refused";

fn options(target: &str, extents: &[(&str, u64)]) -> CheckOptions {
    let extents = extents.iter().map(|&(symbol, extent)| (symbol.to_owned(), extent)).collect();
    CheckOptions { target: target.parse().unwrap(), extents }
}

fn part(graph: Graph) -> OnnxFile {
    OnnxFile {
        name: "model.onnx".into(),
        folder: PathBuf::new(),
        graph,
        data_files: BTreeMap::new(),
        watch: Default::default(),
    }
}

fn report_on(graph: Graph) -> Report {
    check("model.onnx", &[part(graph)], &options("qnn:x-elite", &[]))
}

/// Checks rule, severity and first place of every finding above a note, and the verdict before and after fixes.
fn check_graph(graph: Graph, verdict: &str, findings: &[(Rule, Severity, &str)], after: Option<&str>) {
    graph.check_values().unwrap();
    let report = report_on(graph);
    let found: Vec<_> = report
        .findings
        .iter()
        .filter(|finding| finding.severity != Severity::Note)
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

/// Returns a graph of one node with inputs of these types and shapes. Shapes that begin with `=` are constants.
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

/// Returns a product with its own weights, in its own folder.
fn sized(folder: &str, rows: usize) -> OnnxFile {
    let graph = one("MatMul", F16, &["1 8192", &format!("=8192 {rows}")], &[]);
    let files = BTreeMap::from([("w.data".into(), Some(1 << 40))]);
    OnnxFile { name: format!("{folder}.onnx"), folder: folder.into(), data_files: files, ..part(graph) }
}

/// Returns the report on a graph with a compiler's result.
fn compiled(graph: &Graph, compiled: CompilerResult) -> Report {
    let (parts, options) = ([part(graph.clone())], options("qnn:x-elite", &[]));
    let mut report = check("model.onnx", &parts, &options);
    report.record(&parts, &options, &BTreeMap::from([("model.onnx".to_owned(), compiled)]));
    report
}

fn partly(left: &[(&str, Option<&str>)], nodes: usize) -> CompilerResult {
    let left =
        left.iter().map(|(path, why)| FallbackNode { path: path.to_string(), why: why.map(str::to_owned) });
    CompilerResult::Partly { elsewhere: left.collect(), nodes }
}

/// Returns two products with an operator between them that the compiler is known to leave to another device.
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
