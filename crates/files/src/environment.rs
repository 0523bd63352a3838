//! Limits of the environment that make an operation on a file or a thread fail: space, permissions, sizes, descriptors,
//! threads.

use std::{
    io::{Error, ErrorKind},
    path::{self, Path},
    sync::Mutex,
    thread,
};

/// System error numbers that the standard library has no kind for.
#[cfg(unix)]
const NO_DESCRIPTORS: [i32; 2] = [libc::EMFILE, libc::ENFILE];
/// `ERROR_TOO_MANY_OPEN_FILES`.
#[cfg(not(unix))]
const NO_DESCRIPTORS: [i32; 1] = [4];

/// Numbers of Windows for files that a program has open or mapped: `ERROR_SHARING_VIOLATION`, `ERROR_LOCK_VIOLATION` and
/// `ERROR_USER_MAPPED_FILE`.
const IN_USE: [i32; 3] = [32, 33, 1224];

/// Returns true if Windows refused an operation because a program has the file open or mapped. Other systems permit it.
pub fn is_in_use(error: &Error) -> bool {
    cfg!(windows) && error.raw_os_error().is_some_and(|number| IN_USE.contains(&number))
}

/// Returns whether an operation failed because of a limit of the environment that the user can raise.
pub fn is_limit(error: &Error) -> bool {
    hint(error).is_some()
}

/// Returns the next step after a failure because of a limit of the environment.
pub fn hint(error: &Error) -> Option<&'static str> {
    let number = error.raw_os_error();

    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Some(
            "free some space, or set NARTHEX_HOME (HF_HOME for hub downloads) to a folder on another disk",
        ),
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => {
            Some("set NARTHEX_HOME (HF_HOME for hub downloads) to a folder that you may write to")
        }
        // Without a system error number, the limit of a reader in this crate was exceeded.
        ErrorKind::FileTooLarge if number.is_some() => Some(
            "raise the limit on the size of files, as with `ulimit -f unlimited`, or choose another file system",
        ),
        // Reads and writes of Narthex never return this error; the start of a thread does.
        ErrorKind::WouldBlock if number.is_some() => Some(
            "raise the limit on threads (`ulimit -u`, or the pids limit of the container) or on memory \
                 (`ulimit -v`, `ulimit -d`)",
        ),
        ErrorKind::OutOfMemory => Some("free some memory, or choose a smaller model or scheme"),
        _ if is_in_use(error) => Some(
            "a program has the file open, such as a server (`narthex ps`), an editor or a virus scanner; close it and try again",
        ),
        _ if number.is_some_and(|number| NO_DESCRIPTORS.contains(&number)) => {
            Some("raise the limit on open files, as with `ulimit -n 4096`")
        }
        _ => None,
    }
}

/// Checks that a file system has room for a number of further bytes. The folder may not exist yet. A system that does not
/// report its free space has room.
///
/// # Errors
/// [`ErrorKind::StorageFull`] with both numbers.
pub fn check_space(folder: &Path, needed: u64) -> Result<(), Error> {
    let free = path::absolute(folder).ok().and_then(|folder| free_bytes(&folder));
    match free {
        Some(free) if free < needed => {
            let needed = needed.div_ceil(1_000_000);
            let free = free / 1_000_000;
            let message = format!("expected {needed} MB of free space, found {free} MB");
            Err(Error::new(ErrorKind::StorageFull, message))
        }
        Some(_) | None => Ok(()),
    }
}

/// Returns the free bytes of the file system with a folder that may not exist yet.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<u64> {
    let existing = folder.ancestors().find(|folder| folder.exists())?;
    let system = rustix::fs::statvfs(existing).ok()?;
    Some(system.f_bavail.saturating_mul(system.f_frsize))
}

/// Returns the bytes that this user may still write to the volume with a folder that may not exist yet.
#[cfg(windows)]
#[allow(unsafe_code, reason = "the standard library has no call for the free space")]
fn free_bytes(folder: &Path) -> Option<u64> {
    use std::os::windows::ffi::OsStrExt;

    use windows_sys::Win32::Storage::FileSystem::GetDiskFreeSpaceExW;
    let existing = folder.ancestors().find(|folder| folder.exists())?;
    let path: Vec<u16> = existing.as_os_str().encode_wide().chain([0]).collect();
    let mut free = 0u64;
    // SAFETY: the path ends with a zero, and both it and `free` outlive the call.
    let found = unsafe {
        GetDiskFreeSpaceExW(path.as_ptr(), &raw mut free, std::ptr::null_mut(), std::ptr::null_mut())
    };
    (found != 0).then_some(free)
}

#[cfg(not(any(unix, windows)))]
fn free_bytes(_folder: &Path) -> Option<u64> {
    None
}

/// Size of the stack of a thread that does nothing.
const STACK: usize = 64 << 10;

/// Checks that this process can have a number of further threads at once. A library that starts threads of its own
/// panics if it cannot.
///
/// # Errors
/// The system's error for the first thread that cannot be started.
pub fn check_threads(count: usize) -> Result<(), Error> {
    let gate = Mutex::new(());
    // No thread ends before this guard is dropped.
    let closed = gate.lock();
    thread::scope(|scope| {
        let started = (0..count).try_for_each(|_| {
            thread::Builder::new().stack_size(STACK).spawn_scoped(scope, || drop(gate.lock())).map(drop)
        });
        drop(closed);
        started
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_space_is_reported_with_both_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let absent = folder.path().join("not/yet/there");
        check_space(&absent, 1).unwrap();
        let error = check_space(&absent, u64::MAX).unwrap_err();
        assert!(is_limit(&error) && error.to_string().contains(" MB of free space, found "), "{error}");
        assert!(check_space(Path::new("absent.narthex"), u64::MAX).is_err(), "a path in the working folder");
    }

    #[test]
    fn a_few_threads_can_be_started() {
        check_threads(0).unwrap();
        check_threads(3).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn every_limit_has_a_next_step() {
        let check = |number, expect: &str| {
            let error = Error::from_raw_os_error(number);
            assert!(hint(&error).is_some_and(|hint| hint.contains(expect)), "{error}: {:?}", hint(&error));
        };
        check(libc::ENOSPC, "free some space");
        check(libc::EDQUOT, "free some space");
        check(libc::EROFS, "NARTHEX_HOME");
        check(libc::EACCES, "NARTHEX_HOME");
        check(libc::EPERM, "NARTHEX_HOME");
        check(libc::EFBIG, "ulimit -f");
        check(libc::EMFILE, "ulimit -n");
        check(libc::ENFILE, "ulimit -n");
        check(libc::EAGAIN, "ulimit -u");
        check(libc::EAGAIN, "ulimit -v");
        check(libc::ENOMEM, "free some memory");
        assert!(!is_limit(&Error::from_raw_os_error(libc::ENOENT)));
        assert!(!is_limit(&Error::new(ErrorKind::FileTooLarge, "expected at most 9 bytes")));
    }
}
