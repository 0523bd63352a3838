//! Requirements of the sides: the program under test, a Python environment, the checkpoint and its packages.
//!
//! All files are under `target/peers` and are reused, the store included.

use std::{env, fs, path::PathBuf, process::Command, thread};

use anyhow::Context;
use xtask_tools::{process, python::VirtualEnvironment, session::Session};

use crate::workload::TEXT;

/// Model of every side, by its name in the catalogue.
pub(super) const MODEL: &str = "smollm2:135m";

/// File with the weights of every side.
pub(super) const CHECKPOINT: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// Packages of every Python side.
const PACKAGES: &[&str] = &["numpy==2.4.6", "onnxruntime==1.31.1"];

/// Programs and folders of a run.
pub(super) struct Setup<'a> {
    pub(super) session: &'a Session<'a>,
    /// Folder `target/peers`.
    pub(super) folder: PathBuf,
    /// Narthex, built with the release profile.
    pub(super) narthex: PathBuf,
    environment: VirtualEnvironment,
    /// Number of threads of every side.
    pub(super) threads: usize,
    /// Load average of the minute before the run, if the system reports it.
    pub(super) load: Option<f64>,
}

impl<'a> Setup<'a> {
    /// Builds Narthex and prepares the environment.
    pub(super) fn prepare(session: &'a Session<'a>) -> anyhow::Result<Self> {
        // The preparation itself causes load, so the load is read first.
        let load = fs::read_to_string("/proc/loadavg").ok().and_then(|text| load(&text));
        Ok(Self { load, ..Self::untimed(session, session.build_release()?)? })
    }

    /// Prepares only the environment, for runs without times.
    pub(super) fn untimed(session: &'a Session<'a>, narthex: PathBuf) -> anyhow::Result<Self> {
        let folder = session.workspace.target.join("peers");
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let environment = VirtualEnvironment::prepare(session, &folder)?;
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let setup = Self { session, folder, narthex, environment, threads, load: None };
        setup.install("base", PACKAGES)?;
        Ok(setup)
    }

    /// Installs Python packages under a name, if this has not been done.
    pub(super) fn install(&self, name: &str, packages: &[&str]) -> anyhow::Result<()> {
        self.environment.install(self.session, name, packages)
    }

    /// Generates one token, which fetches and compiles the package if it is missing.
    pub(super) fn compile(&self, scheme: &str) -> anyhow::Result<()> {
        let ask = [
            "chat",
            "--quiet",
            "--model",
            MODEL,
            "--scheme",
            scheme,
            "--max-tokens",
            "1",
            "--temperature",
            "0",
            "Hello",
        ];
        process::output(self.session.command(&self.narthex).args(ask))?;
        Ok(())
    }

    fn python(&self) -> Command {
        self.session.command(&self.environment.python)
    }

    /// Returns a command for a script in `bench/peers`.
    pub(super) fn script(&self, name: &str) -> Command {
        let mut command = self.python();
        command.arg(self.session.workspace.root.join("bench/peers").join(name));
        command
    }

    /// Replaces the folders of this machine in a reason, because they have no meaning elsewhere.
    pub(super) fn without_folders(&self, reason: &str) -> String {
        let (root, home) = (self.session.workspace.root.display(), self.session.home.display());
        reason.replace(&home.to_string(), "$NARTHEX_HOME").replace(&root.to_string(), ".")
    }

    /// Returns the text whose words are used in prompts.
    pub(super) fn text(&self) -> anyhow::Result<String> {
        let path = self.session.workspace.root.join(TEXT);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    /// Returns the command of `narthex serve` with a model, with the threads of all sides.
    pub(super) fn serve(&self, model: &str, scheme: &str, port: &str) -> Command {
        let mut command = self.session.command(&self.narthex);
        command.args(["serve", "--port", port, "--model", model, "--scheme", scheme]);
        command.args(["--threads", &self.threads.to_string()]);
        command
    }

    /// Returns the path of a program that the environment installed.
    pub(super) fn tool(&self, name: &str) -> PathBuf {
        self.environment.python.with_file_name(format!("{name}{}", env::consts::EXE_SUFFIX))
    }

    /// Returns the folder of a model's package.
    pub(super) fn package(&self, model: &str, scheme: &str) -> PathBuf {
        self.session.home.join("packages").join(model.replace(':', "--")).join(scheme)
    }

    /// Returns the processor's name from `narthex doctor`.
    pub(super) fn cpu(&self) -> anyhow::Result<String> {
        let printed = process::output(self.session.command(&self.narthex).args(["doctor", "--json"]))?;
        let report =
            serde_json::from_str(&printed.stdout).context("`narthex doctor --json` printed no JSON")?;
        cpu(&report).context("`narthex doctor` names no processor")
    }

    /// Finds a model's GGUF file in the store.
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

/// Returns the load average of the last minute from Linux's `/proc/loadavg`.
fn load(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

/// Returns the processor's name, which precedes its other properties.
fn cpu(doctor: &serde_json::Value) -> Option<String> {
    let findings = doctor["findings"].as_array()?;
    let text = findings.iter().find(|finding| finding["subject"] == "processor")?["text"].as_str()?;
    text.split_once(": ").map(|(name, _)| name.to_owned())
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
            {"subject": "processor", "text": "Some CPU (R): 2 usable of 4 cores; avx2"},
            {"subject": "cpu", "text": "can be used"},
        ]});
        assert_eq!(cpu(&doctor).as_deref(), Some("Some CPU (R)"));
        assert_eq!(cpu(&serde_json::json!({"findings": []})), None);
    }
}
