//! Exports of models for other software.
//!
//! [`genai()`] writes a package as a folder for onnxruntime-genai: the dynamic variant preceded by its embedding,
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

use narthex_files::{environment, open_regular};
use narthex_graph::{Graph, onnx::files::open_files};
use narthex_spec::{
    Variant,
    arch::{DecoderArch, Structure},
    manifest::{GraphEntry, Manifest},
};

pub use quark::{GROUPS, QuarkJob, quark};

use crate::{
    error::{Result, unwritable},
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
///
/// [`CompileError::Foreign`]: crate::CompileError::Foreign
/// [`CompileError::Open`]: crate::CompileError::Open
/// [`CompileError::Write`]: crate::CompileError::Write
pub fn genai(job: &ExportJob<'_>) -> Result<()> {
    let (arch, entry) = decoder(job.manifest)?;
    let graph = genai::graph(job, arch, entry)?;
    let files = config::files(job, arch, entry)?;
    let data_files = genai::data_files(&graph);
    let bytes = data_files.iter().filter_map(|name| job.manifest.files.get(name)).map(|entry| entry.bytes);
    let partial = PartialFolder::beside(job.out, bytes.sum())?;
    partial.write(config::GRAPH, &graph.encode())?;
    for (name, bytes) in &files {
        partial.write(name, bytes)?;
    }
    for name in &data_files {
        let path = partial.0.join(name);
        open_regular(&job.package.join(name))
            .and_then(|mut file| io::copy(&mut file, &mut File::create(&path)?))
            .map_err(unwritable(&path))?;
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
        Structure::Encoder(_) | Structure::Embedder(_) | Structure::ImportedEncoder(_) => {
            return Err(other("an encoder"));
        }
        Structure::Speech(_) | Structure::ImportedTranscriber(_) => {
            return Err(other("a model that transcribes speech"));
        }
        Structure::ImportedVoice(_) => return Err(other("a voice")),
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
    /// Creates the unfinished folder next to `out`, which must be missing or empty, for about this number of bytes.
    fn beside(out: &Path, bytes: u64) -> Result<Self> {
        let is_filled = fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some());
        if is_filled || out.is_file() {
            let reason = if is_filled { "the folder is not empty" } else { "it is a file" };
            return Err(unwritable(out)(io::Error::new(io::ErrorKind::AlreadyExists, reason)));
        }
        environment::check_space(out, bytes).map_err(unwritable(out))?;

        let Some(folder) = out.file_name() else {
            return Err(unwritable(out)(io::ErrorKind::InvalidInput.into()));
        };
        let mut name = std::ffi::OsString::from(".");
        name.push(folder);
        name.push(format!(".{}", std::process::id()));
        let path = out.with_file_name(name);
        fs::create_dir_all(&path).map_err(unwritable(out))?;
        Ok(Self(path))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.0.join(name);
        fs::write(&path, bytes).map_err(unwritable(&path))
    }

    fn commit(self, out: &Path) -> Result<()> {
        // A complete folder replaces an empty one.
        let _ = fs::remove_dir(out);
        fs::rename(&self.0, out).map_err(unwritable(out))
    }
}

impl Drop for PartialFolder {
    fn drop(&mut self) {
        // After `commit` there is nothing to remove. A failed removal leaves a hidden folder that nothing refers to.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_that_does_not_fit_is_refused_before_it_is_written() {
        let home = tempfile::tempdir().unwrap();
        let error = PartialFolder::beside(&home.path().join("out"), u64::MAX).err().unwrap();
        assert!(error.to_string().contains("MB of free space"), "{error}");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }
}
