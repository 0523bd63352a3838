//! `cargo install` from the sources. It uses the release build in the target folder, so its time is not that of a build.

use std::{path::Path, time::Instant};

use super::{Attempt, Installation, packages::Packages};
use crate::process;

/// Installs into a root in the folder.
pub(super) fn install(packages: &Packages<'_>, folder: &Path) -> anyhow::Result<Attempt> {
    let root = folder.join("root");
    let mut cargo = packages.session.cargo(&["install", "--quiet", "--locked", "--path", "crates/cli"]);
    // Cargo warns that the root is not in `PATH`.
    cargo.arg("--target-dir").arg(&packages.session.workspace.target).arg("--root").arg(&root);
    let start = Instant::now();
    process::run(&mut cargo)?;
    Ok(Attempt::Installed(Installation {
        took: start.elapsed(),
        program: vec![root.join("bin/narthex").into()],
        store: folder.join("store"),
    }))
}
