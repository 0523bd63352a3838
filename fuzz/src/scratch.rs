//! Files for parsers that take paths. They are written again for every input, in one temporary folder for each process.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use tempfile::TempDir;

/// Number of zero bytes after a file that is written with [`Tail::Zeros`]. This is enough for the weights of a tiny
/// model.
const ROOM: u64 = 512 << 10;

/// Content after the bytes of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// Nothing.
    Nothing,
    /// Zeros that take no disk space, so that an input can be only a header and mutations affect only the parsed parts.
    Zeros,
    /// Zeros up to this length of the file.
    UpTo(u64),
}

/// Returns the folder of this process. It is not removed at the end; it is in the system's folder for temporary files.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| TempDir::new().expect("a temporary folder")).path()
}

/// Writes a file in the folder and returns its path.
pub fn write(name: &str, bytes: &[u8], tail: Tail) -> PathBuf {
    let path = folder().join(name);
    // If an existing file is truncated and written again, some file systems write it to disk at once. They do not if it
    // is removed first.
    let _ = fs::remove_file(&path);
    let mut file = File::create(&path).expect("a file to write");
    file.write_all(bytes).expect("room for the file");
    let length = match tail {
        Tail::Nothing => return path,
        Tail::Zeros => bytes.len() as u64 + ROOM,
        Tail::UpTo(length) => length.max(bytes.len() as u64),
    };
    file.set_len(length).expect("a longer file");
    path
}

/// Removes a file in the folder, if it exists.
pub fn remove(name: &str) {
    // Most inputs do not have most of the files.
    let _ = fs::remove_file(folder().join(name));
}

/// Marker before each file of an input with several files. The name of the file and a newline follow it. No UTF-8 text
/// has these bytes. `xtask/src/fuzz/seeds` writes the same marker.
const MARK: &[u8] = b"\xff\xfe\xff";

/// Returns the files of an input with their names. Bytes before the first marker are ignored.
pub fn files(data: &[u8]) -> Vec<(&str, &[u8])> {
    let mut starts: Vec<usize> = data
        .windows(MARK.len())
        .enumerate()
        .filter(|(_, window)| *window == MARK)
        .map(|(at, _)| at)
        .collect();
    starts.push(data.len());
    let file = |range: &[usize]| {
        // Two markers may overlap. The first of them does not begin a file.
        let part = data.get(range[0] + MARK.len()..range[1])?;
        let end = part.iter().position(|&byte| byte == b'\n')?;
        Some((std::str::from_utf8(&part[..end]).ok()?, &part[end + 1..]))
    };
    starts.windows(2).filter_map(file).collect()
}
