//! What every side needs: the program under test, a Python environment, the checkpoint and its packages.
//!
//! Everything lies under `target/peers` and is made once; the store is the one of `cargo xtask test`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use anyhow::{Context, bail};

use crate::{
    peers::program,
    terminal,
    test::{
        session::{self, Session},
        tools::Python,
    },
};

/// The model that every side runs, as the catalogue names it.
pub(super) const MODEL: &str = "smollm2:135m";

/// The file that every side's weights are made of.
pub(super) const CHECKPOINT: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// What every Python program here needs.
const PACKAGES: &[&str] = &["numpy==2.4.6", "onnxruntime==1.31.1"];

/// Where a run finds its things.
pub(super) struct Stand<'a> {
    pub(super) session: &'a Session<'a>,
    /// `target/peers`.
    pub(super) folder: PathBuf,
    /// Narthex as it is released.
    pub(super) narthex: PathBuf,
    /// The Python of the environment.
    pub(super) python: PathBuf,
    /// Threads that every side computes with.
    pub(super) threads: usize,
    /// Processes that wanted to compute in the minute before, where the system tells.
    pub(super) load: Option<f64>,
}

impl<'a> Stand<'a> {
    /// Builds Narthex and makes the environment and the packages, where they are not there yet.
    pub(super) fn prepare(session: &'a Session<'a>) -> anyhow::Result<Self> {
        // Preparing is work itself, so the load is asked for first.
        let load = fs::read_to_string("/proc/loadavg").ok().and_then(|said| load(&said));
        let stand = Self { load, ..Self::untimed(session, session.build_release()?)? };
        for scheme in ["w8", "w4"] {
            stand.compile(scheme)?;
        }
        Ok(stand)
    }

    /// The environment alone, for what takes no time into account.
    pub(super) fn untimed(session: &'a Session<'a>, narthex: PathBuf) -> anyhow::Result<Self> {
        let folder = session.workspace.target.join("peers");
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let python = environment(session, &folder)?;
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let stand = Self { session, folder, narthex, python, threads, load: None };
        stand.install("base", PACKAGES)?;
        Ok(stand)
    }

    /// Installs Python packages once; `name` tells them from others.
    pub(super) fn install(&self, name: &str, packages: &[&str]) -> anyhow::Result<()> {
        let (mark, wanted) = (self.folder.join(format!("installed-{name}")), packages.join(" "));
        if fs::read_to_string(&mark).is_ok_and(|text| text == wanted) {
            return Ok(());
        }
        terminal::line(format!("installing {wanted}"));
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        program::output(self.python().args(pip).args(packages))?;
        fs::write(&mark, wanted).with_context(|| mark.display().to_string())
    }

    /// One answer of one token, which fetches and compiles whatever is missing.
    fn compile(&self, scheme: &str) -> anyhow::Result<()> {
        let ask = ["chat", "--quiet", "--model", MODEL, "--scheme", scheme, "--max-tokens", "1", "Hello"];
        program::output(self.session.command(&self.narthex).args(ask))?;
        Ok(())
    }

    /// Python, ready for its arguments.
    pub(super) fn python(&self) -> Command {
        self.session.command(&self.python)
    }

    /// One of the programs in `bench/peers`, ready for its arguments.
    pub(super) fn script(&self, name: &str) -> Command {
        let mut command = self.python();
        command.arg(self.session.workspace.root.join("bench/peers").join(name));
        command
    }

    /// A program that the environment installed.
    pub(super) fn tool(&self, name: &str) -> PathBuf {
        self.python.with_file_name(format!("{name}{}", env::consts::EXE_SUFFIX))
    }

    /// The folder of a model's package.
    pub(super) fn package(&self, model: &str, scheme: &str) -> PathBuf {
        self.session.home.join("packages").join(model.replace(':', "--")).join(scheme)
    }

    /// The processor's name, as `narthex doctor` gives it.
    pub(super) fn cpu(&self) -> anyhow::Result<String> {
        let printed = program::output(self.session.command(&self.narthex).args(["doctor", "--json"]))?;
        let report =
            serde_json::from_str(&printed.stdout).context("`narthex doctor --json` printed no JSON")?;
        cpu(&report).context("`narthex doctor` names no processor")
    }

    /// A model's GGUF file in the store.
    pub(super) fn checkpoint(&self, model: &str, name: &str) -> anyhow::Result<PathBuf> {
        let folder = self.session.home.join("checkpoints");
        let found = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        let paths = found.flatten().map(|entry| entry.path().join("files").join(name));
        let path = paths.into_iter().find(|path| path.is_file());
        path.with_context(|| {
            format!(
                "{name} is not in the store; fetch it with `narthex rm {model}` and `narthex pull {model}`"
            )
        })
    }
}

/// A Python environment, made once; gives its Python.
fn environment(session: &Session<'_>, folder: &Path) -> anyhow::Result<PathBuf> {
    let inside = if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" };
    let venv = folder.join("venv");
    let python = venv.join(inside);
    if !session::works(session.command(&python).args(["-m", "pip", "--version"])) {
        let outer =
            Python::find(session).context("no Python was found; see `cargo xtask test --only tools`")?;
        session::run(outer.command(session).args(["-m", "venv", "--clear"]).arg(&venv))?;
    }
    if !python.is_file() {
        bail!("{} was made without a Python in it", venv.display());
    }
    Ok(python)
}

/// The first figure of Linux's `/proc/loadavg`: the minute before.
fn load(said: &str) -> Option<f64> {
    said.split_whitespace().next()?.parse().ok()
}

/// The name in front of the processor's other properties.
fn cpu(doctor: &serde_json::Value) -> Option<String> {
    let findings = doctor["findings"].as_array()?;
    let text = findings.iter().find(|finding| finding["subject"] == "cpu")?["text"].as_str()?;
    text.split(": ").next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_minute_s_load_is_read() {
        assert_eq!(load("0.07 6.57 6.85 3/402 27131\n"), Some(0.07));
        assert_eq!(load(""), None);
    }

    #[test]
    fn the_processor_is_named() {
        let doctor = serde_json::json!({"findings": [
            {"subject": "store", "text": "a: b"},
            {"subject": "cpu", "text": "Some CPU (R): 2 usable of 4 cores; avx2"},
        ]});
        assert_eq!(cpu(&doctor).as_deref(), Some("Some CPU (R)"));
        assert_eq!(cpu(&serde_json::json!({"findings": []})), None);
    }
}
