//! A model whose weights were packed by an earlier load has the same results, bit for bit, as one that packs them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{fs, path::Path};

use narthex_device::{
    dynamic::{DynamicExecutor, ExecutorOptions},
    encoder::{DynamicEncoder, EncoderOptions},
    ep::Device,
    packed_weights::PackedWeights,
};
use narthex_engine::{encoder::Encoder, executor::LogitRows};
use narthex_spec::{KvPrecision, Scheme};

use crate::support::{OPTIONS, Package, prompt, runtime, step};

/// Returns the logits of a prompt and of a token after it.
fn logits(executor: &mut DynamicExecutor) -> Vec<Vec<f32>> {
    let mut rows = step(executor, &[(0, 0, &prompt(3, 40), LogitRows::All)]).unwrap();
    rows.extend(step(executor, &[(0, 40, &[17], LogitRows::Last)]).unwrap());
    rows
}

fn open(package: &Package, stored: &Path) -> DynamicExecutor {
    package.executor_with(&ExecutorOptions { packed_weights: Some(stored), ..OPTIONS })
}

/// Returns whether weights were not packed by this load.
fn are_stored(weights: &[PackedWeights]) -> bool {
    assert_eq!(weights.len(), 1);
    weights[0].is_stored()
}

#[test]
fn decoders_with_stored_weights_return_the_same_logits() {
    let folder = tempfile::tempdir().unwrap();
    let half = Package::llama(Scheme::W8).with_cache(KvPrecision::F16);
    for package in [Package::llama(Scheme::W8), Package::llama(Scheme::W4), half] {
        // The weights of the previous package are in the folder, and are not used.
        let mut packing = open(&package, folder.path());
        let weights = packing.packed_weights();
        assert!(!are_stored(&weights));
        let expected = logits(&mut packing);
        weights[0].write(folder.path()).unwrap();
        let mut loaded = open(&package, folder.path());
        assert!(are_stored(&loaded.packed_weights()));
        assert!(logits(&mut loaded) == expected);
        assert!(logits(&mut package.executor()) == expected);
    }
    let file = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    // Damage of the matrices' headers, which the caller should have found.
    let package = Package::llama(Scheme::W8);
    let mut bytes = fs::read(&file).unwrap();
    let matrix = bytes.windows(7).position(|bytes| bytes == b"NARXPAK").unwrap();
    assert!(are_stored(&open(&package, folder.path()).packed_weights()));
    bytes[matrix + 8] ^= 1;
    fs::write(&file, bytes).unwrap();
    let mut packing = open(&package, folder.path());
    assert!(!are_stored(&packing.packed_weights()));
    assert!(logits(&mut packing) == logits(&mut package.executor()));
}

#[test]
fn encoders_with_stored_weights_return_the_same_vectors() {
    let (folder, package) = (tempfile::tempdir().unwrap(), Package::bert(Scheme::W8));
    let open = |stored| {
        let options = EncoderOptions { threads: 1, max_batch_tokens: 200, packed_weights: Some(stored) };
        DynamicEncoder::open(runtime(), package.folder.path(), &package.manifest, &Device::Cpu, &options)
            .unwrap_or_else(|error| panic!("{error}"))
    };
    let texts: [&[u32]; 2] = [&[5, 6, 7], &[9; 30]];
    let mut packing = open(folder.path());
    let weights = packing.packed_weights().unwrap();
    assert!(!weights.is_stored());
    weights.write(folder.path()).unwrap();
    let mut loaded = open(folder.path());
    assert!(loaded.packed_weights().unwrap().is_stored());
    assert!(loaded.run_tokens(&texts).unwrap().data == packing.run_tokens(&texts).unwrap().data);
}

#[test]
fn a_model_without_products_of_quantised_weights_has_no_packed_ones() {
    assert!(Package::llama(Scheme::F32).executor().packed_weights().is_empty());
}
