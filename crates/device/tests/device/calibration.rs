//! Calibration with ONNX Runtime: the measured values are the inputs of the layers, and scaling by them does not change
//! a model's logits.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{cell::RefCell, fs, path::Path};

use narthex_compile::calibration::{GraphRunner, RunnerError, segment::segments};
use narthex_device::{DeviceError, single_run};
use narthex_graph::{Graph, Value};
use narthex_spec::{Calibration, Elements, Feed, Fetch, Recipe, RoundingMethod, Scheme, dtype::Dim};
use narthex_testkit::checkpoint::{HIDDEN, tiny_llama_gguf, tiny_llama_weights};

use crate::support::{Package, alone, distance, prompt, runtime};

/// Runs graphs on the CPU and keeps their outputs, or returns made-up measurements.
#[derive(Default)]
struct Runner {
    made_up: Option<fn(&Fetch) -> Vec<f32>>,
    embeds: RefCell<Vec<f32>>,
    measured: RefCell<Vec<Vec<f32>>>,
}

impl GraphRunner for Runner {
    fn run(&self, graph: &Path, feeds: Vec<Feed>, wanted: &[Fetch]) -> Result<Vec<Vec<f32>>, RunnerError> {
        if let Some(answer) = self.made_up {
            return Ok(wanted.iter().map(answer).collect());
        }
        for feed in &feeds {
            if let ("embeds", Elements::F32(values)) = (feed.name.as_str(), &feed.elements) {
                self.embeds.replace(values.clone());
            }
        }
        let measured = single_run::run(runtime(), graph, 1, feeds, wanted)
            .map_err(|error| RunnerError { reason: error.to_string(), hint: None })?;
        self.measured.replace(measured.clone());
        Ok(measured)
    }
}

fn llama(recipe: Recipe, runner: Option<&dyn GraphRunner>) -> Package {
    let checkpoint = tempfile::tempdir().unwrap();
    let file = checkpoint.path().join("tiny.gguf");
    fs::write(&file, tiny_llama_gguf(7)).unwrap();
    Package::with_runner(file, recipe, runner)
}

#[test]
fn measurements_are_the_sums_that_they_stand_for() {
    let runner = Runner::default();
    let package = llama(Recipe::new(Scheme::W8), Some(&runner));
    assert_eq!(package.manifest.recipe.calibration, Calibration::Standard);
    let (embeds, measured) = (runner.embeds.into_inner(), runner.measured.into_inner());
    let weights = tiny_llama_weights(7);
    let gain = &weights.iter().find(|weight| weight.name == "layers.0.attn_norm.weight").unwrap().values;
    let mut sums = [0.0f64; HIDDEN];
    let tokens = embeds.len() / HIDDEN;
    for row in embeds.chunks(HIDDEN) {
        let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / HIDDEN as f64;
        for ((sum, x), gain) in sums.iter_mut().zip(row).zip(gain) {
            *sum += (f64::from(*x) * f64::from(*gain)).powi(2) / (mean + 1e-5);
        }
    }
    let largest = sums.iter().copied().fold(0.0, f64::max) / tokens as f64;
    assert!(largest > 0.0);
    for (channel, (sum, found)) in sums.iter().zip(&measured[0]).enumerate() {
        let expected = sum / tokens as f64;
        assert!((expected - f64::from(*found)).abs() < 1e-4 * largest, "{channel}: {expected} {found}");
    }
}

#[test]
fn second_moments_are_those_of_the_inputs() {
    let runner = Runner::default();
    let recipe = Recipe { rounding: RoundingMethod::Gptq, symmetric: true, ..Recipe::new(Scheme::W4) };
    let package = llama(recipe, Some(&runner));
    assert_eq!(package.manifest.recipe.rounding, RoundingMethod::Gptq);
    // Those of the last window.
    let (embeds, measured) = (runner.embeds.into_inner(), runner.measured.into_inner());
    let weights = tiny_llama_weights(7);
    let gain = &weights.iter().find(|weight| weight.name == "layers.0.attn_norm.weight").unwrap().values;
    let mut sums = vec![0.0f64; HIDDEN * HIDDEN];
    for row in embeds.chunks(HIDDEN) {
        let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / HIDDEN as f64;
        let input: Vec<f64> =
            row.iter().zip(gain).map(|(x, gain)| f64::from(x * gain) / (mean + 1e-5).sqrt()).collect();
        for (sums, x) in sums.chunks_mut(HIDDEN).zip(&input) {
            sums.iter_mut().zip(&input).for_each(|(sum, y)| *sum += x * y);
        }
    }
    let largest = sums.iter().copied().fold(0.0, f64::max);
    assert!(largest > 0.0 && measured[0].len() == sums.len());
    for (at, (expected, found)) in sums.iter().zip(&measured[0]).enumerate() {
        assert!((expected - f64::from(*found)).abs() < 1e-4 * largest, "{at}: {expected} {found}");
    }
}

#[test]
fn scaling_changes_no_logit() {
    // The channels of a block share a divisor here, so that not even the rounding differs.
    let blocks = |fetch: &Fetch| (0..fetch.shape[0]).map(|at| 16f32.powi(at as i32 / 32)).collect();
    let runner = Runner { made_up: Some(blocks), ..Runner::default() };
    let (plain, scaled) =
        (llama(Recipe::new(Scheme::W8), None), llama(Recipe::new(Scheme::W8), Some(&runner)));
    let bytes = |package: &Package| fs::read(package.folder.path().join("model.onnx.data")).unwrap();
    assert_ne!(bytes(&plain), bytes(&scaled));
    for seed in 1..4 {
        let tokens = prompt(seed, 40);
        let (before, after) = (alone(&plain, &tokens, 40), alone(&scaled, &tokens, 40));
        assert!(before.iter().any(|logit| logit.abs() > 0.1));
        assert!(distance(&before, &after) < 1e-4, "{}", distance(&before, &after));
    }
}

#[test]
fn a_split_head_matches_a_whole_one() {
    let outliers = |fetch: &Fetch| {
        let size = |at| if fetch.name.ends_with("head") && [3, 40].contains(&at) { 400.0 } else { 1.0 };
        (0..fetch.shape[0]).map(size).collect()
    };
    let runner = Runner { made_up: Some(outliers), ..Runner::default() };
    // With exact activations, only the columns themselves could differ.
    let recipe = Recipe { accuracy_level: 0, ..Recipe::new(Scheme::W8) };
    let (plain, split) = (llama(recipe.clone(), None), llama(recipe, Some(&runner)));
    let tokens = prompt(5, 24);
    let (before, after) = (alone(&plain, &tokens, 24), alone(&split, &tokens, 24));
    let peak = before.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
    assert!(distance(&before, &after) < 1e-2 * peak, "{} of {peak}", distance(&before, &after));
}

#[test]
fn a_run_that_does_not_fit_the_graph_is_refused() {
    let package = llama(Recipe::new(Scheme::F32), None);
    let graph = package.folder.path().join("model.onnx");
    let run = |graph: &Path, feed: Feed| {
        let logits = Fetch { name: "logits".to_owned(), shape: vec![1, 300] };
        single_run::run(runtime(), graph, 1, vec![feed], &[logits]).unwrap_err()
    };
    let embeds = |name: &str, length| Feed {
        name: name.to_owned(),
        shape: vec![1, 1, HIDDEN],
        elements: Elements::F32(vec![0.0; length]),
    };
    assert!(matches!(run(&graph, embeds("embeds", HIDDEN)), DeviceError::Ort { .. }));
    assert!(matches!(run(&graph, embeds("embeds", 1)), DeviceError::Package { .. }));
    assert!(matches!(run(&graph, embeds("a\0b", HIDDEN)), DeviceError::Package { .. }));
    let huge = Feed { shape: vec![usize::MAX, 3], ..embeds("embeds", 0) };
    assert!(matches!(run(&graph, huge), DeviceError::Package { .. }));
    let missing = graph.with_file_name("missing.onnx");
    assert!(!run(&missing, embeds("embeds", HIDDEN)).to_string().is_empty());
}

#[test]
fn a_segmented_graph_matches_the_whole_one() {
    let package = llama(Recipe::new(Scheme::W8), None);
    let folder = package.folder.path();
    let graph = Graph::decode(&fs::read(folder.join("model.onnx")).unwrap()).unwrap();
    let tokens: usize = 12;
    let bind = |symbol: &str| Some(if symbol == "batch" { 1 } else { tokens as u64 });
    let extent = |dim: &Dim| match dim {
        Dim::Fixed(extent) => *extent as usize,
        Dim::Symbol(symbol) => bind(symbol).unwrap() as usize,
    };
    let input = |value: &Value| {
        let shape: Vec<usize> = value.shape.iter().map(extent).collect();
        let count = shape.iter().product::<usize>();
        let elements = match value.name.as_str() {
            "seqlens_k" => Elements::I32(vec![tokens as i32 - 1]),
            "total_length" => Elements::I32(vec![tokens as i32]),
            "logits_rows" => Elements::I64((0..tokens as i64).collect()),
            "embeds" => Elements::F32((0..count).map(|at| (at as f32).sin()).collect()),
            _ => Elements::F32(vec![0.0; count]),
        };
        Feed { name: value.name.clone(), shape, elements }
    };
    let logits = |most: u64| {
        let segments = segments(&graph, most, &bind);
        let mut made: Vec<Feed> = graph.inputs.iter().map(input).collect();
        for segment in &segments {
            let of = |value: &Value| made.iter().find(|feed| feed.name == value.name).unwrap().clone();
            let feeds = segment.graph.inputs.iter().map(of).collect();
            let path = folder.join("segment.onnx");
            fs::write(&path, segment.graph.encode()).unwrap();
            let outputs = single_run::run(runtime(), &path, 1, feeds, &segment.outputs).unwrap();
            made.extend(segment.outputs.iter().zip(outputs).map(|(fetch, values)| Feed {
                name: fetch.name.clone(),
                shape: fetch.shape.clone(),
                elements: Elements::F32(values),
            }));
        }
        match made.into_iter().find(|feed| feed.name == "logits").unwrap().elements {
            Elements::F32(values) => (segments.len(), values),
            other => panic!("{other:?}"),
        }
    };
    let (one, whole) = logits(u64::MAX);
    let (several, parts) = logits(20_000);
    assert!(one == 1 && several > 2, "{one} and {several} segments");
    assert!(whole.iter().any(|logit| logit.abs() > 0.1));
    assert!(distance(&whole, &parts) < 1e-4, "{}", distance(&whole, &parts));
}
