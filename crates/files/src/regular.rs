//! Opening and reading of regular files.

use std::{
    fs::{File, FileType, OpenOptions},
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Opens a regular file for reading. Any other kind of file is refused without blocking and without a side effect.
///
/// # Errors
/// [`io::ErrorKind::IsADirectory`] for a folder, [`io::ErrorKind::InvalidInput`] with the kind found for a named pipe,
/// a socket, a device or a link to itself; otherwise the system's error.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // A socket cannot be opened at all; its kind is more informative than the system's error.
    let file = open(path).map_err(|error| match path.metadata() {
        Ok(found) if !found.is_file() && !found.is_dir() => not_regular(describe(found.file_type())),
        // Windows opens no folder.
        Ok(found) if found.is_dir() => not_a_file(),
        _ => without_loop(error),
    })?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(not_a_file());
    }
    if !kind.is_file() {
        return Err(not_regular(describe(kind)));
    }
    block_again(&file)?;
    Ok(file)
}

/// Returns the absolute path of a file or folder, without links. On Windows, it has no prefix `\\?\` unless it needs
/// one: users do not know the prefix, and the libraries of vendors fail with it.
///
/// # Errors
/// The system's error, as for a missing file.
pub fn canonicalize(path: &Path) -> io::Result<PathBuf> {
    dunce::canonicalize(path)
}

/// Returns the absolute path of a file or folder. A link to a file keeps its name: those of a hub cache refer to files that
/// are named after their digests.
///
/// # Errors
/// The system's error, as for a missing file.
pub fn own_path(path: &Path) -> io::Result<PathBuf> {
    let absolute = canonicalize(path)?;
    match (path.file_name(), path.parent()) {
        (Some(name), Some(parent)) if !absolute.is_dir() => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            Ok(canonicalize(parent)?.join(name))
        }
        _ => Ok(absolute),
    }
}

/// Opens a regular file in a folder. Symbolic links must not lead out of the folder.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for a file outside the folder; otherwise as [`open_regular`].
pub fn open_inside(folder: &Path, name: &str) -> io::Result<File> {
    let path = folder.join(name);
    // Not `canonicalize` of this module: a long path would keep the prefix that its folder loses.
    if !path.canonicalize().map_err(without_loop)?.starts_with(folder.canonicalize()?) {
        let message = format!("it leads out of the folder {}", folder.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    open_regular(&path)
}

/// Reads a whole regular file of at most `limit` bytes.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`] for a longer file; otherwise as [`open_regular`].
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_bounded(open_regular(path)?, limit)
}

/// Reads a whole regular file of a folder, of at most `limit` bytes.
///
/// # Errors
/// As [`open_inside`] and [`read`].
pub fn read_inside(folder: &Path, name: &str, limit: u64) -> io::Result<Vec<u8>> {
    read_bounded(open_inside(folder, name)?, limit)
}

/// Reads a stream of at most `limit` bytes to its end.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`] for a longer stream; otherwise the system's error.
pub fn read_bounded(stream: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let message = format!("expected at most {limit} bytes, found more");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

fn not_a_file() -> io::Error {
    io::Error::new(io::ErrorKind::IsADirectory, "expected a file, found a folder")
}

fn not_regular(found: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("expected a regular file, found {found}"))
}

/// Replaces the system's error for a loop of symbolic links, for which the standard library has no stable kind.
fn without_loop(error: io::Error) -> io::Error {
    #[cfg(unix)]
    if error.raw_os_error() == Some(libc::ELOOP) {
        return not_regular("a link that leads to itself");
    }
    error
}

#[cfg(unix)]
fn describe(kind: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match kind {
        _ if kind.is_fifo() => "a named pipe",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(not(unix))]
fn describe(_: FileType) -> &'static str {
    "another kind of file"
}

#[cfg(unix)]
fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    // Without O_NONBLOCK, opening a named pipe waits for a writer.
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

#[cfg(not(unix))]
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).open(path)
}

/// Clears the flag that [`open`] sets. It has no meaning for a regular file, but would stay set on the handle.
#[cfg(unix)]
#[allow(unsafe_code, reason = "the standard library has no call for a file's flags")]
fn block_again(file: &File) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and F_GETFL and F_SETFL pass only integers.
    let done = unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        flags >= 0 && libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_NONBLOCK) >= 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(unix))]
fn block_again(_: &File) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

    use super::*;

    #[test]
    fn reads_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, [0; 10]).unwrap();
        assert_eq!(read(&path, 10).unwrap().len(), 10);
        assert_eq!(read(&path, 9).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read(folder.path(), 9).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(read(&folder.path().join("none"), 9).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(read_bounded(&[1, 2][..], 2).unwrap(), [1, 2]);
        assert_eq!(read_bounded(io::repeat(0), 9).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn files_with_long_paths_are_inside_their_folder() {
        let folder = tempfile::tempdir().unwrap();
        // Longer than the 260 characters of a plain path of Windows.
        let name = ["a".repeat(150), "b".repeat(150), "f".to_owned()].join("/");
        let path = folder.path().join(&name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "inside").unwrap();
        assert_eq!(read_inside(folder.path(), &name, 9).unwrap(), b"inside");
    }

    #[test]
    fn absolute_paths_are_those_that_users_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a").join("..").join("f");
        std::fs::create_dir(folder.path().join("a")).unwrap();
        std::fs::write(&path, "").unwrap();
        let found = canonicalize(&path).unwrap();
        assert!(found.is_absolute() && found.ends_with("f"), "{}", found.display());
        assert!(!found.to_string_lossy().contains('?'), "{}", found.display());
        assert_eq!(canonicalize(&folder.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[cfg(unix)]
    #[test]
    fn other_kinds_of_files_are_refused_without_a_wait() {
        let folder = tempfile::tempdir().unwrap();
        let check = |path: &Path, expect: &str| {
            let error = open_regular(path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{}: {error}", path.display());
            assert_eq!(error.to_string(), format!("expected a regular file, found {expect}"));
        };
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        check(&pipe, "a named pipe");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        check(&link, "a named pipe");
        let own = folder.path().join("own");
        std::os::unix::fs::symlink("own", &own).unwrap();
        check(&own, "a link that leads to itself");
        assert_eq!(open_inside(folder.path(), "own").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        check(Path::new("/dev/zero"), "a device");
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        check(&socket, "a socket");
    }

    #[cfg(unix)]
    #[test]
    fn links_may_not_lead_out_of_the_folder() {
        let outside = tempfile::tempdir().unwrap();
        let folder = outside.path().join("package");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        std::fs::write(folder.join("own"), "o").unwrap();
        std::os::unix::fs::symlink("own", folder.join("near")).unwrap();
        std::os::unix::fs::symlink("../secret", folder.join("far")).unwrap();
        assert!(open_inside(&folder, "own").is_ok());
        assert!(open_inside(&folder, "near").is_ok());
        for name in ["far", "../secret"] {
            let error = open_inside(&folder, name).unwrap_err();
            assert!(error.to_string().starts_with("it leads out of the folder"), "{name}: {error}");
        }
    }
}
