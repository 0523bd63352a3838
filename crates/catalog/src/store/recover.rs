//! Recovery after processes that died: their staging folders are removed, and interrupted swaps completed or undone.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    Store, lock,
    staging::{aside, swap_lock},
};
use crate::{error::Error, files};

/// Clears away leftovers. Cheap when there are none.
pub(super) fn recover(store: &Store) -> Result<(), Error> {
    let (staged, swapped) = (list(&store.root().join("tmp"))?, asides(store)?);
    if staged.is_empty() && swapped.is_empty() {
        return Ok(());
    }
    let _swap = swap_lock(store)?;
    for old in asides(store)? {
        settle(&old)?;
    }
    for path in list(&store.root().join("tmp"))? {
        sweep(&path)?;
    }
    Ok(())
}

/// Removes one entry of `tmp/` unless a living process holds its lock.
fn sweep(path: &Path) -> Result<(), Error> {
    if path.extension().is_some_and(|extension| extension == "lock") {
        // Its folder, if any, has an entry of its own; a lock file without one belongs to nobody.
        if path.with_extension("").exists() {
            return Ok(());
        }
        return match lock::attempt(path)? {
            Some(_dead) => files::remove_all(path),
            None => Ok(()),
        };
    }
    let lock_path = path.with_added_extension("lock");
    match lock::attempt(&lock_path)? {
        Some(_dead) => {
            files::remove_all(path)?;
            files::remove_all(&lock_path)
        }
        None => Ok(()),
    }
}

/// `x.old` becomes `x` again if no newer `x` took its place.
fn settle(old: &Path) -> Result<(), Error> {
    let target = old.with_extension("");
    if target.exists() {
        return files::remove_all(old);
    }
    fs::rename(old, &target).map_err(Error::io("move back", &target))
}

fn asides(store: &Store) -> Result<Vec<PathBuf>, Error> {
    let mut folders = list(&store.root().join("packages"))?;
    folders.extend(["runtimes", "checkpoints"].map(|name| store.root().join(name)));
    let mut found = Vec::new();
    for folder in folders {
        found.extend(list(&folder)?.into_iter().filter(|path| *path == aside(&path.with_extension(""))));
    }
    Ok(found)
}

/// The entries of a folder; none where it does not exist or is a file.
fn list(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    match fs::read_dir(folder) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).collect()),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(error) => Err(Error::io("list", folder)(error)),
    }
}
