//! Files as bytes: digests, durable writes, folder sizes. This module is independent of models and of the store's
//! layout.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Write},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use narthex_files::{environment::is_in_use, open_regular};
use narthex_spec::Sha256;
use sha2::Digest;

use crate::{CancelFlag, check_cancel, error::Error};

/// Number of bytes read at a time, and between two checks of the cancel flag.
pub(crate) const CHUNK: usize = 1 << 20;

/// Time between two attempts to lock a file, and maximum delay until a set cancel flag is seen.
const RETRY: Duration = Duration::from_millis(100);

/// Number of attempts to rename a file or folder that is in use.
const RENAMES: u32 = 20;

/// Renames a file or folder. On Windows, virus scanners and indexers have new files open for moments, so a refusal is
/// followed by further attempts for two seconds.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    with_attempts(RENAMES, may_be_in_use, || fs::rename(from, to))
}

/// Renames a folder of the store as [`rename`] does. The folder's parents are writable, so a refused access means that
/// a program has a file of the folder open.
pub(crate) fn rename_folder(doing: &'static str, from: &Path, to: &Path) -> Result<(), Error> {
    rename(from, to).map_err(|error| match may_be_in_use(&error) {
        true => Error::InUse { doing, path: from.to_owned() },
        false => Error::io(doing, from)(error),
    })
}

/// Returns true for the errors of Windows for open files, and for folders with open files: access is denied.
fn may_be_in_use(error: &io::Error) -> bool {
    is_in_use(error) || cfg!(windows) && error.kind() == io::ErrorKind::PermissionDenied
}

/// Calls a function until it succeeds, its error is not one to wait for, or it was called `attempts` times.
fn with_attempts(
    attempts: u32,
    waits: impl Fn(&io::Error) -> bool,
    mut call: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    for _ in 1..attempts {
        match call() {
            Err(error) if waits(&error) => thread::sleep(RETRY),
            other => return other,
        }
    }
    call()
}

/// Replaces the file at `path` atomically. `write` creates the new file under a unique name in the same folder, and a
/// rename moves it into place. If several threads or processes replace a file at once, the last rename wins.
pub(crate) fn replace(path: &Path, write: impl FnOnce(&Path) -> Result<(), Error>) -> Result<(), Error> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let new = path.with_added_extension(format!("{}-{number}.new", std::process::id()));
    replace_by(path, &new, write)
}

/// Replaces the file at `path` as [`replace`] does, by the file `new` in the same folder. Only one writer may use this
/// name at a time.
pub(crate) fn replace_by(
    path: &Path,
    new: &Path,
    write: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<(), Error> {
    let replaced = write(new).and_then(|()| rename(new, path).map_err(Error::io("move into place", path)));
    if replaced.is_err() {
        // The incomplete file is useless; the error has the reason.
        let _ = fs::remove_file(new);
    }
    replaced
}

/// Returns the digest of a file. `seen` is called with the number of bytes read so far.
pub(crate) fn digest_file(path: &Path, cancel: &CancelFlag, seen: impl FnMut(u64)) -> Result<Sha256, Error> {
    let file = open_regular(path).map_err(Error::io("open", path))?;
    digest_open(file, path, cancel, seen)
}

/// Returns the digest of an open file, as [`digest_file`]; `path` is for errors.
pub(crate) fn digest_open(
    mut file: File,
    path: &Path,
    cancel: &CancelFlag,
    mut seen: impl FnMut(u64),
) -> Result<Sha256, Error> {
    let mut hasher = sha2::Sha256::new();
    let mut total = 0;
    read_chunks(&mut file, path, cancel, |chunk| {
        hasher.update(chunk);
        total += chunk.len() as u64;
        seen(total);
    })?;
    Ok(Sha256(hasher.finalize().into()))
}

/// Reads an open file to its end and passes each chunk to `take`. `path` is named in errors.
pub(crate) fn read_chunks(
    file: &mut File,
    path: &Path,
    cancel: &CancelFlag,
    mut take: impl FnMut(&[u8]),
) -> Result<(), Error> {
    let mut buffer = vec![0; CHUNK];
    loop {
        check_cancel(cancel)?;
        let count = file.read(&mut buffer).map_err(Error::io("read", path))?;
        let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else { return Ok(()) };
        take(chunk);
    }
}

/// Tries once to lock an open file. Returns whether it succeeded. `path` is named in errors.
pub(crate) fn try_lock(file: &File, path: &Path) -> Result<bool, Error> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(Error::io("lock", path)(error)),
    }
}

/// Locks an open file, waiting until its lock is free. Calls `on_wait` once, before the first wait. `path` is named in
/// errors.
pub(crate) fn lock(
    file: &File,
    path: &Path,
    cancel: &CancelFlag,
    on_wait: impl FnOnce(),
) -> Result<(), Error> {
    let mut on_wait = Some(on_wait);
    // The loop tries repeatedly, because a blocking wait for a file lock cannot be cancelled.
    loop {
        check_cancel(cancel)?;
        if try_lock(file, path)? {
            return Ok(());
        }
        if let Some(on_wait) = on_wait.take() {
            on_wait();
        }
        thread::sleep(RETRY);
    }
}

/// Writes a new file and flushes it to the disk.
pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut file = File::create(path).map_err(Error::io("create", path))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(Error::io("write", path))
}

/// Writes a file as [`write_durably`], readable only by its owner. An older file may have another mode and is removed.
pub(crate) fn write_privately(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    remove_all(path)?;
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path).map_err(Error::io("create", path))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(Error::io("write", path))
}

/// Flushes a folder's list of names to the disk, if the platform can.
pub(crate) fn sync_folder(path: &Path) -> Result<(), Error> {
    if cfg!(unix) {
        File::open(path).and_then(|folder| folder.sync_all()).map_err(Error::io("flush", path))?;
    }
    Ok(())
}

/// Flushes every file and folder under `path` to the disk. Links are not followed.
pub(crate) fn sync_tree(path: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(path).map_err(Error::io("list", path))? {
        let entry = entry.map_err(Error::io("list", path))?;
        let child = entry.path();
        let kind = entry.file_type().map_err(Error::io("look at", &child))?;
        if kind.is_dir() {
            sync_tree(&child)?;
        } else if kind.is_file() {
            sync_file(&child)?;
        }
    }
    sync_folder(path)
}

/// Flushes a file to the disk. It is opened for writing, as Windows requires for this. A file marked read-only is
/// opened for reading, and a refusal to flush it is ignored.
fn sync_file(path: &Path) -> Result<(), Error> {
    let opened = fs::OpenOptions::new().read(true).write(true).open(path).or_else(|_| File::open(path));
    let file = opened.map_err(Error::io("open", path))?;
    match file.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        other => other.map_err(Error::io("flush", path)),
    }
}

/// Returns the total size in bytes of all files under `path`, 0 if it does not exist. Links are not followed.
pub(crate) fn tree_bytes(path: &Path) -> u64 {
    let Ok(meta) = fs::symlink_metadata(path) else { return 0 };
    if !meta.is_dir() {
        return meta.len();
    }
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    entries.flatten().map(|entry| tree_bytes(&entry.path())).sum()
}

/// Removes a file or a folder with its contents. A missing one is not an error.
pub(crate) fn remove_all(path: &Path) -> Result<(), Error> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Returns a time as nanoseconds since 1970, 0 for earlier ones.
pub(crate) fn nanos(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_match_the_standards_example() {
        let expect = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Sha256::of(b"abc").to_string(), expect);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abc");
        write_durably(&path, b"abc").unwrap();
        let mut seen = 0;
        let found = digest_file(&path, &CancelFlag::new(false), |bytes| seen = bytes).unwrap();
        assert_eq!((found.to_string().as_str(), seen), (expect, 3));
        assert!(matches!(digest_file(&path, &CancelFlag::new(true), |_| ()), Err(Error::Cancelled)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_has_a_next_step() {
        let error = write_durably(Path::new("/dev/full"), b"x").unwrap_err();
        assert!(error.to_string().starts_with("cannot write /dev/full: No space left"), "{error}");
        assert!(error.hint().unwrap().contains("free some space"));
    }

    #[test]
    fn a_call_is_repeated_only_while_it_can_succeed() {
        let check = |failures: u32, kind: io::ErrorKind, calls: u32, succeeds: bool| {
            let mut count = 0;
            let waits = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
            let called = with_attempts(3, waits, || {
                count += 1;
                if count > failures { Ok(()) } else { Err(kind.into()) }
            });
            assert_eq!((called.is_ok(), count), (succeeds, calls), "{failures} {kind}");
        };
        check(0, io::ErrorKind::ResourceBusy, 1, true);
        check(2, io::ErrorKind::ResourceBusy, 3, true);
        check(3, io::ErrorKind::ResourceBusy, 3, false);
        check(1, io::ErrorKind::NotFound, 1, false);
    }

    #[test]
    #[cfg(windows)]
    fn an_open_file_is_the_reason_of_a_refusal() {
        let folder = tempfile::tempdir().unwrap();
        let (package, moved) = (folder.path().join("package"), folder.path().join("moved"));
        fs::create_dir(&package).unwrap();
        write_durably(&package.join("weights"), b"w").unwrap();
        let open = narthex_files::map(&package.join("weights")).unwrap();
        match rename_folder("remove", &package, &moved) {
            // Wine permits it.
            Ok(()) => {}
            Err(Error::InUse { path, .. }) => assert_eq!(path, package),
            Err(other) => panic!("{other}"),
        }
        drop(open);
    }

    #[test]
    fn a_failed_replacement_leaves_the_old_file_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (path, new) = (folder.path().join("f"), folder.path().join("f.new"));
        fs::write(&path, "old").unwrap();
        let fails = |new: &Path| {
            fs::write(new, "ne").unwrap();
            Err(Error::Cancelled)
        };
        for replaced in [replace(&path, fails), replace_by(&path, &new, fails)] {
            assert!(matches!(replaced, Err(Error::Cancelled)));
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the new file remains");
        }
        replace_by(&path, &new, |new| write_durably(new, b"new")).unwrap();
        assert_eq!((fs::read(&path).unwrap(), new.exists()), (b"new".to_vec(), false));
    }

    #[test]
    fn trees_are_sized_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("t");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/b/f"), [0; 7]).unwrap();
        fs::write(tree.join("g"), [0; 5]).unwrap();
        sync_tree(&tree).unwrap();
        assert_eq!(tree_bytes(&tree), 12);
        remove_all(&tree).unwrap();
        remove_all(&tree).unwrap();
        assert_eq!(tree_bytes(&tree), 0);
    }
}
