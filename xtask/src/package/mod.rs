//! `cargo xtask package`: makes the packages, installs them in every documented way, and asks a model a question through
//! each installation.
//!
//! Each way has a fresh folder and an empty store, so the first answer includes the download of the model. `PATH` has no
//! Cargo, except for `cargo install` itself. A way for which this machine lacks a tool is skipped. Start at
//! [`InstallWay`]; [`packages`] makes the files, [`question`] asks, and the other modules each install one package.
//! [`registry`] makes its own files.

mod cargo_install;
mod debian;
mod installer;
mod npm;
mod packages;
mod page;
mod question;
mod registry;
mod wheel;
mod windows;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::ensure;
use clap::{Args, ValueEnum};
use strum::{IntoStaticStr, VariantArray};

use self::{
    packages::Packages,
    page::{WayOutcome, WayReport},
};
use xtask_tools::{
    record::{self, RecordArgs},
    session::Session,
    terminal,
    workspace::Workspace,
};

/// Arguments of `cargo xtask package`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub(crate) struct PackageArgs {
    /// Install in one way.
    #[arg(long, value_name = "WAY")]
    only: Option<InstallWay>,
    #[command(flatten)]
    output: RecordArgs,
}

/// Ways to install Narthex, in the order of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, ValueEnum, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum InstallWay {
    /// The shell installer, from a folder.
    Installer,
    /// The wheel, installed by pip into a virtual environment.
    Pip,
    /// The wheel, installed by `uv tool install`.
    Uv,
    /// The npm package, installed by `npm install --global`.
    Npm,
    /// The npm package, installed and run by npx.
    Npx,
    /// The `.deb`, installed by apt in a root that debootstrap makes.
    Deb,
    /// The installer for Windows, installed and removed under wine.
    Msi,
    /// The sources, installed by `cargo install`.
    Cargo,
    /// The crates as published, installed by `cargo install` from a registry in a folder.
    Registry,
}

/// Result of an installation.
enum Attempt {
    /// The program is installed.
    Installed(Installation),
    /// This machine lacks something; the text is the reason.
    Skipped(String),
}

/// An installed program.
struct Installation {
    /// Time of the installation.
    took: Duration,
    /// The program, after other programs that start it.
    program: Vec<OsString>,
    /// Its empty store, as a folder of this machine.
    store: PathBuf,
    /// The wheel of the model, as the program names it, if the program cannot download it.
    model: Option<OsString>,
}

impl InstallWay {
    fn install(self, packages: &Packages<'_>, folder: &Path) -> anyhow::Result<Attempt> {
        match self {
            Self::Installer => installer::install(packages, folder),
            Self::Pip => wheel::install_with_pip(packages, folder),
            Self::Uv => wheel::install_with_uv(packages, folder),
            Self::Npm => npm::install(packages, folder),
            Self::Npx => npm::install_with_npx(packages, folder),
            Self::Deb => debian::install(packages, folder),
            Self::Msi => windows::install(packages, folder),
            Self::Cargo => cargo_install::install(packages, folder),
            Self::Registry => registry::install(packages, folder),
        }
    }

    /// Returns true if the installation contains ONNX Runtime.
    fn has_runtime(self) -> bool {
        !matches!(self, Self::Cargo | Self::Registry)
    }

    /// Installs into a fresh folder, asks the question and removes the folder.
    fn check(self, packages: &Packages<'_>) -> anyhow::Result<WayOutcome> {
        let folder = tempfile::tempdir_in(&packages.session.workspace.target)?;
        let installation = match self.install(packages, folder.path())? {
            Attempt::Installed(installation) => installation,
            Attempt::Skipped(reason) => return Ok(WayOutcome::Skipped(reason)),
        };
        terminal::line(format!("installed in {:.1} s", installation.took.as_secs_f64()));
        let answers = question::ask(packages, folder.path(), &installation)?;
        let fetched = installation.store.join("runtimes").exists();
        if self == Self::Msi {
            windows::remove(packages, folder.path())?;
        }
        ensure!(
            fetched != self.has_runtime(),
            "expected ONNX Runtime {}",
            if self.has_runtime() { "from the installation, but it was fetched" } else { "to be fetched" }
        );
        Ok(WayOutcome::Answered { installed: installation.took, answers })
    }
}

/// Makes the packages, tries the ways and fails if one of them fails.
pub(crate) fn run(workspace: &Workspace, args: PackageArgs) -> anyhow::Result<()> {
    let commit = record::commit(workspace)?;
    let start = Instant::now();
    let packages = Packages::make(Session::new(workspace)?)?;
    let mut reports = Vec::new();
    for way in args.only.map_or_else(|| InstallWay::VARIANTS.to_vec(), |only| vec![only]) {
        let name: &str = way.into();
        terminal::line(format!("== {name}"));
        let outcome = way.check(&packages).unwrap_or_else(|error| WayOutcome::Failed(format!("{error:#}")));
        let report = WayReport { way, outcome };
        terminal::line(page::row(&report).trim_end());
        reports.push(report);
    }
    let page = page::page(&commit, &packages.sizes()?, &reports, start.elapsed());
    if args.output.record {
        record::write(workspace, record::CONFORMANCE, "package", &page)?;
    }
    let failed: String = reports.iter().filter(|report| report.failed()).map(page::row).collect();
    ensure!(failed.is_empty(), "some ways to install failed:\n{failed}");
    terminal::line("package: no way to install failed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed() {
        let check = |line: &str, only, record| {
            let expect = PackageArgs { only, output: RecordArgs { record } };
            assert_eq!(crate::parse(line).unwrap(), crate::Command::Package(expect), "{line}");
        };
        check("package", None, false);
        check("package --record", None, true);
        check("package --only deb", Some(InstallWay::Deb), false);
        assert!(crate::parse("package --only snap").is_err());
    }
}
