//! An encoder returns the same vector for a text whatever else is in its batch.

use narthex_device::{
    encoder::{DynamicEncoder, EncoderOptions},
    ep::Device,
};
use narthex_engine::{
    encoder::{Batching, Encoder},
    executor::StepError,
};
use narthex_spec::{Ep, Scheme, TokenId};

use crate::support::{Package, distance, runtime};

fn encoder(scheme: Scheme) -> DynamicEncoder {
    open(&Package::bert(scheme))
}

fn open(package: &Package) -> DynamicEncoder {
    let options = EncoderOptions { threads: 1, max_batch_tokens: 200, packed_weights: None };
    DynamicEncoder::open(runtime(), package.folder.path(), &package.manifest, &Device::Cpu, &options)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn text(seed: usize, length: usize) -> Vec<TokenId> {
    (0..length).map(|i| ((seed * 17 + i * i * 5 + i) % 40) as TokenId).collect()
}

/// Returns the cosine of the angle between two vectors.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn a_batch_of_mixed_lengths_equals_each_alone() {
    for scheme in [Scheme::F32, Scheme::W8, Scheme::W4] {
        let mut encoder = encoder(scheme);
        assert_eq!(encoder.limits().batching, Batching::Packed);
        // Together, the rows are divided between tasks; alone, most texts have too few rows for that.
        let texts: Vec<Vec<TokenId>> =
            [3, 40, 1, 17, 2, 64, 31].iter().enumerate().map(|(i, &n)| text(i, n)).collect();
        let texts: Vec<&[TokenId]> = texts.iter().map(Vec::as_slice).collect();
        let together = encoder.run_tokens(&texts).unwrap();
        assert_eq!(together.data.len(), texts.len() * together.width);
        for (text, row) in texts.iter().zip(together.data.chunks_exact(together.width)) {
            let single = encoder.run_tokens(&[text]).unwrap();
            if scheme == Scheme::F32 {
                let found = distance(&single.data, row);
                assert!(found <= 1e-5, "{scheme}, {} tokens: {found}", text.len());
            } else {
                assert_eq!(single.data, row, "{scheme}, {} tokens", text.len());
            }
            let length: f32 = row.iter().map(|x| x * x).sum();
            assert!((length - 1.0).abs() < 1e-5, "{length}");
        }
        assert!(
            distance(&together.data[..together.width], &together.data[together.width..][..together.width])
                > 1e-3
        );
    }
}

#[test]
fn eight_bit_vectors_are_those_of_single_precision() {
    let (mut exact, mut rounded) = (encoder(Scheme::F32), encoder(Scheme::W8));
    let texts: Vec<Vec<TokenId>> = (1..12).map(|n| text(n, n * n % 61 + 1)).collect();
    let texts: Vec<&[TokenId]> = texts.iter().map(Vec::as_slice).collect();
    for batch in texts.chunks(4) {
        let (expected, found) = (exact.run_tokens(batch).unwrap(), rounded.run_tokens(batch).unwrap());
        let rows = expected.data.chunks_exact(expected.width).zip(found.data.chunks_exact(found.width));
        for ((expected, found), text) in rows.zip(batch) {
            assert!(cosine(expected, found) >= 0.999, "{} tokens: {}", text.len(), cosine(expected, found));
        }
    }
}

#[test]
fn wrong_batches_are_refused() {
    let mut encoder = encoder(Scheme::F32);
    assert_eq!((encoder.limits().max_length, encoder.limits().max_batch_tokens), (64, 200));
    let (short, long, longer) = (text(0, 4), text(1, 60), text(2, 65));
    let mut check = |texts: &[&[TokenId]], word: &str| {
        let error = encoder.run_tokens(texts).unwrap_err();
        assert!(matches!(&error, StepError::BadPlan { reason } if reason.contains(word)), "{error}");
    };
    check(&[], "texts of 1 to 64 tokens");
    check(&[&short, &[]], "texts of 1 to 64 tokens");
    check(&[&longer], "texts of 1 to 64 tokens");
    check(&[&long, &long, &long, &long], "4 texts have 240 tokens; the limit of a batch is 200");
    check(&[&short, &[9999]], "token 9999");
    // Padding does not count.
    assert!(encoder.run_tokens(&[&long, &short, &short, &short]).is_ok());
}

#[test]
fn every_node_runs_on_the_cpu() {
    let encoder = encoder(Scheme::W8);
    assert_eq!(encoder.placement().ops_per_ep().keys().collect::<Vec<_>>(), [&Ep::Cpu]);
}

#[test]
fn a_batch_fails_once_a_file_of_the_package_has_changed() {
    let package = Package::bert(Scheme::W8);
    let mut encoder = open(&package);
    encoder.run_tokens(&[&[1, 2]]).unwrap();
    package.change_files();
    let error = encoder.run_tokens(&[&[1, 2]]).unwrap_err().to_string();
    assert!(error.contains("the file changed while it was read"), "{error}");
}
