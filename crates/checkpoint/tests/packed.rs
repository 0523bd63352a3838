//! Checkpoints of other quantisers have the elements that their own readers compute. `goldens/packed/make.py` made them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a step that fails fails its test")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use narthex_checkpoint::{Encoding, architecture_from_headers, open};
use narthex_spec::Sha256;

/// Folders of `goldens/packed`, each with the encoding of its weights.
const FORMS: [(&str, Encoding); 9] = [
    ("awq", Encoding::Uint4),
    ("gptq", Encoding::Uint4),
    ("gptq-act-order", Encoding::F32),
    ("auto-round-8", Encoding::F32),
    ("pack-quantized", Encoding::Uint4),
    ("pack-quantized-zeros", Encoding::Uint4),
    ("int-quantized", Encoding::F32),
    ("float-quantized", Encoding::F32),
    ("fp8", Encoding::F32),
];

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

/// Copies a folder and adds the tokenizer that all tiny models share.
fn folder(form: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(goldens().join("packed").join(form).join(file), folder.path().join(file)).unwrap();
    }
    fs::copy(goldens().join("families/tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    folder
}

#[test]
fn weights_of_other_quantisers_have_their_elements() {
    for (form, encoding) in FORMS {
        let folder = folder(form);
        let checkpoint = open(folder.path()).unwrap_or_else(|error| panic!("{form}: {error}"));
        let golden = fs::read(goldens().join("packed").join(form).join("golden.json")).unwrap();
        let digests: BTreeMap<String, String> = serde_json::from_slice(&golden).unwrap();
        assert_eq!(digests.len(), 7, "{form}");
        for (name, expected) in digests {
            let weight = checkpoint.weights.weight(&name).unwrap_or_else(|error| panic!("{form}: {error}"));
            // The columns of a weight with one group are in order.
            let ordered = form == "gptq-act-order" && name.ends_with("down_proj.weight");
            let encoding = if ordered { Encoding::Uint4 } else { encoding };
            assert_eq!(weight.encoding, encoding, "{form} {name}");
            let bytes: Vec<u8> = weight.to_f32().iter().flat_map(|x| x.to_le_bytes()).collect();
            assert_eq!(Sha256::of(&bytes).to_string(), expected, "{form} {name}");
        }
    }
}

#[test]
fn headers_alone_have_the_architecture() {
    for (form, _) in FORMS {
        let folder = folder(form);
        let path = folder.path().join("model.safetensors");
        let bytes = fs::read(&path).unwrap();
        let header = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        fs::write(&path, &bytes[..header]).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(bytes.len() as u64).unwrap();
        architecture_from_headers(folder.path()).unwrap_or_else(|error| panic!("{form}: {error}"));
    }
}

#[test]
fn a_weight_without_its_scales_and_one_with_others_are_named() {
    let check =
        |form: &str, change: &dyn Fn(&mut serde_json::Map<String, serde_json::Value>), expect: &str| {
            let folder = folder(form);
            let path = folder.path().join("model.safetensors");
            let bytes = fs::read(&path).unwrap();
            let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
            let mut header = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
            change(&mut header);
            let header = serde_json::Value::Object(header).to_string();
            let file =
                [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[8 + length..]].concat();
            fs::write(&path, file).unwrap();
            let error = open(folder.path()).err().unwrap().to_string();
            assert!(error.contains(expect), "{form}: {error} lacks {expect}");
        };
    const SCALES: &str = "model.layers.0.mlp.up_proj.scales";
    const OTHER: &str = "model.layers.0.mlp.up_proj.other";
    let rename = |header: &mut serde_json::Map<String, serde_json::Value>| {
        let scales = header.remove(SCALES).unwrap();
        header.insert(OTHER.to_owned(), scales);
    };
    check("awq", &rename, "model.layers.0.mlp.up_proj.scales");
    let flat = |header: &mut serde_json::Map<String, serde_json::Value>| {
        header[SCALES]["shape"] = serde_json::json!([64]);
    };
    check("gptq", &flat, "a model.layers.0.mlp.up_proj.qweight whose groups have its scales and zero points");
}

#[test]
fn a_group_that_is_not_there_is_refused() {
    let folder = folder("gptq-act-order");
    let path = folder.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let start = header["model.layers.0.mlp.up_proj.g_idx"]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[8 + length + start] = 2;
    fs::write(&path, bytes).unwrap();
    let error = open(folder.path()).err().unwrap().to_string();
    assert!(error.contains("a group below 2 for each of the 64 columns"), "{error}");
}
