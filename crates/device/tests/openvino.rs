//! The OpenVINO plugin over tiny models, on its CPU device in place of Intel's NPU.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::{collections::BTreeMap, ptr, slice, sync::Once};

use narthex_device::{
    ep::{Device, OpenVinoOptions},
    placement::GraphPlacement,
    runtime::Runtime,
    static_shapes::Form,
};
use narthex_spec::{Ep, OpenVinoDevice, Scheme};
use ort_sys::{OrtHardwareDeviceType, OrtLoggingLevel};
use support::{
    Package,
    fixed::{self, logits, open, open_encoder, plugin, shapes, vectors},
    prompt, relative, runtime,
};

/// Maximum relative L2 distance between OpenVINO and ONNX Runtime's own kernels.
const HALF: f32 = 0.01;

/// Provider name of the plugin.
const NAME: &str = "OpenVINOExecutionProvider";

/// Registers the plugin. It offers only devices of Intel's hardware, but here on any processor.
fn register() {
    static PASSED: Once = Once::new();
    PASSED.call_once(|| pass_for_intel(runtime()));
    let library = plugin(Ep::OpenVino);
    runtime().register(Ep::OpenVino, &library).unwrap_or_else(|error| panic!("{error}"));
}

/// Writes Intel's vendor number into the processor's entry in ONNX Runtime's list of hardware. The plugin checks
/// nothing else before it offers its CPU device, and OpenVINO's kernels run on any x86-64 processor.
fn pass_for_intel(_loaded: &Runtime) {
    const INTEL: u32 = 0x8086;
    let api = ort::api();
    // SAFETY: the status was just returned by a call, and `ort` releases it.
    let succeeded = |status| unsafe { ort::Error::result_from_status(status) }.unwrap();
    let (mut environment, mut devices, mut count) = (ptr::null_mut(), ptr::null(), 0);
    // SAFETY: a process has one environment, to which `CreateEnv` returns one more reference, and the list belongs to
    // it. A hardware entry starts with its type and its vendor's number, which is verified before the number is
    // written. The plugin, which reads it, is not registered yet.
    unsafe {
        succeeded((api.CreateEnv)(
            OrtLoggingLevel::ORT_LOGGING_LEVEL_WARNING,
            c"".as_ptr(),
            &raw mut environment,
        ));
        succeeded((api.GetEpDevices)(environment, &raw mut devices, &raw mut count));
        for device in slice::from_raw_parts(devices, count) {
            let hardware = (api.EpDevice_Device)(*device);
            if (api.HardwareDevice_Type)(hardware) == OrtHardwareDeviceType::OrtHardwareDeviceType_CPU {
                let vendor = hardware.cast::<u32>().cast_mut().add(1);
                assert_eq!(*vendor, (api.HardwareDevice_VendorId)(hardware));
                *vendor = INTEL;
                assert_eq!((api.HardwareDevice_VendorId)(hardware), INTEL);
            }
        }
        (api.ReleaseEnv)(environment);
    }
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

/// Checks that every node of every graph is placed on OpenVINO, in one part for each graph.
fn whole(placements: &[GraphPlacement]) {
    assert!(!placements.is_empty());
    for GraphPlacement { graph, placement } in placements {
        assert_eq!(placement.subgraphs, BTreeMap::from([(Ep::OpenVino, 1)]), "{graph}");
        assert!(placement.nodes.len() > 1, "{graph}");
    }
}

#[test]
fn a_decoder_runs_whole_and_agrees_with_the_cpu_provider() {
    register();
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
fn an_encoder_runs_whole_and_agrees_with_the_cpu_provider() {
    register();
    let package = Package::fixed_bert(Scheme::W8, shapes());
    let mut encoder = open_encoder(&package, &stand_in());
    whole(&encoder.placements());
    agree(&vectors(&mut encoder), &vectors(&mut open_encoder(&package, &Device::Cpu)));
}

#[test]
fn its_device_is_chosen_by_name() {
    register();
    let package = Package::fixed_llama(Scheme::W8, shapes());
    // A machine with only the CPU device has no NPU, and the CPU device is not used in its place.
    let npu = Device::OpenVino(OpenVinoOptions::new(OpenVinoDevice::Npu));
    let error = open(&package, &npu, Form::Graph).err().expect("an NPU was found");
    assert_eq!(error.to_string(), "ONNX Runtime offers no device for the Intel NPU on this machine");
    open(&package, &stand_in(), Form::Graph).unwrap();
    let units: Vec<_> = runtime().devices().into_iter().filter(|device| device.ep == NAME).collect();
    assert!(units.iter().any(|device| device.unit.as_deref() == Some("CPU")), "{units:?}");
}

#[test]
fn options_reach_the_provider() {
    register();
    let package = Package::fixed_llama(Scheme::W8, shapes());
    let cache = tempfile::tempdir().unwrap();
    let options =
        OpenVinoOptions { cache: Some(cache.path().to_owned()), ..OpenVinoOptions::new(OpenVinoDevice::Cpu) };
    open(&package, &Device::OpenVino(options), Form::Graph).unwrap();
    assert!(cache.path().read_dir().unwrap().count() > 0, "no compiled graph was kept");
}

#[test]
fn what_is_written_after_binding_is_seen() {
    register();
    // The provider has its own memory, to which ONNX Runtime copies inputs when they are bound.
    let package = Package::fixed_llama(Scheme::W8, shapes());
    let mut executor = open(&package, &stand_in(), Form::Graph).unwrap();
    let first = logits(&mut executor, &prompt(6, 13));
    assert!(relative(&logits(&mut executor, &prompt(9, 13))[0], &first[0]) > HALF);
}
