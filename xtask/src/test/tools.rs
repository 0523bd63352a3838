//! The programs that stages call: found, or named with what to install.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};

use crate::test::session::{self, Session, works};

/// A Python and its first arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Python(Vec<String>);

impl Python {
    /// `NARTHEX_PYTHON` alone if it is set, else the first of the usual names that starts.
    pub(crate) fn find(session: &Session<'_>) -> Option<Self> {
        candidates(env::var("NARTHEX_PYTHON").ok()).into_iter().find(|python| {
            works(python.command(session).args(["-c", "import sys; sys.exit(sys.version_info < (3, 9))"]))
        })
    }

    /// Python, ready for its arguments.
    pub(crate) fn command(&self, session: &Session<'_>) -> Command {
        let (program, arguments) =
            self.0.split_first().map_or(("python3", &[][..]), |(p, a)| (p.as_str(), a));
        let mut command = session.command(program);
        command.args(arguments);
        command
    }

    /// Downloads one package through pip into a folder: `pinned` names its version and digest, `kind` says which of its
    /// files is wanted.
    pub(crate) fn download(
        &self,
        session: &Session<'_>,
        pinned: &str,
        kind: &[&str],
        into: &Path,
    ) -> anyhow::Result<()> {
        let wanted = into.join("wanted.txt");
        fs::write(&wanted, pinned).with_context(|| wanted.display().to_string())?;
        let mut pip = self.command(session);
        pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]).args(kind);
        pip.args(["--require-hashes", "--requirement"]).arg(&wanted);
        session::run(pip.arg("--dest").arg(into))
    }
}

/// A Python environment with some packages, made once in a folder; gives its Python.
pub(crate) fn environment(
    session: &Session<'_>,
    folder: &Path,
    packages: &[&str],
) -> anyhow::Result<PathBuf> {
    let inside = if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" };
    let (venv, mark, wanted) = (folder.join("venv"), folder.join("installed"), packages.join(" "));
    let python = venv.join(inside);
    if python.is_file() && fs::read_to_string(&mark).is_ok_and(|text| text == wanted) {
        return Ok(python);
    }
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let outer = Python::find(session).context("no Python was found; see `cargo xtask test --only tools`")?;
    session::run(outer.command(session).args(["-m", "venv", "--clear"]).arg(&venv))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    session::run(session.command(&python).args(pip).args(packages))?;
    fs::write(&mark, wanted).with_context(|| mark.display().to_string())?;
    Ok(python)
}

fn candidates(chosen: Option<String>) -> Vec<Python> {
    let python = |words: &str| Python(words.split(' ').map(str::to_owned).collect());
    match chosen.filter(|chosen| !chosen.is_empty()) {
        Some(chosen) => vec![Python(vec![chosen])],
        None if cfg!(windows) => vec![python("python3"), python("python"), python("py -3")],
        None => vec![python("python3"), python("python")],
    }
}

/// Looks for every program and names all that are missing at once.
pub(crate) fn check(session: &Session<'_>) -> anyhow::Result<String> {
    let mut missing = Vec::new();
    for (component, command) in [("rustfmt", "fmt"), ("clippy", "clippy")] {
        if !works(&mut session.cargo(&[command, "--version"])) {
            missing.push(format!(
                "`cargo {command}` does not run; install it: rustup component add {component}"
            ));
        }
    }
    match Python::find(session) {
        None => {
            missing.push("no Python 3.9 or newer was found; on Debian: apt-get install python3".to_owned())
        }
        Some(python) => {
            if !works(python.command(session).args(["-m", "pip", "--version"])) {
                missing.push("Python has no pip; on Debian: apt-get install python3-pip".to_owned());
            }
            if !works(python.command(session).args(["-c", "import venv, ensurepip"])) {
                missing.push("Python has no venv; on Debian: apt-get install python3-venv".to_owned());
            }
        }
    }
    if !missing.is_empty() {
        bail!("something is missing\n  {}", missing.join("\n  "));
    }
    Ok(format!("the store is {}", session.home.display()))
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
