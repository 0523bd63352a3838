//! What Cargo knows of the workspace: where it lies, its packages, and what they depend on.
//!
//! Reads `cargo metadata --no-deps`, so nothing here resolves, fetches or builds.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};
use serde::Deserialize;

/// The workspace that this program belongs to.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// The folder of the workspace's `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// The folder for build outputs.
    pub(crate) target: PathBuf,
    /// Its packages.
    pub(crate) packages: Vec<Package>,
}

/// One package of the workspace.
#[derive(Debug, Clone)]
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    /// Its folder relative to the root, with forward slashes.
    pub(crate) folder: String,
    /// What it names as dependencies.
    pub(crate) dependencies: Vec<Dependency>,
}

/// One dependency that a manifest names, for any platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dependency {
    /// The package that is depended on, whatever it is renamed to.
    pub(crate) name: String,
    /// What it is needed for.
    pub(crate) need: Need,
}

/// What a dependency is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// The product, at run time or at build time.
    Product,
    /// Tests, examples and benchmarks alone.
    Tests,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<MetadataPackage>,
    workspace_root: PathBuf,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct MetadataPackage {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<MetadataDependency>,
}

#[derive(Deserialize)]
struct MetadataDependency {
    name: String,
    kind: Option<String>,
}

impl Workspace {
    /// Asks Cargo about the workspace that this crate belongs to.
    ///
    /// Cargo says at run time where that is. The place of the build is the second choice only: checkouts that share a
    /// target folder share this program too.
    pub(crate) fn read() -> anyhow::Result<Self> {
        let here = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let output = Command::new(cargo())
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(here)
            .output()
            .context("cargo cannot be started")?;
        if !output.status.success() {
            bail!("`cargo metadata` failed:\n{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Self::from_metadata(&output.stdout)
    }

    fn from_metadata(json: &[u8]) -> anyhow::Result<Self> {
        let metadata: Metadata =
            serde_json::from_slice(json).context("`cargo metadata` printed something unexpected")?;
        let root = metadata.workspace_root;
        let packages = metadata.packages.into_iter().map(|package| Package::new(package, &root)).collect();
        Ok(Self { root, target: metadata.target_directory, packages })
    }
}

impl Package {
    fn new(package: MetadataPackage, root: &Path) -> Self {
        let folder = package.manifest_path.parent().unwrap_or(root);
        let dependencies = package.dependencies.into_iter().map(|dependency| Dependency {
            name: dependency.name,
            need: if dependency.kind.as_deref() == Some("dev") { Need::Tests } else { Need::Product },
        });
        Self { name: package.name, folder: relative(folder, root), dependencies: dependencies.collect() }
    }
}

/// The Cargo that runs this program, else the one on the path.
pub(crate) fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// A path relative to the root, with forward slashes, for messages and lookups.
pub(crate) fn relative(path: &Path, root: &Path) -> String {
    let path = path.strip_prefix(root).unwrap_or(path);
    let parts: Vec<_> = path.components().map(|part| part.as_os_str().to_string_lossy()).collect();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_becomes_packages() {
        let json = br#"{"workspace_root": "/w", "target_directory": "/t", "packages": [{
            "name": "narthex-a", "manifest_path": "/w/crates/a/Cargo.toml", "dependencies": [
                {"name": "serde", "kind": null}, {"name": "cc", "kind": "build"}, {"name": "insta", "kind": "dev"}]}]}"#;
        let workspace = Workspace::from_metadata(json).unwrap();
        assert_eq!(
            (workspace.root.as_path(), workspace.target.as_path()),
            (Path::new("/w"), Path::new("/t"))
        );
        let package = &workspace.packages[0];
        assert_eq!((package.name.as_str(), package.folder.as_str()), ("narthex-a", "crates/a"));
        let needs: Vec<_> = package.dependencies.iter().map(|d| (d.name.as_str(), d.need)).collect();
        assert_eq!(needs, [("serde", Need::Product), ("cc", Need::Product), ("insta", Need::Tests)]);
    }

    #[test]
    fn this_workspace_is_found() {
        let workspace = Workspace::read().unwrap();
        let xtask = workspace.packages.iter().find(|package| package.name == "xtask").unwrap();
        assert_eq!(xtask.folder, "xtask");
        assert!(workspace.root.join("Cargo.toml").is_file());
    }
}
