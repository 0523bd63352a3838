//! Whole checkpoints: both formats yield the same weights, and malformed files cause only errors.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use narthex_checkpoint::{Checkpoint, CheckpointError, Encoding, open, parameters};
use narthex_spec::arch::Architecture;
use narthex_testkit::checkpoint::{
    TinyWeight, tiny_bert, tiny_bert_safetensors, tiny_bert_weights, tiny_llama, tiny_llama_gguf,
    tiny_llama_safetensors, tiny_llama_shards, tiny_llama_weights,
};
use proptest::{prelude::*, test_runner::RngSeed};
use serde_json::{Map, Value};

fn opened(path: &Path) -> Checkpoint {
    open(path).unwrap_or_else(|error| panic!("{error}"))
}

fn check_weights(checkpoint: &Checkpoint, expect: &[TinyWeight]) {
    for weight in expect {
        let found = checkpoint.weights.weight(&weight.name).unwrap_or_else(|error| panic!("{error}"));
        found.expect_shape(&weight.shape).unwrap_or_else(|error| panic!("{error}"));
        assert!(found.to_f32() == weight.values, "{} differs", weight.name);
    }
}

#[test]
fn every_format_has_the_same_weights() {
    for seed in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let [single, sharded, bert] = ["single", "sharded", "bert"].map(|name| folder.path().join(name));
        for path in [&single, &sharded, &bert] {
            fs::create_dir(path).unwrap();
        }
        let file = folder.path().join("tiny.gguf");
        fs::write(&file, tiny_llama_gguf(seed)).unwrap();
        tiny_llama_safetensors(&single, seed).unwrap();
        tiny_llama_shards(&sharded, seed).unwrap();
        let decoder = opened(&file);
        for path in [&file, &single, &sharded] {
            let checkpoint = opened(path);
            assert_eq!(checkpoint.architecture, decoder.architecture);
            assert_eq!(checkpoint.special.stop, decoder.special.stop);
            assert_eq!(checkpoint.special.texts, decoder.special.texts);
            assert_eq!(checkpoint.chat_template, decoder.chat_template);
            assert_eq!((checkpoint.max_length, checkpoint.license.as_deref()), (256, Some("apache-2.0")));
            check_weights(&checkpoint, &tiny_llama_weights(seed));
        }
        let file = folder.path().join("bert.gguf");
        fs::write(&file, tiny_bert(seed).to_bytes()).unwrap();
        tiny_bert_safetensors(&bert, seed).unwrap();
        assert_eq!(opened(&file).architecture, opened(&bert).architecture);
        for path in [&file, &bert] {
            assert_eq!(opened(path).max_length, 64);
            check_weights(&opened(path), &tiny_bert_weights(seed));
        }
    }
}

#[test]
fn both_formats_tokenize_text_equally() {
    let folder = tempfile::tempdir().unwrap();
    let [llama, bert] = ["llama", "bert"].map(|name| folder.path().join(name));
    fs::create_dir(&llama).unwrap();
    fs::create_dir(&bert).unwrap();
    tiny_llama_safetensors(&llama, 1).unwrap();
    tiny_bert_safetensors(&bert, 1).unwrap();
    for (path, file) in [(llama, tiny_llama(1)), (bert, tiny_bert(1))] {
        let gguf = folder.path().join("tiny.gguf");
        fs::write(&gguf, file.to_bytes()).unwrap();
        let [a, b] = [path, gguf]
            .map(|path| opened(&path).tokenizer.tokenizer().unwrap_or_else(|error| panic!("{error}")));
        for text in ["The cat sat in the house: 42 times!", "what is it, où?", ""] {
            let tokens = a.encode_document(text).unwrap();
            assert_eq!(tokens, b.encode_document(text).unwrap(), "{text}");
            assert!(text.is_empty() || tokens.len() > 4);
        }
    }
}

#[test]
fn gguf_rows_keep_their_encoding_under_the_permutation() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tiny.gguf");
    let parts = tiny_llama(1);
    fs::write(&file, parts.to_bytes()).unwrap();
    let checkpoint = opened(&file);
    let q = checkpoint.weights.weight("layers.0.attn.q_proj.weight").unwrap();
    let stored = &parts.tensors.iter().find(|tensor| tensor.name == "blk.0.attn_q.weight").unwrap().bytes;
    assert_eq!(q.encoding, Encoding::Q4_0);
    let row = stored.len() / q.rows_len();
    // Canonical row 9 is the second element of the second half of a head; it is stored as row 3 of that head.
    assert_eq!(q.row_bytes(1), &stored[2 * row..3 * row]);
    assert_eq!(q.row_bytes(9), &stored[3 * row..4 * row]);
}

#[test]
fn files_of_other_prefixes_are_read() {
    let rename = |from: &'static str, to: &'static str| {
        let folder = tempfile::tempdir().unwrap();
        let weights = match from {
            "model." => {
                tiny_llama_safetensors(folder.path(), 1).unwrap();
                tiny_llama_weights(1)
            }
            _ => {
                tiny_bert_safetensors(folder.path(), 1).unwrap();
                tiny_bert_weights(1)
            }
        };
        let path = folder.path().join("model.safetensors");
        let bytes = fs::read(&path).unwrap();
        let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        let header = std::str::from_utf8(&bytes[8..8 + length]).unwrap();
        let header = header.replace(&format!("\"{from}"), &format!("\"{to}"));
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[8 + length..]];
        fs::write(&path, file.concat()).unwrap();
        check_weights(&opened(folder.path()), &weights);
    };
    rename("model.", "");
    rename("e", "bert.e");
}

/// Opens a file with `bytes` and reads every weight in it, so that hostile content reaches all code.
fn survives(path: &Path, bytes: &[u8], weights: &[TinyWeight]) -> Result<(), CheckpointError> {
    fs::write(path, bytes).map_err(|source| CheckpointError::Read { path: path.to_owned(), source })?;
    let folder = path.parent().filter(|_| path.ends_with("model.safetensors"));
    let checkpoint = open(folder.unwrap_or(path))?;
    for weight in weights {
        if let Ok(found) = checkpoint.weights.weight(&weight.name) {
            // A changed file may state another shape; the weight then has that shape.
            assert_eq!(found.to_f32().len(), found.shape.iter().product::<usize>());
        }
    }
    Ok(())
}

/// Returns the peak memory of this process in KiB, or `None` if the system does not report it.
fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[test]
fn truncated_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    tiny_llama_safetensors(folder.path(), 1).unwrap();
    let weights = tiny_llama_weights(1);
    let hf = folder.path().join("model.safetensors");
    let gguf = folder.path().join("tiny.gguf");
    let files = [(hf.clone(), fs::read(&hf).unwrap()), (gguf, tiny_llama_gguf(1))];
    for (path, whole) in &files {
        for part in 0..16 {
            let error = survives(path, &whole[..whole.len() * part / 16], &weights).err();
            let error = error.unwrap_or_else(|| panic!("{part}/16 of {} opened", path.display())).to_string();
            let name = path.file_name().unwrap().to_string_lossy();
            assert!(error.contains(&*name) && error.contains("expected"), "{error}");
        }
        // Truncations throughout the part before the weights, and one of the last byte.
        for length in (0..whole.len().min(40_000)).step_by(97).chain([whole.len() - 1]) {
            assert!(survives(path, &whole[..length], &weights).is_err(), "{length} of {}", path.display());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, rng_seed: RngSeed::Fixed(20), ..ProptestConfig::default() })]

    #[test]
    fn flipped_bytes_do_no_harm(
        flips in prop::collection::vec((0usize..30_000, any::<u8>()), 1..6),
        wide in prop::option::of((0usize..30_000, any::<u64>())),
    ) {
        let folder = tempfile::tempdir().unwrap();
        tiny_bert_safetensors(folder.path(), 1).unwrap();
        let hf = folder.path().join("model.safetensors");
        let before = peak_memory();
        let weights = tiny_bert_weights(1);
        for (path, whole) in [
            (hf.clone(), fs::read(&hf).unwrap()),
            (folder.path().join("bert.gguf"), tiny_bert(1).to_bytes()),
        ] {
            // Headers take the first tenth of these files and determine everything else.
            let header = whole.len().min(6_000);
            let mut bytes = whole;
            for &(at, value) in &flips {
                bytes[at % header] = value;
            }
            if let Some((at, value)) = wide {
                let at = at % header;
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
            // Opening may succeed: a changed byte inside a weight is valid.
            let _ = survives(&path, &bytes, &weights);
        }
        if let (Some(before), Some(after)) = (before, peak_memory()) {
            // The system's count may lag behind by some pages.
            let more = after.saturating_sub(before);
            prop_assert!(more < 256 << 10, "{more} KiB more");
        }
    }

    #[test]
    fn flipped_json_does_no_harm(
        file in 0usize..7,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let name = [
            "config.json", "tokenizer.json", "tokenizer_config.json", "modules.json", "1_Pooling/config.json",
            "sentence_bert_config.json", "model.safetensors",
        ][file];
        tiny_bert_safetensors(folder.path(), 1).unwrap();
        let path = folder.path().join(name);
        let mut bytes = fs::read(&path).unwrap();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        fs::write(&path, bytes).unwrap();
        let _ = open(folder.path()).map(|checkpoint| {
            tiny_bert_weights(1).iter().for_each(|weight| drop(checkpoint.weights.weight(&weight.name).map(|w| w.to_f32())));
        });
    }
}

#[test]
fn parameters_are_the_elements_of_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    tiny_bert_safetensors(folder.path(), 7).unwrap();
    let architecture = open(folder.path()).unwrap().architecture;
    let weights = tiny_bert_weights(7);
    let elements: usize = weights.iter().map(|weight| weight.values.len()).sum();
    assert_eq!(parameters(&architecture), elements as u64);
}

#[test]
fn models_without_a_head_need_the_list_of_their_modules() {
    let check = |family: &str, expect: &str| {
        let golden =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../device/tests/goldens/embedders").join(family);
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| fs::copy(golden.join(name), folder.path().join(name)).unwrap();
        file("config.json");
        let error = narthex_checkpoint::architecture(folder.path()).unwrap_err().to_string();
        assert!(error.contains("modules.json") && error.contains(expect), "{error}");
        for module in ["1_Pooling/config.json", "2_Dense/config.json", "3_Dense/config.json"] {
            if golden.join(module).is_file() {
                fs::create_dir_all(folder.path().join(module).parent().unwrap()).unwrap();
                file(module);
            }
        }
        file("modules.json");
        let architecture = narthex_checkpoint::architecture(folder.path()).unwrap();
        assert!(matches!(architecture, Architecture::Embedder(_)), "{architecture:?}");
    };
    check("qwen3", "Qwen3Model");
    check("gemma3", "bidirectional attention");
}

/// Returns the number of elements of each tensor of a safetensors file, by its name.
fn stored_elements(file: &Path) -> BTreeMap<String, u64> {
    let bytes = fs::read(file).unwrap();
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__" && !name.ends_with("_scales"));
    let elements = tensors.map(|(name, tensor)| {
        let shape = tensor["shape"].as_array().unwrap();
        // A byte of MXFP4 has two elements.
        let in_one = if name.ends_with("_blocks") { 2 } else { 1 };
        (name, shape.iter().map(|extent| extent.as_u64().unwrap()).product::<u64>() * in_one)
    });
    elements.collect()
}

/// Returns the folders of tiny checkpoints.
fn tiny_checkpoints() -> Vec<PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let goldens = ["checkpoint/tests/goldens", "checkpoint/tests/goldens/families"];
    let more = ["encoders", "embedders", "scorers"].map(|kind| format!("device/tests/goldens/{kind}"));
    let folders = goldens
        .map(str::to_owned)
        .into_iter()
        .chain(more)
        .flat_map(|goldens| crates.join(goldens).read_dir().unwrap());
    let folders = folders.map(|entry| entry.unwrap().path());
    folders.filter(|folder| folder.join("model.safetensors").is_file()).collect()
}

#[test]
fn an_architecture_states_every_weight_of_its_checkpoint() {
    let folders = tiny_checkpoints();
    assert!(folders.len() > 30, "{folders:?}");
    for folder in folders {
        // Every stated weight is in the file, or the checkpoint is refused.
        let architecture = narthex_checkpoint::architecture(&folder);
        let architecture = architecture.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut weights = architecture.weights();
        let mut stored = stored_elements(&folder.join("model.safetensors"));
        for dense in ["2_Dense", "3_Dense"].map(|dense| folder.join(dense).join("model.safetensors")) {
            if dense.is_file() {
                let elements = stored_elements(&dense).into_values().sum();
                stored.insert(dense.display().to_string(), elements);
            }
        }

        // A file of an encoder has several heads.
        if let Architecture::Encoder(_) = architecture {
            weights.retain(|weight| weight.name.layer.is_some());
            stored.retain(|name, _| name.contains(".layer.") || name.contains("layers."));
        }
        // The head of a language model that ranks by its answers, from which its classifier is computed.
        if matches!(architecture, Architecture::Embedder(_)) && stored.remove("lm_head.weight").is_some() {
            weights.retain(|weight| weight.name.path != "score.out.weight");
        }
        // Towers, and layers that predict several tokens, which are not read.
        stored.remove("model.vision_tower.stem.weight");
        let unread =
            ["model.visual.", "mtp.", "model.vision_tower.patch_embedder.", "model.audio_tower.layers."];
        stored.retain(|name, _| !unread.iter().any(|prefix| name.starts_with(prefix)));
        // Layers that share keys and values may have their own in the file, which are not read.
        if let Architecture::Decoder(arch) = &architecture
            && let Some(layer) = arch.layers.iter().position(|layer| layer.shared_entry().is_some())
        {
            stored.retain(|name, _| {
                let number = name.split('.').find_map(|part| part.parse::<usize>().ok());
                let is_attention = ["k_proj", "v_proj", "k_norm"].iter().any(|part| name.contains(part));
                !(name.contains("language_model.layers") && is_attention && number >= Some(layer))
            });
        }
        let stated: usize = weights.iter().map(|weight| weight.shape.iter().product::<usize>()).sum();
        let stored: u64 = stored.values().sum();
        assert_eq!(stated as u64, stored, "{}", folder.display());
    }
}
