//! Accuracy of compiled models against independent implementations, with real weights and committed references.
//!
//! `bench/goldens` contains the references and the program that wrote them. The models are in the store that `cargo
//! xtask test` prepares; nothing is fetched. Start at [`decoder`] and [`encoder`]. [`company`] compares requests alone
//! and in a batch, [`npu`] tests the arithmetic of an NPU, and [`webgpu`] that of a GPU.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that cannot go on fails; figures are printed"
)]

mod company;
mod decoder;
mod encoder;
mod goldens;
mod npu;
mod webgpu;

use std::{
    path::{Path, PathBuf},
    sync::{LazyLock, Mutex},
};

use narthex_catalog::{runtimes, store::Store};
use narthex_device::{
    dynamic::{DynamicExecutor, ExecutorOptions},
    ep::Device,
    runtime::{Runtime, disable_telemetry},
};
use narthex_engine::executor::{Executor, LogitRows, StepPlan};
use narthex_gateway::{Cancel, CompileRequest, Config, Gateway};
use narthex_spec::{KvPrecision, Scheme, SlotId, TokenId, manifest::Manifest, progress::Quiet};

/// Name of the tested decoder.
const DECODER: &str = "smollm2:135m";

/// Gateway over the prepared store. The lock lets one test at a time compile.
static GATEWAY: LazyLock<Mutex<Gateway>> = LazyLock::new(|| {
    disable_telemetry();
    assert!(
        std::env::var_os("NARTHEX_HOME").is_some(),
        "NARTHEX_HOME names no store; `cargo xtask test` prepares one and sets it"
    );
    Mutex::new(Gateway::open(Config::standard()).unwrap())
});

/// Loads ONNX Runtime from the store, as the gateway does.
fn runtime() -> &'static Runtime {
    let store = Store::open(None).unwrap();
    let library = runtimes::core_library(&store).unwrap();
    Runtime::load(&library.unwrap_or_else(|| panic!("no ONNX Runtime: run `cargo xtask test --only store`")))
        .unwrap()
}

/// Returns a model's package in one scheme. Compiles it from the checkpoint in the store if it is missing.
fn package(model: &str, scheme: Scheme) -> (PathBuf, Manifest) {
    let gateway = GATEWAY.lock().unwrap();
    let request = CompileRequest::new(scheme);
    gateway.compile(model, &request, &Quiet, &Cancel::new()).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns an executor over the decoder in one scheme.
fn executor(scheme: Scheme, slots: usize) -> DynamicExecutor {
    let (folder, manifest) = package(DECODER, scheme);
    dynamic((&folder, &manifest), &Device::Cpu, slots)
}

/// Returns an executor over the dynamic graph of a decoder's package.
fn dynamic((folder, manifest): (&Path, &Manifest), device: &Device, slots: usize) -> DynamicExecutor {
    // The references are in single precision.
    let exact = manifest.recipe.scheme == Scheme::F32;
    let options = ExecutorOptions {
        threads: 0,
        slots,
        kv_budget: 1 << 30,
        kv_step: 256,
        chunk: 256,
        kv_precision: if exact { KvPrecision::F32 } else { KvPrecision::F16 },
        packed_weights: None,
    };
    DynamicExecutor::open(runtime(), folder, manifest, device, &options)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the logits after each of `tokens[from..]`, teacher-forced. Feeds the tokens before `from` in one chunk, then
/// one token per step, as in the generation of an answer.
fn rows(executor: &mut DynamicExecutor, tokens: &[TokenId], from: usize) -> Vec<Vec<f32>> {
    let slot = SlotId(0);
    let mut plan = StepPlan::default();
    plan.push(slot, 0, &tokens[..from], LogitRows::Nothing);
    executor.step(&plan).unwrap();
    let mut rows = Vec::with_capacity(tokens.len() - from);
    for at in from..tokens.len() {
        plan.clear();
        plan.push(slot, at, &tokens[at..=at], LogitRows::Last);
        rows.push(executor.step(&plan).unwrap().row(0).to_vec());
    }
    executor.truncate(slot, 0).unwrap();
    rows
}

/// Returns the index of the largest value, or the first of several.
fn best(row: &[f32]) -> TokenId {
    let better = |best: usize, at: usize| if row[at] > row[best] { at } else { best };
    (0..row.len()).fold(0, better) as TokenId
}
