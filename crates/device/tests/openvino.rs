//! The OpenVINO plugin over tiny models and, once each, real ones, on its CPU device, which stands in for Intel's NPU.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::collections::BTreeMap;

use narthex_catalog::runtimes::RuntimeKind;
use narthex_device::{
    ep::{Device, OpenVinoOptions},
    fixed::Form,
    placement::GraphPlacement,
};
use narthex_spec::{Ep, Scheme, target::OpenVinoDevice};
use support::{
    Package,
    fixed::{self, logits, open, open_encoder, plugin, shapes, vectors},
    prompt, relative, runtime,
};

/// The bound between OpenVINO and ONNX Runtime's own kernels, as relative L2.
const HALF: f32 = 0.01;

/// The plugin's name of itself.
const NAME: &str = "OpenVINOExecutionProvider";

/// Registers the plugin. It offers a device of processors that Intel made, and of no other: there, `false` is what is
/// right, and a test has nothing to run on.
fn offered() -> bool {
    let library = plugin(RuntimeKind::OpenVino);
    runtime().register(Ep::OpenVino, &library).unwrap_or_else(|error| panic!("{error}"));
    let devices = runtime().devices();
    if devices.iter().any(|device| device.ep == NAME) {
        return true;
    }
    let cpu = devices.iter().find(|device| device.ep == "CPUExecutionProvider").unwrap();
    assert_ne!(cpu.vendor, "Intel", "the plugin offers no device: {devices:?}");
    println!("OpenVINO's CPU device: skipped, because it is not offered on processors of {}", cpu.vendor);
    false
}

fn stand_in() -> Device {
    Device::OpenVino(OpenVinoOptions::new(OpenVinoDevice::Cpu))
}

fn agree(found: &[Vec<f32>], expected: &[Vec<f32>]) {
    let largest = fixed::agree(found, expected, HALF);
    println!(
        "OpenVINO's CPU device: {} rows, largest relative L2 {largest:.5} to the CPU provider",
        found.len()
    );
}

/// Every node of every graph is OpenVINO's, in one part for each graph.
fn whole(placements: &[GraphPlacement]) {
    assert!(!placements.is_empty());
    for GraphPlacement { graph, placement } in placements {
        assert_eq!(placement.subgraphs, BTreeMap::from([(Ep::OpenVino, 1)]), "{graph}");
        assert!(placement.nodes.len() > 1, "{graph}");
    }
}

#[test]
#[ignore = "its device is offered on Intel processors only; `cargo xtask npu` runs it"]
fn a_decoder_runs_whole_and_agrees_with_the_cpu_provider() {
    if !offered() {
        return;
    }
    let device = stand_in();
    for scheme in [Scheme::W8, Scheme::W4] {
        let package = Package::fixed_llama(scheme, shapes());
        let tokens = prompt(6, 13);
        let expected = logits(&mut open(&package, &Device::Cpu, Form::Graph).unwrap(), &tokens);
        let mut executor = open(&package, &device, Form::Graph).unwrap();
        agree(&logits(&mut executor, &tokens), &expected);
        assert_eq!(executor.placements().len(), 3);
        whole(&executor.placements());
    }
}

#[test]
#[ignore = "its device is offered on Intel processors only; `cargo xtask npu` runs it"]
fn an_encoder_runs_whole_and_agrees_with_the_cpu_provider() {
    if !offered() {
        return;
    }
    let package = Package::fixed_bert(Scheme::W8, shapes());
    let mut encoder = open_encoder(&package, &stand_in());
    whole(&encoder.placements());
    agree(&vectors(&mut encoder), &vectors(&mut open_encoder(&package, &Device::Cpu)));
}

#[test]
#[ignore = "its device is offered on Intel processors only; `cargo xtask npu` runs it"]
fn its_device_is_chosen_by_name() {
    let offered = offered();
    let package = Package::fixed_llama(Scheme::W8, shapes());
    // A machine with only the stand-in has no NPU, and none is made of it.
    let npu = Device::OpenVino(OpenVinoOptions::new(OpenVinoDevice::Npu));
    let error = open(&package, &npu, Form::Graph).err().expect("an NPU was found");
    assert_eq!(error.to_string(), "ONNX Runtime offers no device for the Intel NPU on this machine");
    match open(&package, &stand_in(), Form::Graph) {
        Ok(_) => assert!(offered),
        Err(error) => assert!(!offered && error.to_string().contains("OpenVINO's CPU device"), "{error}"),
    }
    let units: Vec<_> = runtime().devices().into_iter().filter(|device| device.ep == NAME).collect();
    assert!(!offered || units.iter().any(|device| device.unit.as_deref() == Some("CPU")), "{units:?}");
}

#[test]
#[ignore = "its device is offered on Intel processors only; `cargo xtask npu` runs it"]
fn what_it_is_told_reaches_it() {
    if !offered() {
        return;
    }
    let package = Package::fixed_llama(Scheme::W8, shapes());
    let cache = tempfile::tempdir().unwrap();
    let options =
        OpenVinoOptions { cache: Some(cache.path().to_owned()), ..OpenVinoOptions::new(OpenVinoDevice::Cpu) };
    open(&package, &Device::OpenVino(options), Form::Graph).unwrap();
    assert!(cache.path().read_dir().unwrap().count() > 0, "no compiled graph was kept");
}

#[test]
#[ignore = "its device is offered on Intel processors only; `cargo xtask npu` runs it"]
fn what_is_written_after_binding_is_seen() {
    if !offered() {
        return;
    }
    // The provider has memory of its own, to which ONNX Runtime copies inputs when they are bound.
    let package = Package::fixed_llama(Scheme::W8, shapes());
    let mut executor = open(&package, &stand_in(), Form::Graph).unwrap();
    let first = logits(&mut executor, &prompt(6, 13));
    assert!(relative(&logits(&mut executor, &prompt(9, 13))[0], &first[0]) > HALF);
}
