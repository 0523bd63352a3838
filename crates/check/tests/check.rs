//! Checks of models on disk: exports of other tools, the output of `--fix`, and Narthex's own packages.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{collections::BTreeMap, fs, path::Path, sync::atomic::AtomicBool};

use narthex_check::{CheckError, CheckOptions, Report, Rule, Severity, Verdict, check, fix, write};
use narthex_compile::pipeline::{CompileJob, compile};
use narthex_graph::{
    Attribute, Builder, Graph, InitializerData,
    build::{External, NodeSpec},
    graph::MICROSOFT,
    onnx::files::{self, OnnxFile, OnnxFileError},
};
use narthex_spec::{
    DType, Recipe, Scheme, Variant,
    dtype::Dim,
    manifest::{Manifest, Provenance},
    progress::Quiet,
    recipe::FixedShapes,
};
use narthex_testkit::checkpoint::{tiny_bert_safetensors, tiny_llama_gguf};

fn options(extents: &[(&str, u64)]) -> CheckOptions {
    let extents = extents.iter().map(|&(symbol, extent)| (symbol.to_owned(), extent)).collect();
    CheckOptions { target: "qnn:x-elite".parse().unwrap(), extents }
}

fn look(path: &Path, extents: &[(&str, u64)]) -> Report {
    check("model", &files::open(path).unwrap(), &options(extents))
}

fn dims(shape: &str) -> Vec<Dim> {
    shape.split_whitespace().map(|dim| dim.parse().map_or_else(|_| dim.into(), Dim::Fixed)).collect()
}

/// Writes a data file of zeros.
fn zeros(folder: &Path, name: &str, bytes: usize) {
    fs::write(folder.join(name), vec![0; bytes]).unwrap();
}

/// Writes one decoder layer in the form of exports with a cache: any batch and length, 64-bit ids, a token table, a
/// boolean mask, past keys as input and all keys as output, logits of every position.
fn exported_decoder(folder: &Path) -> std::path::PathBuf {
    let mut b = Builder::new("decoder", &[("", 20), (MICROSOFT, 1)]);
    let ids = b.input("input_ids", DType::I64, &dims("batch_size sequence_length"));
    let past = b.input(
        "past_key_values.0.key",
        DType::F32,
        &[Dim::symbol("batch_size"), Dim::Fixed(2), Dim::symbol("past_sequence_length"), Dim::Fixed(16)],
    );
    let total = Dim::symbol("past_sequence_length + sequence_length");
    let one = Dim::Fixed(1);
    let mask = b.input(
        "mask",
        DType::Bool,
        &[Dim::symbol("batch_size"), one, Dim::symbol("sequence_length"), total.clone()],
    );
    let at = |file, length| External { file, offset: 0, length };
    let table = b.external("embed.weight", DType::F32, &[9000, 32], at("embed.data", 9000 * 32 * 4));
    let hidden = b.op("/embed", "Gather", &[&table, &ids]);
    let shape = b.ints(&[4], &[0, 0, 2, 16]);
    let heads = b.op("/layers.0/split", "Reshape", &[&hidden, &shape]);
    let order = [("perm", Attribute::Ints(vec![0, 2, 1, 3]))];
    let new = b.op_with("/layers.0/heads", "Transpose", &[&heads], &order);
    let key = b.op_with("/layers.0/present", "Concat", &[&past, &new], &[("axis", 2usize.into())]);
    let turned =
        b.op_with("/layers.0/turn", "Transpose", &[&key], &[("perm", Attribute::Ints(vec![0, 1, 3, 2]))]);
    let scores = b.op("/layers.0/scores", "MatMul", &[&new, &turned]);
    let lowest = b.scalar(f32::MIN);
    let seen = b.op("/layers.0/mask", "Where", &[&mask, &scores, &lowest]);
    let shares = b.op("/layers.0/softmax", "Softmax", &[&seen]);
    let mixed = b.op("/layers.0/mix", "MatMul", &[&shares, &key]);
    let back = b.op_with("/layers.0/back", "Transpose", &[&mixed], &order);
    let flat = b.ints(&[3], &[0, 0, 32]);
    let joined = b.op("/layers.0/join", "Reshape", &[&back, &flat]);
    let gain = b.external("norm.weight", DType::F32, &[32], at("layers.data", 128));
    let normed = b.node(NodeSpec {
        name: "/layers.0/norm/SkipSimplifiedLayerNormalization",
        op: "SkipSimplifiedLayerNormalization",
        domain: MICROSOFT,
        inputs: &[&joined, &hidden, &gain],
        attributes: &[("epsilon", 1e-5f32.into())],
    });
    let head = b.external("head.weight", DType::F32, &[32, 9000], at("embed.data", 9000 * 32 * 4));
    let logits = b.op("/lm_head", "MatMul", &[&normed, &head]);
    b.rename(&logits, "logits");
    b.rename(&key, "present.0.key");
    b.output("logits", DType::F32, &dims("batch_size sequence_length 9000"));
    b.output("present.0.key", DType::F32, &[Dim::symbol("batch_size"), Dim::Fixed(2), total, Dim::Fixed(16)]);
    let graph = b.finish();
    graph.check().unwrap();
    zeros(folder, "embed.data", 9000 * 32 * 4);
    zeros(folder, "layers.data", 128);
    let path = folder.join("decoder_model.onnx");
    fs::write(&path, graph.encode()).unwrap();
    path
}

#[test]
fn an_exported_decoder_gets_every_finding() {
    let folder = tempfile::tempdir().unwrap();
    let path = exported_decoder(folder.path());
    insta::assert_snapshot!(look(&path, &[]));
}

#[test]
fn a_fixed_export_is_one_data_file_and_runs_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = exported_decoder(folder.path());
    let extents = [("batch_size", 1), ("sequence_length", 8), ("past_sequence_length", 24)];
    let parts = files::open(&path).unwrap();
    let (fixed, changes) = fix::fixed(&parts, &options(&extents)).unwrap();
    assert!(changes.iter().any(|change| change == "write the weights into one data file"), "{changes:?}");
    let out = folder.path().join("out");
    let mut files = write::write(&fixed, &out).unwrap();
    files.sort();
    assert_eq!(files, [out.join("decoder_model.onnx"), out.join("model.onnx.data")]);
    // The table and the head are the same bytes of one file, which are written once.
    let bytes = fs::metadata(out.join("model.onnx.data")).unwrap().len();
    assert!((9000 * 32 * 4..9000 * 32 * 4 + 8192).contains(&bytes), "{bytes}");
    let report = look(&out, &[]);
    assert_eq!(report.verdict, Verdict::Whole, "{report}");
    assert!(report.after_fix.is_none(), "{report}");
    let graph = Graph::decode(&fs::read(out.join("decoder_model.onnx")).unwrap()).unwrap();
    graph.check().unwrap();
    assert_eq!(graph.outputs[1].shape, dims("1 2 32 16"));
    assert!(graph.metadata.iter().any(|(_, value)| value.contains("fix dimension batch_size at 1")));
}

#[test]
fn a_write_that_fails_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = exported_decoder(folder.path());
    let write_to = |parts: &[OnnxFile], name: &str| {
        let out = folder.path().join(name);
        (write::write(parts, &out).unwrap_err(), fs::read_dir(out).map_or(0, |files| files.count()))
    };
    let mut parts = files::open(&path).unwrap();
    fs::write(folder.path().join("embed.data"), "short").unwrap();
    let (error, left) = write_to(&parts, "a");
    assert!(
        matches!(error, CheckError::Open(OnnxFileError::Data { .. }))
            && error.to_string().contains("ends before"),
        "{error}"
    );
    assert_eq!(left, 0);
    // Files outside the model's folder are never copied.
    if let InitializerData::External { file, .. } = &mut parts[0].graph.initializers[0].data {
        *file = "../secret".into();
    }
    let (error, _) = write_to(&parts, "b");
    assert!(error.to_string().contains("is outside"), "{error}");
    // Existing files are not replaced.
    fs::create_dir(folder.path().join("c")).unwrap();
    fs::write(folder.path().join("c/decoder_model.onnx"), "mine").unwrap();
    parts[0].graph.initializers.clear();
    let (error, left) = write_to(&parts, "c");
    assert!(matches!(error, CheckError::Write { .. }), "{error}");
    assert_eq!(
        (left, &*fs::read_to_string(folder.path().join("c/decoder_model.onnx")).unwrap()),
        (1, "mine")
    );
}

#[test]
fn folders_without_a_model_are_named() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(files::open(folder.path()), Err(OnnxFileError::NoModel { .. })));
    assert!(matches!(files::open(&folder.path().join("absent")), Err(OnnxFileError::Read { .. })));
    fs::write(folder.path().join("a.onnx"), "no model").unwrap();
    assert!(matches!(files::open(folder.path()), Err(OnnxFileError::Decode { .. })));
    // Hubs keep exports in a separate folder.
    fs::rename(folder.path().join("a.onnx"), folder.path().join("a.txt")).unwrap();
    fs::create_dir(folder.path().join("onnx")).unwrap();
    exported_decoder(&folder.path().join("onnx"));
    assert_eq!(files::open(folder.path()).unwrap().len(), 1);
}

/// Damaged files are refused or checked; they never crash the check.
#[test]
fn flipped_bytes_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = fs::read(exported_decoder(folder.path())).unwrap();
    let (mut state, mut judged) = (7u64, 0);
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..3000 {
        let mut damaged = bytes.clone();
        for _ in 0..=next(3) {
            let at = next(damaged.len());
            damaged[at] = next(256) as u8;
        }
        let Ok(graph) = Graph::decode(&damaged) else { continue };
        let part = OnnxFile {
            name: "m.onnx".into(),
            folder: folder.path().into(),
            graph,
            data_files: BTreeMap::new(),
            watch: Default::default(),
        };
        let report = check("m", &[part], &options(&[("batch_size", 1 + next(5) as u64)]));
        assert!((0.0..=100.0).contains(&report.score.total), "{report}");
        assert!(!report.to_string().is_empty());
        judged += 1;
    }
    assert!(judged > 500, "only {judged} damaged files were graphs still");
}

fn package(checkpoint: &Path, scheme: Scheme) -> (tempfile::TempDir, Manifest) {
    let out = tempfile::tempdir().unwrap();
    let shapes = FixedShapes { context: 48, shorter: vec![], prefill: vec![16], buckets: vec![8] };
    let recipe = Recipe { fixed: Some(shapes), ..Recipe::new(scheme) };
    let job = job(checkpoint, recipe, out.path());
    let manifest = compile(job, &Quiet, &AtomicBool::new(false)).unwrap();
    (out, manifest)
}

/// Verifies the prediction of `narthex check NAME` for models that are not compiled yet.
#[test]
fn what_narthex_compiles_for_npus_runs_whole_by_its_own_rules() {
    let folder = tempfile::tempdir().unwrap();
    let (llama, bert) = (folder.path().join("tiny.gguf"), folder.path().join("bert"));
    fs::write(&llama, tiny_llama_gguf(7)).unwrap();
    fs::create_dir(&bert).unwrap();
    tiny_bert_safetensors(&bert, 7).unwrap();
    for checkpoint in [&llama, &bert] {
        for scheme in [Scheme::W8, Scheme::W4, Scheme::F16] {
            let (out, manifest) = package(checkpoint, scheme);
            let fixed = manifest.graphs.iter().filter(|graph| graph.variant == Variant::Static);
            let files: Vec<_> = fixed.map(|graph| out.path().join(&graph.file)).collect();
            let report = check("tiny", &files::open_files(&files).unwrap(), &options(&[]));
            assert_eq!(report.verdict, Verdict::Whole, "{scheme} {report}");
            assert!(report.score.total > 99.9, "{report}");
            let grave = report.findings.iter().find(|finding| finding.severity < Severity::Cost);
            assert!(grave.is_none(), "{report}");
            assert!(report.findings.iter().any(|finding| finding.rule == Rule::Quantisation));
            let mut decoders = report.findings.iter().filter(|finding| finding.rule == Rule::DecoderLoop);
            assert!(decoders.all(|found| found.fix.is_none() && !found.message.contains(" 0 ")), "{report}");
        }
    }
}

/// Returns a compile job without calibration.
fn job<'a>(checkpoint: &'a Path, recipe: Recipe, out: &'a Path) -> CompileJob<'a> {
    CompileJob {
        checkpoint,
        name: "tiny".parse().unwrap(),
        recipe,
        runner: None,
        text: None,
        vocabulary: None,
        widths: None,
        measured_bytes: 0,
        out,
        adapters: &[],
        pooling: None,
        rerank: false,
        keep_stages: None,
        provenance: Provenance {
            source: "a test".to_owned(),
            checkpoint: [].into(),
            license: None,
            compiler: "narthex test".to_owned(),
        },
    }
}
