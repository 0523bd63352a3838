//! Results of vendors' compilers, joined with the rules' predictions.

use super::*;

#[test]
fn a_compiler_has_the_last_word() {
    let whole = compiled(&cut(), CompilerResult::Whole { nodes: 3 });
    assert_eq!(whole.verdict, Verdict::Whole, "{whole}");
    assert_eq!((whole.parts[0].npu_nodes, whole.parts[0].npu_pieces), (3, 1));
    assert!(whole.findings.iter().all(|finding| finding.severity == Severity::Note), "{whole}");
    let finding = &whole.findings[0];
    assert_eq!(
        (finding.rule, finding.message.as_str()),
        (Rule::Compiler, "the vendor's compiler accepted all of 3 nodes")
    );
    let expected = whole.findings.iter().find(|finding| finding.rule == Rule::UnsupportedOperator).unwrap();
    assert!(expected.message.contains("accepted it, although the rules expected otherwise"), "{whole}");
    assert_eq!(expected.places, ["/b/Erf"]);
    // Nodes that the compiler leaves to other devices count in the verdict; predictions for other nodes do not.
    let left = compiled(&cut(), partly(&[("/a/MatMul", Some("Cannot get shape"))], 3));
    assert_eq!(left.verdict, Verdict::Partly { elsewhere_percent: 50.0, elsewhere_nodes: 1 }, "{left}");
    assert!(left.findings[0].message.ends_with(": Cannot get shape"), "{left}");
    assert_eq!((left.findings[0].rule, left.findings[0].severity), (Rule::Compiler, Severity::Fallback));
    // A node that is not in the graph does not overrule the predictions for other nodes.
    let unknown = compiled(&cut(), partly(&[("/made", None)], 4));
    assert_eq!(unknown.verdict, Verdict::Partly { elsewhere_percent: 0.0, elsewhere_nodes: 2 }, "{unknown}");
    let none = compiled(&one("Relu", F32, &["1 4"], &[]), partly(&[("/layers.0/Relu", None)], 1));
    assert_eq!(none.verdict.to_string(), REFUSED, "{none}");
    let branch = one("If", F32, &["bool:"], &[("then_branch", Attribute::Graph(Box::default()))]);
    assert_eq!(compiled(&branch, CompilerResult::Whole { nodes: 1 }).verdict, Verdict::Whole);
}

#[test]
fn a_compiler_s_reasons_are_gathered() {
    let why = Some("Cannot get shape");
    let report = compiled(&cut(), partly(&[("/a/MatMul", why), ("/b/Erf", None), ("/c/MatMul", why)], 3));
    let finding =
        report.findings.iter().find(|finding| finding.message.ends_with(": Cannot get shape")).unwrap();
    assert_eq!(finding.places, ["/a/MatMul", "/c/MatMul"]);
    assert_eq!(report.verdict.to_string(), REFUSED);
}

/// Weights that are too large for any NPU remain a finding, whatever the compiler's result.
#[test]
fn a_compiler_s_success_leaves_findings_on_memory() {
    let parts = [sized("m", 1 << 18)];
    let mut report = check("m", &parts, &options("qnn:x-elite", &[]));
    let answer = BTreeMap::from([("m.onnx".to_owned(), CompilerResult::Whole { nodes: 1 })]);
    report.record(&parts, &options("qnn:x-elite", &[]), &answer);
    assert!(matches!(report.verdict, Verdict::Refused { .. }), "{report}");
}

#[test]
fn compiler_errors_are_explained() {
    let relu = one("Relu", F32, &["1 4"], &[]);
    let message = "Failed to finalize QNN graph. Error code: 1002".to_owned();
    let report = compiled(
        &relu,
        CompilerResult::Failed { message: message.clone(), fault: FaultyNodes::NotSearched, evidence: None },
    );
    let found = &report.findings[0];
    assert!(found.message.contains("QNN_COMMON_ERROR_MEM_ALLOC"), "{}", found.message);
    assert!(found.fix.as_ref().is_some_and(|fix| fix.text.contains("qnn_op_trace.json")));
    assert!(matches!(report.verdict, Verdict::Refused { .. }));
    let report = compiled(
        &relu,
        CompilerResult::Ended { how: ProcessEnd::Killed, fault: FaultyNodes::NotSearched, evidence: None },
    );
    assert!(report.findings.iter().any(|found| found.message.contains("memory ran out")));
    let fault = FaultyNodes::Nodes { paths: vec!["/b".into()], is_minimal: true, fix: None };
    let report = compiled(&relu, CompilerResult::Failed { message: message.clone(), fault, evidence: None });
    let found = &report.findings[0];
    assert_eq!((found.rule, found.places.as_slice()), (Rule::CompilerFails, ["/b".to_owned()].as_slice()));
    assert!(found.message.ends_with("/b alone causes the failure"), "{}", found.message);
    assert!(found.fix.as_ref().is_some_and(|fix| fix.text.contains("other operators")));
    for (is_minimal, words) in [(true, "if any one of them is removed"), (false, "before it was known")] {
        let fault = FaultyNodes::Nodes { paths: vec!["/a".into(), "/b".into()], is_minimal, fix: None };
        let report =
            compiled(&relu, CompilerResult::Failed { message: message.clone(), fault, evidence: None });
        assert!(report.findings[0].message.contains(words), "{}", report.findings[0].message);
    }
    // After the diagnostic steps, the report states their outcome and lists no step for the user.
    let evidence = Evidence {
        folder: "/kept".into(),
        log_lines: vec!["graph prepare failed 13".to_owned()],
        control: Some(ControlResult::Accepts),
        repeat_command: "narthex check /kept/graph.onnx".to_owned(),
    };
    let fault = FaultyNodes::NotSearched;
    let report = compiled(&relu, CompilerResult::Failed { message, fault, evidence: Some(evidence) });
    let found = &report.findings[0];
    for words in ["graph prepare failed 13", "the chip's backend causes the failure", "are in /kept"] {
        assert!(found.message.contains(words), "{}", found.message);
    }
    let fix = &found.fix.as_ref().unwrap().text;
    assert!(!fix.contains("qnn_op_trace") && fix.ends_with("narthex check /kept/graph.onnx"), "{fix}");
}

#[test]
fn a_verdict_of_intel_s_compiler_names_its_version_and_the_npu() {
    let (parts, options) = ([part(one("Relu", F32, &["1 4"], &[]))], options("openvino:lunar-lake", &[]));
    let report = |answer: Option<CompilerResult>| {
        let mut report = check("m.onnx", &parts, &options);
        report.compiler = Some("2026.4.1".to_owned());
        let answers = answer.map(|answer| ("model.onnx".to_owned(), answer)).into_iter().collect();
        report.record(&parts, &options, &answers);
        report
    };
    let first = |report: &Report| report.to_string().lines().next().unwrap().to_owned();
    assert_eq!(
        first(&report(Some(CompilerResult::Whole { nodes: 1 }))),
        "m.onnx for openvino:lunar-lake: runs completely on the NPU (compiled by Intel's compiler 2026.4.1 for NPU 4000)"
    );
    assert!(first(&report(None)).ends_with("(predicted by rules)"));

    let message = "Intel's compiler fails in the pass FeasibleAllocation".to_owned();
    let fault = FaultyNodes::NotSearched;
    let failed = report(Some(CompilerResult::Failed { message: message.clone(), fault, evidence: None }));
    let found = &failed.findings[0];
    assert_eq!((found.rule, &found.message), (Rule::CompilerFails, &message));
    assert!(found.fix.as_ref().is_some_and(|fix| !fix.text.contains("diagnostic")), "{failed}");
    let late =
        CompilerResult::Ended { how: ProcessEnd::TimedOut, fault: FaultyNodes::NotSearched, evidence: None };
    assert!(report(Some(late)).findings[0].message.contains("within the time limit"));
}
