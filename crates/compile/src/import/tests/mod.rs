//! Refusals and hostile files. The logits of imports are compared in the tests of `device`, which has ONNX Runtime.

mod bundles;
mod layout;

use std::{fs, sync::atomic::AtomicBool};

use narthex_graph::{Attribute, InitializerData};
use narthex_spec::{DType, dtype::Dim, manifest::Manifest, progress::Quiet};
use serde_json::json;

use super::*;

fn exports(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/import").join(name)
}

/// Copies a tiny export, which a test then damages.
fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut sources = vec![(exports(name), folder.path().to_owned())];
    while let Some((from, to)) = sources.pop() {
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(from).unwrap().flatten() {
            let to = to.join(entry.file_name());
            if entry.path().is_dir() {
                sources.push((entry.path(), to));
            } else {
                fs::copy(entry.path(), to).unwrap();
            }
        }
    }
    folder
}

/// Imports a file or folder and writes the package to an empty folder.
fn write(path: &Path, file: Option<&str>, out: &Path) -> Result<Manifest> {
    let job = ImportJob {
        name: "tiny".parse().unwrap(),
        out,
        source: "local x".to_owned(),
        compiler: "test".to_owned(),
    };
    open(path, file, None)?.write(job, &Quiet, &AtomicBool::new(false))
}

/// Imports a folder and returns the manifest of the package.
fn import(folder: &Path) -> Result<Manifest> {
    write(folder, None, tempfile::tempdir().unwrap().path())
}

/// Changes a graph file.
fn edit(path: &Path, change: &dyn Fn(&mut Graph)) {
    let mut graph = Graph::decode(&fs::read(path).unwrap()).unwrap();
    change(&mut graph);
    fs::write(path, graph.encode()).unwrap();
}

#[test]
fn an_unknown_pooling_is_asked_for_and_a_known_one_is_said() {
    let folder = copy("sentence");
    fs::remove_file(folder.path().join("modules.json")).unwrap();
    fs::remove_dir_all(folder.path().join("1_Pooling")).unwrap();
    let error = open(folder.path(), None, None).err().unwrap();
    assert!(error.to_string().contains("model.onnx has no 1_Pooling/config.json"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("--pooling mean, cls, max or last")));
    let head = |import: Import| import.structure.head().copied();
    let cls = EncoderHead::Embedding { pooling: Pooling::Cls, normalize: true };
    let requested = open(folder.path(), None, Some(Pooling::Cls)).unwrap();
    assert!(requested.notes().is_empty());
    assert_eq!(head(requested), Some(cls));

    let config = folder.path().join("config.json");
    let mut keys: serde_json::Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    keys["_name_or_path"] = "BAAI/bge-small-en-v1.5".into();
    fs::write(&config, keys.to_string()).unwrap();
    let known = open(folder.path(), None, None).unwrap();
    assert!(known.notes()[0].contains("it is cls"), "{:?}", known.notes());
    assert_eq!(head(known), Some(cls));
}

#[test]
fn a_pooling_of_another_model_is_refused() {
    for export in ["genai-cpu", "optimum-two", "reranker"] {
        let error = open(&exports(export), None, Some(Pooling::Mean)).err().unwrap().to_string();
        assert!(error.contains("leave out --pooling"), "{error}");
    }
}

fn refusal(folder: &Path) -> (String, Option<String>) {
    let error = import(folder).expect_err("it was imported");
    (error.to_string(), error.hint())
}

#[track_caller]
fn check(folder: &Path, expect: &str) {
    let (error, _) = refusal(folder);
    assert!(error.contains(expect), "{error} lacks {expect}");
}

#[test]
fn classifiers_have_the_labels_of_the_graph_and_the_names_of_the_settings() {
    let import_as = |class: &str, labels: serde_json::Value, change: &dyn Fn(&mut Graph)| {
        let folder = copy("masked");
        let config = folder.path().join("config.json");
        let mut keys: serde_json::Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
        keys["id2label"] = labels;
        keys["architectures"] = json!([class]);
        fs::write(config, keys.to_string()).unwrap();
        edit(&folder.path().join("model.onnx"), change);
        import(folder.path())
    };
    let import_with = |labels: serde_json::Value, change: &dyn Fn(&mut Graph)| {
        import_as("BertForTokenClassification", labels, change)
    };
    let names = json!({"0": "negative", "1": "neutral", "2": "positive"});
    let texts = |graph: &mut Graph| graph.outputs[0].shape = vec!["batch".into(), 3_usize.into()];
    let tokens = |graph: &mut Graph| graph.outputs[0].shape[2] = 3_usize.into();
    let open_texts = |graph: &mut Graph| graph.outputs[0].shape = vec!["batch".into(), "labels".into()];
    let check =
        |labels: &serde_json::Value, change: &dyn Fn(&mut Graph), head: EncoderHead, expect: [&str; 3]| {
            let manifest = import_with(labels.clone(), change).unwrap();
            assert_eq!(manifest.architecture.head(), Some(&head));
            assert_eq!(manifest.classifier.unwrap().labels, expect);
        };
    let score = EncoderHead::Score { labels: 3, dense: None };
    check(&names, &texts, score, ["negative", "neutral", "positive"]);
    check(&names, &open_texts, score, ["negative", "neutral", "positive"]);
    check(&json!({}), &texts, score, ["LABEL_0", "LABEL_1", "LABEL_2"]);
    check(&names, &tokens, EncoderHead::Tokens { labels: 3 }, ["negative", "neutral", "positive"]);

    let refused = |labels: serde_json::Value, change: &dyn Fn(&mut Graph), expect: &str| {
        let error = import_with(labels, change).expect_err("it was imported").to_string();
        assert!(error.contains(expect), "{error} lacks {expect}");
    };
    refused(json!({"0": "negative"}), &texts, "an id2label with 3 names");
    refused(json!({}), &open_texts, "a fixed number of labels, or an id2label in config.json");
    // The class decides if the graph does not state the number of labels.
    let open = |graph: &mut Graph| graph.outputs[0].shape[2] = "labels".into();
    let manifest = import_as("BertForMaskedLM", json!(null), &open).unwrap();
    assert_eq!(manifest.architecture.head(), Some(&EncoderHead::MaskedLm { activation: None }));
    // Padded logits of a masked language model are no labels.
    let error = import_as("BertForMaskedLM", json!(null), &tokens).expect_err("it was imported").to_string();
    assert!(error.contains("found 3, expected logits over the vocabulary"), "{error}");
}

#[test]
fn what_is_missing_or_unknown_is_named() {
    let without = |name: &str, file: &str, expect: &str| {
        let folder = copy(name);
        fs::remove_file(folder.path().join(file)).unwrap();
        check(folder.path(), expect);
    };
    without("genai-cpu", "tokenizer.json", "expected tokenizer.json");
    without("genai-cpu", "model.onnx", "model.onnx");
    without("genai-cpu", "model.onnx.data", "model.onnx.data");
    without("transformers-js", "config.json", "there is no config.json beside the graph");
    without("transformers-js", "onnx/embed_tokens.onnx", "inputs_embeds");
    without("optimum-two", "decoder_model.onnx", "decoder_with_past_model.onnx alone");
    let changed = |name: &str, file: &str, from: &str, to: &str, expect: &str| {
        let folder = copy(name);
        let path = folder.path().join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(path, text.replace(from, to)).unwrap();
        check(folder.path(), expect);
    };
    changed("masked", "tokenizer_config.json", "mask_token", "no_token", "mask_token of the tokenizer");
    let config = "genai_config.json";
    changed("genai-cpu", config, "\"model.onnx\"", "\"../model.onnx\"", "a file in the folder");
    changed(
        "genai-cpu",
        config,
        "\"attention_mask\": \"attention_mask\"",
        "\"attention_mask\": \"m\"",
        "found attention_mask",
    );
    changed("genai-cpu", config, "present.%d.key", "gone.%d.key", "gone.0.key");
    changed(
        "genai-cpu",
        config,
        "\"logits\": \"logits\"",
        "\"logits\": \"none\"",
        "output \"none\" of model.onnx: found no such output",
    );
    changed("genai-cpu", config, "\"head_size\": 16", "\"head_size\": 0", "a head_size from 1");
    changed("genai-cpu", config, "\"decoder\": {", "\"vision\": {}, \"decoder\": {", "a decoder alone");
}

#[test]
fn graphs_that_cannot_be_kept_are_refused() {
    let check = |change: &dyn Fn(&mut Graph), expect: &str| {
        let folder = copy("genai-cpu");
        edit(&folder.path().join("model.onnx"), change);
        check(folder.path(), expect);
    };
    let data = |graph: &mut Graph, change: &dyn Fn(&mut String, &mut u64)| {
        let external = graph.initializers.iter_mut().find_map(|constant| match &mut constant.data {
            InitializerData::External { file, offset, .. } => Some((file, offset)),
            InitializerData::Inline(_) => None,
        });
        let (file, offset) = external.expect("a data file");
        change(file, offset);
    };
    check(&|graph| data(graph, &|file, _| "../../etc/passwd".clone_into(file)), "is outside");
    check(&|graph| data(graph, &|_, offset| *offset = u64::MAX - 1), "ends before the weight");
    check(&|graph| graph.opsets[0].1 = 9, "11 or newer");
    check(
        &|graph| graph.nodes[0].outputs[0] = "/import/x".to_owned(),
        "names that do not begin with /import/",
    );
    check(&|graph| graph.nodes.truncate(5), "well-formed");
    check(&|graph| graph.outputs[0].dtype = narthex_graph::Element::F64, "f32 or f16");
    check(&|graph| graph.outputs[0].shape[1] = 1_usize.into(), "logits of every token");
    check(&|graph| graph.inputs[2].shape.truncate(3), "4 dimensions");
}

/// The weights state 4 TiB. A machine with that much free space is left out.
#[test]
fn an_import_that_does_not_fit_is_refused_before_it_is_written() {
    const BYTES: u64 = 4 << 40;
    let folder = copy("genai-cpu");
    let mut import = open(folder.path(), None, None).unwrap();
    let constant =
        import.graphs[0].0.initializers.iter_mut().find(|constant| constant.bytes() >= 1024).unwrap();
    constant.data = InitializerData::External { file: "large.data".to_owned(), offset: 0, length: BYTES };
    let out = tempfile::tempdir().unwrap();
    if narthex_files::environment::check_space(out.path(), BYTES).is_ok() {
        return;
    }
    let (name, source, compiler) = ("tiny".parse().unwrap(), String::new(), String::new());
    let job = ImportJob { name, out: out.path(), source, compiler };
    match import.write(job, &Quiet, &AtomicBool::new(false)).unwrap_err() {
        CompileError::Write { source, .. } => assert_eq!(source.kind(), std::io::ErrorKind::StorageFull),
        other => panic!("{other}"),
    }
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
}

#[test]
fn files_that_are_cut_off_give_errors() {
    for (name, file) in [
        ("genai-cpu", "model.onnx"),
        ("genai-cpu", "genai_config.json"),
        ("optimum-merged", "decoder_model_merged.onnx"),
    ] {
        let folder = copy(name);
        let path = folder.path().join(file);
        let whole = fs::read(&path).unwrap();
        for cut in 0..40 {
            fs::write(&path, &whole[..whole.len() * cut / 40]).unwrap();
            assert!(import(folder.path()).is_err(), "{file} cut to {cut} of 40 parts");
        }
    }
}
