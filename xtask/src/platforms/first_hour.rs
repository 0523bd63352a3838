//! The first hour of a user, command by command, on any machine.
//!
//! The commands name files relative to the user's folder, as a user types them, so they are the same on every platform.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use narthex_spec::ModelName;
use narthex_testkit::{
    checkpoint::{tiny_llama_gguf, tiny_llama_safetensors},
    hub::{HubServer, Repo},
};

use super::{machine::Machine, steps::Steps};
use xtask_tools::process;

/// The chat model.
pub(super) const CHAT: &str = "smollm2:135m";

/// A command with a greedy answer of a few tokens.
pub(super) const CHAT_COMMAND: [&str; 6] =
    ["chat", "--temperature", "0", "--max-tokens", "8", "What is the capital of France?"];

/// The embedding model.
pub(super) const EMBEDDING: &str = "all-minilm-l6-v2";

/// Seed of the tiny checkpoints.
const SEED: u64 = 7;

/// Schemes of the tiny checkpoint.
const SCHEMES: [&str; 4] = ["w8", "w4", "f16", "f32"];

/// Exports of other programs, relative to the root.
const EXPORTS: &str = "crates/compile/tests/goldens/import";

/// Exit codes of `check`: every node runs on the NPU, some do not, the model is refused.
const CHECKED: [i32; 3] = [0, 7, 8];

/// The wheels of the first hour.
pub(super) struct Wheels {
    /// ONNX Runtime for the machine.
    pub(super) runtime: PathBuf,
    /// [`CHAT`].
    pub(super) chat: PathBuf,
    /// [`EMBEDDING`].
    pub(super) embedding: PathBuf,
}

/// Source of the chat model.
#[derive(Debug, Clone, Copy)]
pub(super) enum ChatModel<'a> {
    /// The machine compiles it.
    Compile,
    /// Another machine has compiled it into this store, because an emulated processor takes too long.
    Copy(&'a Path),
}

/// Writes the checkpoints and exports of the user into the machine's folder.
pub(super) fn write_files(machine: &Machine<'_>) -> anyhow::Result<()> {
    machine.clear()?;
    let folder = &machine.folder;
    fs::write(folder.join("tiny.gguf"), tiny_llama_gguf(SEED))?;
    fs::create_dir(folder.join("llama"))?;
    tiny_llama_safetensors(&folder.join("llama"), SEED)?;
    let exports = machine.session.workspace.root.join(EXPORTS);
    for name in ["genai-cpu", "sentence"] {
        copy(&exports.join(name), &folder.join(name))?;
    }
    Ok(())
}

/// Runs the commands before the server.
pub(super) fn run(steps: &mut Steps, machine: &Machine<'_>, wheels: &Wheels, chat: ChatModel<'_>) {
    install(steps, machine, wheels);
    fetch(steps, machine, wheels, chat);
    answer(steps, machine);
    inspect(steps, machine);
}

/// Diagnoses the machine and installs ONNX Runtime.
fn install(steps: &mut Steps, machine: &Machine<'_>, wheels: &Wheels) {
    steps.run("`doctor` without a runtime", || doctor(machine));
    steps.run("`runtime install cpu --from FILE.whl`", || {
        let wheel = machine.path(&wheels.runtime);
        let printed = machine.run(&["runtime", "install", "cpu", "--from", &wheel])?;
        Ok(last_line(&printed.stderr))
    });
    steps.run("`doctor`", || doctor(machine));
}

/// Fetches and compiles models.
fn fetch(steps: &mut Steps, machine: &Machine<'_>, wheels: &Wheels, chat: ChatModel<'_>) {
    steps.run("`plan` before a download", || machine.expect(&["plan", CHAT], "MB").map(|_| String::new()));
    steps.run("`pull FILE.whl`, an encoder", || {
        let wheel = machine.path(&wheels.embedding);
        Ok(last_line(&machine.expect(&["pull", &wheel], EMBEDDING)?.stderr))
    });
    match chat {
        ChatModel::Compile => {
            steps.run("`pull FILE.whl`, a chat model", || {
                let wheel = machine.path(&wheels.chat);
                Ok(last_line(&machine.expect(&["pull", &wheel], CHAT)?.stderr))
            });
        }
        ChatModel::Copy(store) => {
            steps.run("a chat model that Linux x86-64 compiled", || {
                let source = package(store, CHAT)?;
                let name = source.file_name().context("a package has a name")?.to_owned();
                copy(&source, &machine.store().join("packages").join(name))?;
                Ok("its package was copied, because its compilation takes too long under emulation"
                    .to_owned())
            });
        }
    }
    steps.run("`compile` of a GGUF file in four schemes", || {
        for scheme in SCHEMES {
            machine
                .expect(&["compile", "tiny.gguf", "--scheme", scheme, "--calibrate", "none"], "local/tiny")?;
        }
        Ok(SCHEMES.join(", "))
    });
    steps.run("`pull` of a folder with safetensors", || {
        Ok(last_line(&machine.expect(&["pull", "./llama"], "local/llama")?.stderr))
    });
    steps.run("`pull hf:owner/tiny` from a local hub", || pull_from_hub(machine));
    steps.run("`import` of an export", || {
        Ok(last_line(&machine.expect(&["import", "./genai-cpu"], "genai-cpu")?.stderr))
    });
}

/// Lists and runs models.
fn answer(steps: &mut Steps, machine: &Machine<'_>) {
    steps.run("`list` and `show`", || {
        machine.expect(&["list"], CHAT)?;
        machine.expect(&["show", "local/tiny"], "scheme").map(|_| String::new())
    });
    steps.run("`chat`", || {
        let printed = machine.expect(&CHAT_COMMAND, "Paris")?;
        Ok(format!("{} ({})", printed.stdout.trim(), last_line(&printed.stderr)))
    });
    steps.run("`complete`", || {
        let arguments = ["complete", "-m", "local/tiny", "--scheme", "f32", "--max-tokens", "8", "a b"];
        machine.run(&arguments).map(|printed| last_line(&printed.stderr))
    });
    steps.run("`embed`", || {
        let printed = machine.run(&["embed", "--json", "a cat", "a dog"])?;
        let answer: serde_json::Value = serde_json::from_str(&printed.stdout).context("expected JSON")?;
        Ok(format!("{} bytes of JSON", answer.to_string().len()))
    });
}

/// Checks, measures and verifies models.
fn inspect(steps: &mut Steps, machine: &Machine<'_>) {
    steps.run("`check` of a foreign model by rules", || {
        let mut check = machine.narthex(&["check", "sentence/onnx/model.onnx", "--rules-only"]);
        let output = check.output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let code = output.status.code();
        ensure!(code.is_some_and(|code| CHECKED.contains(&code)), "{}: {text}", output.status);
        Ok(text.lines().next().unwrap_or_default().to_owned())
    });
    steps.run("`bench`", || {
        let arguments = [
            "bench",
            "-m",
            "local/tiny",
            "--rounds",
            "1",
            "--prompt-tokens",
            "8",
            "--generate-tokens",
            "4",
            "--json",
        ];
        let printed = machine.run(&arguments)?;
        serde_json::from_str::<serde_json::Value>(&printed.stdout).context("expected JSON")?;
        Ok(String::new())
    });
    steps.run("`verify`", || Ok(last_line(&machine.run(&["verify"])?.stdout)));
}

/// Removes a model.
pub(super) fn remove(steps: &mut Steps, machine: &Machine<'_>) {
    steps.run("`rm`", || {
        machine.expect(&["rm", "local/tiny@w4", "--yes"], "removed local/tiny (w4)")?;
        ensure!(!machine.store().join("packages/local--tiny/w4").exists(), "the folder still exists");
        Ok(String::new())
    });
}

/// Runs `doctor`, whose exit code is 1 if it finds a problem, and returns its lines about the processor.
fn doctor(machine: &Machine<'_>) -> anyhow::Result<String> {
    let output = machine.narthex(&["doctor"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_report = matches!(output.status.code(), Some(0 | 1)) && text.contains("cpu");
    ensure!(is_report, "{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(text.lines().filter(|line| line.contains("processor: ")).collect::<Vec<_>>().join(" "))
}

/// Pulls a repository. The cache must not hold its bytes twice.
fn pull_from_hub(machine: &Machine<'_>) -> anyhow::Result<String> {
    let repo = Repo::of_folder(&machine.folder.join("llama"))?;
    let bytes: usize = repo.files.values().map(Vec::len).sum();
    let hub = HubServer::start(move |request| repo.answer(request));
    let mut pull = machine.narthex(&["pull", "hf:owner/tiny"]);
    let printed = process::output(pull.env("HF_ENDPOINT", &hub.endpoint).env_remove("NARTHEX_OFFLINE"))?;
    let cache = size(&machine.folder.join("hub"))?;
    ensure!(cache < 2 * bytes as u64, "expected one copy of {bytes} bytes in the cache, found {cache} bytes");
    Ok(last_line(&printed.stderr))
}

/// Returns the bytes of a folder's files; a file with several names counts once.
fn size(folder: &Path) -> anyhow::Result<u64> {
    let output =
        process::output(std::process::Command::new("du").args(["--bytes", "--summarize"]).arg(folder))?;
    let number = output.stdout.split_whitespace().next().and_then(|number| number.parse().ok());
    number.with_context(|| format!("du printed {:?}", output.stdout))
}

/// Returns the folder of a model in a store.
pub(super) fn package(store: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let name: ModelName = name.parse()?;
    let folder = store.join("packages").join(name.file_stem());
    ensure!(folder.is_dir(), "expected the package {}", folder.display());
    Ok(folder)
}

/// Copies a folder.
pub(super) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let path = entry?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy(&path, &target)?;
        } else {
            fs::copy(&path, &target).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// A line that wine's graphics library prints at the end of a program, without a display.
const WINE_LINE: &str = "Failed to create DXGI factory.";

/// Returns the last line that the program printed and that is not empty.
pub(super) fn last_line(text: &str) -> String {
    let mut lines = text.lines().rev().map(str::trim);
    lines.find(|line| !line.is_empty() && *line != WINE_LINE).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_the_program_s() {
        assert_eq!(last_line("a\r\nb \r\n\r\nFailed to create DXGI factory.\r\n"), "b");
        assert_eq!(last_line("\n"), "");
    }
}
