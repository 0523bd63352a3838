//! Recovery after processes that died: removes their staging folders, and completes or reverts interrupted
//! replacements.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use narthex_spec::Scheme;

use super::{
    Store, lock,
    staging::{is_staged_name, old_path, swap_lock},
};
use crate::{error::Error, files};

/// Removes leftovers. This is fast if there are none.
pub(super) fn recover(store: &Store) -> Result<(), Error> {
    let staged = staged(store)?;
    let swapped = old_folders(store)?;
    if staged.is_empty() && swapped.is_empty() {
        return Ok(());
    }
    let _swap = swap_lock(store)?;
    for old in old_folders(store)? {
        finish_swap(&old)?;
    }
    for path in self::staged(store)? {
        remove_if_abandoned(&path)?;
    }
    Ok(())
}

/// Returns the staging folders and their locks. Other entries of `tmp/` are not ours.
fn staged(store: &Store) -> Result<Vec<PathBuf>, Error> {
    Ok(list(&store.root().join("tmp"))?
        .into_iter()
        .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_staged_name))
        .collect())
}

/// Removes one entry of `tmp/`, unless a living process has locked it.
fn remove_if_abandoned(path: &Path) -> Result<(), Error> {
    if path.extension().is_some_and(|extension| extension == "lock") {
        // A lock file with a folder is handled with its folder; one without a folder is unused.
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

/// Removes `x.old` if a newer `x` exists; otherwise renames it back to `x`.
fn finish_swap(old: &Path) -> Result<(), Error> {
    let target = old.with_extension("");
    if target.exists() {
        return files::remove_all(old);
    }
    files::rename(old, &target).map_err(Error::io("move back", &target))
}

fn old_folders(store: &Store) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    for model in list(&store.root().join("packages"))? {
        let packages = Scheme::ALL.iter().map(|scheme| model.join(scheme.as_str()));
        found.extend(packages.map(|package| old_path(&package)).filter(|old| old.exists()));
    }
    for folder in ["runtimes", "checkpoints"].map(|name| store.root().join(name)) {
        found.extend(list(&folder)?.into_iter().filter(|path| *path == old_path(&path.with_extension(""))));
    }
    Ok(found)
}

/// Returns the entries of a folder; empty if it does not exist or is a file.
fn list(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    match fs::read_dir(folder) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).collect()),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(error) => Err(Error::io("list", folder)(error)),
    }
}
