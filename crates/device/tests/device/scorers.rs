//! Classifiers and rerankers with the layers of a decoder compared with the logits of the reference implementation
//! (`goldens/scorers.py`), in both variants.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{fs, path::PathBuf};

use narthex_device::ep::Device;
use narthex_engine::encoder::{Encoder, Rows, Text};
use narthex_spec::{
    ModelKind, Recipe, Scheme, TokenId,
    arch::{Pooling, Structure},
    recipe::FixedShapes,
};
use serde_json::Value;

use crate::support::{Package, copy_folder, fixed::open_encoder, relative};

/// Models with their kind, pooling, rows and number of labels.
const MODELS: [(&str, ModelKind, Pooling, Rows, usize); 6] = [
    ("modernbert_labels", ModelKind::Classification, Pooling::Mean, Rows::Text, 3),
    ("modernbert_rank", ModelKind::Rerank, Pooling::Cls, Rows::Text, 1),
    ("modernbert_tokens", ModelKind::TokenClassification, Pooling::Cls, Rows::Tokens, 5),
    ("qwen3_rank", ModelKind::Rerank, Pooling::Last, Rows::Text, 1),
    ("qwen3_tokens", ModelKind::TokenClassification, Pooling::Last, Rows::Tokens, 3),
    ("qwen3_answers", ModelKind::Rerank, Pooling::Last, Rows::Text, 1),
];

/// Maximum relative L2 distances: in single precision, in half precision, and with weights of 8 bits, whose errors the random
/// weights of these models amplify.
const SINGLE: f32 = 1e-3;
const HALF: f32 = 0.02;
const EIGHT_BITS: f32 = 0.5;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/scorers").join(name)
}

fn package(name: &str, recipe: Recipe) -> Package {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&golden(name), folder.path());
    if !golden(name).join("tokenizer.json").is_file() {
        let tokenizer = "../../../checkpoint/tests/goldens/families/tokenizer.json";
        fs::copy(golden("").join("..").join(tokenizer), folder.path().join("tokenizer.json")).unwrap();
    }
    Package::with_runner(folder.path().to_owned(), Recipe { accuracy_level: 0, ..recipe }, None)
}

/// Returns the texts of the reference and their logits.
fn expected(name: &str) -> (Vec<Vec<TokenId>>, Vec<Vec<f32>>) {
    let text = fs::read(golden(name).join("expected.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_slice(&text).unwrap();
    let ids = |case: &Value| serde_json::from_value(case["ids"].clone()).unwrap();
    let logits = |case: &Value| serde_json::from_value(case["logits"].clone()).unwrap();
    cases.iter().map(|case| (ids(case), logits(case))).unzip()
}

/// Returns the logits of each text alone, one text after another.
fn alone(encoder: &mut dyn Encoder, texts: &[Vec<TokenId>]) -> Vec<f32> {
    texts.iter().flat_map(|tokens| encoder.run(&[Text::of(tokens)]).unwrap().data).collect()
}

/// Compares the logits of texts in one batch, and of each text alone, with the expected ones.
fn agree(encoder: &mut dyn Encoder, texts: &[Vec<TokenId>], expected: &[f32], bound: f32, what: &str) {
    let all: Vec<Text<'_>> = texts.iter().map(|tokens| Text::of(tokens)).collect();
    let together = encoder.run(&all).unwrap().data;
    for (how, found) in [("together", together), ("alone", alone(encoder, texts))] {
        let distance = relative(&found, expected);
        assert!(distance <= bound, "{what}, {how}: {distance}");
    }
}

#[test]
fn logits_are_the_reference_s() {
    for (name, kind, pooling, rows, labels) in MODELS {
        let package = package(name, Recipe::new(Scheme::F32));
        let Structure::Embedder(arch) = &package.manifest.architecture else { panic!("{name}") };
        assert_eq!(ModelKind::of(&package.manifest), kind, "{name}");
        assert_eq!(arch.classifier.unwrap().pooling, pooling, "{name}");
        assert_eq!(package.manifest.classifier.as_ref().unwrap().labels.len(), labels, "{name}");
        let mut encoder = package.encoder(&Device::Cpu);
        assert_eq!((encoder.limits().rows, encoder.limits().width), (rows, labels), "{name}");
        let (texts, expected) = expected(name);
        for (tokens, expected) in texts.iter().zip(&expected) {
            agree(&mut encoder, std::slice::from_ref(tokens), expected, SINGLE, name);
        }
        agree(&mut encoder, &texts, &expected.concat(), SINGLE, name);
    }
}

#[test]
fn both_variants_of_a_classifier_agree_in_every_scheme() {
    let shapes = FixedShapes { context: 64, shorter: vec![], prefill: vec![], buckets: vec![16, 64] };
    for (name, ..) in MODELS {
        let (texts, reference) = expected(name);
        for (scheme, bound) in [(Scheme::F16, HALF), (Scheme::W8, EIGHT_BITS), (Scheme::W4, f32::INFINITY)] {
            let what = format!("{name} {scheme}");
            let package = package(name, Recipe { fixed: Some(shapes.clone()), ..Recipe::new(scheme) });
            let mut encoder = package.encoder(&Device::Cpu);
            agree(&mut encoder, &texts, &reference.concat(), bound, &what);
            let found = alone(&mut encoder, &texts);
            agree(
                &mut open_encoder(&package, &Device::Cpu),
                &texts,
                &found,
                HALF,
                &format!("{what}, static"),
            );
        }
    }
}
