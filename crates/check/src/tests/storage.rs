//! Files and sizes.

use super::*;

#[test]
fn data_files_must_be_whole_and_near() {
    let check_file = |file: &str, bytes: Option<u64>, expect: &str| {
        let mut b = Builder::new("g", &[("", 17)]);
        let x = b.input("x", F32, &dims("1 8"));
        let w = b.external("w", F32, &[8, 16], External { file, offset: 64, length: 512 });
        let y = b.op("/mm", "MatMul", &[&x, &w]);
        b.output(&y, F32, &dims("1 16"));
        let mut subject = part(b.finish());
        subject.data_files.insert(file.to_owned(), bytes);
        let report = check("m", &[subject], &options("qnn:x-elite", &[]));
        let found = report.findings.iter().find(|finding| finding.rule == Rule::ExternalData);
        assert!(found.map_or("fine", |found| &found.message).contains(expect), "{report}");
        assert_eq!(matches!(report.verdict, Verdict::Refused { .. }), expect != "fine");
    };
    check_file("w.data", Some(576), "fine");
    check_file("w.data", Some(575), "extend to byte 576");
    check_file("w.data", None, "does not exist");
    check_file("../w.data", Some(576), "the model's folder");
}

#[test]
fn a_fixed_model_that_does_not_fit_is_refused_before_it_is_written() {
    let mut b = Builder::new("g", &[("", 17)]);
    let x = b.input("x", F32, &dims("1 8"));
    let external = External { file: "w.data", offset: 0, length: u64::MAX };
    let w = b.external("w", F32, &[8, 16], external);
    let y = b.op("/mm", "MatMul", &[&x, &w]);
    b.output(&y, F32, &dims("1 16"));
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("fixed");
    let error = write::write(&[part(b.finish())], &folder).unwrap_err();
    assert!(error.to_string().contains("MB of free space") && !folder.exists(), "{error}");
}

#[test]
fn weights_that_are_inputs_are_taken_from_them() {
    let mut graph = one("Add", F32, &["1 8", "=8"], &[]);
    let (name, shape) = ("w1".to_owned(), dims("8"));
    graph.inputs.push(narthex_graph::Value { name, dtype: F32.into(), shape });
    let mut subject = part(graph);
    subject.data_files.insert("w.data".into(), Some(64));
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
    assert_eq!(severity(1 << 16 | 64), Some(Severity::Cost));
    assert_eq!(severity(1 << 18), Some(Severity::Blocking));
    assert!(matches!(sized(1 << 18).verdict, Verdict::Refused { .. }));
}

#[test]
fn several_graphs_are_one_model() {
    let layer = |name: &str, rows: &str| {
        let graph = one("MatMul", F16, &[&format!("1 {rows} 64"), "=64 64"], &[]);
        OnnxFile {
            name: name.into(),
            folder: "m".into(),
            graph,
            data_files: BTreeMap::from([("w.data".into(), Some(8192))]),
            watch: Default::default(),
        }
    };
    let report =
        check("m", &[layer("decode.onnx", "1"), layer("prefill.onnx", "64")], &options("qnn:x-elite", &[]));
    assert_eq!(report.verdict, Verdict::Whole, "{report}");
    assert!((report.score.total - 100.0).abs() < 1e-9, "{report}");
    let layout = |parts: &[OnnxFile]| {
        let report = check("m", parts, &options("qnn:x-elite", &[]));
        report.findings.into_iter().find(|finding| finding.rule == Rule::SeveralFiles).unwrap().message
    };
    // 16.8 MB, whatever the number of graphs that read them.
    let parts = ["a", "b", "c"].map(|name| OnnxFile { name: name.into(), ..sized("m", 1024) });
    assert_eq!(layout(&parts), "the model has 3 graphs, which share 16.8 MB of weights");
    let apart = ["a", "b"].map(|folder| sized(folder, 1024));
    assert_eq!(layout(&apart), "the model has 2 graphs, which share no weights");
}

#[test]
fn all_parts_together_must_fit() {
    let judge = |folders: &[String]| {
        // A gibibyte each, which is safe for one part.
        let parts: Vec<OnnxFile> = folders.iter().map(|folder| sized(folder, 1 << 16)).collect();
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
