//! The export of a package returns the same logits as the package. It is imported again, by which its graph is treated
//! as another tool's. `conformance/export/genai.py` tests that onnxruntime-genai itself loads and runs it.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{fs, path::Path};

use narthex_compile::export::{self, ExportJob};
use narthex_engine::executor::LogitRows;
use narthex_spec::{Recipe, Scheme, manifest::Slot};

use crate::support::{
    Package,
    families::{Format, all, package, tokens},
    relative, step,
};

fn exported(package: &Package, out: &Path) -> Result<(), String> {
    let job = ExportJob { package: package.folder.path(), manifest: &package.manifest, out };
    export::genai(&job).map_err(|error| error.to_string())
}

/// Checks that the package and its export return the same logits for the same tokens.
fn check(package: &Package, what: &str) {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("export");
    exported(package, &out).unwrap_or_else(|error| panic!("{what}: {error}"));
    let again = Package::imported(&out);
    // Weights that embedding and head share are still stored once.
    let bytes = |package: &Package| package.manifest.files["model.onnx.data"].bytes;
    assert!(bytes(&again) <= bytes(package), "{what}");
    assert_eq!(again.manifest.stop_tokens(), package.manifest.stop_tokens(), "{what}");
    assert_eq!(again.manifest.bos(), package.manifest.bos(), "{what}");
    let tokens = &tokens()[..again.manifest.max_length.min(40)];
    let rows = |package: &Package| {
        let mut executor = package.executor();
        let mut rows = Vec::new();
        for (at, length) in [(0, 8), (8, 1), (9, tokens.len() - 9)] {
            rows.extend(step(&mut executor, &[(0, at, &tokens[at..at + length], LogitRows::All)]).unwrap());
        }
        rows
    };
    for (token, (found, expected)) in rows(&again).iter().zip(&rows(package)).enumerate() {
        let distance = relative(found, expected);
        assert!(distance <= 1e-5, "{what}, token {token}: {distance}");
    }
}

#[test]
fn every_family_gives_the_same_logits_after_its_export() {
    let mut refused = Vec::new();
    for family in all() {
        let package = package(family, Format::Safetensors, Recipe::new(Scheme::F32), None);
        let heads = package.manifest.graphs[0].kv.iter().map(|layer| layer.heads);
        let expected = if package.manifest.graphs[0].input(Slot::PerLayerEmbeds).is_some() {
            "the first layer only"
        } else if family.starts_with("lfm2") {
            "attention in every layer"
        } else if heads.clone().min() != heads.max() {
            "one number of key and value heads"
        } else {
            check(&package, family);
            continue;
        };
        let home = tempfile::tempdir().unwrap();
        let error = exported(&package, &home.path().join("export")).unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
        refused.push(family);
    }
    assert_eq!(refused, ["lfm2", "gemma3n", "gemma4", "openelm", "lfm2-moe", "lfm2-moe-scaled"]);
}

#[test]
fn quantised_weights_are_exported_as_they_are() {
    for scheme in [Scheme::W8, Scheme::W4] {
        for family in ["llama", "gemma2", "phi3.5"] {
            let package = package(family, Format::Safetensors, Recipe::new(scheme), None);
            check(&package, &format!("{family} {scheme}"));
        }
        check(&Package::llama(scheme), scheme.as_str());
    }
}

#[test]
fn an_export_replaces_nothing_and_encoders_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("export");
    let package = Package::llama(Scheme::F32);
    fs::create_dir(&out).unwrap();
    exported(&package, &out).unwrap();
    assert!(exported(&package, &out).unwrap_err().contains("cannot write"));
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    let error = exported(&Package::bert(Scheme::F32), &home.path().join("other")).unwrap_err();
    assert!(error.contains("a chat model that Narthex compiled") && error.contains("an encoder"), "{error}");
}
