//! The score, and its limit by the verdict.

use super::*;

#[test]
fn work_elsewhere_is_weighed() {
    let report = report_on(cut());
    let summary = &report.parts[0];
    assert_eq!((summary.nodes, summary.npu_nodes, summary.npu_pieces), (3, 2, 2));
    assert_eq!((summary.multiply_accumulates, summary.npu_multiply_accumulates), (1536, 1536));
    // All products are on the NPU, so the share of the work costs no points; the other nodes and the second piece do.
    assert_eq!(report.verdict, Verdict::Partly { elsewhere_percent: 0.0, elsewhere_nodes: 1 });
    let total: f64 = 50.0 + 15.0 * 2.0 / 3.0 + 7.5 + 10.0 + 10.0;
    assert!((report.score.total - total).abs() < 1e-9, "{report}");
}

#[test]
fn scores_are_bounded_by_the_verdict() {
    let refused = |report: Report| {
        assert!(matches!(report.verdict, Verdict::Refused { .. }), "{report}");
        assert_eq!(report.score.total, 0.0, "{report}");
    };
    refused(report_on(Builder::new("g", &[("", 17)]).finish()));
    refused(report_on(one("MatMul", F16, &["1 8 64", "=64 64"], &[])));
    refused(check("m", &[sized("m", 1 << 18)], &options("qnn:x-elite", &[])));
    let half = compiled(&cut(), partly(&[("/a/MatMul", None)], 3));
    assert_eq!((half.score.total, half.score.sum().round()), (50.0, 70.0), "{half}");
    assert!(half.to_string().contains("score 50.0 of 100: its components give 70.0"), "{half}");
}
