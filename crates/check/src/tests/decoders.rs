//! Graphs that run in a loop over tokens.

use super::*;

/// Returns the report on a step that reads a cache and outputs `tokens` tokens of it.
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
    let shown = |report: &Report| {
        let found = report.findings.iter().find(|finding| finding.rule == Rule::DecoderLoop).unwrap();
        (found.message.clone(), found.fix.is_some())
    };
    let both = "a decoder with 1 cache input and 1 cache output".to_owned();
    assert_eq!(shown(&step("past.0.key", "new.0.key", 16)), (both.clone(), false));
    assert_eq!(shown(&step("past_key_values.0.key", "present.0.key", 112)), (both, true));
}
