//! What a user's text is taken for by a check: files, checkpoints, packages, names.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod support;

use std::{collections::BTreeMap, fs};

use narthex_gateway::{
    Cancel, CompileRequest, Error, ErrorKind, Gateway,
    check::{CheckReport, CheckRequest, Verdict},
};
use narthex_spec::{Scheme, progress::Quiet};
use narthex_testkit::checkpoint;
use support::Tiny;

fn check(gateway: &Gateway, subject: &str) -> Result<CheckReport, Error> {
    let request = CheckRequest {
        subject: subject.to_owned(),
        target: "qnn:x-elite".parse().unwrap(),
        extents: BTreeMap::new(),
        fix: None,
    };
    gateway.check(&request, &Cancel::new())
}

fn says(report: &CheckReport, text: &str) -> bool {
    report.report.findings.iter().any(|finding| finding.message.contains(text))
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
    // Without fixed graphs there is a prediction and the command that makes them.
    let report = check(&gateway, &name).unwrap();
    assert!(says(&report, "only the graph that CPUs and GPUs run"), "{}", report.report);
    assert!(report.report.parts.is_empty());
    let manifest = compile(&CompileRequest { context: Some(32), ..CompileRequest::new(Scheme::W8) });
    let report = check(&gateway, &name).unwrap();
    assert_eq!(report.report.parts.len() + 1, manifest.graphs.len(), "all but the one for every device");
    assert_eq!(*report.verdict(), Verdict::Whole, "{}", report.report);
    assert!(report.report.parts.iter().all(|part| part.nodes > 0 && part.multiply_accumulates > 0));
}

#[test]
fn checkpoints_are_told_from_their_settings() {
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
    // Graphs beside the settings are what would run.
    fs::write(folder.path().join("model.onnx"), "no model").unwrap();
    assert_eq!(check(&gateway, &path).unwrap_err().kind(), ErrorKind::BadRequest);
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
            subject: "gemma3n:e2b".to_owned(),
            target: "qnn:x-elite".parse().unwrap(),
            extents: extents.iter().map(|&(name, extent)| (name.to_owned(), extent)).collect(),
            fix: fix.map(Into::into),
        };
        gateway.check(&request, &Cancel::new())
    };
    assert!(matches!(ask(&[], None).unwrap().verdict(), Verdict::Refused { .. }));
    assert_eq!(ask(&[("batch", 1)], None).unwrap_err().param(), Some("set"));
    assert_eq!(ask(&[], Some("out")).unwrap_err().param(), Some("fix"));
}
