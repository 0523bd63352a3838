//! Where a run keeps its things, and how it starts programs: in the workspace's root, without standard input, with
//! telemetry off and the run's own store.

use std::{
    env,
    ffi::OsStr,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::{
    terminal,
    workspace::{Workspace, cargo},
};

/// One run of `cargo xtask test`.
pub(crate) struct Session<'a> {
    /// The workspace under test.
    pub(crate) workspace: &'a Workspace,
    /// The store: `NARTHEX_HOME`, else `narthex-home` in the target folder.
    pub(crate) home: PathBuf,
}

/// What Cargo says of one thing it built.
#[derive(Deserialize)]
struct Artifact {
    target: Option<ArtifactTarget>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct ArtifactTarget {
    name: String,
}

impl<'a> Session<'a> {
    /// A run on a workspace, with the store that the environment names.
    pub(crate) fn new(workspace: &'a Workspace) -> anyhow::Result<Self> {
        let chosen = env::var_os("NARTHEX_HOME").filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = chosen.unwrap_or_else(|| workspace.target.join("narthex-home"));
        // Tests run in their crates' folders, where a relative path would mean something else.
        let home = std::path::absolute(&home).with_context(|| home.display().to_string())?;
        Ok(Self { workspace, home })
    }

    /// A program, ready to be started.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.workspace.root)
            .env("ORT_DISABLE_TELEMETRY", "1")
            .env("NARTHEX_HOME", &self.home)
            .stdin(Stdio::null());
        command
    }

    /// Cargo with some arguments. What `cargo run` told this program of itself is not handed on: a dependency whose build
    /// looks at it would be built anew, and whatever stands on it.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(cargo());
        let told = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        env::vars_os().filter(|(name, _)| name.to_str().is_some_and(told)).for_each(|(name, _)| {
            command.env_remove(name);
        });
        command.args(arguments);
        command
    }

    /// Builds the command-line program and gives its path.
    pub(crate) fn build_narthex(&self) -> anyhow::Result<PathBuf> {
        self.build_program(&[])
    }

    /// The same, as it is released.
    pub(crate) fn build_release(&self) -> anyhow::Result<PathBuf> {
        self.build_program(&["--release"])
    }

    fn build_program(&self, profile: &[&str]) -> anyhow::Result<PathBuf> {
        let mut found = None;
        let mut build = self.cargo(&["build", "--package", "narthex-cli"]);
        build.args(profile);
        each_line(build.arg("--message-format=json-render-diagnostics"), |line| {
            found = found.take().or_else(|| executable(line, "narthex"));
        })?;
        found.context("`cargo build --package narthex-cli` built no program called narthex")
    }
}

/// The program in a line of Cargo's messages, if it is the one of that name.
fn executable(line: &str, name: &str) -> Option<PathBuf> {
    let artifact: Artifact = serde_json::from_str(line).ok()?;
    artifact.executable.filter(|_| artifact.target.is_some_and(|target| target.name == name))
}

/// Runs a program whose output goes to the terminal; fails if it does.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    terminal::line(format!("$ {}", shown(command)));
    let status = command.status().with_context(|| format!("`{}` cannot be started", shown(command)))?;
    if !status.success() {
        bail!("`{}` ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs a program and looks at each line of its standard output; fails if the program does.
pub(crate) fn each_line(command: &mut Command, mut look: impl FnMut(&str)) -> anyhow::Result<()> {
    terminal::line(format!("$ {}", shown(command)));
    let started = command.stdout(Stdio::piped()).spawn();
    let mut child = started.with_context(|| format!("`{}` cannot be started", shown(command)))?;
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = BufReader::new(stdout);
        let mut line = Vec::new();
        while stdout.read_until(b'\n', &mut line)? > 0 {
            look(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']));
            line.clear();
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{}` ended with {status}", shown(command));
    }
    Ok(())
}

/// Whether a program can be started and ends well; its output is dropped.
pub(crate) fn works(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// A command as a person would type it.
fn shown(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let name = program.file_stem().unwrap_or(command.get_program()).to_string_lossy().into_owned();
    let arguments = command.get_args().map(|argument| argument.to_string_lossy().into_owned());
    std::iter::once(name).chain(arguments).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_program_is_found_among_the_messages() {
        let message =
            r#"{"reason":"compiler-artifact","target":{"name":"narthex"},"executable":"/t/debug/narthex"}"#;
        assert_eq!(executable(message, "narthex"), Some("/t/debug/narthex".into()));
        assert_eq!(executable(message, "xtask"), None);
        assert_eq!(executable(&message.replace("\"/t/debug/narthex\"", "null"), "narthex"), None);
        assert_eq!(executable(r#"{"reason":"build-finished","success":true}"#, "narthex"), None);
        assert_eq!(executable("warning: not JSON", "narthex"), None);
    }

    #[test]
    fn cargo_is_not_told_of_this_program() {
        let workspace = Workspace::read().unwrap();
        let cargo = Session::new(&workspace).unwrap().cargo(&["--version"]);
        for name in ["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR"] {
            assert!(env::var_os(name).is_some(), "tests run under Cargo, which sets {name}");
            assert!(cargo.get_envs().any(|found| found == (OsStr::new(name), None)), "{name}");
        }
    }

    #[test]
    fn lines_are_seen_and_failure_is_told() {
        let mut lines = Vec::new();
        each_line(Command::new(cargo()).arg("--version"), |line| lines.push(line.to_owned())).unwrap();
        assert!(lines.len() == 1 && lines[0].starts_with("cargo "), "{lines:?}");
        let error =
            each_line(Command::new(cargo()).arg("--no-such-flag").stderr(Stdio::null()), |_| ()).unwrap_err();
        assert!(error.to_string().starts_with("`cargo --no-such-flag` ended with"), "{error}");
        assert!(!works(&mut Command::new("no-such-program-anywhere")));
    }
}
