//! Locks between processes, as advisory locks on files that are never deleted.
//!
//! The system releases a lock when its process dies, so no lock is ever stale.

use std::{
    fs::{self, File},
    io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use narthex_spec::{Progress, ProgressSink, Sha256, id::is_device_of_windows};

use crate::{CancelFlag, error::Error, files};

/// Time after which a wait for a lock that is held only briefly is reported. A swap of folders takes milliseconds.
const LOG_WAIT_AFTER: Duration = Duration::from_secs(2);

/// Maximum wait for a lock that is held only briefly.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Time between two attempts to take a lock that is held only briefly.
const RETRY: Duration = Duration::from_millis(10);

/// A held lock, released on drop.
#[derive(Debug)]
pub struct Guard {
    _file: File,
}

fn open(path: &Path) -> Result<File, Error> {
    let mut options = fs::OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map_err(Error::io("open the lock", path))
}

/// Takes a lock that other processes hold only briefly. Logs a longer wait, and fails after a minute, because the holder
/// may be stopped.
pub(super) fn take(path: &Path) -> Result<Guard, Error> {
    take_within(path, LOG_WAIT_AFTER, MAX_WAIT, || {
        tracing::warn!(lock = %path.display(), "waiting for another Narthex process that changes the store");
    })
}

/// Takes a lock. Calls `note` after the time `noted_after`, and fails after the time `longest`.
fn take_within(
    path: &Path,
    noted_after: Duration,
    longest: Duration,
    note: impl FnOnce(),
) -> Result<Guard, Error> {
    let file = open(path)?;
    let began = Instant::now();
    let mut note = Some(note);
    while !files::try_lock(&file, path)? {
        let waited = began.elapsed();
        if waited >= longest {
            let reason =
                "another Narthex process has held it for a minute; if it is stopped, resume or end it";
            return Err(Error::io("lock", path)(io::Error::new(io::ErrorKind::TimedOut, reason)));
        }
        if let Some(note) = note.take_if(|_| waited >= noted_after) {
            note();
        }
        thread::sleep(RETRY);
    }
    Ok(Guard { _file: file })
}

/// Tries to take the lock once.
pub(super) fn attempt(path: &Path) -> Result<Option<Guard>, Error> {
    let file = open(path)?;
    Ok(files::try_lock(&file, path)?.then_some(Guard { _file: file }))
}

/// Tries to take the lock until it succeeds or `cancel` is set.
pub(super) fn wait(
    path: &Path,
    key: &str,
    progress: &dyn ProgressSink,
    cancel: &CancelFlag,
) -> Result<Guard, Error> {
    let file = open(path)?;
    files::lock(&file, path, cancel, || {
        let note = format!("Waiting for another Narthex process to finish with {key}.");
        progress.event(Progress::Note(note));
    })?;
    Ok(Guard { _file: file })
}

/// Returns a file name for any key. Different keys have different names.
pub(super) fn file_stem(key: &str) -> String {
    let is_name = !key.starts_with('.') && !key.ends_with('.') && !is_device_of_windows(key);
    if !key.is_empty()
        && key.len() <= 100
        && key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.' | '_'))
        && is_name
    {
        return key.to_owned();
    }
    let Sha256(bytes) = Sha256::of(key.as_bytes());
    bytes.iter().take(16).fold(String::from("key-"), |name, byte| format!("{name}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, atomic::Ordering};

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn keys_become_safe_file_names() {
        let check = |key: &str, expect: &str| assert_eq!(file_stem(key), expect);
        check("compile-smollm2--135m-w8", "compile-smollm2--135m-w8");
        check("../x", "key-d6b96a97d147daaae49eb87a5ca7bfbc");
        assert_ne!(file_stem("a b"), file_stem("a  b"));
        assert!(file_stem(&"x".repeat(500)).len() < 60);
    }

    #[test]
    fn a_long_wait_for_a_brief_lock_is_noted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let minute = Duration::from_secs(60);
        drop(take_within(&path, Duration::ZERO, minute, || panic!("nobody has the lock")).unwrap());
        let held = attempt(&path).unwrap().unwrap();
        let mut noted = false;
        let note = || {
            drop(held);
            noted = true;
        };
        drop(take_within(&path, Duration::ZERO, minute, note).unwrap());
        assert!(noted);
    }

    #[test]
    fn a_wait_for_a_brief_lock_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let _held = attempt(&path).unwrap().unwrap();
        let error = take_within(&path, Duration::ZERO, Duration::ZERO, || {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Storage);
        assert!(error.to_string().contains("another Narthex process"), "{error}");
    }

    #[test]
    fn waiting_is_reported_once_and_can_be_cancelled() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let held = attempt(&path).unwrap().unwrap();
        assert!(attempt(&path).unwrap().is_none());
        let notes = Mutex::new(Vec::new());
        let cancel = CancelFlag::new(false);
        let sink = |event: Progress| {
            notes.lock().unwrap().push(event);
            cancel.store(true, Ordering::Relaxed);
        };
        assert!(matches!(wait(&path, "a", &sink, &cancel), Err(Error::Cancelled)));
        drop(held);
        cancel.store(false, Ordering::Relaxed);
        wait(&path, "a", &sink, &cancel).unwrap();
        let expect = Progress::Note("Waiting for another Narthex process to finish with a.".to_owned());
        assert_eq!(*notes.lock().unwrap(), [expect]);
    }
}
