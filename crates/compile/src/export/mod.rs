//! Exports of models for other software.
//!
//! [`genai()`] writes a package as a folder for onnxruntime-genai: variant A preceded by its embedding,
//! `genai_config.json`, and the tokenizer's files; the weights are a byte-identical copy. [`quark()`] writes a
//! checkpoint in the form that AMD's tools read; its weights have another form than those of a package.

mod config;
mod genai;
mod quark;

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use narthex_files::open_regular;
use narthex_graph::{Graph, onnx::files::open_files};
use narthex_spec::{
    Variant,
    arch::{DecoderArch, Structure},
    manifest::{GraphEntry, Manifest},
};

pub use quark::{GROUPS, QuarkJob, quark};

use crate::{
    error::{CompileError, Result},
    import::refused,
};

/// A package to export, and its destination.
#[derive(Debug, Clone, Copy)]
pub struct ExportJob<'a> {
    /// The package's folder.
    pub package: &'a Path,
    /// Its manifest.
    pub manifest: &'a Manifest,
    /// Destination folder; it must be missing or empty.
    pub out: &'a Path,
}

/// Writes a package as a folder for onnxruntime-genai. After a failure there is no partial folder.
///
/// # Errors
/// [`CompileError::Foreign`] for encoders, imports, and decoders that onnxruntime-genai has no settings for;
/// [`CompileError::Open`] for a package that cannot be read; [`CompileError::Write`].
pub fn genai(job: &ExportJob<'_>) -> Result<()> {
    let (arch, entry) = decoder(job.manifest)?;
    let graph = genai::graph(job, arch, entry)?;
    let files = config::files(job, arch, entry)?;
    let partial = PartialFolder::beside(job.out)?;
    let write = |name: &str, bytes: &[u8]| {
        let path = partial.0.join(name);
        fs::write(&path, bytes).map_err(|source| CompileError::Write { path, source })
    };
    write(config::GRAPH, &graph.encode())?;
    for (name, bytes) in &files {
        write(name, bytes)?;
    }
    for name in genai::data_files(&graph) {
        let to = partial.0.join(&name);
        let copied = open_regular(&job.package.join(&name))
            .and_then(|mut from| io::copy(&mut from, &mut File::create(&to)?));
        copied.map_err(|source| CompileError::Write { path: to, source })?;
    }
    partial.commit(job.out)
}

/// Returns a decoder that Narthex compiled, and its graph for CPUs and GPUs.
fn decoder(manifest: &Manifest) -> Result<(&DecoderArch, &GraphEntry)> {
    let other = |found: &str| {
        refused(format!("export of {}", manifest.name), "a chat model that Narthex compiled", found)
    };
    let arch = match &manifest.architecture {
        Structure::Decoder(arch) => arch,
        Structure::Encoder(_) | Structure::ImportedEncoder(_) => return Err(other("an encoder")),
        Structure::ImportedDecoder(_) => {
            return Err(other("an import, which is an ONNX export already"));
        }
    };
    if let Some(tokens) = arch.kept_tokens {
        return Err(other(&format!(
            "a head for only {tokens} of {} tokens, which other programs cannot interpret",
            arch.vocab
        )));
    }
    let entry = manifest.graphs.iter().find(|graph| graph.variant == Variant::Dynamic);
    Ok((arch, entry.ok_or_else(|| other("no graph of symbolic shapes"))?))
}

/// Reads the package's graph.
fn open(job: &ExportJob<'_>, entry: &GraphEntry) -> Result<Graph> {
    let parts = open_files(&[job.package.join(&entry.file)])?;
    parts
        .into_iter()
        .next()
        .map(|part| part.graph)
        .ok_or_else(|| refused(format!("graph of {}", job.manifest.name), entry.file.as_str(), "none"))
}

/// An unfinished folder, which is removed on drop unless `commit` renamed it.
struct PartialFolder(PathBuf);

impl PartialFolder {
    /// Creates the unfinished folder next to `out`, which must be missing or empty.
    fn beside(out: &Path) -> Result<Self> {
        let failed = |source| CompileError::Write { path: out.to_owned(), source };
        let taken = |reason: &str| failed(io::Error::new(io::ErrorKind::AlreadyExists, reason));
        if out.is_file() {
            return Err(taken("it is a file"));
        }
        if fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(taken("the folder is not empty"));
        }
        let mut name = std::ffi::OsString::from(".");
        name.push(out.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?);
        name.push(format!(".{}", std::process::id()));
        let path = out.with_file_name(name);
        fs::create_dir_all(&path).map_err(failed)?;
        Ok(Self(path))
    }

    fn commit(self, out: &Path) -> Result<()> {
        // A complete folder replaces an empty one.
        let _ = fs::remove_dir(out);
        fs::rename(&self.0, out).map_err(|source| CompileError::Write { path: out.to_owned(), source })
    }
}

impl Drop for PartialFolder {
    fn drop(&mut self) {
        // After `commit` there is nothing to remove. A failed removal leaves a hidden folder that nothing refers to.
        let _ = fs::remove_dir_all(&self.0);
    }
}
