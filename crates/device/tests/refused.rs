//! Providers that this process lacks: each load fails with a reason, and none falls back to another device.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use narthex_device::{
    DeviceError,
    dynamic::DynamicExecutor,
    ep::{CoreMlOptions, Device, DirectMlOptions, OpenVinoOptions, VitisAiOptions, WebGpuOptions},
    precompile::FallbackPolicy,
    static_shapes::{Form, GraphLoad, StaticExecutor, StaticOptions},
};
use narthex_spec::{BlockSize, Ep, OpenVinoDevice, Recipe, Scheme, recipe::FixedShapes};
use support::{OPTIONS, Package, families, library, runtime};

fn open(package: &Package, device: &Device) -> DeviceError {
    let place = GraphLoad { device, threads: 1, form: Form::Graph, fallback: FallbackPolicy::Refused };
    let options = StaticOptions { slots: 1, kv_budget: 1 << 30 };
    StaticExecutor::open(runtime(), package.folder.path(), &package.manifest, place, &options)
        .err()
        .expect("a device that is not there was opened")
}

#[test]
fn a_provider_that_is_not_there_is_explicit() {
    let shapes = FixedShapes { context: 32, shorter: vec![], prefill: vec![8], buckets: vec![16] };
    let package = Package::fixed_llama(Scheme::W8, shapes);
    let check = |device: Device, expected: &str| {
        let error = open(&package, &device);
        assert_eq!(
            error.to_string(),
            format!("ONNX Runtime offers no device for {expected} on this machine")
        );
    };
    check(Device::OpenVino(OpenVinoOptions::new(OpenVinoDevice::Npu)), "the Intel NPU");
    check(Device::DirectMl(DirectMlOptions::default()), "DirectML");
    check(Device::Cuda, "the NVIDIA GPU");
    check(Device::WebGpu(WebGpuOptions::default()), "WebGPU");
    check(Device::VitisAi(VitisAiOptions::default()), "the AMD XDNA NPU");
    if !cfg!(target_os = "macos") {
        check(Device::CoreMl(CoreMlOptions::default()), "the Apple Neural Engine");
    }
}

#[test]
fn variant_a_is_loaded_where_it_runs_and_nowhere_else() {
    let package = Package::llama(Scheme::W8);
    let open = |device: &Device| {
        DynamicExecutor::open(runtime(), package.folder.path(), &package.manifest, device, &OPTIONS)
    };
    let npu = Device::OpenVino(OpenVinoOptions::new(OpenVinoDevice::Npu));
    let error = open(&npu).err().unwrap();
    assert_eq!(error, DeviceError::Variant { device: "the Intel NPU" });
    let error = open(&Device::Cuda).err().unwrap();
    assert_eq!(error, DeviceError::NoDevice { device: "the NVIDIA GPU" });
    assert!(open(&Device::Cpu).is_ok());
}

#[test]
fn a_model_is_refused_by_a_device_that_would_compute_it_wrongly() {
    let recipe = Recipe { accuracy_level: 0, block: BlockSize::Elements(16), ..Recipe::new(Scheme::W8) };
    let package = families::package("gemma2", families::Format::Safetensors, recipe, None);
    let open = |device: &Device| {
        DynamicExecutor::open(runtime(), package.folder.path(), &package.manifest, device, &OPTIONS)
    };
    let error = open(&Device::WebGpu(WebGpuOptions::default())).err().unwrap();
    assert_eq!(error.to_string(), "WebGPU ignores the cap of attention scores of this model");
    assert!(open(&Device::Cpu).is_ok());
}

#[test]
fn a_provider_of_another_onnx_runtime_is_not_loaded_into_this_one() {
    let other = tempfile::NamedTempFile::new().unwrap();
    for ep in [Ep::Cuda, Ep::DirectMl] {
        let error = runtime().register(ep, other.path()).unwrap_err();
        assert!(matches!(error, DeviceError::AlreadyLoaded { .. }), "{ep}: {error}");
        assert!(error.hint().is_some());
    }
    // A provider that is part of this ONNX Runtime needs no library of its own.
    runtime().register(Ep::WebGpu, &library()).unwrap();
    // This ONNX Runtime was not built for NVIDIA GPUs, so it has no provider library next to it.
    let error = runtime().register(Ep::Cuda, &library()).unwrap_err();
    assert!(matches!(&error, DeviceError::Plugin { ep: Ep::Cuda, .. }), "{error}");
}
