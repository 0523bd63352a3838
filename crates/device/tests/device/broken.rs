//! A broken package causes an error with its cause, never a panic.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;

use narthex_device::{
    DeviceError,
    dynamic::{DynamicExecutor, ExecutorOptions},
    encoder::{DynamicEncoder, EncoderOptions},
    ep::Device,
};
use narthex_spec::{
    DType, Scheme,
    manifest::{Slot, TableEncoding},
};

use crate::support::{OPTIONS, Package, runtime};

fn check(change: impl FnOnce(&mut Package), words: &[&str]) {
    let mut package = Package::llama(Scheme::W8);
    change(&mut package);
    let opened =
        DynamicExecutor::open(runtime(), package.folder.path(), &package.manifest, &Device::Cpu, &OPTIONS);
    refused(opened.err(), words);
}

fn refused(error: Option<DeviceError>, words: &[&str]) {
    let error = error.expect("a broken package was opened");
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}, expected {words:?}");
}

#[test]
fn broken_files() {
    let halve = |file: &'static str| {
        move |package: &mut Package| {
            let path = package.folder.path().join(file);
            let bytes = fs::read(&path).unwrap();
            fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        }
    };
    let write = |bytes: &'static [u8]| {
        move |package: &mut Package| fs::write(package.folder.path().join("model.onnx"), bytes).unwrap()
    };
    check(halve("model.onnx"), &["failed to load the graph"]);
    check(write(b""), &["failed to load the graph"]);
    check(write(b"this is no graph"), &["failed to load the graph"]);
    check(halve("model.onnx.data"), &["expected", "found"]);
    check(
        |package| fs::remove_file(package.folder.path().join("model.onnx.data")).unwrap(),
        &["cannot read", "model.onnx.data"],
    );
    check(
        |package| fs::remove_file(package.folder.path().join("model.onnx")).unwrap(),
        &["failed to load the graph", "model.onnx"],
    );
}

#[test]
fn manifests_that_do_not_fit() {
    check(|package| package.manifest.graphs.clear(), &["expected a dynamic graph", "found none"]);
    check(|package| package.manifest.tables.clear(), &["expected a Token table", "found none"]);
    check(|package| package.manifest.max_length = 257, &["1 to 256 tokens", "found 257"]);
    check(|package| package.manifest.max_length = 0, &["1 to 256 tokens", "found 0"]);
    check(
        |package| package.manifest.graphs[0].inputs.retain(|binding| binding.slot != Slot::SeqlensK),
        &["a tensor for SeqlensK"],
    );
    check(
        |package| package.manifest.graphs[0].file = "../model.onnx".to_owned(),
        &["expected files inside the package"],
    );
    check(|package| package.manifest.graphs[0].kv[0].dtype = DType::F16, &["a cache of f32", "F16"]);
    check(
        |package| {
            if let TableEncoding::W8 { quants, .. } = &mut package.manifest.tables[0].encoding {
                quants.offset = u64::MAX - 1;
            }
        },
        &["bytes of a table in model.onnx.data"],
    );
    check(|package| package.manifest.tables[0].rows = 299, &["expected", "found"]);
    check(|package| package.manifest = Package::bert(Scheme::F32).manifest, &["expected a decoder"]);
}

#[test]
fn tensor_names_that_the_graph_lacks_are_refused() {
    let nothing = || "nothing".to_owned();
    check(
        |package| package.manifest.graphs[0].inputs[0].name = nothing(),
        &["an input nothing of model.onnx"],
    );
    check(
        |package| package.manifest.graphs[0].outputs[0].name = nothing(),
        &["an output nothing of model.onnx"],
    );
}

#[test]
fn options_of_zero_are_refused() {
    let package = Package::llama(Scheme::W8);
    let open = |options| {
        let opened = DynamicExecutor::open(
            runtime(),
            package.folder.path(),
            &package.manifest,
            &Device::Cpu,
            &options,
        );
        opened.err()
    };
    refused(open(ExecutorOptions { slots: 0, ..OPTIONS }), &["slots must be at least 1"]);
    refused(open(ExecutorOptions { kv_step: 0, ..OPTIONS }), &["KV step must be at least 1"]);
    refused(open(ExecutorOptions { chunk: 0, ..OPTIONS }), &["chunk must be at least 1"]);
}

#[test]
fn broken_encoders() {
    let check = |change: fn(&mut Package), words: &[&str]| {
        let mut package = Package::bert(Scheme::F32);
        change(&mut package);
        let options = EncoderOptions { threads: 1, max_batch_tokens: 256, packed_weights: None };
        refused(
            DynamicEncoder::open(runtime(), package.folder.path(), &package.manifest, &Device::Cpu, &options)
                .err(),
            words,
        );
    };
    check(|package| package.manifest.max_length = 129, &["a Position table of at least 129"]);
    check(|package| package.manifest.max_length = 0, &["at least 1 token"]);
    check(|package| package.manifest.tables.truncate(2), &["a TokenType table"]);
    check(|package| package.manifest.graphs[0].outputs.clear(), &["a tensor for Embedding"]);
    check(|package| package.manifest = Package::llama(Scheme::F32).manifest, &["expected an encoder"]);
}
