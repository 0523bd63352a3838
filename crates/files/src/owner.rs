//! Files and folders that no other user can change.

use std::{
    fs::{DirBuilder, Metadata},
    io,
    path::Path,
};

use crate::regular::{open_regular, read_bounded};

/// Refuses a file or folder of another user, and one that other users may write. Accepts everything on systems
/// without such permissions.
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`] with the reason and the next step.
#[cfg(unix)]
pub fn check_own(meta: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;

    match refusal(Permissions { owner: meta.uid(), mode: meta.mode() }, user()) {
        None => Ok(()),
        Some(reason) => Err(io::Error::new(io::ErrorKind::PermissionDenied, reason)),
    }
}

/// Returns the effective user of this process.
#[cfg(unix)]
#[allow(unsafe_code, reason = "the standard library has no call for the user")]
fn user() -> u32 {
    // SAFETY: the call has no arguments, touches no memory of this process and cannot fail.
    unsafe { libc::geteuid() }
}

/// Accepts everything, as permissions of this kind do not exist.
#[cfg(not(unix))]
pub fn check_own(_meta: &Metadata) -> io::Result<()> {
    Ok(())
}

/// Reads a whole regular file of at most `limit` bytes that no other user can change.
///
/// # Errors
/// As [`check_own`] and [`read`](crate::read).
pub fn read_own(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    check_own(&file.metadata()?)?;
    read_bounded(file, limit)
}

/// Creates a folder that only its user may read, with its parents.
///
/// # Errors
/// Those of the system.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Owner and mode of a file.
#[cfg(unix)]
#[derive(Clone, Copy)]
struct Permissions {
    owner: u32,
    mode: u32,
}

#[cfg(unix)]
fn refusal(found: Permissions, user: u32) -> Option<String> {
    /// Permissions of the group and of others to write.
    const WRITE: u32 = 0o022;

    let Permissions { owner, mode } = found;
    if owner != user {
        return Some(format!(
            "expected a file or folder of user {user}, found one of user {owner}; use one of your own"
        ));
    }
    (mode & WRITE != 0).then(|| {
        let mode = mode & 0o777;
        format!("expected write access for its user only, found mode {mode:03o}; change it with `chmod go-w`")
    })
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    fn check(owner: u32, mode: u32, expect: Option<&str>) {
        let found = refusal(Permissions { owner, mode }, 1000);
        assert_eq!(found.is_some(), expect.is_some(), "{owner} {mode:o}");
        assert!(expect.is_none_or(|expect| found.is_some_and(|found| found.contains(expect))), "{mode:o}");
    }

    #[test]
    fn only_what_its_user_alone_can_change_is_accepted() {
        check(1000, 0o40700, None);
        check(1000, 0o100644, None);
        check(1001, 0o40700, Some("found one of user 1001"));
        check(0, 0o40755, Some("found one of user 0"));
        check(1000, 0o40777, Some("found mode 777"));
        check(1000, 0o100660, Some("found mode 660"));
    }

    #[test]
    fn files_that_others_can_write_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        fs::write(&path, "a").unwrap();
        let read = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            read_own(&path, 9).map_err(|error| error.kind())
        };
        assert_eq!(read(0o600), Ok(b"a".to_vec()));
        assert_eq!(read(0o606), Err(io::ErrorKind::PermissionDenied));
    }
}
