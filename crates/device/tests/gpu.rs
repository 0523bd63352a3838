//! The dynamic variant on a GPU: the contents of a cache in the GPU's own memory, and the results of encoders.
//!
//! A process has one ONNX Runtime, so these tests need one of their own, which `ORT_DYLIB_PATH` names. `cargo xtask npu`
//! runs them on SwiftShader, a GPU in software, with `onnxruntime-webgpu` 1.27.0: `NARTHEX_SWIFTSHADER` and
//! `VK_DRIVER_FILES` both name its `vk_swiftshader_icd.json`.
//!
//! On a real GPU, `NARTHEX_TEST_GPU` is `cuda` or `webgpu`, and `NARTHEX_TEST_PROVIDER` is the path of the provider's
//! library if that is not ONNX Runtime itself.
//!
//! SwiftShader has subgroups of four threads, with which the attention of 1.27.0 over more than four tokens is wrong
//! unless there is a single new token. There, prompts run on the CPU or token by token; the numerics check would detect
//! the error.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::{
    env, fs, iter,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use narthex_catalog::{CancelFlag, fetch::fetch, index::Catalog, resolve::ModelRef, store::Store};
use narthex_device::{
    DeviceError,
    dynamic::{DynamicExecutor, ExecutorOptions},
    encoder::DynamicEncoder,
    ep::{Device, WebGpuOptions},
    split::{SplitExecutor, SplitOptions},
};
use narthex_engine::{
    encoder::{Encoder, Text},
    executor::{Executor, KvCopy, KvLayer, LogitRows, StepPlan},
};
use narthex_spec::{BlockSize, Recipe, Scheme, SlotId, TokenId, progress::Quiet};
use narthex_testkit::checkpoint::tiny_llama_gguf;
use support::{
    OPTIONS, Package,
    encoders::{FAMILIES, Golden, Head},
    families::{self, Format},
    farthest, library, prompt, relative, runtime, step, texts,
};

/// The GPU under test. Only one test at a time has it, because concurrent sessions disturb each other. In the product,
/// the gateway lets models use the device in turn.
struct Gpu {
    device: Device,
    /// Name in findings.
    name: &'static str,
    /// Maximum relative L2 distance between its kernels and the CPU's.
    bound: f32,
    /// True on a real GPU. Whole prompts run only there, not on SwiftShader.
    is_hardware: bool,
    _turn: MutexGuard<'static, ()>,
}

impl Gpu {
    fn open() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let webgpu = Device::WebGpu(WebGpuOptions::default());
        let named = env::var("NARTHEX_TEST_GPU").ok();
        let (device, name, bound) = match named.as_deref() {
            // Decoders run in half precision, and encoders in TensorFloat-32; both have mantissas of ten bits.
            Some("cuda") => (Device::Cuda, "CUDA", 1e-2),
            Some("webgpu") => (webgpu, "WebGPU", 1e-4),
            Some(other) => panic!("unsupported NARTHEX_TEST_GPU: found {other:?}, expected cuda or webgpu"),
            None => (webgpu, "WebGPU over SwiftShader", 1e-4),
        };
        if named.is_none() {
            let driver =
                env::var_os("NARTHEX_SWIFTSHADER").expect("NARTHEX_SWIFTSHADER names no Vulkan driver");
            assert_eq!(
                env::var_os("VK_DRIVER_FILES"),
                Some(driver),
                "VK_DRIVER_FILES must name the same driver"
            );
        }
        let provider = env::var_os("NARTHEX_TEST_PROVIDER").map_or_else(library, PathBuf::from);
        runtime().register(device.ep(), &provider).unwrap_or_else(|error| panic!("{error}"));
        Self { device, name, bound, is_hardware: named.is_some(), _turn: turn }
    }

    /// Returns whether the device refuses the models of a family: attention on WebGPU ignores the soft cap of scores.
    fn refuses(&self, family: &str) -> bool {
        family == "gemma2" && matches!(self.device, Device::WebGpu(_))
    }

    /// Returns whether SwiftShader computes a family wrongly: beyond the original context, its tokens run again as one
    /// prompt.
    fn errs(&self, family: &str) -> bool {
        !self.is_hardware && ["phi3.5", "phi4-mini"].contains(&family)
    }

    /// Checks that the rows agree with the CPU's. Returns the greatest distance.
    fn agree(&self, found: &[Vec<f32>], expected: &[Vec<f32>], scheme: Scheme) -> f32 {
        let most = farthest(found, expected);
        assert!(most <= self.bound && most > 0.0, "{scheme}: {most}");
        most
    }
}

/// Compiles the tiny Llama with exact activations, as the GPU computes.
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

/// Runs both slots in turn, so that each cache outgrows the other at times. Returns every row.
fn rows(executor: &mut impl Executor) -> Vec<Vec<f32>> {
    let (a, b) = (prompt(3, 30), prompt(5, 20));
    let mut rows = step(executor, &[(0, 0, &a[..3], LogitRows::All)]).unwrap();
    rows.extend(step(executor, &[(1, 0, &b[..2], LogitRows::Last)]).unwrap());
    for at in 0..17 {
        let parts = [
            (0, 3 + at, &a[3 + at..4 + at], LogitRows::Last),
            (1, 2 + at, &b[2 + at..3 + at], LogitRows::Last),
        ];
        rows.extend(step(executor, &parts).unwrap());
    }
    // Removed tokens are run again, in a slot whose memory was released too.
    executor.truncate(SlotId(0), 5).unwrap();
    executor.truncate(SlotId(1), 0).unwrap();
    rows.extend(
        step(executor, &[(0, 5, &b[5..6], LogitRows::Last), (1, 0, &a[..1], LogitRows::Last)]).unwrap(),
    );
    rows
}

#[test]
#[ignore = "needs an ONNX Runtime of its own; `cargo xtask npu` runs it"]
fn a_cache_on_the_gpu_holds_what_the_cpu_holds() {
    let gpu = Gpu::open();
    for scheme in [Scheme::F32, Scheme::W8, Scheme::W4] {
        let package = llama(scheme);
        let (mut on_gpu, mut on_cpu) = (executor(&package, &gpu.device), executor(&package, &Device::Cpu));
        let most = gpu.agree(&rows(&mut on_gpu), &rows(&mut on_cpu), scheme);
        let (held, expected) = [&on_gpu, &on_cpu].map(|one| one.read_kv(SlotId(0), 1..6).unwrap()).into();
        for (found, expected) in held.layers().iter().zip(expected.layers()) {
            let both = |layer: &KvLayer| layer.keys.f32s().chain(layer.values.f32s()).collect::<Vec<f32>>();
            assert!(relative(&both(found), &both(expected)) <= gpu.bound);
        }
        println!("{}: tiny Llama in {scheme}, relative L2 {most:.2e} to the CPU", gpu.name);
    }
}

#[test]
#[ignore = "needs an ONNX Runtime of its own; `cargo xtask npu` runs it"]
fn copied_tokens_are_continued_as_on_the_cpu() {
    let gpu = Gpu::open();
    let package = llama(Scheme::F32);
    let tokens = prompt(4, 40);
    let run = |device: &Device| {
        let mut executor = executor(&package, device);
        let mut rows = Vec::new();
        for at in 0..20 {
            rows.extend(step(&mut executor, &[(0, at, &tokens[at..=at], LogitRows::Last)]).unwrap());
        }
        // Into an empty slot, into one with fewer tokens, and after the tokens that a slot has.
        for (to, held, copied) in [(1, 0, 0..18), (2, 3, 0..9), (2, 5, 5..15)] {
            executor.truncate(SlotId(to), 0).unwrap();
            for at in 0..held {
                step(&mut executor, &[(to, at, &tokens[at..=at], LogitRows::Nothing)]).unwrap();
            }
            let end = copied.end;
            executor.copy_kv(&KvCopy { from: SlotId(0), to: SlotId(to), tokens: copied }).unwrap();
            rows.extend(step(&mut executor, &[(to, end, &tokens[end..=end], LogitRows::Last)]).unwrap());
        }
        rows
    };
    let most = gpu.agree(&run(&gpu.device), &run(&Device::Cpu), Scheme::F32);
    println!("{}: copied tokens, tiny Llama in f32, relative L2 {most:.2e} to the CPU", gpu.name);
}

#[test]
#[ignore = "needs an ONNX Runtime of its own; `cargo xtask npu` runs it"]
fn prefill_on_the_cpu_and_decode_on_the_gpu_agree_with_the_cpu() {
    let gpu = Gpu::open();
    for scheme in [Scheme::F32, Scheme::W8, Scheme::W4] {
        let package = llama(scheme);
        let tokens = prompt(6, 30);
        let run = |executor: &mut dyn Executor| {
            let mut rows = Vec::new();
            let mut at = 0;
            for length in [14].into_iter().chain([1; 16]) {
                let mut plan = StepPlan::default();
                plan.push(SlotId(0), at, &tokens[at..at + length], LogitRows::Last);
                rows.push(executor.step(&plan).unwrap().row(0).to_vec());
                at += length;
            }
            rows
        };
        let expected = run(&mut executor(&package, &Device::Cpu));
        let (prefill, decode) = (executor(&package, &Device::Cpu), executor(&package, &gpu.device));
        let options = SplitOptions { break_even: 0 };
        let mut split = SplitExecutor::new(Box::new(prefill), Box::new(decode), options).unwrap();
        let most = gpu.agree(&run(&mut split), &expected, scheme);
        println!(
            "{}: prefill on the CPU and decode on the GPU, tiny Llama in {scheme}, relative L2 {most:.2e} to the CPU",
            gpu.name
        );
    }
}

/// Runs a family's tokens in spans. On hardware some of them have several tokens. Returns every row.
fn spans(executor: &mut impl Executor, tokens: &[TokenId], whole_prompts: bool) -> Vec<Vec<f32>> {
    let prompts: &[usize] = if whole_prompts { &[14, 1, 1, 1, 16] } else { &[] };
    let mut rows = Vec::new();
    for length in prompts.iter().copied().chain(iter::repeat(1)) {
        let at = rows.len();
        if at == tokens.len() {
            break;
        }
        rows.extend(step(executor, &[(0, at, &tokens[at..at + length], LogitRows::All)]).unwrap());
    }
    rows
}

#[test]
#[ignore = "needs an ONNX Runtime of its own; `cargo xtask npu` runs it"]
fn every_decoder_family_on_the_gpu_computes_what_the_cpu_does() {
    let gpu = Gpu::open();
    let tokens = families::tokens();
    let mut failed = Vec::new();
    let mut most = 0.0f32;
    for family in families::FAMILIES {
        for scheme in [Scheme::F32, Scheme::F16, Scheme::W8, Scheme::W4] {
            let recipe = Recipe { accuracy_level: 0, block: BlockSize::Elements(16), ..Recipe::new(scheme) };
            let package = families::package(family, Format::Safetensors, recipe, None);
            let run = |device: &Device| {
                let opened = DynamicExecutor::open(
                    runtime(),
                    package.folder.path(),
                    &package.manifest,
                    device,
                    &OPTIONS,
                );
                opened.map(|mut executor| spans(&mut executor, &tokens, gpu.is_hardware))
            };
            let expected = run(&Device::Cpu).unwrap_or_else(|error| panic!("{error}"));
            match run(&gpu.device) {
                Err(DeviceError::Wrong { .. }) if gpu.refuses(family) => {
                    println!("{}: tiny {family} in {scheme} is refused", gpu.name);
                }
                Err(error) => failed.push(format!("{family} in {scheme}: {error}")),
                Ok(found) => {
                    let distance = farthest(&found, &expected);
                    println!(
                        "{}: tiny {family} in {scheme}, relative L2 {distance:.2e} to the CPU",
                        gpu.name
                    );
                    let agrees = distance <= gpu.bound;
                    if agrees == gpu.errs(family) {
                        failed.push(format!("{family} in {scheme}: relative L2 {distance:.2e}"));
                    }
                    most = most.max(distance);
                }
            }
        }
    }
    assert!(failed.is_empty() && most > 0.0, "{}: {failed:#?}", gpu.name);
}

/// Opens an encoder and checks that every node is placed on the device.
fn encoder(package: &Package, device: &Device) -> DynamicEncoder {
    let encoder = package.encoder(device);
    // A provider that is part of ONNX Runtime records no nodes; nodes on the CPU would be recorded.
    let fallen = encoder.placement().nodes.iter().find(|node| node.ep != device.ep());
    assert_eq!(fallen, None);
    encoder
}

#[test]
#[ignore = "needs an ONNX Runtime of its own; `cargo xtask npu` runs it"]
fn every_encoder_and_every_head_on_the_gpu_computes_what_the_cpu_does() {
    let gpu = Gpu::open();
    let others = FAMILIES.into_iter().skip(1).map(|family| (family, Head::Mean));
    let mut most = 0.0f32;
    for (family, head) in Head::ALL.map(|head| (FAMILIES[0], head)).into_iter().chain(others) {
        let golden = Golden::read(family);
        let folder = golden.checkpoint(head);
        let recipe = Recipe { accuracy_level: 0, ..Recipe::new(Scheme::W8) };
        let package = Package::make(folder.path().to_owned(), recipe);
        let (inputs, _) = golden.texts(head);
        let texts = texts(&inputs);
        let run = |device: &Device| encoder(&package, device).run(&texts).unwrap().data;
        let distance = relative(&run(&gpu.device), &run(&Device::Cpu));
        assert!(distance <= gpu.bound, "{family} {head:?}: {distance}");
        most = most.max(distance);
    }
    assert!(most > 0.0);
    println!("{}: every tiny encoder and head, relative L2 {most:.2e} to the CPU", gpu.name);
}

#[test]
#[ignore = "needs an ONNX Runtime of its own; `cargo xtask npu` runs it"]
fn minilm_on_the_gpu_gives_the_cpu_s_vectors() {
    let gpu = Gpu::open();
    let store = Store::open(None).unwrap();
    let model = ModelRef::parse("all-minilm-l6-v2").unwrap().resolve(&Catalog::builtin().unwrap()).unwrap();
    let checkpoint =
        fetch(&store, &model, &Quiet, &CancelFlag::default()).unwrap_or_else(|error| panic!("{error}"));
    for scheme in [Scheme::F32, Scheme::W8] {
        let recipe = Recipe { accuracy_level: 0, ..Recipe::new(scheme) };
        let package = Package::make(checkpoint.path.clone(), recipe);
        let tokens: Vec<Vec<TokenId>> =
            [(3, 5), (5, 20), (7, 40)].map(|(seed, length)| prompt(seed, length)).into();
        let texts: Vec<Text<'_>> = tokens.iter().map(|tokens| Text::of(tokens)).collect();
        let run = |device: &Device| encoder(&package, device).run(&texts).unwrap();
        let (found, expected) = (run(&gpu.device), run(&Device::Cpu));
        let rows = found.data.chunks_exact(found.width).zip(expected.data.chunks_exact(found.width));
        // Both vectors have length 1.
        let cosines = rows.map(|(a, b)| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>());
        let least = cosines.fold(f32::INFINITY, f32::min);
        assert!(least >= 0.999, "{scheme}: {least}");
        println!("{}: all-minilm-l6-v2 in {scheme}, least cosine {least:.7} to the CPU", gpu.name);
    }
}
