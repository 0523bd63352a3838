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
fn malformed_graphs_are_refused() {
    let mut graph = one("Relu", F32, &["1 4"], &[]);
    graph.nodes[0].inputs[0] = "nowhere".into();
    let report = report_on(graph);
    assert_eq!(report.verdict.to_string(), REFUSED);
    assert!(report.findings[0].message.contains("nowhere"), "{report}");
}
