//! The OpenVINO plugin over tiny models and, once each, real ones, on its CPU device, which stands in for Intel's NPU.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::{collections::BTreeMap, path::PathBuf};

use narthex_catalog::{
    runtimes::{self, RuntimeKind},
    store::Store,
};
use narthex_device::{
    DeviceError,
    ep::{Device, OpenVinoOptions},
    fixed::{FixedEncoder, FixedExecutor, FixedOptions, Form, Place},
    placement::GraphPlacement,
};
use narthex_engine::{
    encoder::Encoder,
    executor::{Executor, StepPlan, Wanted},
};
use narthex_spec::{Ep, Scheme, SlotId, TokenId, recipe::FixedShapes, target::OpenVinoDevice};
use support::{Package, prompt, relative, runtime};

const OPTIONS: FixedOptions = FixedOptions { slots: 2, kv_budget: 1 << 30 };

/// The bound between OpenVINO and ONNX Runtime's own kernels, as relative L2.
const HALF: f32 = 0.01;

/// The plugin's name of itself.
const NAME: &str = "OpenVINOExecutionProvider";

/// Registers the plugin. It offers a device of processors that Intel made, and of no other: there, `false` is what is
/// right, and a test has nothing to run on.
fn offered() -> bool {
    let store = Store::open(None).unwrap_or_else(|error| panic!("{error}"));
    let info = runtimes::locate(&store, RuntimeKind::OpenVino);
    let library: PathBuf = info
        .expect("no OpenVINO runtime: run `narthex runtime install openvino`, as `cargo xtask npu` does")
        .library;
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

fn shapes() -> FixedShapes {
    FixedShapes { context: 32, prefill: vec![8], buckets: vec![16] }
}

fn open(package: &Package, device: &Device) -> Result<FixedExecutor, DeviceError> {
    let place = Place { device, threads: 1, form: Form::Graph };
    FixedExecutor::open(runtime(), package.folder.path(), &package.manifest, place, &OPTIONS)
}

/// Logits after each of some tokens: a whole chunk, a part of one, and single steps.
fn logits(executor: &mut FixedExecutor, tokens: &[TokenId]) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    let mut at = 0;
    for length in [8, 3, 1, 1] {
        let mut plan = StepPlan::default();
        plan.push(SlotId(0), at, &tokens[at..at + length], Wanted::All);
        let logits = executor.step(&plan).unwrap();
        rows.extend((0..logits.rows()).map(|row| logits.row(row).to_vec()));
        at += length;
    }
    rows
}

fn agree(found: &[Vec<f32>], expected: &[Vec<f32>]) {
    assert_eq!(found.len(), expected.len());
    let mut largest = 0.0_f32;
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let distance = relative(found, expected);
        assert!(distance <= HALF, "row {index}: {distance}");
        // Other kernels never give every bit alike; equal bits would mean ONNX Runtime's own.
        assert!(distance > 0.0, "row {index} is the CPU provider's");
        largest = largest.max(distance);
    }
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
        let expected = logits(&mut open(&package, &Device::Cpu).unwrap(), &tokens);
        let mut executor = open(&package, &device).unwrap();
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
    let open = |device: &Device| {
        let place = Place { device, threads: 1, form: Form::Graph };
        FixedEncoder::open(runtime(), package.folder.path(), &package.manifest, place).unwrap()
    };
    let texts: Vec<Vec<TokenId>> =
        [2, 16, 9].iter().map(|&n| prompt(n, n as usize).iter().map(|token| token % 40).collect()).collect();
    let texts: Vec<&[TokenId]> = texts.iter().map(Vec::as_slice).collect();
    let mut encoder = open(&stand_in());
    whole(&encoder.placements());
    let (found, expected) = (encoder.run(&texts).unwrap(), open(&Device::Cpu).run(&texts).unwrap());
    let rows = |data: &[f32]| data.chunks(found.width).map(<[f32]>::to_vec).collect::<Vec<_>>();
    agree(&rows(&found.data), &rows(&expected.data));
}

#[test]
#[ignore = "its device is offered on Intel processors only; `cargo xtask npu` runs it"]
fn its_device_is_chosen_by_name() {
    let offered = offered();
    let package = Package::fixed_llama(Scheme::W8, shapes());
    // A machine with only the stand-in has no NPU, and none is made of it.
    let npu = Device::OpenVino(OpenVinoOptions::new(OpenVinoDevice::Npu));
    let error = open(&package, &npu).err().expect("an NPU was found");
    assert_eq!(error.to_string(), "ONNX Runtime offers no device for the Intel NPU on this machine");
    match open(&package, &stand_in()) {
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
    open(&package, &Device::OpenVino(options)).unwrap();
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
    let mut executor = open(&package, &stand_in()).unwrap();
    let first = logits(&mut executor, &prompt(6, 13));
    executor.truncate(SlotId(0), 0).unwrap();
    assert!(relative(&logits(&mut executor, &prompt(9, 13))[0], &first[0]) > HALF);
}
