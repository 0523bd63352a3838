//! Resolution of the subject of a check: files, checkpoints, packages, names.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::{collections::BTreeMap, fs, path::Path};

use narthex_catalog::store::Store;
use narthex_check::{Finding, Rule, Severity};
use narthex_gateway::{
    Cancel, CompileRequest, Error, ErrorKind, Gateway,
    check::{CheckReport, CheckRequest, RyzenAiVerdict, VendorCompiler, Verdict},
};
use narthex_graph::{Builder, build::External};
use narthex_spec::{DType, Scheme, dtype::Dim, progress::Quiet};
use narthex_testkit::checkpoint;
use serde_json::json;

use crate::support::Tiny;

fn check(gateway: &Gateway, subject: &str) -> Result<CheckReport, Error> {
    let request = CheckRequest {
        subject: subject.to_owned(),
        target: "qnn:x-elite".parse().unwrap(),
        extents: BTreeMap::new(),
        fix: None,
        compiler: VendorCompiler::InProcess,
    };
    gateway.check(&request, &Cancel::new())
}

fn says(report: &CheckReport, text: &str) -> bool {
    report.report.findings.iter().any(|finding| finding.message.contains(text))
}

#[test]
fn amd_s_npu_takes_chat_models_of_amd_s_tools_alone() {
    let tiny = Tiny::new();
    let gateway = tiny.gateway();
    let check = |model: &str, expect: RyzenAiVerdict| {
        let found = gateway.check_ryzen_ai(model, &Cancel::new()).unwrap();
        assert_eq!(found.verdict, expect, "{model}");
    };
    let chat = tiny.chat();
    check(&chat, RyzenAiVerdict::Refused);
    check("smollm2:135m", RyzenAiVerdict::Refused);
    check(&tiny.embedding(), RyzenAiVerdict::Unknown);
    check("all-minilm-l6-v2", RyzenAiVerdict::Unknown);
    check(tiny.package(&chat).join("model.onnx").to_str().unwrap(), RyzenAiVerdict::Unknown);
}

#[test]
fn packages_are_checked_by_their_graphs_for_npus() {
    let tiny = Tiny::new();
    let gateway = tiny.gateway();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tiny.gguf");
    fs::write(&file, checkpoint::tiny_llama_gguf(7)).unwrap();
    let file = file.to_str().unwrap();
    let compile =
        |request: &CompileRequest| gateway.compile(file, request, &Quiet, &Cancel::new()).unwrap().1;
    let name = compile(&CompileRequest::new(Scheme::W8)).name.to_string();
    // Without static graphs, the check covers those that a compile would make and reports the command that makes them.
    let report = check(&gateway, &name).unwrap();
    assert!(says(&report, "only the graph that CPUs and GPUs run"), "{}", report.report);
    assert_eq!(report.report.parts.len(), 3, "one token, a prompt and the head: {}", report.report);
    let manifest = compile(&CompileRequest { contexts: vec![32], ..CompileRequest::new(Scheme::W8) });
    let report = check(&gateway, &name).unwrap();
    assert_eq!(report.report.parts.len() + 1, manifest.graphs.len(), "all but the one for every device");
    assert_eq!(*report.verdict(), Verdict::Whole, "{}", report.report);
    assert!(report.report.parts.iter().all(|part| part.nodes > 0 && part.multiply_accumulates > 0));
}

#[test]
fn a_run_on_this_machine_is_stated() {
    let tiny = Tiny::new();
    let gateway = tiny.gateway();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tiny.gguf");
    fs::write(&file, checkpoint::tiny_llama_gguf(7)).unwrap();
    let request = CompileRequest { contexts: vec![32], ..CompileRequest::new(Scheme::W8) };
    let compiled = gateway.compile(file.to_str().unwrap(), &request, &Quiet, &Cancel::new()).unwrap().1;
    let name = compiled.name.to_string();
    let store = Store::open(Some(tiny.home())).unwrap();
    let package = store.package(&compiled.name, Scheme::W8).unwrap();
    let first_line = || check(&gateway, &name).unwrap().report.to_string().lines().next().unwrap().to_owned();
    assert!(first_line().ends_with("(predicted by rules)"), "{}", first_line());
    for (device, basis) in [("qnn:emulation", "(predicted by rules)"), ("qnn", "(ran on this machine)")] {
        let key = json!({"device": device, "runtime": "r", "provider": "p", "driver": "d", "settings": {}});
        let placement = format!("{device} 5/5 nodes, 100 % of MACs");
        let record = json!({"version": 1, "key": key, "placement": placement});
        let machine = store.machine(&package, device).unwrap();
        machine.write("run.json", record.to_string().as_bytes()).unwrap();
        let report = check(&gateway, &name).unwrap();
        assert!(says(&report, &placement), "{}", report.report);
        assert!(first_line().ends_with(basis), "{}", first_line());
    }
}

#[test]
fn rules_only_omits_recorded_compiler_findings() {
    let tiny = Tiny::new();
    tiny.with_qnn();
    let gateway = tiny.gateway();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tiny.gguf");
    fs::write(&file, checkpoint::tiny_llama_gguf(7)).unwrap();
    let request = CompileRequest {
        contexts: vec![32],
        target: Some("qnn:x-elite".parse().unwrap()),
        ..CompileRequest::new(Scheme::W8)
    };
    let manifest = gateway.compile(file.to_str().unwrap(), &request, &Quiet, &Cancel::new()).unwrap().1;
    let told = |compiler: VendorCompiler| {
        let request = CheckRequest {
            subject: manifest.name.to_string(),
            target: "qnn:x-elite".parse().unwrap(),
            extents: BTreeMap::new(),
            fix: None,
            compiler,
        };
        let report = gateway.check(&request, &Cancel::new()).unwrap();
        assert_eq!(*report.verdict(), Verdict::Whole, "{}", report.report);
        says(&report, "the vendor's compiler")
    };
    assert!(told(VendorCompiler::InProcess));
    assert!(!told(VendorCompiler::Skip));
}

#[test]
fn checkpoints_are_checked_by_their_settings() {
    let tiny = Tiny::new();
    let gateway = tiny.gateway();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap().to_owned();
    let error = check(&gateway, &path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    checkpoint::tiny_llama_safetensors(folder.path(), 7).unwrap();
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let report = check(&gateway, &path).unwrap();
    assert!(says(&report, "a decoder that Narthex compiles"), "{}", report.report);
    // ONNX files in a folder with a checkpoint take precedence, because they are the files that would run.
    fs::write(folder.path().join("model.onnx"), "no model").unwrap();
    assert_eq!(check(&gateway, &path).unwrap_err().kind(), ErrorKind::Malformed);
    fs::remove_file(folder.path().join("model.onnx")).unwrap();
    fs::write(folder.path().join("config.json"), r#"{"model_type":"t5"}"#).unwrap();
    let error = check(&gateway, &path).unwrap_err();
    assert!(error.to_string().contains("config.json"), "{error}");
}

#[test]
fn what_a_subject_has_no_use_for_is_refused() {
    let gateway = Tiny::new().gateway();
    let ask = |extents: &[(&str, u64)], fix: Option<&str>| {
        let request = CheckRequest {
            subject: "smollm2:135m".to_owned(),
            target: "qnn:x-elite".parse().unwrap(),
            extents: extents.iter().map(|&(name, extent)| (name.to_owned(), extent)).collect(),
            fix: fix.map(Into::into),
            compiler: VendorCompiler::InProcess,
        };
        gateway.check(&request, &Cancel::new())
    };
    assert!(matches!(ask(&[], None).unwrap().verdict(), Verdict::Whole));
    assert_eq!(ask(&[("batch", 1)], None).unwrap_err().param(), Some("set"));
    assert_eq!(ask(&[], Some("out")).unwrap_err().param(), Some("fix"));
}

/// Writes a chain of matrix products with rectifiers, between which `inner` may insert nodes. Returns the path.
fn chain(folder: &Path, inner: impl Fn(&mut Builder, &str) -> String) -> String {
    let mut b = Builder::new("chain", &[("", 20)]);
    let mut x = b.input("x", DType::F32, &[1, 4, 8].map(Dim::from));
    let weight = |length| External { file: "w.data", offset: 0, length };
    let square = b.external("square", DType::F32, &[8, 8], weight(256));
    for layer in 0..6 {
        x = b.op(&format!("/layers.{layer}"), "MatMul", &[&x, &square]);
        x = b.op(&format!("/layers.{layer}"), "Relu", &[&x]);
        if layer == 3 {
            b.external("gain", DType::F32, &[8], weight(32));
            x = inner(&mut b, &x);
        }
    }
    b.output(&x, DType::F32, &[1, 4, 8].map(Dim::from));
    let file = folder.join("chain.onnx");
    fs::write(folder.join("w.data"), [0x3c; 256]).unwrap();
    fs::write(&file, b.finish().encode()).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Adds a norm as PyTorch's exporter writes it. Qualcomm's compiler fails on it, although it supports each of its
/// operators.
fn written_out_norm(b: &mut Builder, x: &str) -> String {
    let (two, tiny, axis) = (b.scalar(2.0), b.scalar(1e-6), b.ints(&[1], &[-1]));
    let square = b.op("/norm", "Pow", &[x, &two]);
    let mean = b.op("/norm", "ReduceMean", &[&square, &axis]);
    let shifted = b.op("/norm", "Add", &[&mean, &tiny]);
    let root = b.op("/norm", "Sqrt", &[&shifted]);
    let scale = b.op("/norm", "Reciprocal", &[&root]);
    let scaled = b.op("/norm", "Mul", &[x, &scale]);
    b.op("/norm/gain", "Mul", &["gain", &scaled])
}

fn compiled(report: &CheckReport, severity: Severity) -> Option<&Finding> {
    let rule = if severity == Severity::Blocking { Rule::CompilerFails } else { Rule::Compiler };
    let own = |finding: &&Finding| finding.rule == rule && finding.severity == severity;
    report
        .report
        .findings
        .iter()
        .find(|finding| own(finding) && finding.message.starts_with("the vendor's compiler"))
}

#[test]
fn the_vendor_s_compiler_is_asked_where_it_is_installed() {
    let tiny = Tiny::new();
    let folder = tempfile::tempdir().unwrap();
    let file = chain(folder.path(), |_, x| x.to_owned());
    let report = check(&tiny.gateway(), &file).unwrap();
    assert!(compiled(&report, Severity::Note).is_none(), "{}", report.report);
    tiny.with_qnn();
    let report = check(&tiny.gateway(), &file).unwrap();
    let told = compiled(&report, Severity::Note).unwrap();
    assert_eq!(told.message, "the vendor's compiler accepted all of 12 nodes");
    assert_eq!(*report.verdict(), Verdict::Whole);
    // The rules predict that the CPU unpacks a weight that is only dequantised.
    let file = chain(folder.path(), |b, x| {
        let quants = External { file: "w.data", offset: 0, length: 64 };
        let quants = b.external("quants", DType::I8, &[8, 8], quants);
        let scale = b.scalar(0.1);
        let weight = b.op("/alone", "DequantizeLinear", &[&quants, &scale]);
        b.op("/alone", "MatMul", &[x, &weight])
    });
    let report = check(&tiny.gateway(), &file).unwrap();
    assert_eq!(*report.verdict(), Verdict::Whole, "{}", report.report);
    assert!(says(&report, "the rules expected otherwise"), "{}", report.report);
    // For an operator that the compiler leaves to the CPU, the report has the compiler's own words.
    let file = chain(folder.path(), |b, x| b.op("/alone", "Erf", &[x]));
    let report = check(&tiny.gateway(), &file).unwrap();
    let told = compiled(&report, Severity::Fallback).unwrap();
    assert_eq!(told.places, ["/alone/Erf"]);
    assert!(told.message.contains("not supported by QNN EP"), "{}", told.message);
    assert!(matches!(report.verdict(), Verdict::Partly { .. }));
}

#[cfg(unix)]
#[test]
fn a_check_without_intel_s_compiler_names_the_command_that_installs_it() {
    let tiny = Tiny::new();
    let gateway = tiny.gateway();
    let folder = tempfile::tempdir().unwrap();
    let request = CheckRequest {
        subject: chain(folder.path(), |b, x| b.op("/alone", "Sigmoid", &[x])),
        target: "openvino:lunar-lake".parse().unwrap(),
        extents: BTreeMap::new(),
        fix: None,
        compiler: VendorCompiler::InProcess,
    };
    let check = |request: &CheckRequest, expect: bool| {
        let report = gateway.check(request, &Cancel::new()).unwrap().report;
        assert!(report.to_string().contains("(predicted by rules)"), "{report}");
        let fixes = report.findings.iter().filter_map(|found| found.fix.as_ref());
        let mut commands = fixes.filter(|fix| fix.text == "narthex runtime install openvino-compiler");
        assert_eq!(commands.next().is_some(), expect, "{report}");
    };
    check(&request, true);
    check(&CheckRequest { compiler: VendorCompiler::Skip, ..request.clone() }, false);
    check(&CheckRequest { target: "openvino:npu".parse().unwrap(), ..request }, false);
}

#[test]
fn a_compiler_that_crashes_is_a_finding() {
    use narthex_gateway::check::TrialProgram;

    let tiny = Tiny::new();
    tiny.with_qnn();
    let folder = tempfile::tempdir().unwrap();
    let file = chain(folder.path(), |b, x| b.op("/alone", "Erf", &[x]));
    // A shell script replaces the compiler. After the target, its arguments are a graph and the file for its answer.
    let check = |script: &str| {
        let arguments = ["-c", script, "compiler"].map(Into::into).to_vec();
        let program = TrialProgram { path: "/bin/sh".into(), arguments };
        let request = CheckRequest {
            subject: file.clone(),
            target: "qnn:x-elite".parse().unwrap(),
            extents: BTreeMap::new(),
            fix: None,
            compiler: VendorCompiler::Subprocess(program),
        };
        tiny.gateway().check(&request, &Cancel::new())
    };
    // Its standard input is a pipe, which closes if this process is killed.
    let report = check(r#"test -p /dev/stdin && echo '{"whole":{"nodes":13}}' > "$3""#).unwrap();
    assert_eq!(
        compiled(&report, Severity::Note).unwrap().message,
        "the vendor's compiler accepted all of 13 nodes"
    );
    // The script crashes on every graph with this operator. The bisection finds the node as for an ordinary failure.
    let report = check(r#"test -n "$4" && echo > "$4/wrote.txt"; grep -q Erf "$2" && kill -ABRT $$; echo '{"whole":{"nodes":1}}' > "$3""#).unwrap();
    let told = compiled(&report, Severity::Blocking).unwrap();
    assert!(told.message.contains("crashed on this graph (signal: 6 (SIGABRT)"), "{}", told.message);
    assert_eq!(
        (told.part.as_deref(), told.places.as_slice()),
        (Some("chain.onnx"), ["/alone/Erf".to_owned()].as_slice())
    );
    // The messages that the compiler wrote before its crash are stored with the failing piece of the graph.
    let kept = Path::new(told.message.split_once(" received are in ").unwrap().1);
    assert!(kept.join("graph.onnx").is_file() && kept.join("wrote.txt").is_file(), "{kept:?}");
    assert!(matches!(report.verdict(), Verdict::Refused { .. }));
    // If a process is killed from outside, the result has no finding about the nodes.
    let report = check("kill -KILL $$").unwrap();
    let told = compiled(&report, Severity::Blocking).unwrap();
    assert!(told.message.contains("memory ran out") && told.places.is_empty(), "{told:?}");
    // An ordinary exit of the program is not a failure of the compiler, and an incomplete answer is ignored.
    let error = check(r#"echo '{"whole":' > "$3"; exit 3"#).unwrap_err();
    assert!(error.to_string().contains("without an answer (exit status: 3)"), "{error}");
}

#[test]
fn the_nodes_on_which_the_vendor_s_compiler_fails_are_found() {
    let tiny = Tiny::new();
    tiny.with_qnn();
    let folder = tempfile::tempdir().unwrap();
    let file = chain(folder.path(), written_out_norm);
    let report = check(&tiny.gateway(), &file).unwrap();
    let told = compiled(&report, Severity::Blocking).unwrap();
    for words in ["1002", "the graph could not be prepared", "accepts them if any one of them is removed"] {
        assert!(told.message.contains(words), "{}", told.message);
    }
    let parts = ["Pow", "ReduceMean", "Add", "Sqrt", "Reciprocal", "Mul"].map(|op| format!("/norm/{op}"));
    let nodes: Vec<String> = parts.into_iter().chain(["/norm/gain/Mul".to_owned()]).collect();
    assert_eq!(told.places, nodes);
    assert!(
        told.fix.as_ref().is_some_and(|fix| fix.text.contains("make the weight the second operand")),
        "{told:?}"
    );
    assert!(matches!(report.verdict(), Verdict::Refused { .. }));
    // The other trials on the failing piece were also run, and their results are stored.
    assert!(
        told.message.contains("the graph is valid and the chip's backend causes the failure"),
        "{}",
        told.message
    );
    let kept = Path::new(told.message.split_once(" received are in ").unwrap().1);
    let names: Vec<String> =
        fs::read_dir(kept).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    for end in ["graph.onnx", "log.txt", "_qnn_ep_input_graph.json", "_0.json", "_0.dlc"] {
        assert!(names.iter().any(|name| name.ends_with(end)), "{end} of {names:?}");
    }
    assert_eq!(
        narthex_graph::Graph::decode(&fs::read(kept.join("graph.onnx")).unwrap()).unwrap().nodes.len(),
        7
    );
    assert!(fs::read_to_string(kept.join("log.txt")).unwrap().contains("FinalizeGraphs started"));
}
