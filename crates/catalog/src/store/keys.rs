//! The file of API keys, `keys.json`: readable only by its owner, replaced as a whole, written by one process at a
//! time.

use std::{fs, io, path::PathBuf};

use narthex_spec::{date::unix_now, progress::Quiet};

use super::Store;
use crate::{
    CancelFlag,
    error::Error,
    files,
    keys::{self, ApiKey, KeyFileStamp, KeyHash, KeyLimits, Secret},
};

/// Name of the file, and of the lock of its writers.
const FILE: &str = "keys.json";

impl Store {
    fn key_file(&self) -> PathBuf {
        self.root().join(FILE)
    }

    /// Returns the state of the key file; `None` if the file does not exist.
    pub fn key_file_stamp(&self) -> Option<KeyFileStamp> {
        let meta = fs::metadata(self.key_file()).ok()?;
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(&meta);
        #[cfg(not(unix))]
        let inode = 0;
        Some(KeyFileStamp { modified: meta.modified().ok(), bytes: meta.len(), inode })
    }

    /// Returns the API keys; empty if there is no file.
    ///
    /// # Errors
    /// [`Error::BadKeyFile`] if the file is malformed, [`Error::Io`] if it is unreadable or if other users can change
    /// it.
    pub fn keys(&self) -> Result<Vec<ApiKey>, Error> {
        let path = self.key_file();
        match narthex_files::read_own(&path, keys::FILE_LIMIT) {
            Ok(bytes) => keys::parse(&bytes).map_err(|reason| Error::BadKeyFile { path, reason }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(Error::io("read", path)(error)),
        }
    }

    /// Adds a key and returns its secret, which is stored nowhere.
    ///
    /// # Errors
    /// [`Error::BadKeyName`], and [`Error::KeyExists`] for the name of another key.
    pub fn add_key(&self, name: &str, limits: KeyLimits, cancel: &CancelFlag) -> Result<Secret, Error> {
        keys::check_name(name)?;
        let secret = Secret::random()?;
        let _lock = self.lock(FILE, &Quiet, cancel)?;
        let mut keys = self.keys()?;
        if keys.iter().any(|key| key.name == name) {
            return Err(Error::KeyExists { name: name.to_owned() });
        }
        let created = unix_now();
        keys.push(ApiKey { name: name.to_owned(), hash: KeyHash::of(secret.expose()), created, limits });
        self.write_keys(keys)?;
        Ok(secret)
    }

    /// Removes a key.
    ///
    /// # Errors
    /// [`Error::NoKey`] if no key has this name.
    pub fn remove_key(&self, name: &str, cancel: &CancelFlag) -> Result<(), Error> {
        let _lock = self.lock(FILE, &Quiet, cancel)?;
        let mut keys = self.keys()?;
        let before = keys.len();
        keys.retain(|key| key.name != name);
        if keys.len() == before {
            return Err(Error::NoKey { name: name.to_owned() });
        }
        self.write_keys(keys)
    }

    fn write_keys(&self, keys: Vec<ApiKey>) -> Result<(), Error> {
        let path = self.key_file();
        let new = self.root().join("keys.json.new");
        files::replace_by(&path, &new, |new| files::write_privately(new, &keys::encode(keys)))?;
        files::sync_folder(self.root())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(Some(home.path().join("home"))).unwrap();
        (home, store)
    }

    fn add(store: &Store, name: &str) -> Result<Secret, Error> {
        store.add_key(name, KeyLimits::default(), &CancelFlag::new(false))
    }

    #[test]
    fn keys_are_added_listed_and_removed() {
        let (_home, store) = store();
        assert_eq!((store.keys().unwrap(), store.key_file_stamp()), (Vec::new(), None));
        let secret = add(&store, "app").unwrap();
        let first = store.key_file_stamp().unwrap();
        let keys = store.keys().unwrap();
        assert_eq!((keys[0].name.as_str(), keys[0].hash), ("app", KeyHash::of(secret.expose())));
        assert!(matches!(add(&store, "app"), Err(Error::KeyExists { .. })));
        assert!(matches!(add(&store, "a b"), Err(Error::BadKeyName { .. })));
        add(&store, "other").unwrap();
        assert_ne!(store.key_file_stamp().unwrap(), first);
        store.remove_key("app", &CancelFlag::new(false)).unwrap();
        assert!(matches!(store.remove_key("app", &CancelFlag::new(false)), Err(Error::NoKey { .. })));
        assert_eq!(store.keys().unwrap().len(), 1);
    }

    #[test]
    fn writers_at_once_lose_no_key() {
        let (_home, store) = store();
        std::thread::scope(|scope| {
            for name in ["a", "b", "c", "d"] {
                let store = &store;
                scope.spawn(move || add(store, name).unwrap());
            }
        });
        assert_eq!(store.keys().unwrap().len(), 4);
    }

    #[cfg(unix)]
    #[test]
    fn the_file_is_private_whatever_was_left() {
        use std::os::unix::fs::PermissionsExt;
        let (_home, store) = store();
        add(&store, "a").unwrap();
        let left = store.root().join("keys.json.new");
        fs::write(&left, "left").unwrap();
        fs::set_permissions(&left, fs::Permissions::from_mode(0o666)).unwrap();
        add(&store, "b").unwrap();
        let mode = fs::metadata(store.root().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_can_change_is_not_read() {
        use std::os::unix::fs::PermissionsExt;
        let (_home, store) = store();
        add(&store, "a").unwrap();
        let path = store.root().join(FILE);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o606)).unwrap();
        let error = store.keys().unwrap_err().to_string();
        assert!(error.contains("expected write access for its user only, found mode 606"), "{error}");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(FILE, &path).unwrap();
        assert_eq!(store.keys().unwrap_err().kind(), crate::error::ErrorKind::Malformed);
    }

    #[test]
    fn a_malformed_file_is_named_and_kept() {
        let (_home, store) = store();
        add(&store, "a").unwrap();
        let path = store.root().join(FILE);
        fs::write(&path, "{").unwrap();
        let error = add(&store, "b").unwrap_err();
        assert!(error.to_string().contains("keys.json") && error.hint().is_some(), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "{");
    }
}
