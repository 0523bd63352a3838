//! Snapshot of the page for invented figures. The page must be well-formed and must not refer to external resources.

use std::collections::BTreeMap;

use narthex_gateway::{
    FallbackNodes, PlacementLine, PlacementReport,
    bench::{Machine, Ratios},
    devices::DeviceStatus,
};
use narthex_spec::{DeviceName, Ep, OpenVinoDevice, Scheme, Sha256};

use super::*;

pub(crate) fn machine() -> Machine {
    Machine {
        cpu: "Some CPU".to_owned(),
        cores: 4,
        threads: 2,
        platform: "linux x86_64".to_owned(),
        system: Some("Some Linux 1, kernel 6.1".to_owned()),
        memory_bytes: None,
        accelerators: Vec::new(),
        narthex: "0.1.0".to_owned(),
        onnxruntime: "1.31.1".to_owned(),
    }
}

fn near(median: f64) -> Spread {
    Spread { min: median * 0.9, median, max: median * 1.2 }
}

fn placement(device: DeviceName, decode: Option<DeviceName>, npu_share: f64) -> PlacementReport {
    let line = |ep, compute_share| PlacementLine {
        graph: "layers-64x448.onnx".to_owned(),
        ep,
        subgraphs: 1,
        nodes: 12,
        ops: BTreeMap::from([("MatMul".to_owned(), 12)]),
        weight_bytes: 98_362_432,
        compute_share,
    };
    PlacementReport {
        device,
        decode,
        head: None,
        multiply_accumulates: 1000,
        npu_share,
        phases: None,
        lines: vec![line(device.ep(), 0.9999), line(Ep::Cpu, 0.0001)],
        towers: Vec::new(),
        fallback: FallbackNodes::default(),
        why: None,
        notes: vec!["the kept contexts were refused & made anew".to_owned()],
    }
}

/// Returns invented figures of a machine with an NPU.
pub(crate) fn comparison() -> Comparison {
    let ran = |place: &str, factor: f64, placement, known: bool| ComparedDevice {
        place: place.parse().unwrap(),
        outcome: Outcome::Measured(Box::new(Figures {
            first_token_ms: near(640.0 / factor),
            prefill_tokens_per_second: near(400.0 * factor),
            decode_tokens_per_second: near(if known { 100.0 } else { 95.0 }),
            to_cpu: Some(Ratios { prefill: near(factor), decode: near(if known { 1.0 } else { 0.95 }) }),
            load_ms: if known { 812.4 } else { 2400.0 },
            memory_bytes: known.then_some(310_000_000),
            energy_joules: known.then(|| near(12.0)),
            placement,
        })),
    };
    let (reason, fix) =
        ("the <openvino> runtime is not installed", Some("narthex runtime install openvino".to_owned()));
    let refused = Outcome::Refused { reason: reason.to_owned(), fix: fix.clone() };
    let absent = DeviceStatus {
        device: DeviceName::OpenVino(OpenVinoDevice::Npu),
        usable: false,
        present: true,
        reason: Some(reason.to_owned()),
        fix,
    };
    Comparison {
        model: "tiny<script>".to_owned(),
        scheme: Scheme::W8,
        package: Sha256([7; 32]),
        date: "2026-11-21".to_owned(),
        machine: machine(),
        devices: vec![absent],
        runtimes: vec!["onnxruntime 1.31.1".to_owned(), "onnxruntime-qnn 2.7.0".to_owned()],
        prompt_tokens: 256,
        generate_tokens: 64,
        rounds: 5,
        energy_counter: Some("the processors' own counters (RAPL)".to_owned()),
        contenders: vec![
            ran("cpu", 1.0, placement(DeviceName::Cpu, None, 0.0), true),
            ran(
                "prefill=qnn,decode=cpu",
                4.0,
                placement(DeviceName::Qnn, Some(DeviceName::Cpu), 0.75),
                false,
            ),
            ComparedDevice { place: "openvino".parse().unwrap(), outcome: refused },
        ],
    }
}

/// Fails if tags are not closed in order, or if an attribute or a text is not valid XML.
fn well_formed(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    let body = page.strip_prefix("<!DOCTYPE html>\n").unwrap();
    let (mut rest, mut texts) = (body, String::new());
    while let Some(start) = rest.find('<') {
        texts.push_str(&rest[..start]);
        let (tag, after) = rest[start + 1..].split_once('>').unwrap();
        assert!(!tag.contains('<') && tag.matches('"').count() % 2 == 0, "{tag}");
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{tag}"),
            None if tag.ends_with('/') => {}
            None => open.push(tag.split(' ').next().unwrap()),
        }
        rest = after;
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?}");
    for (at, _) in texts.match_indices('&') {
        let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
        assert!(known.iter().any(|entity| texts[at..].starts_with(entity)), "{}", &texts[at..]);
    }
}

#[test]
fn a_report_of_made_up_figures() {
    let text = page(&comparison());
    well_formed(&text);
    insta::assert_snapshot!(text);
}

#[test]
fn a_report_reaches_for_nothing_and_runs_nothing() {
    let text = page(&comparison());
    for word in ["<script", "http:", "https:", "//", "@import", "url(", "<link", "<img", "src="] {
        assert!(!text.contains(word), "{word}");
    }
    assert!(text.contains("tiny&lt;script&gt;"));
}

#[test]
fn what_no_page_may_hold_is_replaced() {
    let check = |text: &str, expected: &str| assert_eq!(escape(text), expected);
    check("a <b> & \"c\" 'd'", "a &lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
    check("one\ntwo\u{1b}[0m\u{0}", "one two\u{fffd}[0m\u{fffd}");
    check("größer × 2", "größer × 2");
}

#[test]
fn figures_have_three_digits() {
    let check = |x, expected: &str| assert_eq!(figure(x), expected);
    check(1234.5, "1234");
    check(100.0, "100");
    check(12.345, "12.3");
    check(0.1, "0.10");
    check(-3.0, "-3.00");
}
