//! Packages: compiled models under `packages/<name>/<scheme>/`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use narthex_spec::{
    ModelName, Scheme,
    manifest::{MANIFEST_FILE, MAX_MANIFEST_BYTES, check_text},
};
use serde::Deserialize;

use super::{
    Staging, Store,
    receipt::{RECEIPT_FILE, Receipt},
    staging::{StagingTarget, swap_lock},
};
use crate::{error::Error, files};

/// A package in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageInfo {
    /// The model.
    pub name: ModelName,
    /// Its weight scheme.
    pub scheme: Scheme,
    /// Its folder.
    pub dir: PathBuf,
    /// Total size of its files.
    pub bytes: u64,
    /// Time of its creation.
    pub created: SystemTime,
}

/// Folders of a model in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovableFolders {
    /// Packages by scheme.
    pub packages: Vec<(Scheme, PathBuf)>,
    /// Checkpoints from which the packages were made.
    pub checkpoints: Vec<PathBuf>,
    /// Files that this machine made from the packages.
    pub machine: Vec<PathBuf>,
}

impl RemovableFolders {
    /// Returns the total size of all files in bytes.
    pub fn bytes(&self) -> u64 {
        self.folders().chain(self.machine.iter().map(PathBuf::as_path)).map(files::tree_bytes).sum()
    }

    fn folders(&self) -> impl Iterator<Item = &Path> {
        let packages = self.packages.iter().map(|(_, folder)| folder.as_path());
        packages.chain(self.checkpoints.iter().map(PathBuf::as_path))
    }
}

/// The one field of a manifest that the store reads.
#[derive(Deserialize)]
struct ManifestName {
    name: ModelName,
}

impl Store {
    pub(super) fn package_folder(&self, name: &ModelName, scheme: Scheme) -> PathBuf {
        self.root().join("packages").join(name.file_stem()).join(scheme.as_str())
    }

    /// Returns the folder of an installed package; `None` if it is not installed. The package may be malformed:
    /// its manifest need not be a regular file.
    pub fn package(&self, name: &ModelName, scheme: Scheme) -> Option<PathBuf> {
        let folder = self.package_folder(name, scheme);
        (has_manifest(&folder) && !is_of_other_model(&folder, name)).then_some(folder)
    }

    /// Returns every installed package, sorted by name and scheme. Other folders are skipped with a warning.
    pub fn packages(&self) -> Result<Vec<PackageInfo>, Error> {
        let root = self.root().join("packages");
        if !root.is_dir() {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for model in fs::read_dir(&root).map_err(Error::io("list", &root))?.flatten() {
            for scheme in Scheme::ALL {
                let dir = model.path().join(scheme.as_str());
                if has_manifest(&dir) {
                    found.extend(describe(dir, scheme));
                }
            }
        }
        found.sort_by(|a, b| (&a.name, a.scheme).cmp(&(&b.name, b.scheme)));
        Ok(found)
    }

    /// Creates a staging folder that becomes the package of `name` in `scheme` when it is committed.
    pub fn stage_package(&self, name: &ModelName, scheme: Scheme) -> Result<Staging, Error> {
        let becomes = StagingTarget::Package { name: name.clone(), scheme };
        Staging::with_kind(self, self.package_folder(name, scheme), becomes)
    }

    /// Returns the folders that [`Self::remove`] would remove, or [`Error::NoPackage`] if there are none.
    pub fn removable(&self, name: &ModelName, scheme: Option<Scheme>) -> Result<RemovableFolders, Error> {
        let schemes = Scheme::ALL.into_iter().filter(|&other| scheme.is_none_or(|wanted| wanted == other));
        let packages: Vec<(Scheme, PathBuf)> =
            schemes.filter_map(|scheme| Some((scheme, self.package(name, scheme)?))).collect();
        let checkpoints = if scheme.is_none() { self.checkpoints_of(name) } else { Vec::new() };
        if packages.is_empty() && checkpoints.is_empty() {
            return Err(Error::NoPackage { name: name.clone(), scheme });
        }
        // Nothing is kept for a package without a readable manifest.
        let with_manifest = packages.iter().filter(|(_, folder)| folder.join(MANIFEST_FILE).is_file());
        let machine = with_manifest.map(|(_, folder)| self.of_package(folder)).collect::<Result<_, _>>()?;
        Ok(RemovableFolders { packages, checkpoints, machine })
    }

    /// Removes one package. Without a scheme, removes all packages of a model, and the checkpoint from which they were
    /// made if it is in the store, with the files that this machine made from them. Returns the number of bytes freed, or [`Error::NoPackage`] if there was nothing.
    pub fn remove(&self, name: &ModelName, scheme: Option<Scheme>) -> Result<u64, Error> {
        let removable = self.removable(name, scheme)?;
        let freed = removable.bytes();
        removable.machine.iter().try_for_each(|folder| files::remove_all(folder))?;
        removable.folders().try_for_each(|folder| self.discard(folder))?;
        // An empty folder does no harm, so a failure to remove it is ignored.
        let _ = fs::remove_dir(self.root().join("packages").join(name.file_stem()));
        Ok(freed)
    }

    /// Moves a folder out of the store in one step and then deletes it, so that after a kill it is either whole or
    /// gone.
    pub(crate) fn discard(&self, folder: &Path) -> Result<(), Error> {
        let staging = self.scratch()?;
        let _swap = swap_lock(self)?;
        let moved = staging.path().join("discarded");
        files::rename_folder("remove", folder, &moved)?;
        drop(staging);
        Ok(())
    }

    fn checkpoints_of(&self, name: &ModelName) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.root().join("checkpoints")) else { return Vec::new() };
        entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|folder| Receipt::read(&folder.join(RECEIPT_FILE)).is_some_and(|r| r.made_for(name)))
            .collect()
    }
}

/// Returns whether a folder has a manifest, or something else with its name.
fn has_manifest(folder: &Path) -> bool {
    folder.join(MANIFEST_FILE).symlink_metadata().is_ok()
}

/// Returns whether the folder of a name belongs to another model: `a--b` is also the folder of `a:b` and `a/b`.
fn is_of_other_model(folder: &Path, name: &ModelName) -> bool {
    let is_unambiguous = !name.as_str().contains("--");
    !is_unambiguous && stated_name(&folder.join(MANIFEST_FILE)).is_ok_and(|stated| stated != *name)
}

/// Reads the name that a manifest states.
fn stated_name(manifest: &Path) -> io::Result<ModelName> {
    Ok(serde_json::from_slice::<ManifestName>(&read_manifest(manifest)?)?.name)
}

/// Reads the text of a manifest. Fails if it is too long or may have too many values.
pub(super) fn read_manifest(path: &Path) -> io::Result<Vec<u8>> {
    let text = narthex_files::read(path, MAX_MANIFEST_BYTES)?;
    check_text(&text)?;
    Ok(text)
}

fn describe(dir: PathBuf, scheme: Scheme) -> Option<PackageInfo> {
    let manifest = dir.join(MANIFEST_FILE);
    let read = stated_name(&manifest).and_then(|name| Ok((name, fs::metadata(&manifest)?.modified()?)));
    match read {
        Ok((name, _)) if !dir.parent().is_some_and(|folder| folder.ends_with(name.file_stem())) => {
            tracing::warn!(folder = %dir.display(), %name, "the folder and its manifest name different models");
            None
        }
        Ok((name, created)) => {
            let bytes = files::tree_bytes(&dir);
            Some(PackageInfo { name, scheme, dir, bytes, created })
        }
        Err(error) => {
            tracing::warn!(folder = %dir.display(), %error, "this folder is not a readable package");
            None
        }
    }
}
