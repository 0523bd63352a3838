//! Embedding models with the layers of a decoder compared with the vectors of the reference implementation
//! (`goldens/embedders.py`), in both variants.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{fs, path::PathBuf};

use narthex_device::ep::Device;
use narthex_engine::encoder::{Encoder, Text};
use narthex_spec::{
    Recipe, Scheme, TokenId,
    arch::{AttentionDirection, EncoderHead, Pooling, Structure},
    recipe::FixedShapes,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Package, copy_folder, fixed::open_encoder, relative};

/// Families with the number of elements of their vectors.
const FAMILIES: [(&str, usize); 3] = [("qwen3", 32), ("gemma3", 24), ("modernbert", 32)];

/// Maximum relative L2 distances: in single precision, in half precision, and with weights of 8 bits, whose errors the random
/// weights of these models amplify.
const SINGLE: f32 = 1e-3;
const HALF: f32 = 0.01;
const EIGHT_BITS: f32 = 0.25;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/embedders").join(name)
}

/// Returns the checkpoint of a family with a tokenizer.
fn checkpoint(family: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&golden(family), folder.path());
    let tokenizer = "../../../checkpoint/tests/goldens/families/tokenizer.json";
    fs::copy(golden("").join("..").join(tokenizer), folder.path().join("tokenizer.json")).unwrap();
    folder
}

fn package(family: &str, recipe: Recipe) -> Package {
    let folder = checkpoint(family);
    Package::with_runner(folder.path().to_owned(), Recipe { accuracy_level: 0, ..recipe }, None)
}

/// Returns the texts of the reference and their vectors.
fn expected(family: &str) -> (Vec<Vec<TokenId>>, Vec<Vec<f32>>) {
    let text = fs::read(golden(family).join("expected.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_slice(&text).unwrap();
    let ids = |case: &Value| serde_json::from_value(case["ids"].clone()).unwrap();
    let vector = |case: &Value| serde_json::from_value(case["vector"].clone()).unwrap();
    cases.iter().map(|case| (ids(case), vector(case))).unzip()
}

/// Compares the vectors of texts in one batch, and of each text alone, with the expected ones.
fn agree(encoder: &mut dyn Encoder, texts: &[Vec<TokenId>], expected: &[Vec<f32>], bound: f32, what: &str) {
    let all: Vec<Text<'_>> = texts.iter().map(|tokens| Text::of(tokens)).collect();
    let output = encoder.run(&all).unwrap();
    let together: Vec<Vec<f32>> = output.data.chunks(output.width).map(<[f32]>::to_vec).collect();
    let alone: Vec<Vec<f32>> = all.iter().map(|text| encoder.run(&[*text]).unwrap().data).collect();
    for (how, vectors) in [("together", together), ("alone", alone)] {
        assert_eq!(vectors.len(), expected.len(), "{what}, {how}");
        for (index, (vector, expected)) in vectors.iter().zip(expected).enumerate() {
            let distance = relative(vector, expected);
            assert!(distance <= bound, "{what}, text {index} {how}: {distance}");
        }
    }
}

#[test]
fn vectors_are_the_reference_s() {
    for (family, width) in FAMILIES {
        let package = package(family, Recipe::new(Scheme::F32));
        let Structure::Embedder(arch) = &package.manifest.architecture else { panic!("no embedding model") };
        let (attends, pooling, normalize) = match family {
            "qwen3" => (AttentionDirection::Causal, Pooling::Last, true),
            "gemma3" => (AttentionDirection::Bidirectional, Pooling::Mean, true),
            _ => (AttentionDirection::Bidirectional, Pooling::Cls, false),
        };
        assert_eq!((arch.attends, arch.head), (attends, EncoderHead::Embedding { pooling, normalize }));
        assert_eq!((arch.width(), package.manifest.max_length), (width, 64));
        let (texts, expected) = expected(family);
        agree(&mut package.encoder(&Device::Cpu), &texts, &expected, SINGLE, family);
    }
}

#[test]
fn both_variants_agree_in_every_scheme() {
    let shapes = FixedShapes { context: 64, shorter: vec![], prefill: vec![], buckets: vec![16, 64] };
    for (family, _) in FAMILIES {
        let (texts, reference) = expected(family);
        for (scheme, bound) in [(Scheme::F16, HALF), (Scheme::W8, EIGHT_BITS), (Scheme::W4, f32::INFINITY)] {
            let what = format!("{family} {scheme}");
            let package = package(family, Recipe { fixed: Some(shapes.clone()), ..Recipe::new(scheme) });
            let mut encoder = package.encoder(&Device::Cpu);
            agree(&mut encoder, &texts, &reference, bound, &what);
            let vectors: Vec<Vec<f32>> =
                texts.iter().map(|tokens| encoder.run(&[Text::of(tokens)]).unwrap().data).collect();
            agree(
                &mut open_encoder(&package, &Device::Cpu),
                &texts,
                &vectors,
                HALF,
                &format!("{what}, static"),
            );
        }
    }
}
