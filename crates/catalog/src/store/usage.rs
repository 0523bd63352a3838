//! Space that the parts of a store take on disk, and the removal of parts that nothing uses.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use narthex_spec::{ModelName, Scheme};
use serde::Serialize;

use super::{
    Store,
    receipt::{RECEIPT_FILE, Receipt},
};
use crate::{error::Error, files};

/// Bytes of the parts of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoreUsage {
    /// Packages, by name and scheme.
    pub packages: Vec<PackageUsage>,
    /// Checkpoints in the store, from which packages were made.
    pub checkpoints: Vec<CheckpointUsage>,
    /// Runtime libraries.
    pub runtimes: u64,
    /// Parts that nothing uses: downloads, files of removed packages, and information about failures.
    pub leftovers: u64,
    /// All files of the store.
    pub total: u64,
}

/// Bytes of one package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PackageUsage {
    /// Model.
    pub name: ModelName,
    /// Weight scheme.
    pub scheme: Scheme,
    /// The package.
    pub bytes: u64,
    /// Files that this machine made from the package: packed weights, compiled contexts and records.
    pub machine_bytes: u64,
}

/// Bytes of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckpointUsage {
    /// Model for which it was fetched.
    pub made_for: String,
    /// Its files.
    pub bytes: u64,
    /// True if a package of the model is installed.
    pub installed: bool,
    #[serde(skip)]
    folder: PathBuf,
}

/// Checkpoints that [`Store::prune`] removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointPruning {
    /// Those of models that are not installed.
    Unused,
    /// All of them. A compile of an installed model in another scheme fetches its checkpoint again.
    All,
}

impl Store {
    /// Returns the bytes of every part.
    pub fn usage(&self) -> Result<StoreUsage, Error> {
        let mut packages = Vec::new();
        for package in self.packages()? {
            packages.push(PackageUsage {
                machine_bytes: self.machine_bytes(&package.dir)?,
                name: package.name,
                scheme: package.scheme,
                bytes: package.bytes,
            });
        }

        let checkpoints = self.checkpoints().map(|(receipt, folder)| CheckpointUsage {
            bytes: files::tree_bytes(&folder),
            installed: packages.iter().any(|package| package.name.as_str() == receipt.made_for),
            made_for: receipt.made_for,
            folder,
        });
        Ok(StoreUsage {
            checkpoints: checkpoints.collect(),
            runtimes: files::tree_bytes(&self.root().join("runtimes")),
            leftovers: self.leftovers()?.iter().map(|path| files::tree_bytes(path)).sum(),
            total: files::tree_bytes(self.root()),
            packages,
        })
    }

    /// Returns the bytes of the checkpoints in the store, by the names of the models for which they were fetched.
    pub fn stored_checkpoint_bytes(&self) -> BTreeMap<String, u64> {
        let mut bytes = BTreeMap::new();
        for (receipt, folder) in self.checkpoints() {
            *bytes.entry(receipt.made_for).or_default() += files::tree_bytes(&folder);
        }
        bytes
    }

    /// Returns the receipt and the folder of each checkpoint in the store.
    fn checkpoints(&self) -> impl Iterator<Item = (Receipt, PathBuf)> + use<> {
        let folders = entries(&self.root().join("checkpoints"));
        folders.filter_map(|folder| Some((Receipt::read(&folder.join(RECEIPT_FILE))?, folder)))
    }

    /// Returns the bytes of the files that this machine made from the package in a folder.
    pub fn machine_bytes(&self, package: &Path) -> Result<u64, Error> {
        Ok(files::tree_bytes(&self.of_package(package)?))
    }

    /// Removes what nothing uses: downloads, files of removed packages, information about failures, and checkpoints.
    /// Returns the number of bytes freed.
    pub fn prune(&self, checkpoints: CheckpointPruning) -> Result<u64, Error> {
        let mut freed = 0;
        for path in self.leftovers()? {
            freed += files::tree_bytes(&path);
            files::remove_all(&path)?;
        }
        for checkpoint in self.usage()?.checkpoints {
            if checkpoints == CheckpointPruning::All || !checkpoint.installed {
                freed += checkpoint.bytes;
                self.discard(&checkpoint.folder)?;
            }
        }
        Ok(freed)
    }

    /// Returns the paths of parts that nothing uses.
    fn leftovers(&self) -> Result<Vec<PathBuf>, Error> {
        let mut used = BTreeSet::new();
        for package in self.packages()? {
            used.insert(Self::package_digest(&package.dir)?.to_string());
        }
        let unpacked = ["checkpoints", "runtimes"].map(|name| self.root().join(name));
        for folder in unpacked.iter().flat_map(|folder| entries(folder)) {
            let receipt = Receipt::read(&folder.join(RECEIPT_FILE));
            used.extend(receipt.map(|receipt| receipt.archive.to_string()));
        }
        let machine = entries(&self.root().join("machine")).filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_digest = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_digest && !used.contains(name)
        });
        let others = ["blobs", "failures"].map(|name| self.root().join(name));
        Ok(machine.chain(others.iter().flat_map(|folder| entries(folder))).collect())
    }
}

/// Returns the entries of a folder; none if it does not exist.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use narthex_spec::{Sha256, manifest::MANIFEST_FILE};

    use super::*;

    fn write(path: &Path, bytes: usize) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![b'x'; bytes]).unwrap();
    }

    fn checkpoint(store: &Store, made_for: &str, digest: u8) -> PathBuf {
        let folder = store.checkpoint_folder(&Sha256([digest; 32]));
        write(&folder.join("model.gguf"), 1000);
        let (made_for, archive) = (made_for.to_owned(), Sha256([digest; 32]));
        Receipt { made_for, source: String::new(), archive, files: Default::default() }
            .write(&folder)
            .unwrap();
        folder
    }

    #[test]
    fn every_part_is_counted_and_what_nothing_uses_is_removed() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(Some(home.path().join("store"))).unwrap();
        let package = store.root().join("packages/tiny/w8");
        write(&package.join("weights.bin"), 500);
        fs::write(package.join(MANIFEST_FILE), r#"{"name": "tiny"}"#).unwrap();
        store.machine(&package, "cpu").unwrap().write("packed", &[0; 70]).unwrap();
        let (used, unused) = (checkpoint(&store, "tiny", 1), checkpoint(&store, "gone", 2));
        write(&store.root().join("blobs").join("ab"), 30);
        let orphan = store.root().join("machine").join("ab".repeat(32)).join("cpu/packed");
        write(&orphan, 40);
        let usage = store.usage().unwrap();
        let [tiny] = usage.packages.as_slice() else { panic!("{usage:?}") };
        assert_eq!((tiny.name.as_str(), tiny.scheme, tiny.machine_bytes), ("tiny", Scheme::W8, 70));
        assert_eq!((usage.leftovers, usage.checkpoints.len()), (70, 2));
        let checkpoints = store.stored_checkpoint_bytes();
        assert!(checkpoints["tiny"] > 1000 && checkpoints.contains_key("gone"), "{checkpoints:?}");
        assert!(usage.total >= tiny.bytes + tiny.machine_bytes + 2000 + 70, "{usage:?}");
        let freed = store.prune(CheckpointPruning::Unused).unwrap();
        assert!(freed >= 1070 && !unused.exists() && used.exists() && !orphan.exists(), "{freed}");
        assert_eq!(store.prune(CheckpointPruning::Unused).unwrap(), 0);
        assert!(store.prune(CheckpointPruning::All).unwrap() >= 1000 && !used.exists() && package.exists());
        assert_eq!(store.usage().unwrap().packages[0].machine_bytes, 70, "the package is used");
    }
}
