//! Resolution of a user's text to a model that is inspected without loading it: ONNX files, a package, or settings.
//!
//! Weights are not read, except for the headers of weight files. Start at [`find`].

use std::{
    fs,
    path::{Path, PathBuf},
};

use narthex_catalog::{
    fetch,
    index::Entry,
    resolve::{CheckpointSource, Location, ModelRef},
    source::hub::RepoSummary,
};
use narthex_check::CheckError;
use narthex_checkpoint::{self as checkpoint, PublishedEmbedding};
use narthex_compile::CompileError;
use narthex_graph::onnx::files::{OnnxFileError, graph_files};
use narthex_spec::{ModelKind, Scheme, arch::Architecture, manifest::Manifest};

use crate::{
    cancel::Cancel,
    error::Error,
    library::{
        DEFAULT_SCHEME, Library,
        package_key::{PackageKey, split_scheme},
    },
};

/// The model that a user's text names.
pub(crate) enum ResolvedModel {
    /// ONNX files.
    Graphs(Vec<PathBuf>),
    /// An installed package and its folder.
    Package(Box<Manifest>, PathBuf),
    /// A checkpoint whose settings are known.
    Checkpoint(Box<CheckpointSettings>),
    /// A model of the catalogue that this version does not compile, with the reason.
    Unsupported(Box<Error>),
}

pub(crate) struct CheckpointSettings {
    pub(crate) architecture: Architecture,
    /// Scheme that the text names, or the default one.
    pub(crate) scheme: Scheme,
    /// Metadata of the repository, for a model on the hub.
    pub(crate) stated: Option<RepoSummary>,
}

/// Finds the model to which a text refers: an installed package, else a catalogue entry, else a hub repository or a
/// file.
pub(crate) fn find(library: &Library, text: &str, cancel: &Cancel) -> Result<ResolvedModel, Error> {
    let (name, scheme) = split_scheme(text);
    let scheme = scheme.unwrap_or(DEFAULT_SCHEME);
    if text.to_ascii_lowercase().ends_with(".onnx") {
        return from_path(Path::new(text), scheme);
    }
    match library.reference(name)? {
        ModelRef::Local(path) => from_path(&path, scheme),
        reference => named(library, &library.key(text)?, &reference, cancel),
    }
}

fn from_path(path: &Path, scheme: Scheme) -> Result<ResolvedModel, Error> {
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
        return settings(path, scheme);
    }
    let files = graph_files(path).map_err(CheckError::from)?;
    if !files.is_empty() {
        return Ok(ResolvedModel::Graphs(files));
    }
    match settings(path, scheme) {
        Ok(found) => Ok(found),
        // A folder with neither: the error is about the missing graphs.
        Err(_) if !holds_checkpoint(path) => {
            Err(CheckError::from(OnnxFileError::NoModel { path: path.to_owned() }).into())
        }
        Err(error) => Err(error),
    }
}

/// Returns whether a folder has a file of a checkpoint, valid or not.
fn holds_checkpoint(folder: &Path) -> bool {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.map(|name| name.to_string_lossy().to_ascii_lowercase()).any(|name| {
        name == "config.json" || [".gguf", ".safetensors"].iter().any(|ending| name.ends_with(ending))
    })
}

fn settings(path: &Path, scheme: Scheme) -> Result<ResolvedModel, Error> {
    let architecture = checkpoint::architecture(path).map_err(CompileError::from)?;
    Ok(ResolvedModel::Checkpoint(Box::new(CheckpointSettings { architecture, scheme, stated: None })))
}

/// Finds an installed package, else a catalogue entry, else the settings of a remote model.
fn named(
    library: &Library,
    key: &PackageKey,
    reference: &ModelRef,
    cancel: &Cancel,
) -> Result<ResolvedModel, Error> {
    if let Some(folder) = library.store.package(&key.name, key.scheme) {
        return Ok(ResolvedModel::Package(Box::new(library.manifest(key)?), folder));
    }
    if let Some(entry) = library.catalog.get(&key.name) {
        return Ok(match architecture(entry) {
            Ok(architecture) => ResolvedModel::Checkpoint(Box::new(CheckpointSettings {
                architecture,
                scheme: key.scheme,
                stated: None,
            })),
            Err(error) => ResolvedModel::Unsupported(Box::new(error)),
        });
    }

    let resolved = reference.resolve(&library.catalog)?;
    if let Some(outline) =
        fetch::outline(&library.store, &resolved, &checkpoint::header_length, cancel.flag())?
    {
        let architecture =
            checkpoint::architecture_from_headers(&outline.checkpoint()).map_err(|error| {
                CompileError::from(error.renamed(|path: &Path| {
                    in_repo(&resolved, path.strip_prefix(outline.path()).unwrap_or(path))
                }))
            })?;
        let stated = Some(outline.stated);
        return Ok(ResolvedModel::Checkpoint(Box::new(CheckpointSettings {
            architecture,
            scheme: key.scheme,
            stated,
        })));
    }

    match fetch::settings(&library.store, &resolved, cancel.flag())? {
        Some(folder) => settings(&folder, key.scheme),
        None => Err(library.not_installed(key)),
    }
}

/// Returns a user's name of a repository's file, which was read from a temporary folder.
fn in_repo(resolved: &CheckpointSource, file: &Path) -> PathBuf {
    match &resolved.source {
        Location::Hub(source) => Path::new(&format!("hf:{}", source.repo)).join(file),
        Location::Wheel { .. } | Location::Local(_) => file.to_owned(),
    }
}

/// Returns the architecture of a catalogue entry.
///
/// # Errors
/// [`Error::Compile`] for a family that this version does not compile.
pub(crate) fn architecture(entry: &Entry) -> Result<Architecture, Error> {
    if entry.kind == ModelKind::Speech {
        let message = format!("{} is a voice, which is imported and not compiled", entry.name);
        return Err(Error::invalid("model", message));
    }
    let pooling = entry.pooling.filter(|_| entry.kind == ModelKind::Embedding);
    let embedding = pooling.map(|pooling| PublishedEmbedding { pooling, dense: &entry.dense });
    Ok(checkpoint::architecture_from_config(entry.config.clone(), embedding).map_err(CompileError::from)?)
}

#[cfg(test)]
mod tests {
    use narthex_testkit::checkpoint::{tiny_llama_gguf, tiny_llama_safetensors};

    use super::*;

    #[test]
    fn a_folder_s_own_checkpoint_says_what_is_wrong_with_it() {
        let check = |files: &[(&str, &[u8])], expect: &str| {
            let folder = tempfile::tempdir().unwrap();
            files.iter().for_each(|(name, bytes)| fs::write(folder.path().join(name), bytes).unwrap());
            let found = match from_path(folder.path(), Scheme::W8) {
                Ok(ResolvedModel::Checkpoint(_)) => "a checkpoint".to_owned(),
                Ok(_) => "something else".to_owned(),
                Err(error) => error.to_string(),
            };
            assert!(found.contains(expect), "{found} lacks {expect}");
        };
        let (gguf, model) = (tiny_llama_gguf(7), tempfile::tempdir().unwrap());
        tiny_llama_safetensors(model.path(), 7).unwrap();
        let config = fs::read(model.path().join("config.json")).unwrap();
        check(&[("notes.txt", b"")], "contains no .onnx file");
        check(&[("m.gguf", &gguf)], "a checkpoint");
        check(&[("m.GGUF", &gguf[..gguf.len() / 2])], "m.GGUF is malformed");
        check(&[("a.gguf", &gguf), ("b.gguf", &gguf)], "expected a single .gguf file");
        check(&[("model.safetensors", b"")], "config.json: the file is missing beside model.safetensors");
        check(&[("config.json", &config)], "a checkpoint");
        check(&[("config.json", &config), ("model.safetensors", b"")], "model.safetensors is malformed");
    }
}
