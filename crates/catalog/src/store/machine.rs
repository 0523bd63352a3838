//! Files that this machine derives from a package, such as compiled contexts and verification records, under
//! `machine/<package>/<device>/`. Packages themselves never change. Records of the machine itself are in `machine/`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use narthex_spec::{Sha256, manifest::MANIFEST_FILE};

use super::{Staging, Store, lock, privacy};
use crate::{CancelFlag, error::Error, files};

/// Maximum size in bytes of a record.
const RECORD_LIMIT: u64 = 16 << 20;

/// The files of one package for one device of this machine, or those of the machine itself.
#[derive(Debug, Clone)]
pub struct MachineFolder {
    pub(super) store: Store,
    pub(super) path: PathBuf,
}

impl Store {
    /// Returns the files of the package in `folder` for a device. Any string can name the device.
    pub fn machine(&self, folder: &Path, device: &str) -> Result<MachineFolder, Error> {
        let path = self.of_package(folder)?.join(lock::file_stem(device));
        Ok(MachineFolder { store: self.clone(), path })
    }

    /// Returns the records of the machine itself, which belong to no package.
    pub fn own_machine(&self) -> MachineFolder {
        MachineFolder { store: self.clone(), path: self.root().join("machine") }
    }

    /// Removes the files of the package in `folder` for every device.
    pub(super) fn forget_machine(&self, folder: &Path) -> Result<(), Error> {
        files::remove_all(&self.of_package(folder)?)
    }

    /// Returns the files that this machine keeps for the contents with this identity, for all devices.
    pub(super) fn machine_of(&self, identity: Sha256) -> MachineFolder {
        MachineFolder { store: self.clone(), path: self.own_machine().path.join(identity.to_string()) }
    }

    pub(super) fn of_package(&self, folder: &Path) -> Result<PathBuf, Error> {
        Ok(self.machine_of(Self::package_digest(folder)?).path)
    }

    /// Returns the identity of the package in `folder`: the digest of its manifest, which lists the digests of its
    /// files.
    pub fn package_digest(folder: &Path) -> Result<Sha256, Error> {
        files::digest_file(&folder.join(MANIFEST_FILE), &CancelFlag::new(false), |_| ())
    }
}

impl MachineFolder {
    /// Returns the path of a folder, if it exists.
    pub fn folder(&self, name: &str) -> Option<PathBuf> {
        let path = self.path.join(name);
        path.is_dir().then_some(path)
    }

    /// Creates a staging folder that becomes the folder `name` atomically.
    pub fn stage(&self, name: &str) -> Result<Staging, Error> {
        Staging::new(&self.store, self.path.join(name))
    }

    /// Removes the folder `name`.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        files::remove_all(&self.path.join(name))
    }

    /// Returns the digest of every file in a folder, by name.
    pub fn digests(folder: &Path) -> Result<BTreeMap<String, Sha256>, Error> {
        let mut digests = BTreeMap::new();
        for entry in fs::read_dir(folder).map_err(Error::io("list", folder))? {
            let entry = entry.map_err(Error::io("list", folder))?;
            let digest = Self::digest(&entry.path())?;
            digests.insert(entry.file_name().to_string_lossy().into_owned(), digest);
        }
        Ok(digests)
    }

    /// Returns the digest of a file in any location.
    pub fn digest(file: &Path) -> Result<Sha256, Error> {
        files::digest_file(file, &CancelFlag::new(false), |_| ())
    }

    /// Returns a record, or `None` if it does not exist.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let path = self.path.join(name);
        match narthex_files::read(&path, RECORD_LIMIT) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("read", path)(error)),
        }
    }

    /// Writes a record atomically. Replaces an older one.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        privacy::create_folder(&self.path)?;
        // The next start of the store removes what a killed process leaves under `tmp/`.
        let staging = self.store.scratch()?;
        let new = staging.path().join("record");
        let path = self.path.join(name);
        files::write_privately(&new, bytes)?;
        files::rename(&new, &path).map_err(Error::io("move into place", &path))?;
        files::sync_folder(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_belong_to_a_package_and_a_device() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(Some(home.path().join("home"))).unwrap();
        let package = home.path().join("package");
        fs::create_dir(&package).unwrap();
        fs::write(package.join(MANIFEST_FILE), "one").unwrap();
        let machine = store.machine(&package, "qnn:emulation").unwrap();
        assert_eq!((machine.read("r.json").unwrap(), machine.folder("contexts")), (None, None));
        machine.write("r.json", b"old").unwrap();
        machine.write("r.json", b"new").unwrap();
        assert_eq!(machine.read("r.json").unwrap().as_deref(), Some(b"new".as_slice()));
        let staging = machine.stage("contexts").unwrap();
        fs::write(staging.path().join("c.bin"), "c").unwrap();
        assert_eq!(machine.folder("contexts"), None);
        staging.commit().unwrap();
        assert!(machine.folder("contexts").unwrap().join("c.bin").is_file());
        assert_eq!(store.machine(&package, "cpu").unwrap().read("r.json").unwrap(), None);
        machine.remove("contexts").unwrap();
        assert_eq!(machine.folder("contexts"), None);
        store.forget_machine(&package).unwrap();
        assert_eq!(machine.read("r.json").unwrap(), None);
        // A record of the machine itself does not belong to the package.
        store.own_machine().write("r.json", b"own").unwrap();
        assert_eq!(machine.read("r.json").unwrap(), None);
        assert_eq!(store.own_machine().read("r.json").unwrap().as_deref(), Some(b"own".as_slice()));
        // Another package does not share these files.
        machine.write("r.json", b"new").unwrap();
        fs::write(package.join(MANIFEST_FILE), "two").unwrap();
        assert_eq!(store.machine(&package, "qnn:emulation").unwrap().read("r.json").unwrap(), None);
    }
}
