//! The tools for foreign targets: Debian's packages, and Zig from PyPI.
//!
//! They are installed if this machine permits it. Otherwise the error names the missing packages and the command that
//! installs them.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};

use xtask_tools::{
    process::{self, works},
    python::VirtualEnvironment,
    session::Session,
    workspace::cargo,
};

/// Cargo's subcommand that compiles with Zig, and Zig.
const ZIG: [&str; 2] = ["cargo-zigbuild==0.24.1", "ziglang==0.17.1"];

/// A file of one of Debian's packages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DebianProgram {
    /// Its path, or the name of a program.
    pub(crate) path: &'static str,
    /// The package.
    pub(crate) package: &'static str,
}

impl DebianProgram {
    fn exists(&self) -> bool {
        let path = Path::new(self.path);
        path.is_absolute() && path.exists()
            || !path.is_absolute() && folders().iter().any(|folder| folder.join(path).is_file())
    }
}

/// Installs the packages whose files are missing.
pub(crate) fn install(session: &Session<'_>, programs: &[DebianProgram]) -> anyhow::Result<()> {
    let mut missing: Vec<&str> = Vec::new();
    for program in programs.iter().filter(|program| !program.exists()) {
        if !missing.contains(&program.package) {
            missing.push(program.package);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }

    let advice = format!("something is missing; install it: apt-get install {}", missing.join(" "));
    let is_root = works(session.command("sh").args(["-c", "test $(id -u) = 0"]));
    if !is_root || !works(session.command("apt-get").arg("--version")) {
        bail!(advice);
    }
    let mut apt = session.command("apt-get");
    apt.args(["install", "--yes", "-qq", "--no-install-recommends"]).args(&missing);
    apt.env("DEBIAN_FRONTEND", "noninteractive");
    if process::run(&mut apt).is_err() {
        process::run(session.command("apt-get").args(["update", "-qq"])).context(advice.clone())?;
        process::run(&mut apt).context(advice.clone())?;
    }
    match programs.iter().find(|program| !program.exists()) {
        None => Ok(()),
        Some(program) => bail!("expected {} from the package {}, found none", program.path, program.package),
    }
}

/// Zig and Cargo's subcommand for it, in a Python environment.
pub(crate) struct Zig {
    programs: PathBuf,
}

impl Zig {
    /// Installs both, unless they are installed.
    pub(crate) fn prepare(session: &Session<'_>) -> anyhow::Result<Self> {
        let environment = VirtualEnvironment::prepare(session, &session.workspace.target.join("zig"))?;
        environment.install(session, "zig", &ZIG)?;
        let programs =
            environment.python.parent().context("a Python environment has a folder of programs")?;
        Ok(Self { programs: programs.to_owned() })
    }

    /// Returns a command for a subcommand of Cargo with Zig as the compiler of C and the linker.
    pub(crate) fn cargo(&self, session: &Session<'_>, subcommand: &str) -> Command {
        let mut command = session.cargo_like(self.programs.join("cargo-zigbuild"), &[subcommand]);
        let paths = std::iter::once(self.programs.clone()).chain(folders());
        command.env("CARGO", cargo()).env("PATH", env::join_paths(paths).unwrap_or_default());
        command
    }
}

/// Returns the folders in which programs are looked up.
fn folders() -> Vec<PathBuf> {
    env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask_tools::workspace::Workspace;

    #[test]
    fn programs_are_found_by_name_and_by_path() {
        let exists = |path| DebianProgram { path, package: "any" }.exists();
        assert!(exists("sh") && exists("/bin/sh"));
        assert!(!exists("no-such-program-anywhere") && !exists("/no/such/file"));
    }

    #[test]
    fn nothing_is_installed_if_nothing_is_missing() {
        let workspace = Workspace::read().unwrap();
        let session = Session::new(&workspace).unwrap();
        let present = DebianProgram { path: "/bin/sh", package: "no-such-package" };
        install(&session, &[present]).unwrap();
    }
}
