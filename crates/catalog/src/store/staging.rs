//! Staging folders, which are filled completely before they are renamed into place.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
    time::SystemTime,
};

use narthex_spec::{ModelName, Scheme, manifest::MANIFEST_FILE};

use super::{Guard, Store, lock, privacy};
use crate::{error::Error, files};

/// Name of the lock that is held while staging folders are created or removed and while finished ones are renamed into
/// place.
const SWAP_LOCK: &str = "swap";

/// The kind of a staged folder.
#[derive(Debug)]
pub(super) enum StagingTarget {
    /// A package, which must have a manifest.
    Package { name: ModelName, scheme: Scheme },
    /// Anything else.
    Plain,
}

/// A new folder under `tmp/` that becomes a folder of the store atomically.
///
/// Dropping it without [`Staging::commit`] removes it. If the process dies, the next [`Store::open`] removes it.
#[derive(Debug)]
pub struct Staging {
    store: Store,
    path: PathBuf,
    lock_path: PathBuf,
    guard: Option<Guard>,
    target: PathBuf,
    becomes: StagingTarget,
}

impl Staging {
    /// Creates an empty folder that will become `target`.
    pub(crate) fn new(store: &Store, target: PathBuf) -> Result<Self, Error> {
        Self::with_kind(store, target, StagingTarget::Plain)
    }

    pub(super) fn with_kind(store: &Store, target: PathBuf, becomes: StagingTarget) -> Result<Self, Error> {
        let tmp = store.folder("tmp")?;
        let id = fresh_id();
        let path = tmp.join(&id);
        let lock_path = tmp.join(format!("{id}.lock"));
        // Without this lock, recovery in another process might find the new lock file before it is locked, and remove
        // the folder.
        let _swap = swap_lock(store)?;
        let guard = lock::attempt(&lock_path)?;
        privacy::create_folder(&path)?;
        Ok(Self { store: store.clone(), path, lock_path, guard, target, becomes })
    }

    /// Returns the path of the folder to fill, which is on the same file system as the store.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns this folder as that of a package.
    #[must_use]
    pub fn into_package(mut self, name: &ModelName, scheme: Scheme) -> Self {
        self.target = self.store.package_folder(name, scheme);
        self.becomes = StagingTarget::Package { name: name.clone(), scheme };
        self
    }

    /// Flushes everything to the disk and renames the folder into place, replacing an older one. Returns its new path.
    ///
    /// # Errors
    /// [`Error::NoManifest`] for a package without `manifest.json`; [`Error::Io`]. In these cases the older
    /// folder is kept.
    pub fn commit(self) -> Result<PathBuf, Error> {
        if let StagingTarget::Package { name, scheme } = &self.becomes
            && !self.path.join(MANIFEST_FILE).is_file()
        {
            return Err(Error::NoManifest { name: name.clone(), scheme: *scheme });
        }

        if matches!(self.becomes, StagingTarget::Package { .. }) && self.target.join(MANIFEST_FILE).is_file()
        {
            self.store.forget_machine(&self.target)?;
        }

        privacy::make_private(&self.path)?;
        files::sync_tree(&self.path)?;
        let parent = self.target.parent().unwrap_or(self.store.root());
        privacy::create_folder(parent)?;
        let _swap = swap_lock(&self.store)?;
        let old = old_path(&self.target);
        files::remove_all(&old)?;
        if self.target.exists() {
            files::rename_folder("replace", &self.target, &old)?;
        }
        if let Err(error) = files::rename(&self.path, &self.target) {
            // Restoring the older folder matters more than a second error of the disk.
            let _ = files::rename(&old, &self.target);
            return Err(Error::io("move into place", &self.target)(error));
        }

        files::sync_folder(parent)?;
        files::remove_all(&old)?;
        Ok(self.target.clone())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = files::remove_all(&self.path) {
            tracing::warn!(%error, "a staging folder was left behind");
        }
        self.guard = None;
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// Returns the path to which an older folder is renamed while it is replaced.
pub(super) fn old_path(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(".old");
    target.with_file_name(name)
}

/// Waits for the lock of replacements, which other processes hold only briefly.
pub(super) fn swap_lock(store: &Store) -> Result<Guard, Error> {
    lock::take(&store.lock_path(SWAP_LOCK)?)
}

/// Returns a name of a staging folder: the process, a number, and the time in hexadecimal nanoseconds.
fn fresh_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{}-{count}-{:x}", process::id(), files::nanos(SystemTime::now()))
}

/// Returns true for the name of a staging folder or of its lock. Unlike the parts of a date, its time has at least sixteen
/// digits.
pub(super) fn is_staged_name(name: &str) -> bool {
    let mut parts = name.strip_suffix(".lock").unwrap_or(name).split('-');
    let mut number = |radix, digits| {
        parts.next().is_some_and(|part| part.len() >= digits && u128::from_str_radix(part, radix).is_ok())
    };
    number(10, 1) && number(10, 1) && number(16, 16) && parts.next().is_none()
}
