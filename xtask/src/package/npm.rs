//! The npm package, installed by npm and started by npx, without a registry.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::Context;

use super::{
    Attempt, Installation,
    packages::{Packages, quietly},
};
use xtask_tools::process::works;

/// Installs the package into a prefix in the folder.
pub(super) fn install(packages: &Packages<'_>, folder: &Path) -> anyhow::Result<Attempt> {
    let Some(package) = pack(packages)? else { return Ok(Attempt::Skipped(missing())) };
    let prefix = folder.join("prefix");
    let mut npm = packages.command("npm", folder);
    npm.args(["install", "--global", "--no-audit", "--no-fund", "--prefix"]).arg(&prefix);
    npm.arg("--cache").arg(folder.join("cache")).arg(package);
    let start = Instant::now();
    quietly("$ npm install --global", &mut npm)?;
    Ok(Attempt::Installed(Installation {
        took: start.elapsed(),
        program: vec![prefix.join("bin/narthex").into()],
        store: folder.join("store"),
        model: None,
    }))
}

/// Lets npx install the package into its cache in the folder.
pub(super) fn install_with_npx(packages: &Packages<'_>, folder: &Path) -> anyhow::Result<Attempt> {
    let Some(package) = pack(packages)? else { return Ok(Attempt::Skipped(missing())) };
    // npx would run a package that it finds as a file, so the package is an option.
    let mut program: Vec<OsString> = vec!["npx".into(), "--yes".into(), "--cache".into()];
    program.extend([folder.join("cache").into(), "--package".into(), package.into(), "narthex".into()]);
    let mut npx = packages.command(&program[0], folder);
    npx.args(&program[1..]).arg("--version");
    let start = Instant::now();
    quietly("$ npx", &mut npx)?;
    Ok(Attempt::Installed(Installation {
        took: start.elapsed(),
        program,
        store: folder.join("store"),
        model: None,
    }))
}

fn missing() -> String {
    "npm is not installed".to_owned()
}

/// Packs the program of this platform and returns the package's path, or `None` without npm.
fn pack(packages: &Packages<'_>) -> anyhow::Result<Option<PathBuf>> {
    let session = &packages.session;
    if !works(session.command("npm").arg("--version")) {
        return Ok(None);
    }
    if let Some(package) = packages.file(".tgz")? {
        return Ok(Some(package));
    }
    let scratch = tempfile::tempdir_in(&session.workspace.target)?;
    let part = packages.folder.join(format!("npm-{}.tar.gz", packages.platform));
    let copy = "cp -R packaging/npm/. LICENSE \"$1\" && tar -xzf \"$2\" -C \"$1\"";
    let mut join = session.command("sh");
    join.args(["-c", copy, "sh"]).arg(scratch.path()).arg(part);
    quietly("copying the npm package", &mut join)?;
    let mut npm = packages.command("npm", scratch.path());
    quietly("$ npm pack", npm.args(["pack", "--silent", "--pack-destination"]).arg(&packages.folder))?;
    packages.file(".tgz")?.context("`npm pack` made no package").map(Some)
}
