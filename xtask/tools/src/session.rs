//! The store of a run, and the environment of its programs: the workspace's root as the current folder, no standard
//! input, and telemetry disabled.

use std::{
    env,
    ffi::OsStr,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::Context;
use serde::Deserialize;
use xtask_workspace::workspace::{Workspace, cargo};

use crate::process::each_line;

/// A workspace and the store that its programs use.
pub struct Session<'a> {
    /// The workspace.
    pub workspace: &'a Workspace,
    /// The store; by default `NARTHEX_HOME`, or else `narthex-home` in the target folder.
    pub home: PathBuf,
}

/// Cargo's message about one artifact that it built.
#[derive(Deserialize)]
struct Artifact {
    target: Option<ArtifactTarget>,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
}

#[derive(Deserialize)]
struct ArtifactTarget {
    name: String,
}

/// A program that Cargo has built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltProgram {
    /// Name of its library, program or test.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
    /// The folder of its crate.
    pub package: PathBuf,
}

impl<'a> Session<'a> {
    /// Creates a session with the store that the environment names.
    pub fn new(workspace: &'a Workspace) -> anyhow::Result<Self> {
        let chosen = env::var_os("NARTHEX_HOME").filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = chosen.unwrap_or_else(|| workspace.target.join("narthex-home"));
        // Tests run in the folders of their crates, where a relative path would be another folder.
        let home = std::path::absolute(&home).with_context(|| home.display().to_string())?;
        Ok(Self { workspace, home })
    }

    /// Returns the session with another store.
    pub fn with_store(self, home: PathBuf) -> Self {
        Self { home, ..self }
    }

    /// Returns a command for a program, without arguments.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.workspace.root)
            .env("ORT_DISABLE_TELEMETRY", "1")
            .env("NARTHEX_HOME", &self.home)
            .stdin(Stdio::null());
        command
    }

    /// Returns a command for Cargo. The variables that `cargo run` set for this program are removed, because build
    /// scripts that read them would run again and rebuild everything that depends on them.
    pub fn cargo(&self, arguments: &[&str]) -> Command {
        self.cargo_like(cargo(), arguments)
    }

    /// Returns a command as [`Self::cargo`] does, for a program that starts Cargo.
    pub fn cargo_like(&self, program: impl AsRef<OsStr>, arguments: &[&str]) -> Command {
        let mut command = self.command(program);
        let is_ours = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_ours)).for_each(|(name, _)| {
            command.env_remove(name);
        });
        command.args(arguments);
        command
    }

    /// Builds the command-line program with the profile of tests, and returns its path. It is built as for a test of the
    /// workspace: with other features, most crates would be compiled twice.
    pub fn build_narthex(&self) -> anyhow::Result<PathBuf> {
        self.build_program(&["test", "--workspace", "--no-run", "--test", "cli"])
    }

    /// Builds the command-line program with the release profile, and returns its path.
    pub fn build_release(&self) -> anyhow::Result<PathBuf> {
        self.build_program(&["build", "--package", "narthex", "--release"])
    }

    fn build_program(&self, arguments: &[&str]) -> anyhow::Result<PathBuf> {
        built_narthex(&mut self.cargo(arguments)).with_context(|| format!("`cargo {}`", arguments.join(" ")))
    }
}

/// Runs a command of Cargo that builds, and returns the programs in the order of its messages.
///
/// # Errors
/// Cargo cannot be started, or it fails.
pub fn built_programs(build: &mut Command) -> anyhow::Result<Vec<BuiltProgram>> {
    let mut programs = Vec::new();
    each_line(build.arg("--message-format=json-render-diagnostics"), |line| {
        programs.extend(built_program(line))
    })?;
    Ok(programs)
}

/// Runs a command of Cargo that builds the command-line program, and returns its path.
///
/// # Errors
/// Those of [`built_programs`], and a build without the program.
pub fn built_narthex(build: &mut Command) -> anyhow::Result<PathBuf> {
    let program = built_programs(build)?.into_iter().find(|program| program.name == "narthex");
    Ok(program.context("cargo built no program called narthex")?.path)
}

/// Returns the program that a line of Cargo's messages reports.
fn built_program(line: &str) -> Option<BuiltProgram> {
    let artifact: Artifact = serde_json::from_str(line).ok()?;
    let package = artifact.manifest_path?.parent()?.to_owned();
    Some(BuiltProgram { name: artifact.target?.name, path: artifact.executable?, package })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_program_is_found_among_the_messages() {
        let message = r#"{"reason":"compiler-artifact","target":{"name":"narthex"},"executable":"/t/debug/narthex",
            "manifest_path":"/w/crates/cli/Cargo.toml"}"#;
        let expect = BuiltProgram {
            name: "narthex".to_owned(),
            path: "/t/debug/narthex".into(),
            package: "/w/crates/cli".into(),
        };
        assert_eq!(built_program(message), Some(expect));
        assert_eq!(built_program(&message.replace("\"/t/debug/narthex\"", "null")), None);
        assert_eq!(built_program(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(built_program("warning: not JSON"), None);
    }

    #[test]
    fn cargo_does_not_inherit_this_program_s_variables() {
        let workspace = Workspace::read().unwrap();
        let cargo = Session::new(&workspace).unwrap().cargo(&["--version"]);
        for name in ["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR"] {
            assert!(env::var_os(name).is_some(), "tests run under Cargo, which sets {name}");
            assert!(cargo.get_envs().any(|found| found == (OsStr::new(name), None)), "{name}");
        }
    }
}
