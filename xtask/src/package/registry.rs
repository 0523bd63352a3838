//! `cargo install narthex` from a registry in a folder, which has the crates as they would be published.
//!
//! The folder replaces the default registry, so it also has the packages of all dependencies, which Cargo has already
//! downloaded. It has the layout of a [local registry](https://doc.rust-lang.org/cargo/reference/source-replacement.html#local-registry-sources).

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use narthex_spec::Sha256;
use serde::{Deserialize, Serialize};
use sha2::Digest;

use super::{Attempt, cargo_install, packages::Packages};
use xtask_tools::{process, session::Session, terminal};

/// Name of the registry in Cargo's configuration.
const NAME: &str = "narthex-packages";

/// Output of `cargo metadata`: the packages of the workspace and all their dependencies.
#[derive(Deserialize)]
struct PackageList {
    packages: Vec<ListedPackage>,
    workspace_members: Vec<String>,
}

/// A package of the workspace or of a registry.
#[derive(Deserialize)]
struct ListedPackage {
    id: String,
    name: String,
    version: String,
    manifest_path: PathBuf,
    dependencies: Vec<ListedDependency>,
    features: BTreeMap<String, Vec<String>>,
    links: Option<String>,
    rust_version: Option<String>,
    /// Registries to which it may be published; `None` means all.
    publish: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct ListedDependency {
    name: String,
    req: String,
    kind: Option<String>,
    rename: Option<String>,
    optional: bool,
    uses_default_features: bool,
    features: Vec<String>,
    target: Option<String>,
}

/// A line of the [index](https://doc.rust-lang.org/cargo/reference/registry-index.html#json-schema).
#[derive(Serialize)]
struct IndexLine<'a> {
    name: &'a str,
    vers: &'a str,
    deps: Vec<IndexDependency<'a>>,
    cksum: String,
    features: &'a BTreeMap<String, Vec<String>>,
    yanked: bool,
    links: Option<&'a str>,
    rust_version: Option<&'a str>,
}

#[derive(Serialize)]
struct IndexDependency<'a> {
    name: &'a str,
    req: &'a str,
    features: &'a [String],
    optional: bool,
    default_features: bool,
    target: Option<&'a str>,
    kind: &'a str,
    /// The package's name if `name` is another.
    package: Option<&'a str>,
}

/// Makes the registry and installs from it into a root in the folder. Everything is compiled, as for a user.
pub(super) fn install(packages: &Packages<'_>, folder: &Path) -> anyhow::Result<Attempt> {
    let registry = folder.join("registry");
    make(&packages.session, folder, &registry)?;
    let mut cargo = packages.session.cargo(&["install", "--quiet", "--locked", "narthex"]);
    cargo.arg("--config").arg(format!("source.crates-io.replace-with=\"{NAME}\""));
    cargo.arg("--config").arg(format!("source.{NAME}.local-registry=\"{}\"", registry.display()));
    cargo_install::run(cargo.arg("--target-dir").arg(folder.join("target")), folder)
}

/// Packages the crates, and writes them with their dependencies and an index to the folder `registry`.
fn make(session: &Session<'_>, folder: &Path, registry: &Path) -> anyhow::Result<()> {
    let output = process::output(&mut session.cargo(&["metadata", "--locked", "--format-version", "1"]))?;
    let metadata: PackageList =
        serde_json::from_str(&output.stdout).context("`cargo metadata` printed something unexpected")?;
    let packaged = folder.join("packaged");
    let mut package = session.cargo(&["package", "--quiet", "--workspace", "--no-verify", "--allow-dirty"]);
    for excluded in metadata.packages.iter().filter(|package| package.is_private()) {
        package.args(["--exclude", &excluded.name]);
    }
    process::run(package.arg("--target-dir").arg(&packaged))?;
    fs::create_dir_all(registry)?;
    let mut count = 0;
    for package in metadata.packages.iter().filter(|package| !package.is_private()) {
        let is_own = metadata.workspace_members.contains(&package.id);
        let source =
            if is_own { packaged.join("package").join(package.file_name()) } else { package.cached()? };
        let bytes = fs::read(&source).with_context(|| source.display().to_string())?;
        fs::write(registry.join(package.file_name()), &bytes)?;
        let checksum = Sha256(sha2::Sha256::digest(&bytes).into()).to_string();
        package.add_to_index(&registry.join("index"), &checksum)?;
        count += 1;
    }
    terminal::line(format!("a registry with {count} packages"));
    Ok(())
}

impl ListedPackage {
    /// Returns true if the package is never published.
    fn is_private(&self) -> bool {
        self.publish.as_ref().is_some_and(Vec::is_empty)
    }

    fn file_name(&self) -> String {
        format!("{}-{}.crate", self.name, self.version)
    }

    /// Returns the path of the downloaded package. Cargo stores it in `registry/cache/NAME`, and unpacks it into
    /// `registry/src/NAME`.
    fn cached(&self) -> anyhow::Result<PathBuf> {
        let path = &self.manifest_path;
        let unexpected =
            || format!("expected the manifest of a downloaded package, found {}", path.display());
        let registry = path.parent().and_then(Path::parent).with_context(unexpected)?;
        let sources = registry.parent().with_context(unexpected)?;
        ensure!(sources.ends_with("registry/src"), unexpected());
        let name = registry.file_name().with_context(unexpected)?;
        let cache = sources.with_file_name("cache").join(name);
        Ok(cache.join(self.file_name()))
    }

    /// Appends the package's line to its file in the index.
    fn add_to_index(&self, index: &Path, checksum: &str) -> anyhow::Result<()> {
        let path = index.join(index_path(&self.name));
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut lines = fs::read_to_string(&path).unwrap_or_default();
        lines += &serde_json::to_string(&self.index_line(checksum))?;
        lines.push('\n');
        fs::write(&path, lines).with_context(|| path.display().to_string())
    }

    fn index_line<'a>(&'a self, checksum: &str) -> IndexLine<'a> {
        IndexLine {
            name: &self.name,
            vers: &self.version,
            // Features may name development dependencies, which Cargo does not install.
            deps: self.dependencies.iter().map(ListedDependency::index_entry).collect(),
            cksum: checksum.to_owned(),
            features: &self.features,
            yanked: false,
            links: self.links.as_deref(),
            rust_version: self.rust_version.as_deref(),
        }
    }
}

impl ListedDependency {
    fn index_entry(&self) -> IndexDependency<'_> {
        IndexDependency {
            name: self.rename.as_ref().unwrap_or(&self.name),
            req: &self.req,
            features: &self.features,
            optional: self.optional,
            default_features: self.uses_default_features,
            target: self.target.as_deref(),
            kind: self.kind.as_deref().unwrap_or("normal"),
            package: self.rename.as_ref().map(|_| self.name.as_str()),
        }
    }
}

/// Returns the path of a package's file in an index.
fn index_path(name: &str) -> PathBuf {
    let name = name.to_lowercase();
    let folder = match name.len() {
        1 => "1".to_owned(),
        2 => "2".to_owned(),
        3 => format!("3/{}", &name[..1]),
        _ => format!("{}/{}", &name[..2], &name[2..4]),
    };
    Path::new(&folder).join(name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn package() -> ListedPackage {
        serde_json::from_value(json!({
            "id": "r#a@1.2.3", "name": "abcd", "version": "1.2.3", "features": {"fast": ["dep:b"]}, "links": null,
            "manifest_path": "/home/registry/src/mirror-1/abcd-1.2.3/Cargo.toml", "rust_version": "1.92", "publish": null,
            "dependencies": [
                {"name": "b", "req": "^2", "kind": null, "rename": "c", "optional": true,
                    "uses_default_features": false, "features": ["d"], "target": "cfg(unix)"},
                {"name": "e", "req": "*", "kind": "dev", "rename": null, "optional": false,
                    "uses_default_features": true, "features": [], "target": null},
            ],
        }))
        .unwrap()
    }

    #[test]
    fn a_package_has_a_line_in_the_index() {
        let folder = tempfile::tempdir().unwrap();
        package().add_to_index(folder.path(), "00ff").unwrap();
        let text = fs::read_to_string(folder.path().join("ab/cd/abcd")).unwrap();
        let expect = json!({
            "name": "abcd", "vers": "1.2.3", "cksum": "00ff", "features": {"fast": ["dep:b"]}, "yanked": false,
            "links": null, "rust_version": "1.92",
            "deps": [{"name": "c", "package": "b", "req": "^2", "features": ["d"], "optional": true,
                "default_features": false, "target": "cfg(unix)", "kind": "normal"},
                {"name": "e", "package": null, "req": "*", "features": [], "optional": false, "default_features": true,
                "target": null, "kind": "dev"}],
        });
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expect);
        package().add_to_index(folder.path(), "00ff").unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("ab/cd/abcd")).unwrap().lines().count(), 2);
    }

    #[test]
    fn downloaded_packages_are_in_the_cache() {
        let mut package = package();
        assert_eq!(package.cached().unwrap(), Path::new("/home/registry/cache/mirror-1/abcd-1.2.3.crate"));
        package.manifest_path = "/work/crates/a/Cargo.toml".into();
        assert!(package.cached().unwrap_err().to_string().contains("/work/crates/a"));
    }

    #[test]
    fn names_have_paths_by_their_length() {
        let paths = ["a", "ab", "Abc", "abcd"].map(index_path);
        assert_eq!(paths, ["1/a", "2/ab", "3/a/abc", "ab/cd/abcd"].map(PathBuf::from));
    }
}
