//! The pass to half precision, which CUDA needs, preserves what each decoder family computes. ONNX Runtime's CPU
//! provider runs the converted graphs.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;

use narthex_engine::executor::LogitRows;
use narthex_graph::{Graph, half_precision};
use narthex_spec::{DType, Recipe, Scheme, manifest::KvContent};

use crate::support::{
    Package,
    families::{EXPERTS, Format, all, package, tokens},
    farthest, step,
};

/// Maximum relative L2 distance between half and single precision.
const HALF: f32 = 0.01;

/// As [`HALF`], for models with experts, whose router is rounded as well. That of the tiny models has logits of eight times
/// the usual size.
const ROUTED: f32 = 2.0 * HALF;

/// As [`ROUTED`], for weights of experts that are not divided by their sum.
const SUMMED: f32 = 2.0 * ROUTED;

/// Converts the graph of a package. Returns whether it was changed.
fn convert(package: &Package) -> bool {
    let path = package.folder.path().join(&package.manifest.graphs[0].file);
    let mut graph = Graph::decode(&fs::read(&path).unwrap()).unwrap();
    let converted = half_precision::convert(&mut graph);
    fs::write(path, graph.encode()).unwrap();
    converted
}

/// Returns the logits after a prompt and after each of the tokens that follow it, and the type of keys and values.
fn run(package: &Package) -> (Vec<Vec<f32>>, DType) {
    let mut executor = package.executor();
    let tokens = tokens();
    let mut rows = step(&mut executor, &[(0, 0, &tokens[..30], LogitRows::All)]).unwrap();
    for at in 30..tokens.len() {
        rows.extend(step(&mut executor, &[(0, at, &tokens[at..=at], LogitRows::All)]).unwrap());
    }
    let mut layouts = executor.cache_layouts().iter();
    let attention = layouts.find(|layout| layout.content == KvContent::KeysAndValues).unwrap();
    (rows, attention.dtype)
}

#[test]
fn every_decoder_keeps_its_logits_in_half_precision() {
    for family in all() {
        for scheme in Scheme::ALL {
            let recipe = Recipe { accuracy_level: 0, ..Recipe::new(scheme) };
            let package = package(family, Format::Safetensors, recipe, None);
            let (expected, dtype) = run(&package);
            assert_eq!(dtype, DType::F32);
            assert!(convert(&package), "{family} in {scheme}");
            let (found, dtype) = run(&package);
            assert_eq!(dtype, DType::F16);
            let distance = farthest(&found, &expected);
            let bound = match family {
                "lfm2-moe-scaled" => SUMMED,
                _ if EXPERTS.contains(&family) => ROUTED,
                _ => HALF,
            };
            assert!(distance > 0.0 && distance <= bound, "{family} in {scheme}: {distance}");
            assert!(!convert(&package), "{family} in {scheme} is converted twice");
        }
    }
}
