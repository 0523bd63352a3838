//! What a user's text names, for those who look at a model without loading it: files, a package, or settings.
//!
//! No weight is read; the headers of files of weights are. Start at [`find`].

use std::{
    fs,
    path::{Path, PathBuf},
};

use narthex_catalog::{
    fetch,
    index::{Entry, Kind},
    resolve::{Location, ModelRef, Resolved},
    source::hub::Stated,
};
use narthex_check::CheckError;
use narthex_checkpoint as checkpoint;
use narthex_compile::CompileError;
use narthex_graph::onnx::files::{OnnxFileError, graph_files};
use narthex_spec::{Scheme, arch::Architecture, manifest::Manifest};

use crate::{
    cancel::Cancel,
    error::Error,
    gateway::Inner,
    library::{
        models,
        names::{PackageKey, split_scheme},
    },
};

/// What a user's text turned out to name.
pub(crate) enum Subject {
    /// ONNX files.
    Graphs(Vec<PathBuf>),
    /// An installed package and its folder.
    Package(Box<Manifest>, PathBuf),
    /// A model whose settings are known.
    Checkpoint(Box<Settled>),
    /// A model of the catalogue that this version does not compile, and why.
    Unknown(String),
}

/// A model by its settings.
pub(crate) struct Settled {
    /// What it computes.
    pub(crate) architecture: Architecture,
    /// The scheme that the text names, or the usual one.
    pub(crate) scheme: Scheme,
    /// What its repository says of itself, of a model on the hub.
    pub(crate) stated: Option<Stated>,
}

/// Finds what a text names: an installed package, else an entry of the catalogue, else a model of the hub or a file.
pub(crate) fn find(inner: &Inner, text: &str, cancel: &Cancel) -> Result<Subject, Error> {
    let (name, scheme) = split_scheme(text);
    let scheme = scheme.unwrap_or(models::USUAL_SCHEME);
    if text.to_ascii_lowercase().ends_with(".onnx") {
        return from_path(Path::new(text), scheme);
    }
    match models::reference(inner, name)? {
        ModelRef::Local(path) => from_path(&path, scheme),
        reference => named(inner, &models::key(inner, text)?, &reference, cancel),
    }
}

fn from_path(path: &Path, scheme: Scheme) -> Result<Subject, Error> {
    let is_checkpoint =
        |ending: &str| path.extension().is_some_and(|found| found.eq_ignore_ascii_case(ending));
    if is_checkpoint("gguf") {
        return settings(path, scheme);
    }
    let files = graph_files(path).map_err(CheckError::from)?;
    if !files.is_empty() {
        return Ok(Subject::Graphs(files));
    }
    match settings(path, scheme) {
        Ok(found) => Ok(found),
        // A folder with neither: say what was looked for first.
        Err(_) if !holds_checkpoint(path) => {
            Err(CheckError::from(OnnxFileError::NoModel { path: path.to_owned() }).into())
        }
        Err(error) => Err(error),
    }
}

/// Whether a folder has a file of a checkpoint, whatever it is worth.
fn holds_checkpoint(folder: &Path) -> bool {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.map(|name| name.to_string_lossy().to_ascii_lowercase()).any(|name| {
        name == "config.json" || [".gguf", ".safetensors"].iter().any(|ending| name.ends_with(ending))
    })
}

fn settings(path: &Path, scheme: Scheme) -> Result<Subject, Error> {
    let architecture = checkpoint::architecture(path).map_err(CompileError::from)?;
    Ok(Subject::Checkpoint(Box::new(Settled { architecture, scheme, stated: None })))
}

/// An installed package, else what the catalogue says of a model, else the settings of a model that is not here.
fn named(inner: &Inner, key: &PackageKey, reference: &ModelRef, cancel: &Cancel) -> Result<Subject, Error> {
    if let Some(folder) = inner.store.package(&key.name, key.scheme) {
        return Ok(Subject::Package(Box::new(models::manifest(inner, key)?), folder));
    }
    if let Some(entry) = inner.catalog.get(&key.name) {
        return Ok(match architecture(entry) {
            Ok(architecture) => {
                Subject::Checkpoint(Box::new(Settled { architecture, scheme: key.scheme, stated: None }))
            }
            Err(error) => Subject::Unknown(error.to_string()),
        });
    }
    let resolved = reference.resolve(&inner.catalog)?;
    if let Some(outline) = fetch::outline(&inner.store, &resolved, &checkpoint::wanted, cancel.flag())? {
        let there = |path: &Path| in_repo(&resolved, path.strip_prefix(outline.path()).unwrap_or(path));
        let architecture =
            checkpoint::outlined(outline.path()).map_err(|error| CompileError::from(error.renamed(there)))?;
        let stated = Some(outline.stated);
        return Ok(Subject::Checkpoint(Box::new(Settled { architecture, scheme: key.scheme, stated })));
    }
    match fetch::settings(&resolved, cancel.flag())? {
        Some(folder) => settings(&folder, key.scheme),
        None => Err(Error::NotInstalled { name: key.name.clone() }),
    }
}

/// What a user calls a file of a repository, which was read out of a folder for the while.
fn in_repo(resolved: &Resolved, file: &Path) -> PathBuf {
    match &resolved.source {
        Location::Hub(source) => Path::new(&format!("hf:{}", source.repo)).join(file),
        Location::Wheel { .. } | Location::Local(_) => file.to_owned(),
    }
}

/// What a model of the catalogue computes, by what its entry says.
///
/// # Errors
/// [`Error::Compile`] for a family that is not compiled.
pub(crate) fn architecture(entry: &Entry) -> Result<Architecture, Error> {
    let pooling = entry.pooling.filter(|_| entry.kind == Kind::Embedding);
    Ok(checkpoint::stated(entry.config.clone(), pooling).map_err(CompileError::from)?)
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
                Ok(Subject::Checkpoint(_)) => "a checkpoint".to_owned(),
                Ok(_) => "something else".to_owned(),
                Err(error) => error.to_string(),
            };
            assert!(found.contains(expect), "{found} lacks {expect}");
        };
        let (gguf, model) = (tiny_llama_gguf(7), tempfile::tempdir().unwrap());
        tiny_llama_safetensors(model.path(), 7).unwrap();
        let config = fs::read(model.path().join("config.json")).unwrap();
        check(&[("notes.txt", b"")], "holds no .onnx file");
        check(&[("m.gguf", &gguf)], "a checkpoint");
        check(&[("m.GGUF", &gguf[..gguf.len() / 2])], "m.GGUF is malformed");
        check(&[("a.gguf", &gguf), ("b.gguf", &gguf)], "expected a single .gguf file");
        check(&[("model.safetensors", b"")], "give the folder that holds them");
        check(&[("config.json", &config)], "a checkpoint");
        check(&[("config.json", &config), ("model.safetensors", b"")], "model.safetensors is malformed");
    }
}
