//! Staging folders, which are filled completely before they are renamed into place.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, SystemTime},
};

use narthex_spec::manifest::MANIFEST_FILE;

use super::{Guard, Store, lock, privacy};
use crate::{error::Error, files};

/// The lock under which staging folders are made and swept and finished ones are swapped in.
const SWAP_LOCK: &str = "swap";

/// The kind of a staged folder.
#[derive(Debug)]
pub(super) enum StagingTarget {
    /// A package, which must hold a manifest.
    Package { name: narthex_spec::ModelName, scheme: narthex_spec::Scheme },
    /// Anything else.
    Plain,
}

/// A new folder under `tmp/` that becomes a folder of the store, whole or not at all.
///
/// Dropping it without [`Staging::commit`] removes it; if the process dies, the next [`Store::open`] does.
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
    /// A new, empty folder that will become `target`.
    pub(crate) fn new(store: &Store, target: PathBuf) -> Result<Self, Error> {
        Self::with_kind(store, target, StagingTarget::Plain)
    }

    /// A new, empty folder that is only ever dropped.
    pub(crate) fn scratch(store: &Store) -> Result<Self, Error> {
        Self::new(store, store.root().join("tmp").join("never"))
    }

    pub(super) fn with_kind(store: &Store, target: PathBuf, becomes: StagingTarget) -> Result<Self, Error> {
        let tmp = store.folder("tmp")?;
        let id = fresh_id();
        let (path, lock_path) = (tmp.join(&id), tmp.join(format!("{id}.lock")));
        // A sweep between the making and the locking of the lock file would take the folder for a dead process's.
        let _swap = swap_lock(store)?;
        let guard = lock::attempt(&lock_path)?;
        privacy::create_folder(&path)?;
        Ok(Self { store: store.clone(), path, lock_path, guard, target, becomes })
    }

    /// The folder to fill; on the same file system as the store.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Flushes everything to the disk and renames the folder into place, replacing an older one. Gives its new path.
    ///
    /// # Errors
    /// [`Error::NoManifest`] for a package without `manifest.json`; [`Error::Io`]. The older folder is kept then.
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
        privacy::tighten(&self.path)?;
        files::sync_tree(&self.path)?;
        let parent = self.target.parent().unwrap_or(self.store.root());
        privacy::create_folder(parent)?;
        let _swap = swap_lock(&self.store)?;
        let aside = aside(&self.target);
        files::remove_all(&aside)?;
        if self.target.exists() {
            fs::rename(&self.target, &aside).map_err(Error::io("move aside", &self.target))?;
        }
        if let Err(error) = fs::rename(&self.path, &self.target) {
            // The older folder is worth more than a second message about the disk.
            let _ = fs::rename(&aside, &self.target);
            return Err(Error::io("move into place", &self.target)(error));
        }
        files::sync_folder(parent)?;
        files::remove_all(&aside)?;
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

/// Returns the path of an older folder while a newer one takes its place.
pub(super) fn aside(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(".old");
    target.with_file_name(name)
}

/// Waits for the short critical sections of other processes.
pub(super) fn swap_lock(store: &Store) -> Result<Guard, Error> {
    let path = store.lock_path(SWAP_LOCK)?;
    loop {
        if let Some(guard) = lock::attempt(&path)? {
            return Ok(guard);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn fresh_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{}-{count}-{:x}", process::id(), files::nanos(SystemTime::now()))
}
