//! `packaging/install.sh`, which installs a release from a folder.

use std::{path::Path, time::Instant};

use super::{
    Attempt, Installation,
    packages::{Packages, quietly},
};

/// Installs into a prefix in the folder.
pub(super) fn install(packages: &Packages<'_>, folder: &Path) -> anyhow::Result<Attempt> {
    let prefix = folder.join("prefix");
    let mut installer = packages.command("sh", folder);
    installer.arg(packages.session.workspace.root.join("packaging/install.sh"));
    installer.env("NARTHEX_RELEASE", &packages.folder).env("NARTHEX_PREFIX", &prefix);
    let start = Instant::now();
    quietly("$ sh packaging/install.sh", &mut installer)?;
    Ok(Attempt::Installed(Installation {
        took: start.elapsed(),
        program: vec![prefix.join("bin/narthex").into()],
        store: folder.join("store"),
        model: None,
    }))
}
