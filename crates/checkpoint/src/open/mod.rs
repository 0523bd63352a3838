//! Choice of the reader for a path.
//!
//! Only names and the first bytes are examined here; the readers do the rest.

mod ct2;
mod gguf;
mod hf;

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use narthex_files::{PartName, open_regular};
use narthex_spec::arch::{Architecture, Pooling};

use crate::{
    adapter::{ADAPTER_CONFIG, Adapter},
    checkpoint::Checkpoint,
    ct2::is_whisper as is_ct2_whisper,
    error::{CheckpointError, Result},
    hf::CONFIG,
    limits::{unreadable, unsupported},
    safetensors::{self, INDEX, SINGLE, refuse_other_formats},
    tensors::file_name,
};

/// Maximum number of names in a message.
const MAX_LISTED: usize = 12;

/// Opens a checkpoint: a GGUF file or any part of one, a folder with `config.json` and safetensors, a folder with one GGUF
/// file or its parts, or a folder with the `model.bin` of CTranslate2.
///
/// A folder with both formats is read as safetensors, which has the higher precision. Weights stay encoded and
/// memory-mapped. Every tensor that the architecture needs is checked for its presence and shape.
///
/// # Errors
/// [`CheckpointError::Read`] for files that cannot be read; [`CheckpointError::Unsupported`], with the next step, for
/// models that are not supported; the other variants for malformed files.
pub fn open(path: &Path) -> Result<Checkpoint> {
    open_with(path, &[])
}

/// Opens a checkpoint as [`open`] does, with the updates of adapters in its weights.
///
/// # Errors
/// As [`open`]; [`CheckpointError::Unsupported`] for adapters in another format or of another model.
pub fn open_with(path: &Path, adapters: &[Adapter]) -> Result<Checkpoint> {
    if !fs::metadata(path).map_err(unreadable(path))?.is_dir() {
        return open_file(path, adapters);
    }

    let mut names: Vec<String> = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable(path))? {
        names.push(entry.map_err(unreadable(path))?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    let has_config = names.iter().any(|name| name == CONFIG);
    if has_config && names.iter().any(|name| name == SINGLE || name == INDEX) {
        return hf::open(path, adapters).map_err(|error| error.in_file(path));
    }

    if is_ct2_whisper(path) {
        if let Some(adapter) = adapters.first() {
            let expected = "no adapter for a model of CTranslate2; take the model in safetensors";
            return Err(unsupported("adapter", expected, &adapter.entry().name).in_file(path));
        }
        return ct2::open(path).map_err(|error| error.in_file(path));
    }
    let ggufs: Vec<PathBuf> = names.iter().filter(|name| is_gguf(name)).map(|name| path.join(name)).collect();
    match &ggufs[..] {
        [file] => gguf::open(file, adapters),
        [] => {
            refuse_other_formats(&names)?;
            if names.iter().any(|name| name == ADAPTER_CONFIG) {
                let expected = "a model; add the adapter to its model with compile MODEL --lora";
                return Err(unsupported(
                    format!("content of {}", path.display()),
                    expected,
                    "an adapter of PEFT",
                ));
            }
            if let Some(weights) = names.iter().find(|name| name.ends_with(".safetensors") && !has_config) {
                let reason = format!("the file is missing beside {weights}; copy it from the model's page");
                let source = io::Error::new(io::ErrorKind::NotFound, reason);
                return Err(CheckpointError::Read { path: path.join(CONFIG), source });
            }
            let expected =
                "a .gguf file, or config.json with model.safetensors; give the folder that contains them";
            Err(unsupported(format!("content of {}", path.display()), expected, listed(&names)))
        }
        [first, ..] => {
            let names: Vec<String> = ggufs.iter().map(|file| file_name(file)).collect();
            if are_parts_of_one_file(&names) {
                return gguf::open(first, adapters);
            }
            let expected = "a single .gguf file; give the path of the one you want";
            Err(unsupported(format!("content of {}", path.display()), expected, listed(&names)))
        }
    }
}

/// Returns a checkpoint's architecture. A folder's `config.json` suffices without weights; if there are weights, every
/// tensor is checked for its presence and shape.
///
/// # Errors
/// As [`open`].
pub fn architecture(path: &Path) -> Result<Architecture> {
    let names = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.file_name());
    // An index without shards, such as one fetched with a publisher's other small files, does not count as weights.
    let mut shards = names.filter(|name| name.to_string_lossy().ends_with(".safetensors"));
    let has_weights = [SINGLE, INDEX].iter().any(|name| path.join(name).is_file()) && shards.next().is_some();
    if !has_weights && is_ct2_whisper(path) {
        return ct2::architecture(path).map_err(|error| error.in_file(path));
    }
    if path.join(CONFIG).is_file() && !has_weights {
        return hf::architecture(path).map_err(|error| error.in_file(path));
    }
    architecture_from_headers(path)
}

/// Returns the number of bytes to read from the start of a weights file for the list of its tensors, estimated from
/// `beginning`. The result is `None` if `beginning` suffices, and for files that are not supported.
pub fn header_length(name: &str, beginning: &[u8]) -> Option<u64> {
    if is_gguf(name) { crate::gguf::header_length(beginning) } else { safetensors::header_length(beginning) }
}

/// Returns the architecture of a checkpoint whose weights files have only their first [`header_length`] bytes, each in
/// a file of the full length. Every tensor is checked for its presence and shape.
///
/// # Errors
/// As [`open`].
pub fn architecture_from_headers(path: &Path) -> Result<Architecture> {
    if path.join(CONFIG).is_file() {
        return hf::architecture_from_headers(path).map_err(|error| error.in_file(path));
    }
    Ok(open(path)?.architecture)
}

/// Settings of an embedding model that its `config.json` does not have.
#[derive(Debug, Clone, Copy)]
pub struct PublishedEmbedding<'a> {
    /// Pooling of rows into one vector.
    pub pooling: Pooling,
    /// Widths of linear layers between pooling and vector.
    pub dense: &'a [usize],
}

/// Returns the architecture from a publisher's settings, without a folder: the keys of a `config.json`, and the settings of
/// an embedding model.
///
/// # Errors
/// As [`open`], for keys that contradict each other or are not supported.
pub fn architecture_from_config(
    config: serde_json::Value,
    embedding: Option<PublishedEmbedding<'_>>,
) -> Result<Architecture> {
    hf::architecture_from_config(config, embedding)
}

fn open_file(path: &Path, adapters: &[Adapter]) -> Result<Checkpoint> {
    let mut magic = Vec::new();
    let file = open_regular(path).map_err(unreadable(path))?;
    file.take(4).read_to_end(&mut magic).map_err(unreadable(path))?;
    let name = file_name(path);
    if magic == b"GGUF" || is_gguf(&name) {
        return gguf::open(path, adapters);
    }
    let expected = "a .gguf file, or the folder that contains config.json and model.safetensors";
    Err(unsupported("file", expected, name))
}

fn are_parts_of_one_file(names: &[String]) -> bool {
    let Some(first) = names.first().and_then(|name| PartName::parse(name)) else { return false };
    names.iter().all(|name| PartName::parse(name).is_some_and(|part| part.is_of_same_file(first)))
}

fn is_gguf(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".gguf")
}

/// Lists the first names of a folder, for a message.
fn listed(names: &[String]) -> String {
    if names.is_empty() {
        return "an empty folder".to_owned();
    }
    let mut shown = names.iter().take(MAX_LISTED).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > MAX_LISTED {
        shown.push_str(&format!(" and {} more", names.len() - MAX_LISTED));
    }
    shown
}

#[cfg(test)]
mod tests {
    use narthex_testkit::checkpoint::{
        hf_tensors, safetensors_bytes, tiny_llama_gguf, tiny_llama_safetensors, tiny_llama_weights,
    };

    use super::*;
    use crate::checkpoint::TokenizerSource;

    fn check(files: &[&str], expect: &str) {
        let folder = tempfile::tempdir().unwrap();
        for name in files {
            match *name {
                "hf" => tiny_llama_safetensors(folder.path(), 1).unwrap(),
                name if name.ends_with("gguf") => {
                    fs::write(folder.path().join(name), tiny_llama_gguf(1)).unwrap()
                }
                name => fs::write(folder.path().join(name), "").unwrap(),
            }
        }
        let found = match open(folder.path()).map(|checkpoint| checkpoint.tokenizer) {
            Ok(TokenizerSource::Gguf(_)) => "gguf".to_owned(),
            Ok(TokenizerSource::Json(_)) => "safetensors".to_owned(),
            Err(error) => error.to_string(),
        };
        assert!(found.contains(expect), "{found} lacks {expect}");
    }

    #[test]
    fn the_files_of_a_folder_decide_the_format() {
        check(&["hf"], "safetensors");
        check(&["a.gguf"], "gguf");
        check(&["a.GGUF.gguf", "notes.txt"], "gguf");
        check(&["hf", "a.gguf"], "safetensors");
        check(&[], "found an empty folder");
        check(&["a.gguf", "b.gguf"], "found a.gguf, b.gguf, expected a single .gguf file");
        check(&["config.json", "pytorch_model.bin"], "save the model again as safetensors");
        check(&["config.json"], "found config.json, expected a .gguf file");
        check(
            &["model.safetensors"],
            "config.json: the file is missing beside model.safetensors; copy it from",
        );
        check(
            &["adapter_config.json", "adapter_model.safetensors"],
            "expected a model; add the adapter to its",
        );
        check(&["notes.txt"], "give the folder that contains them");
        let many: Vec<String> = (10..30).map(|i| format!("{i}.txt")).collect();
        check(&many.iter().map(String::as_str).collect::<Vec<_>>(), "21.txt and 8 more");
    }

    #[test]
    fn settings_suffice_for_the_architecture() {
        let folder = tempfile::tempdir().unwrap();
        tiny_llama_safetensors(folder.path(), 1).unwrap();
        let whole = open(folder.path()).unwrap().architecture;
        fs::write(folder.path().join(INDEX), r#"{"weight_map": {"t": "model-1-of-1.safetensors"}}"#).unwrap();
        for entry in fs::read_dir(folder.path()).unwrap() {
            let path = entry.unwrap().path();
            if !path.ends_with(CONFIG) && !path.ends_with(INDEX) {
                fs::remove_file(path).unwrap();
            }
        }
        assert!(open(folder.path()).is_err());
        assert_eq!(architecture(folder.path()).unwrap(), whole);
        fs::write(folder.path().join("model-1-of-2.safetensors"), "").unwrap();
        assert!(architecture(folder.path()).unwrap_err().to_string().contains("model-1-of-1.safetensors"));
        fs::write(folder.path().join("m.gguf"), tiny_llama_gguf(1)).unwrap();
        fs::remove_file(folder.path().join(CONFIG)).unwrap();
        assert!(matches!(architecture(folder.path()), Ok(Architecture::Decoder(_))));
    }

    #[test]
    fn present_weights_are_checked_against_the_settings() {
        let folder = tempfile::tempdir().unwrap();
        tiny_llama_safetensors(folder.path(), 1).unwrap();
        let refused = |expect: &str| {
            let found = architecture(folder.path()).unwrap_err().to_string();
            assert!(found.contains(expect), "{found} lacks {expect}");
            assert_eq!(Some(found), open(folder.path()).err().map(|error| error.to_string()));
        };
        let (weights, config) = (folder.path().join(SINGLE), folder.path().join(CONFIG));
        let whole = fs::read(&weights).unwrap();
        fs::write(&weights, &whole[..whole.len() - 5]).unwrap();
        refused("fetch it again");
        let lacking: Vec<_> = hf_tensors(&tiny_llama_weights(1)).into_iter().skip(1).collect();
        fs::write(&weights, safetensors_bytes(&lacking)).unwrap();
        refused("has no tensor for");
        fs::write(&weights, &whole).unwrap();
        let mut keys: serde_json::Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
        keys["intermediate_size"] = (keys["intermediate_size"].as_u64().unwrap() + 32).into();
        fs::write(&config, keys.to_string()).unwrap();
        refused("has the wrong shape: expected");
    }

    #[test]
    fn the_first_bytes_of_a_file_decide_the_format() {
        let folder = tempfile::tempdir().unwrap();
        let blob = folder.path().join("blob");
        fs::write(&blob, tiny_llama_gguf(1)).unwrap();
        assert!(open(&blob).is_ok_and(|checkpoint| checkpoint.files == [blob.clone()]));
        fs::write(&blob, "text").unwrap();
        let error = open(&blob).err().unwrap().to_string();
        assert!(error.contains("found blob"), "{error}");
        let absent = open(&folder.path().join("absent")).err().unwrap().to_string();
        assert!(absent.contains("cannot read") && absent.contains("absent"), "{absent}");
    }
}
