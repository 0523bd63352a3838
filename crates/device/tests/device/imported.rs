//! Imported graphs return the logits that they returned before the import, for any division of their tokens into steps.
//! The exports and their logits are those of `crates/compile/tests/goldens/import/make.py`.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use narthex_device::{
    encoder::{DynamicEncoder, EncoderOptions},
    ep::Device,
};
use narthex_engine::{
    encoder::{Encoder, Text},
    executor::{Executor, LogitRows},
};
use narthex_spec::{DType, KvPrecision, Scheme, SlotId, TokenId, arch::Pooling};
use serde_json::Value;

use crate::support::{
    OPTIONS, Package,
    encoders::{self, Head},
    relative, runtime, step,
};

/// Decoders with the maximum relative L2 distance to their original logits. It is small if products are exact; with
/// quantised activations, products differ between processors.
const DECODERS: [(&str, f32, Scheme); 7] = [
    ("genai-cpu", 2e-2, Scheme::W4),
    ("genai-quark", 2e-2, Scheme::W4),
    ("genai-dml", 1e-2, Scheme::W4),
    ("pipeline", 2e-2, Scheme::W4),
    ("optimum-two", 1e-4, Scheme::F32),
    ("optimum-merged", 1e-4, Scheme::F32),
    ("transformers-js", 1e-4, Scheme::F32),
];

fn exports(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../compile/tests/goldens/import").join(name)
}

/// Logits of a decoder after every token of a text.
struct Golden {
    tokens: Vec<TokenId>,
    rows: Vec<Vec<f32>>,
}

fn golden(name: &str) -> Value {
    serde_json::from_slice(&fs::read(exports(name).join("golden.json")).unwrap()).unwrap()
}

impl Golden {
    fn read(name: &str) -> Self {
        Self::of(&golden(name))
    }

    fn of(value: &Value) -> Self {
        let list = |value: &Value| value.as_array().unwrap().clone();
        let number = |value: &Value| value.as_f64().unwrap();
        Self {
            tokens: list(&value["tokens"]).iter().map(|token| number(token) as TokenId).collect(),
            rows: list(&value["rows"])
                .iter()
                .map(|row| list(row).iter().map(|x| number(x) as f32).collect())
                .collect(),
        }
    }
}

#[test]
fn a_decoder_gives_the_source_s_logits_however_its_tokens_are_cut() {
    for (name, bound, scheme) in DECODERS {
        let package = Package::imported(&exports(name));
        assert_eq!(package.manifest.recipe.scheme, scheme, "{name}");
        check_golden(name, &package, bound);
        let package = package.with_cache(KvPrecision::F16);
        assert_eq!(package.executor().media_width(), None, "{name} takes only tokens");
        let is_half = package.executor().cache_layouts().iter().all(|layer| layer.dtype == DType::F16);
        // The others attend in another way, or their caches are copied. Activations that are rounded to eight bits may
        // round the other way.
        assert_eq!(is_half, ["genai-cpu", "genai-quark", "pipeline"].contains(&name), "{name}");
        check_golden(name, &package, bound + if is_half { 2e-2 } else { 0.0 });
    }
}

fn check_golden(name: &str, package: &Package, bound: f32) {
    let Golden { tokens, rows } = Golden::read(name);
    for cuts in [&[9][..], &[1; 9], &[4, 3, 2], &[8, 1]] {
        let mut executor = package.executor();
        let (mut at, mut found) = (0, Vec::new());
        for &length in cuts {
            let part = &tokens[at..at + length];
            found.extend(step(&mut executor, &[(2, at, part, LogitRows::All)]).unwrap());
            at += length;
        }
        for (place, (found, expected)) in found.iter().zip(&rows).enumerate() {
            let distance = relative(found, expected);
            assert!(distance <= bound, "{name} {cuts:?}, token {place}: {distance}");
        }
    }
}

#[test]
fn rows_of_several_slots_and_a_cache_that_grows_give_what_each_gives_alone() {
    let precisions = [KvPrecision::F32, KvPrecision::F16, KvPrecision::I8];
    let packages = |name| precisions.map(|precision| Package::imported(&exports(name)).with_cache(precision));
    for (name, package) in
        DECODERS.iter().flat_map(|(name, ..)| packages(name).map(|package| (name, package)))
    {
        let tokens = Golden::read(name).tokens;
        let long: Vec<TokenId> = tokens.iter().cycle().take(50).copied().collect();
        let alone = |text: &[TokenId]| {
            let mut executor = package.executor();
            step(&mut executor, &[(0, 0, text, LogitRows::Nothing)]).unwrap();
            step(&mut executor, &[(0, text.len(), &[77], LogitRows::Last)]).unwrap().remove(0)
        };
        let mut executor = package.executor();
        let texts = [&tokens[..4], &long[..], &tokens[..7]];
        for (slot, text) in (0..).zip(texts) {
            step(&mut executor, &[(slot, 0, text, LogitRows::Nothing)]).unwrap();
        }
        let parts: Vec<_> =
            (0..).zip(texts).map(|(slot, text)| (slot, text.len(), &[77][..], LogitRows::Last)).collect();
        for (row, text) in step(&mut executor, &parts).unwrap().iter().zip(texts) {
            let distance = relative(row, &alone(text));
            assert!(distance <= 1e-3, "{name}, {} tokens: {distance}", text.len());
        }
        // Truncated and handed-over contents are the original ones.
        executor.truncate(SlotId(1), 20).unwrap();
        let block = executor.read_kv(SlotId(1), 0..20).unwrap();
        executor.write_kv(SlotId(4), 0, &block).unwrap();
        let row = step(&mut executor, &[(4, 20, &[77], LogitRows::Last)]).unwrap().remove(0);
        let distance = relative(&row, &alone(&long[..20]));
        assert!(distance <= 1e-3, "{name}, handed over: {distance}");
    }
}

#[test]
fn sequences_end_where_the_graph_would_change_its_rotary_factors() {
    let check = |name: &str, length| {
        assert_eq!(Package::imported(&exports(name)).manifest.max_length, length, "{name}")
    };
    check("genai-cpu", 128);
    check("genai-dml", 64);
    check("transformers-js", 128);
}

/// Returns a text's vector, pooled from its rows.
fn pooled(rows: &[Vec<f32>], pooling: Pooling) -> Vec<f32> {
    let column = |column: usize| rows.iter().map(move |row| row[column]);
    let each = |of: &dyn Fn(usize) -> f32| (0..rows[0].len()).map(of).collect();
    match pooling {
        Pooling::Mean => each(&|at| column(at).sum::<f32>() / rows.len() as f32),
        Pooling::Cls => rows[0].clone(),
        Pooling::Max => each(&|at| column(at).fold(f32::MIN, f32::max)),
        Pooling::Last => rows.last().unwrap().clone(),
    }
}

#[test]
fn an_encoder_gives_the_source_s_rows_pooled_as_its_files_say() {
    let texts: Vec<(Golden, usize)> = golden("sentence")["texts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|text| (Golden::of(text), text["second"].as_u64().unwrap() as usize))
        .collect();
    let poolings = [
        ("mean_tokens", Pooling::Mean),
        ("cls_token", Pooling::Cls),
        ("max_tokens", Pooling::Max),
        ("lasttoken", Pooling::Last),
    ];
    for (mode, pooling) in poolings {
        let copy = tempfile::tempdir().unwrap();
        for file in
            ["onnx/model.onnx", "config.json", "tokenizer.json", "tokenizer_config.json", "modules.json"]
        {
            let to = copy.path().join(file);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(exports("sentence").join(file), to).unwrap();
        }
        fs::create_dir(copy.path().join("1_Pooling")).unwrap();
        let settings = format!("{{\"pooling_mode_{mode}\": true}}");
        fs::write(copy.path().join("1_Pooling/config.json"), settings).unwrap();
        let package = Package::imported(copy.path());
        assert_eq!(package.manifest.max_length, 24);
        let options = EncoderOptions { threads: 1, max_batch_tokens: 100, packed_weights: None };
        let folder = package.folder.path();
        let mut encoder =
            DynamicEncoder::open(runtime(), folder, &package.manifest, &Device::Cpu, &options).unwrap();
        let batch: Vec<Text<'_>> = texts
            .iter()
            .map(|(text, second)| Text { tokens: &text.tokens, second: *second, requested: &[] })
            .collect();
        let found = encoder.run(&batch).unwrap();
        for ((text, _), vector) in texts.iter().zip(found.data.chunks(found.width)) {
            let distance = relative(vector, &pooled(&text.rows, pooling));
            assert!(distance <= 1e-4, "{pooling:?}, {} tokens: {distance}", text.tokens.len());
        }
        let error = encoder.run(&[Text::of(&[64])]).unwrap_err().to_string();
        assert!(error.contains("token 64 is not below 64"), "{error}");
    }
}

#[test]
fn heads_give_the_rows_of_the_model_that_was_exported() {
    for (name, family, head) in [
        ("answers", "distilbert", Head::Spans),
        ("masked", "bert", Head::Masked),
        ("reranker", "bert", Head::Score),
    ] {
        let package = Package::imported(&exports(name));
        let options = EncoderOptions { threads: 1, max_batch_tokens: 100, packed_weights: None };
        let folder = package.folder.path();
        let mut encoder =
            DynamicEncoder::open(runtime(), folder, &package.manifest, &Device::Cpu, &options).unwrap();
        let (texts, rows) = encoders::Golden::read(family).texts(head);
        let texts: Vec<Text<'_>> = texts
            .iter()
            .map(|text| Text { tokens: &text.tokens, second: text.second, requested: &text.requested })
            .collect();
        let found = encoder.run(&texts).unwrap().data;
        let distance = relative(&found, &rows.concat());
        assert!(distance <= 1e-4, "{name}: {distance}");
    }
}

#[test]
fn manifests_of_imports_are_verified() {
    use narthex_device::dynamic::DynamicExecutor;
    use narthex_spec::arch::Structure;
    let mut package = Package::imported(&exports("transformers-js"));
    let open = |package: &Package| {
        let folder = package.folder.path();
        let opened = DynamicExecutor::open(runtime(), folder, &package.manifest, &Device::Cpu, &OPTIONS);
        opened.err().map(|error| error.to_string())
    };
    assert_eq!(open(&package), None);
    package.manifest.max_length = usize::MAX;
    assert!(open(&package).unwrap().contains("a length of 1 to"));
    package.manifest.max_length = 100;
    let Structure::ImportedDecoder(imported) = &mut package.manifest.architecture else {
        panic!("no import")
    };
    imported.vocab = usize::MAX;
    assert!(open(&package).unwrap().contains("a vocabulary of 1 to"));
}
