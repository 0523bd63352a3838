//! Comparison of a dry run with a real compile.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use narthex_compile::{dry_run::DryRun, pipeline::compile};
use narthex_spec::{Recipe, Scheme, manifest::Manifest, progress::Quiet, recipe::FixedShapes};
use narthex_testkit::checkpoint::{tiny_bert_safetensors, tiny_llama_gguf};

use crate::support::job;

/// Compiles a package.
fn package(checkpoint: &Path, recipe: Recipe) -> (tempfile::TempDir, Manifest) {
    let out = tempfile::tempdir().unwrap();
    let job = job(checkpoint, recipe, out.path());
    let manifest = compile(job, &Quiet, &AtomicBool::new(false)).unwrap();
    (out, manifest)
}

/// Checks that the graphs, the tables and the length of the data file equal those of the compile, in every scheme.
fn agrees(checkpoint: &Path) {
    let shapes = FixedShapes { context: 24, shorter: vec![], prefill: vec![8], buckets: vec![8] };
    let with_npu = |scheme| Recipe { fixed: Some(shapes.clone()), ..Recipe::new(scheme) };
    let npu = [Scheme::W8, Scheme::W4, Scheme::F16].map(with_npu).into_iter();
    let architecture = narthex_checkpoint::open(checkpoint).unwrap().architecture;
    let npu = npu.filter(|_| architecture.dynamic_only().is_none());
    for recipe in npu.chain([Scheme::W8, Scheme::F16, Scheme::F32].map(Recipe::new)) {
        let (folder, manifest) = package(checkpoint, recipe);
        let dry_run =
            DryRun::new("tiny", &manifest.architecture.architecture().unwrap(), &manifest.recipe).unwrap();
        let name = checkpoint.display();
        assert_eq!(dry_run.data_bytes, manifest.files["model.onnx.data"].bytes, "{name}");
        assert_eq!(dry_run.tables, manifest.tables, "{name}");
        assert_eq!(dry_run.graphs.len(), manifest.graphs.len(), "{name}");
        for ((graph, entry), made) in dry_run.graphs.iter().zip(&manifest.graphs) {
            assert_eq!(entry, made, "{name}");
            assert!(
                graph.encode() == fs::read(folder.path().join(&made.file)).unwrap(),
                "{name} {}",
                made.file
            );
        }
    }
}

#[test]
fn a_dry_run_is_what_the_compile_makes() {
    let folder = tempfile::tempdir().unwrap();
    let families = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/tests/goldens/families");
    let mut seen = 0;
    for family in fs::read_dir(&families).unwrap().map(|entry| entry.unwrap().path()) {
        if !family.is_dir() {
            continue;
        }
        let copy = folder.path().join(family.file_name().unwrap());
        fs::create_dir(&copy).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(family.join(file), copy.join(file)).unwrap();
        }
        fs::copy(families.join("tokenizer.json"), copy.join("tokenizer.json")).unwrap();
        agrees(&copy);
        seen += 1;
    }
    assert!(seen > 10, "{seen}");
    let (llama, bert) = (folder.path().join("tiny.gguf"), folder.path().join("bert"));
    fs::write(&llama, tiny_llama_gguf(7)).unwrap();
    fs::create_dir(&bert).unwrap();
    tiny_bert_safetensors(&bert, 7).unwrap();
    agrees(&llama);
    agrees(&bert);
}
