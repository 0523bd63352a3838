//! Python for the commands: the machine's interpreter, downloads through pip, and virtual environments.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

use crate::{
    process::{self, works},
    session::Session,
};

/// A Python interpreter, as a program with its first arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Python(Vec<String>);

impl Python {
    /// Finds an interpreter: `NARTHEX_PYTHON` if it is set, otherwise the first of the usual names that starts.
    pub fn find(session: &Session<'_>) -> anyhow::Result<Self> {
        candidates(env::var("NARTHEX_PYTHON").ok())
            .into_iter()
            .find(|python| {
                works(python.command(session).args(["-c", "import sys; sys.exit(sys.version_info < (3, 9))"]))
            })
            .context("no Python 3.9 or newer was found; on Debian: apt-get install python3")
    }

    /// Returns a command for the interpreter.
    pub fn command(&self, session: &Session<'_>) -> Command {
        let (program, arguments) =
            self.0.split_first().map_or(("python3", &[][..]), |(p, a)| (p.as_str(), a));
        let mut command = session.command(program);
        command.args(arguments);
        command
    }

    /// Downloads one package through pip into a folder. `pinned` has its version and digest; `options` select one of
    /// its files.
    pub fn download(
        &self,
        session: &Session<'_>,
        pinned: &str,
        options: &[&str],
        into: &Path,
    ) -> anyhow::Result<()> {
        let requirements = into.join("requirements.txt");
        fs::write(&requirements, pinned).with_context(|| requirements.display().to_string())?;
        let mut pip = self.command(session);
        pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
            .args(options);
        pip.args(["--require-hashes", "--requirement"]).arg(&requirements);
        process::run(pip.arg("--dest").arg(into))
    }
}

/// A Python environment in a folder.
pub struct VirtualEnvironment {
    folder: PathBuf,
    /// Its interpreter.
    pub python: PathBuf,
}

impl VirtualEnvironment {
    /// Creates the environment if the folder does not have one.
    pub fn prepare(session: &Session<'_>, folder: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let venv = folder.join("venv");
        let python = venv.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
        if !works(session.command(&python).args(["-m", "pip", "--version"])) {
            let outer = Python::find(session)?;
            process::run(outer.command(session).args(["-m", "venv", "--clear"]).arg(&venv))?;
        }
        Ok(Self { folder: folder.to_owned(), python })
    }

    /// Installs packages, unless the same ones were already installed under `name`.
    pub fn install(&self, session: &Session<'_>, name: &str, packages: &[&str]) -> anyhow::Result<()> {
        let (mark, text) = (self.folder.join(format!("installed-{name}")), packages.join(" "));
        if fs::read_to_string(&mark).is_ok_and(|installed| installed == text) {
            return Ok(());
        }
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        process::run(session.command(&self.python).args(pip).args(packages))?;
        fs::write(&mark, text).with_context(|| mark.display().to_string())
    }
}

fn candidates(chosen: Option<String>) -> Vec<Python> {
    let python = |words: &str| Python(words.split(' ').map(str::to_owned).collect());
    match chosen.filter(|chosen| !chosen.is_empty()) {
        Some(chosen) => vec![Python(vec![chosen])],
        None if cfg!(windows) => vec![python("python3"), python("python"), python("py -3")],
        None => vec![python("python3"), python("python")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chosen_python_is_the_only_candidate() {
        assert_eq!(candidates(Some("/opt/my python".into())), [Python(vec!["/opt/my python".into()])]);
        assert!(candidates(Some(String::new())).len() > 1);
        assert_eq!(candidates(None)[0], Python(vec!["python3".into()]));
    }
}
