//! The workspace as described by Cargo: root, packages and dependencies.
//!
//! The module reads `cargo metadata --no-deps`, so it does not resolve, fetch or build anything.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};
use serde::Deserialize;

/// The workspace to which this program belongs.
#[derive(Debug)]
pub struct Workspace {
    /// The folder of the workspace's `Cargo.toml`.
    pub root: PathBuf,
    /// The folder for build outputs.
    pub target: PathBuf,
    /// Its packages.
    pub packages: Vec<Package>,
}

/// One package of the workspace.
#[derive(Debug, Clone)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its folder relative to the root, with forward slashes.
    pub folder: String,
    /// Dependencies that its manifest declares.
    pub dependencies: Vec<Dependency>,
}

/// One dependency in a manifest, for any platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// Name of the package, before any renaming.
    pub name: String,
    /// Its kind.
    pub kind: DependencyKind,
}

/// Kinds of dependencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DependencyKind {
    /// Required by the product, at run time or at build time.
    Product,
    /// Required only by tests, examples and benchmarks.
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
    /// Reads the workspace of this crate from Cargo's metadata.
    ///
    /// The path at run time (`CARGO_MANIFEST_DIR`) takes precedence over the one at build time, because checkouts that
    /// share a target folder also share this program.
    pub fn read() -> anyhow::Result<Self> {
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
            kind: if dependency.kind.as_deref() == Some("dev") {
                DependencyKind::Tests
            } else {
                DependencyKind::Product
            },
        });
        Self { name: package.name, folder: relative(folder, root), dependencies: dependencies.collect() }
    }
}

/// Returns the Cargo that runs this program, or the one on the path.
pub fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Returns a path relative to the root, with forward slashes, for messages and lookups.
pub fn relative(path: &Path, root: &Path) -> String {
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
        let kinds: Vec<_> = package.dependencies.iter().map(|d| (d.name.as_str(), d.kind)).collect();
        assert_eq!(
            kinds,
            [
                ("serde", DependencyKind::Product),
                ("cc", DependencyKind::Product),
                ("insta", DependencyKind::Tests)
            ]
        );
    }

    #[test]
    fn this_workspace_is_found() {
        let workspace = Workspace::read().unwrap();
        let xtask = workspace.packages.iter().find(|package| package.name == "xtask").unwrap();
        assert_eq!(xtask.folder, "xtask");
        assert!(workspace.root.join("Cargo.toml").is_file());
    }
}
