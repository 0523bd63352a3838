//! The settings file, which the user writes and `narthex create` and `narthex rm` change: replaced as a whole, by one
//! process at a time.

use std::{
    io,
    path::{Path, PathBuf},
};

use narthex_spec::progress::Quiet;

use super::{Guard, Store};
use crate::{CancelFlag, error::Error, files};

/// Name of the file in the store, and of the lock of its writers.
pub(super) const FILE: &str = "narthex.toml";

/// Maximum size of the file in bytes.
const LIMIT: u64 = 1 << 20;

impl Store {
    /// Returns the path of the settings file in the store at `root`, or in the usual one.
    pub fn settings_file(root: Option<PathBuf>) -> Result<PathBuf, Error> {
        Ok(Self::root_of(root)?.join(FILE))
    }

    /// Waits until no other process changes settings.
    pub fn lock_settings(&self, cancel: &CancelFlag) -> Result<SettingsLock, Error> {
        Ok(SettingsLock { _lock: self.lock(FILE, &Quiet, cancel)? })
    }
}

/// The right to change settings.
pub struct SettingsLock {
    _lock: Guard,
}

impl SettingsLock {
    /// Returns the text of a settings file; empty if there is no file.
    pub fn read(&self, path: &Path) -> Result<String, Error> {
        match narthex_files::read(path, LIMIT).and_then(narthex_files::user_text) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(Error::io("read", path)(error)),
        }
    }

    /// Replaces a settings file.
    pub fn replace(&self, path: &Path, text: &str) -> Result<(), Error> {
        let new = path.with_extension("toml.new");
        files::replace_by(path, &new, |new| files::write_privately(new, text.as_bytes()))?;
        path.parent().map_or(Ok(()), files::sync_folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_replaced_as_a_whole() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(Some(home.path().join("home"))).unwrap();
        let path = store.root().join(FILE);
        let lock = store.lock_settings(&CancelFlag::new(false)).unwrap();
        assert_eq!(lock.read(&path).unwrap(), "");
        lock.replace(&path, "[limits]\nslots = 2\n").unwrap();
        lock.replace(&path, "[limits]\n").unwrap();
        assert_eq!(lock.read(&path).unwrap(), "[limits]\n");
        let entries = std::fs::read_dir(store.root()).unwrap();
        let leftovers = entries.filter(|entry| {
            entry.as_ref().is_ok_and(|one| one.path().extension().is_some_and(|end| end == "new"))
        });
        assert_eq!(leftovers.count(), 0);
    }
}
