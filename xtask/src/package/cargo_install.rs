//! `cargo install`, from the sources or from a registry.

use std::{path::Path, process::Command, time::Instant};

use super::{Attempt, Installation, packages::Packages};
use xtask_tools::process;

/// Installs from the sources. This uses the release build in the target folder, so its time is not that of a build.
pub(super) fn install(packages: &Packages<'_>, folder: &Path) -> anyhow::Result<Attempt> {
    let mut cargo = packages.session.cargo(&["install", "--quiet", "--locked", "--path", "crates/cli"]);
    run(cargo.arg("--target-dir").arg(&packages.session.workspace.target), folder)
}

/// Runs a command `cargo install` that installs into a root in the folder.
pub(super) fn run(cargo: &mut Command, folder: &Path) -> anyhow::Result<Attempt> {
    let root = folder.join("root");
    let start = Instant::now();
    // Cargo warns that the root is not in `PATH`.
    process::run(cargo.arg("--root").arg(&root))?;
    Ok(Attempt::Installed(Installation {
        took: start.elapsed(),
        program: vec![root.join("bin/narthex").into()],
        store: folder.join("store"),
        model: None,
    }))
}
