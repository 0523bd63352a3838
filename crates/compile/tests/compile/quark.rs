//! Folders of AMD Quark: folders from Quark itself are read as by its other readers, and folders written here have the
//! same form. `goldens/quark/make.py` made the goldens.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a step that fails fails its test")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use half::f16;
use narthex_checkpoint::{Checkpoint, open};
use narthex_compile::{
    CompileError,
    export::{QuarkJob, quark},
    quant::block::Form4,
};
use narthex_spec::{
    arch::{Architecture, DecoderArch},
    progress::Quiet,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Number of columns in a group of the tiny models.
const GROUP: usize = 32;

fn golden(name: &str) -> PathBuf {
    let crate_of = if name.starts_with("families/") { "../checkpoint" } else { "." };
    Path::new(env!("CARGO_MANIFEST_DIR")).join(crate_of).join("tests/goldens").join(name)
}

/// Copies a folder and adds the tokenizer that all tiny models share.
fn folder(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(golden(name).join(file), folder.path().join(file)).unwrap();
    }
    fs::copy(golden("families/tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    folder
}

fn opened(path: &Path) -> Checkpoint {
    open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn decoder(checkpoint: &Checkpoint) -> &DecoderArch {
    match &checkpoint.architecture {
        Architecture::Decoder(arch) => arch,
        _ => panic!("another model"),
    }
}

fn export(checkpoint: &Path, group: usize, out: &Path) -> Result<(), CompileError> {
    let job = QuarkJob { checkpoint, name: "tiny", group, out };
    quark(&job, &Quiet, &AtomicBool::new(false))
}

fn exported(family: &str) -> tempfile::TempDir {
    let out = tempfile::tempdir().unwrap();
    let source = folder(&format!("families/{family}"));
    export(source.path(), GROUP, out.path()).unwrap_or_else(|error| panic!("{family}: {error}"));
    out
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Returns the header of a folder's weights, and the bytes after it.
fn weights(folder: &Path) -> (BTreeMap<String, Value>, Vec<u8>) {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let mut header: BTreeMap<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    header.remove("__metadata__");
    (header, bytes[8 + length..].to_vec())
}

#[test]
fn what_quark_wrote_is_read_as_its_other_readers_read_it() {
    let folder = folder("quark");
    let checkpoint = opened(folder.path());
    let digests: BTreeMap<String, String> =
        serde_json::from_value(json(&golden("quark").join("golden.json"))).unwrap();
    assert_eq!(digests.len(), 15);
    for (name, expected) in digests {
        let values = checkpoint.weights.weight(&name).unwrap().to_f32();
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let found: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn an_export_has_the_form_of_quark_s_own() {
    let out = exported("llama");
    let (own, own_bytes) = weights(&golden("quark"));
    let (found, bytes) = weights(out.path());
    assert_eq!(found.keys().collect::<Vec<_>>(), own.keys().collect::<Vec<_>>());
    let data = |entry: &Value, bytes: &[u8]| {
        let at = |end: usize| entry["data_offsets"][end].as_u64().unwrap() as usize;
        bytes[at(0)..at(1)].to_vec()
    };
    for (name, entry) in &found {
        assert_eq!((&entry["dtype"], &entry["shape"]), (&own[name]["dtype"], &own[name]["shape"]), "{name}");
        let rounded = name.contains("_proj.weight") || name.starts_with("lm_head");
        // Tensors that are not rounded are identical.
        assert!(rounded || data(entry, &bytes) == data(&own[name], &own_bytes), "{name}");
    }
    let [found, own] =
        [out.path().to_owned(), golden("quark")].map(|folder| json(&folder.join("config.json")));
    assert!(within(&found["quantization_config"], &own["quantization_config"]), "{found}");
    let keys =
        ["architectures", "model_type", "hidden_size", "head_dim", "vocab_size", "tie_word_embeddings"];
    keys.into_iter().for_each(|key| assert_eq!(found[key], own[key], "{key}"));
}

/// Returns whether every key and value of `found` is in `whole`.
fn within(found: &Value, whole: &Value) -> bool {
    match (found, whole) {
        (Value::Object(found), Value::Object(whole)) => {
            found.iter().all(|(key, value)| whole.get(key).is_some_and(|whole| within(value, whole)))
        }
        _ => found == whole,
    }
}

/// Decodes the integers of a row, by their definition.
fn decoded(row: &[f32]) -> Vec<f32> {
    let rounded = Form4::Zeros.quantize(row, GROUP);
    let nibble = |bytes: &[u8], i: usize| f32::from(bytes[i / 2] >> (4 * (i % 2)) & 15);
    let value = |i: usize| {
        let group = i / GROUP;
        (nibble(&rounded.quants, i) - nibble(&rounded.zeros, group)) * rounded.scales[group].to_f32()
    };
    (0..row.len()).map(value).collect()
}

#[test]
fn every_family_comes_back_with_the_weights_that_were_rounded() {
    for family in ["gemma2", "gemma3", "llama", "mistral", "phi3", "phi3.5", "qwen2.5", "qwen3"] {
        let out = exported(family);
        let (source, found) = (folder(&format!("families/{family}")), opened(out.path()));
        let source = opened(source.path());
        let arch = decoder(&source);
        assert_eq!(*decoder(&found), DecoderArch { tied_head: false, ..arch.clone() }, "{family}");
        assert_eq!(
            (found.max_length, found.chat_template),
            (source.max_length, source.chat_template.clone()),
            "{family}"
        );
        assert_eq!(
            (found.special.bos, found.special.stop),
            (source.special.bos, source.special.stop.clone())
        );
        let inner = ["attn.q", "attn.k", "attn.v", "attn.o", "mlp.gate", "mlp.up", "mlp.down"];
        let linear = inner.map(|name| format!("layers.1.{name}_proj.weight"));
        let head = if arch.tied_head { "embed.weight" } else { "head.weight" };
        let pairs = linear.iter().map(|name| (name.as_str(), name.as_str())).chain([("head.weight", head)]);
        for (name, original) in pairs {
            let original = source.weights.weight(original).unwrap();
            let expected: Vec<f32> = original.to_f32().chunks(original.cols()).flat_map(decoded).collect();
            assert!(found.weights.weight(name).unwrap().to_f32() == expected, "{family} {name}");
        }
        for name in ["embed.weight", "norm.weight", "layers.1.attn_norm.weight"] {
            let expected = source.weights.weight(name).unwrap().to_f32();
            for (x, y) in found.weights.weight(name).unwrap().to_f32().iter().zip(expected) {
                let near = (x - y).abs() <= 1e-3 * y.abs().max(1.0);
                assert!(near && f16::from_f32(y).is_finite(), "{family} {name}: {x} {y}");
            }
        }
    }
}

#[test]
fn what_has_no_place_in_it_is_refused_and_nothing_is_left() {
    let check = |name: &str, group: usize, expect: &str| {
        let home = tempfile::tempdir().unwrap();
        let error = export(folder(name).path(), group, &home.path().join("out")).unwrap_err().to_string();
        assert!(error.contains(expect), "{error} lacks {expect}");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    };
    check("families/llama", 128, "--group 32 fits, but AMD documents only 128 for its NPUs");
    check("families/gpt2", GROUP, "unsupported family: found Gpt2, expected Llama, Mistral");
    check("families/qwen2", GROUP, "layer 1, which differs from a Qwen2 model's");
    let home = tempfile::tempdir().unwrap();
    let source = folder("families/llama");
    let job =
        QuarkJob { checkpoint: source.path(), name: "tiny", group: GROUP, out: &home.path().join("out") };
    let error = quark(&job, &Quiet, &AtomicBool::new(true)).unwrap_err();
    assert!(matches!(error, CompileError::Cancelled), "{error}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    fs::write(home.path().join("out"), "").unwrap();
    assert!(matches!(quark(&job, &Quiet, &AtomicBool::new(false)), Err(CompileError::Write { .. })));
}

#[test]
fn a_tokenizer_that_cannot_be_read_is_refused_and_nothing_is_left() {
    let (home, source) = (tempfile::tempdir().unwrap(), folder("families/llama"));
    let malformed = r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a x"]}}"#;
    fs::write(source.path().join("tokenizer.json"), malformed).unwrap();
    let error = export(source.path(), GROUP, &home.path().join("out")).unwrap_err();
    assert!(matches!(error, CompileError::Tokenizer(_)), "{error}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn tensors_and_settings_that_do_not_fit_are_named() {
    let check = |file: &str, [from, to]: [&str; 2], expect: &str| {
        let folder = folder("quark");
        let path = folder.path().join(file);
        let bytes = fs::read(&path).unwrap();
        let at = bytes.windows(from.len()).position(|found| found == from.as_bytes()).unwrap();
        let bytes = [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat();
        fs::write(&path, bytes).unwrap();
        let error = open(folder.path()).err().unwrap().to_string();
        assert!(error.contains(expect), "{error} lacks {expect}");
    };
    let weights = "model.safetensors";
    check(weights, ["q_proj.weight_scale\"", "q_proj.weight_scaly\""], "q_proj.weight_scale");
    check(weights, ["lm_head.weight_zero_point", "lm_head.weight_zero_paint"], "lm_head.weight_zero_point");
    // The same number of bytes with another shape: two groups of 32 columns become one of 128 for half the rows.
    let groups = "a lm_head.weight whose groups have its scales and zero points";
    check(weights, ["\"shape\":[2,80]", "\"shape\":[4,40]"], groups);
    check(weights, ["\"shape\":[64,10]", "\"shape\":[10,64]"], groups);
    check("config.json", ["\"reorder\"", "\"order\""], "4-bit integers of AMD Quark in groups");
    check("config.json", ["\"uint4\"", "\"int8\""], "4-bit integers of AMD Quark in groups");
    check("config.json", ["\"quark\"", "\"aqlm\""], "found aqlm");
}
