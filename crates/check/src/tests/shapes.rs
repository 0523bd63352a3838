//! Shapes: unknown extents, and graphs that are not well-formed.

use super::*;

/// A graph with a symbolic batch dimension.
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

#[test]
fn a_product_depends_on_its_symbols() {
    let mut b = Builder::new("g", &[("", 17)]);
    let x = b.input("x", F32, &[Dim::symbol("2*(height+1)"), 4.into()]);
    let y = b.op("/layers.0", "Relu", &[&x]);
    b.output(&y, F32, &dims("rows 4"));
    let parts = [part(b.finish())];
    let report = check("m.onnx", &parts, &options("qnn:x-elite", &[]));
    let found = report.findings.iter().find(|finding| finding.rule == Rule::DynamicDimension).unwrap();
    assert_eq!(found.severity, Severity::Fallback, "{report}");
    assert!(found.message.starts_with("dimension \"height\" of x [2*(height+1), 4] is dynamic"), "{report}");
    assert!(found.message.ends_with("/layers.0/Relu reads it and would run elsewhere"), "{report}");

    let bound = bound(&parts, &options("qnn:x-elite", &[("height", 5)])).unwrap();
    assert_eq!(bound[0].graph.inputs[0].shape, dims("12 4"));
}

#[test]
fn a_dynamic_dimension_refuses_a_graph_whatever_else_it_has() {
    let mut b = Builder::new("g", &[("", 17)]);
    let x = b.input("x", F32, &dims("height 4"));
    let fixed = b.input("fixed", F32, &dims("8 4"));
    let y = b.op("/layers.0", "Relu", &[&x]);
    let z = b.op("/layers.1", "Relu", &[&fixed]);
    b.output(&y, F32, &dims("height 4"));
    b.output(&z, F32, &dims("8 4"));
    let parts = [part(b.finish())];
    let report = check("m.onnx", &parts, &options("qnn:x-elite", &[]));
    assert_eq!(report.verdict.to_string(), REFUSED, "{report}");

    let options = options("qnn:x-elite", &[("height", 2)]);
    let bound = bound(&parts, &options).unwrap();
    assert_eq!(bound[0].graph.inputs[0].shape, dims("2 4"));
    assert_eq!(check("m.onnx", &bound, &options).verdict.to_string(), WHOLE);
}

#[test]
fn the_command_of_a_fix_states_every_dimension() {
    let mut b = Builder::new("g", &[("", 17)]);
    let x = b.input("x", F32, &dims("batch height 4"));
    let y = b.op("/layers.0", "Relu", &[&x]);
    b.output(&y, F32, &dims("batch height 4"));
    let parts = [part(b.finish())];
    let command = |extents: &[(&str, u64)]| {
        let options = options("qnn:x-elite", extents);
        let mut report = check("models/m.onnx", &parts, &options);
        report.suggest_fix(&parts, &options);
        report.fix_command
    };
    let whole = "narthex check models/m.onnx --target qnn:x-elite --set batch=1 --set height=5 --fix m-fixed";
    assert_eq!(command(&[("height", 5)]).as_deref(), Some(whole));
    assert_eq!(command(&[]), None, "height stays dynamic");
}

#[test]
fn old_opsets_are_refused() {
    let verdict = |opset| {
        let mut b = Builder::new("g", &[("", opset)]);
        let x = b.input("x", F32, &dims("1 4"));
        let y = b.op("/layers.0", "Relu", &[&x]);
        b.output(&y, F32, &dims("1 4"));
        let report = report_on(b.finish());
        let rules: Vec<Rule> = report.findings.iter().map(|finding| finding.rule).collect();
        (report.verdict.to_string(), rules.contains(&Rule::OldOpset))
    };
    assert_eq!(verdict(6), (REFUSED.to_owned(), true));
    assert_eq!(verdict(7), (WHOLE.to_owned(), false));
}

#[test]
fn malformed_graphs_are_refused() {
    let mut graph = one("Relu", F32, &["1 4"], &[]);
    graph.nodes[0].inputs[0] = "nowhere".into();
    let report = report_on(graph);
    assert_eq!(report.verdict.to_string(), REFUSED);
    assert!(report.findings[0].message.contains("nowhere"), "{report}");
}
