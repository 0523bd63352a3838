//! Permissions of the store: only its user may read it.

use std::path::Path;
#[cfg(unix)]
use std::{fs, io};

use crate::error::Error;

/// Creates a folder of the store, with its parents.
pub(super) fn create_folder(path: &Path) -> Result<(), Error> {
    narthex_files::create_private_folder(path).map_err(Error::io("create", path))
}

/// Removes the permissions of other users from the entries of a store, and from its folder if that has no other entries.
/// Skips a folder that others cannot enter, because its contents are private already, and a folder of another user.
#[cfg(unix)]
pub(super) fn make_private_if_shared(root: &Path) -> Result<(), Error> {
    use std::os::unix::fs::MetadataExt;

    let user = rustix::process::geteuid().as_raw();
    match fs::metadata(root) {
        Ok(meta) if meta.uid() == user && mode(&meta) & OTHERS != 0 => {}
        _ => return Ok(()),
    }
    let entries = fs::read_dir(root).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
    let entries = entries.map_err(Error::io("list", root))?;
    if entries.iter().all(is_of_store) {
        return make_private(root);
    }
    entries.iter().filter(|entry| is_of_store(entry)).try_for_each(|entry| make_private(&entry.path()))
}

/// Returns true if an entry of the store's folder belongs to the store.
#[cfg(unix)]
fn is_of_store(entry: &fs::DirEntry) -> bool {
    super::ENTRIES.iter().any(|name| entry.file_name() == *name)
}

/// Removes the permissions of other users from a file, or from a folder and its contents. Links are not followed.
#[cfg(unix)]
pub(super) fn make_private(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;

    let meta = match fs::symlink_metadata(path) {
        // Another process may have removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        meta => meta.map_err(Error::io("look at", path))?,
    };
    if meta.is_symlink() {
        return Ok(());
    }
    if mode(&meta) & OTHERS != 0 {
        let private = fs::Permissions::from_mode(mode(&meta) & !OTHERS);
        fs::set_permissions(path, private).map_err(Error::io("make private", path))?;
    }
    if meta.is_dir() {
        for entry in fs::read_dir(path).map_err(Error::io("list", path))? {
            make_private(&entry.map_err(Error::io("list", path))?.path())?;
        }
    }
    Ok(())
}

/// Does nothing, as [`make_private`].
#[cfg(not(unix))]
pub(super) fn make_private_if_shared(_folder: &Path) -> Result<(), Error> {
    Ok(())
}

/// Does nothing: folders in a user's profile are private on Windows.
#[cfg(not(unix))]
pub(super) fn make_private(_path: &Path) -> Result<(), Error> {
    Ok(())
}

/// Permissions of the group and of others.
#[cfg(unix)]
const OTHERS: u32 = 0o077;

#[cfg(unix)]
fn mode(meta: &fs::Metadata) -> u32 {
    std::os::unix::fs::PermissionsExt::mode(&meta.permissions())
}
