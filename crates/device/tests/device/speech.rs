//! A tiny Whisper in both variants, compared with the reference implementation
//! (`crates/checkpoint/tests/goldens/speech.py`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{fs, path::PathBuf};

use narthex_device::{
    ep::Device,
    speech::{DynamicSpeech, SpeechOptions},
};
use narthex_engine::speech::SpeechModel;
use narthex_spec::{Recipe, Scheme, TokenId, recipe::FixedShapes};

use crate::support::{Package, farthest, fixed::open_speech, relative, runtime};

/// Mel bands of the reference.
const BINS: usize = 8;

/// Tokens of the reference.
const TOKENS: [TokenId; 12] = [257, 258, 261, 266, 40, 41, 99, 33, 290, 290, 77, 256];

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/tests/goldens/speech").join(name)
}

fn numbers(name: &str) -> Vec<f32> {
    let bytes = fs::read(golden(name)).unwrap();
    bytes.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect()
}

/// Compiles the reference's weights from these files.
fn package(weights: &str, recipe: Recipe) -> Package {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json", "tokenizer.json", weights] {
        fs::copy(golden(file), folder.path().join(file)).unwrap();
    }
    Package::make(folder.path().to_owned(), Recipe { accuracy_level: 0, ..recipe })
}

/// Compiles the reference's weights in both variants.
fn fixed_package(scheme: Scheme) -> Package {
    package("model.safetensors", Recipe { fixed: Some(shapes()), ..Recipe::new(scheme) })
}

/// Two contexts, with prefill graphs of two lengths.
fn shapes() -> FixedShapes {
    FixedShapes { context: 24, shorter: vec![8], prefill: vec![3, 10], buckets: Vec::new() }
}

fn model(package: &Package) -> DynamicSpeech {
    let options = SpeechOptions { threads: 1, packed_weights: None };
    let folder = package.folder.path();
    DynamicSpeech::open(runtime(), folder, &package.manifest, &Device::Cpu, &options)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Returns rows of logits after each of the tokens from one call, and the attention of the alignment heads.
fn run(model: &mut dyn SpeechModel) -> (Vec<Vec<f32>>, Vec<f32>) {
    let vocab = model.limits().vocab;
    model.encode(&numbers("features.f32")).unwrap();
    let rows: Vec<usize> = (0..TOKENS.len()).collect();
    let logits = model.decode(0, &TOKENS, &rows).unwrap();
    let logits = logits.chunks_exact(vocab).map(<[f32]>::to_vec).collect();
    (logits, model.alignment().unwrap())
}

#[test]
fn logits_and_alignment_are_the_reference_s() {
    let expected = numbers("logits.f32");
    let expected: Vec<Vec<f32>> =
        expected.chunks_exact(expected.len() / TOKENS.len()).map(<[f32]>::to_vec).collect();
    let alignment = numbers("alignment.f32");
    for (scheme, bound) in [(Scheme::F32, 1e-3), (Scheme::F16, 1e-3), (Scheme::W8, 0.03), (Scheme::W4, 0.4)] {
        for weights in ["model.safetensors", "model.bin"] {
            let (logits, attention) = run(&mut model(&package(weights, Recipe::new(scheme))));
            let distance = farthest(&logits, &expected);
            assert!(distance <= bound, "{weights} in {scheme}: {distance}");
            let distance = relative(&attention, &alignment);
            assert!(distance <= bound, "attention of {weights} in {scheme}: {distance}");
        }
    }
}

/// Number of rows of the reference's short window.
const SHORT: usize = 7;

/// Returns the features of the first frames of the reference's window.
fn first_frames(frames: usize) -> Vec<f32> {
    let features = numbers("features.f32");
    features.chunks_exact(features.len() / BINS).flat_map(|bin| &bin[..frames]).copied().collect()
}

#[test]
fn a_short_window_gives_what_a_model_of_its_length_gives() {
    let mut model = model(&package("model.safetensors", Recipe::new(Scheme::F32)));
    let (whole, _) = run(&mut model);
    model.encode(&first_frames(2 * SHORT)).unwrap();
    let rows: Vec<usize> = (0..TOKENS.len()).collect();
    let logits = model.decode(0, &TOKENS, &rows).unwrap().to_vec();
    assert!(relative(&logits, &numbers("short_logits.f32")) < 1e-3);
    assert!(relative(&model.alignment().unwrap(), &numbers("short_alignment.f32")) < 1e-3);
    assert!(relative(&logits, &whole.concat()) > 0.01, "the other frames make a difference");
    // A whole window after a short one.
    assert_eq!(run(&mut model).0, whole);

    for frames in [0, 1, 2 * SHORT + 1] {
        let error = model.encode(&first_frames(frames)).unwrap_err().to_string();
        assert!(error.contains("expected 320 features"), "{frames} frames: {error}");
    }
    let mut fixed = open_speech(&fixed_package(Scheme::W8), &Device::Cpu);
    assert!(!fixed.limits().takes_short_windows);
    let error = fixed.encode(&first_frames(2 * SHORT)).unwrap_err().to_string();
    assert!(error.contains("expected 320 features, found 112"), "{error}");
}

/// Maximum relative L2 distance between single and half precision.
const HALF: f32 = 2e-3;

#[test]
fn fixed_shapes_give_the_logits_and_the_alignment_of_variant_a() {
    for scheme in [Scheme::F16, Scheme::W8, Scheme::W4] {
        let package = fixed_package(scheme);
        let (expected, attention) = run(&mut model(&package));
        let (found, found_attention) = run(&mut open_speech(&package, &Device::Cpu));
        let distance = farthest(&found, &expected);
        assert!(distance <= HALF, "{scheme}: {distance}");
        let distance = relative(&found_attention, &attention);
        assert!(distance <= HALF, "attention in {scheme}: {distance}");
    }
}

#[test]
fn the_layers_of_fixed_shapes_may_be_divided() {
    let (expected, attention) = run(&mut open_speech(&fixed_package(Scheme::W8), &Device::Cpu));
    let recipe = Recipe { fixed: Some(shapes()), part_bytes: 20_000, ..Recipe::new(Scheme::W8) };
    let mut divided = open_speech(&package("model.safetensors", recipe), &Device::Cpu);
    let graphs: Vec<String> = divided.placements().into_iter().map(|placement| placement.graph).collect();
    assert!(graphs.contains(&"layers-10x24.2-2.onnx".to_owned()), "{graphs:?}");
    let (found, found_attention) = run(&mut divided);
    assert!(farthest(&found, &expected) < HALF && relative(&found_attention, &attention) < HALF);
}

#[test]
fn steps_and_windows_give_the_logits_of_one_call() {
    check_steps(&mut model(&package("model.safetensors", Recipe::new(Scheme::F32))), 1e-5);
    check_steps(&mut open_speech(&fixed_package(Scheme::F16), &Device::Cpu), HALF);
}

fn check_steps(model: &mut dyn SpeechModel, bound: f32) {
    let (expected, _) = run(model);
    let features = numbers("features.f32");
    let other: Vec<f32> = features.iter().map(|x| -x).collect();
    model.encode(&other).unwrap();
    model.decode(0, &TOKENS, &[]).unwrap();
    model.encode(&features).unwrap();
    model.decode(0, &TOKENS[..3], &[2]).unwrap();
    for (at, expected) in (3..TOKENS.len()).zip(&expected[3..]) {
        let logits = model.decode(at, &TOKENS[at..=at], &[0]).unwrap();
        assert!(relative(logits, expected) < bound, "token {at}");
    }
    // Another transcript of the window after the same start.
    let found = model.decode(3, &TOKENS[3..], &[0]).unwrap().to_vec();
    assert!(relative(&found, &expected[3]) < bound);
}

#[test]
fn calls_beyond_the_limits_are_refused() {
    check_refusals(&mut model(&package("model.safetensors", Recipe::new(Scheme::W8))));
    check_refusals(&mut open_speech(&fixed_package(Scheme::W8), &Device::Cpu));
}

fn check_refusals(model: &mut dyn SpeechModel) {
    let refused = |outcome: Result<&[f32], _>, expect: &str| {
        let error = outcome.map(<[f32]>::len).unwrap_err();
        let error: narthex_engine::executor::StepError = error;
        assert!(error.to_string().contains(expect), "{error}");
    };
    assert!(model.encode(&[0.0]).unwrap_err().to_string().contains("expected 320 features, found 1"));
    model.encode(&numbers("features.f32")).unwrap();
    refused(model.decode(1, &[257], &[0]), "1 tokens at 1 after 0");
    refused(model.decode(0, &[], &[]), "0 tokens at 0");
    refused(model.decode(0, &[257; 25], &[]), "expected tokens within 24");
    refused(model.decode(0, &[257, 9999], &[]), "token 9999 is not below 1767");
    refused(model.decode(0, &[257], &[1]), "logits of token 1 of 1");
    assert!(model.decode(0, &[257; 24], &[23]).is_ok());
}
