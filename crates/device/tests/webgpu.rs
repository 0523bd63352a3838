//! Variant A over WebGPU, on SwiftShader, a GPU made of software: what a GPU's cache in its own memory holds.
//!
//! A process holds one ONNX Runtime, so this needs one of its own: `ORT_DYLIB_PATH` names the library of
//! `onnxruntime-webgpu` 1.27.0, and `NARTHEX_SWIFTSHADER` and `VK_DRIVER_FILES` both name SwiftShader's
//! `vk_swiftshader_icd.json`; `cargo xtask npu` sets that up.
//!
//! Prompts are read on the CPU, or token by token: SwiftShader has subgroups of four threads, with which the attention of
//! 1.27.0 to more than four tokens is wrong for all but single new tokens, as the canary would find.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::{
    env, fs,
    sync::{Mutex, MutexGuard, PoisonError},
};

use narthex_device::{
    dynamic::{DynamicExecutor, ExecutorOptions},
    ep::{Device, WebGpuOptions},
    split::{SplitExecutor, SplitOptions},
};
use narthex_engine::executor::{Executor, KvLayer, StepPlan, Wanted};
use narthex_spec::{Ep, Recipe, Scheme, SlotId};
use narthex_testkit::checkpoint::tiny_llama_gguf;
use support::{OPTIONS, Package, library, prompt, relative, runtime, step};

/// The bound between a GPU's kernels and the CPU's, as relative L2.
const GPU: f32 = 1e-4;

/// WebGPU for one test at a time: sessions side by side disturb each other, which `gateway::care` keeps from happening.
fn webgpu() -> (Device, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = env::var_os("NARTHEX_SWIFTSHADER").expect("NARTHEX_SWIFTSHADER names no Vulkan driver");
    assert_eq!(env::var_os("VK_DRIVER_FILES"), Some(driver), "VK_DRIVER_FILES must name the same driver");
    runtime().register(Ep::WebGpu, &library()).unwrap_or_else(|error| panic!("{error}"));
    (Device::WebGpu(WebGpuOptions::default()), turn)
}

/// The tiny Llama, computing with exact activations, as the GPU does.
fn llama(scheme: Scheme) -> Package {
    let checkpoint = tempfile::tempdir().unwrap();
    let file = checkpoint.path().join("tiny.gguf");
    fs::write(&file, tiny_llama_gguf(7)).unwrap();
    Package::make(file, Recipe { accuracy_level: 0, ..Recipe::new(scheme) })
}

fn executor(package: &Package, device: &Device) -> DynamicExecutor {
    let options = ExecutorOptions { kv_step: 8, ..OPTIONS };
    DynamicExecutor::open(runtime(), package.folder.path(), &package.manifest, device, &options)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Feeds both slots in turn, so that their caches grow past each other; gives every row.
fn rows(executor: &mut impl Executor) -> Vec<Vec<f32>> {
    let (a, b) = (prompt(3, 30), prompt(5, 20));
    let mut rows = step(executor, &[(0, 0, &a[..3], Wanted::All)]).unwrap();
    rows.extend(step(executor, &[(1, 0, &b[..2], Wanted::Last)]).unwrap());
    for at in 0..17 {
        let parts =
            [(0, 3 + at, &a[3 + at..4 + at], Wanted::Last), (1, 2 + at, &b[2 + at..3 + at], Wanted::Last)];
        rows.extend(step(executor, &parts).unwrap());
    }
    // What is taken back is read anew, in a slot whose memory was given back too.
    executor.truncate(SlotId(0), 5).unwrap();
    executor.truncate(SlotId(1), 0).unwrap();
    rows.extend(step(executor, &[(0, 5, &b[5..6], Wanted::Last), (1, 0, &a[..1], Wanted::Last)]).unwrap());
    rows
}

fn agree(found: &[Vec<f32>], expected: &[Vec<f32>], scheme: Scheme) -> f32 {
    assert_eq!(found.len(), expected.len());
    let distances = found.iter().zip(expected).map(|(found, expected)| relative(found, expected));
    let most = distances.fold(0.0, f32::max);
    assert!(most <= GPU && most > 0.0, "{scheme}: {most}");
    most
}

#[test]
#[ignore = "needs an ONNX Runtime of its own; `cargo xtask npu` runs it"]
fn a_cache_on_the_gpu_holds_what_the_cpu_holds() {
    let (device, _turn) = webgpu();
    for scheme in [Scheme::F32, Scheme::W8, Scheme::W4] {
        let package = llama(scheme);
        let (mut gpu, mut cpu) = (executor(&package, &device), executor(&package, &Device::Cpu));
        let most = agree(&rows(&mut gpu), &rows(&mut cpu), scheme);
        let (held, expected) = [&gpu, &cpu].map(|one| one.read_kv(SlotId(0), 1..6).unwrap()).into();
        for (found, expected) in held.layers().iter().zip(expected.layers()) {
            let both = |layer: &KvLayer| layer.keys.f32s().chain(layer.values.f32s()).collect::<Vec<f32>>();
            assert!(relative(&both(found), &both(expected)) <= GPU);
        }
        println!("WebGPU over SwiftShader: tiny Llama in {scheme}, relative L2 {most:.2e} to the CPU");
    }
}

#[test]
#[ignore = "needs an ONNX Runtime of its own; `cargo xtask npu` runs it"]
fn prefill_on_the_cpu_and_decode_on_the_gpu_agree_with_the_cpu() {
    let (device, _turn) = webgpu();
    for scheme in [Scheme::F32, Scheme::W8, Scheme::W4] {
        let package = llama(scheme);
        let tokens = prompt(6, 30);
        let run = |executor: &mut dyn Executor| {
            let mut rows = Vec::new();
            let mut at = 0;
            for length in [14].into_iter().chain([1; 16]) {
                let mut plan = StepPlan::default();
                plan.push(SlotId(0), at, &tokens[at..at + length], Wanted::Last);
                rows.push(executor.step(&plan).unwrap().row(0).to_vec());
                at += length;
            }
            rows
        };
        let expected = run(&mut executor(&package, &Device::Cpu));
        let (prefill, decode) = (executor(&package, &Device::Cpu), executor(&package, &device));
        let options = SplitOptions { break_even: 0 };
        let mut split = SplitExecutor::new(Box::new(prefill), Box::new(decode), options).unwrap();
        let most = agree(&run(&mut split), &expected, scheme);
        println!(
            "WebGPU over SwiftShader: prefill on the CPU and decode on WebGPU, tiny Llama in {scheme}, relative L2 \
             {most:.2e} to the CPU"
        );
    }
}
