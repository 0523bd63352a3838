//! Comparison of a real model on two devices with the CPU, with the bounds of [`crate::npu`]. One of the devices is a
//! GPU that is emulated in software.
//!
//! It needs a separate ONNX Runtime, as described in `crates/device/tests/gpu.rs`, into which Qualcomm's provider is
//! loaded too. `cargo xtask npu` sets it up.

use narthex_catalog::{runtimes, store::Store};
use narthex_device::{
    ep::{Device, WebGpuOptions},
    split::{SplitExecutor, SplitOptions},
};
use narthex_spec::{Ep, recipe::FixedShapes};

use crate::{
    DECODER, dynamic,
    npu::{self, Runner, compiled, emulation, executor},
    runtime,
};

#[test]
#[ignore = "needs an ONNX Runtime of its own; `cargo xtask npu` runs it"]
fn a_real_decoder_reads_on_the_npu_and_writes_on_the_gpu() {
    let library = runtimes::core_library(&Store::open(None).unwrap()).unwrap().unwrap();
    runtime().register(Ep::WebGpu, &library).unwrap_or_else(|error| panic!("{error}"));
    let gpu = Device::WebGpu(WebGpuOptions::default());
    let (folder, manifest) = compiled(DECODER, FixedShapes::new(512), Some(&Runner));
    let mut cpu = executor(folder.path(), &manifest, &Device::Cpu);
    let prefill = executor(folder.path(), &manifest, &emulation());
    let decode = dynamic((folder.path(), &manifest), &gpu, 1);
    let options = SplitOptions { break_even: 0 };
    let mut split = SplitExecutor::new(Box::new(prefill), Box::new(decode), options).unwrap();
    let name = "WebGPU over SwiftShader: prefill under HTP emulation and decode on WebGPU";
    npu::agree(name, &mut cpu, &mut split, npu::FULL);
}
