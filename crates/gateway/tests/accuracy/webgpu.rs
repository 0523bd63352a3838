//! A real model on two devices, of which one is a GPU made of software, by the measure of [`crate::npu`].
//!
//! It needs an ONNX Runtime of its own, as `crates/device/tests/webgpu.rs` says; `cargo xtask npu` sets that up. Prompts are
//! read on the CPU for the reason that stands there.

use narthex_catalog::{runtimes, store::Store};
use narthex_device::{
    ep::{Device, WebGpuOptions},
    split::{SplitExecutor, SplitOptions},
};
use narthex_spec::{Ep, Scheme};

use crate::{DECODER, dynamic, npu, package, runtime};

#[test]
#[ignore = "needs an ONNX Runtime of its own; `cargo xtask npu` runs it"]
fn a_real_decoder_writes_on_the_gpu_what_the_cpu_writes() {
    let library = runtimes::core_library(&Store::open(None).unwrap()).unwrap().unwrap();
    runtime().register(Ep::WebGpu, &library).unwrap_or_else(|error| panic!("{error}"));
    let gpu = Device::WebGpu(WebGpuOptions::default());
    let (folder, manifest) = package(DECODER, Scheme::W8);
    let open = |device: &Device| dynamic((&folder, &manifest), device, 1);
    let (mut cpu, prefill, decode) = (open(&Device::Cpu), open(&Device::Cpu), open(&gpu));
    let options = SplitOptions { break_even: 0 };
    let mut split = SplitExecutor::new(Box::new(prefill), Box::new(decode), options).unwrap();
    let name = "WebGPU over SwiftShader: prefill on the CPU and decode on WebGPU";
    npu::agree(name, &mut cpu, &mut split, npu::FULL);
}
