//! Files for parsers that take paths: written anew for every input, in one temporary folder per process.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use tempfile::TempDir;

/// Bytes of zeros behind a file that is written with [`Tail::Zeros`]: room for the weights of a tiny model.
const ROOM: u64 = 512 << 10;

/// What comes behind the bytes of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// Nothing.
    Nothing,
    /// Zeros that take no disk, so that inputs can be headers alone and mutations meet what is parsed.
    Zeros,
    /// Zeros up to this length of the whole file.
    UpTo(u64),
}

/// The folder of this process. It is left behind at the end, in the folder for temporary files.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| TempDir::new().expect("a temporary folder")).path()
}

/// Writes a file of the folder and gives its path.
pub fn write(name: &str, bytes: &[u8], tail: Tail) -> PathBuf {
    let path = folder().join(name);
    // Some file systems write a file out when it is cut to nothing and written anew, but not one that was removed.
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

/// Removes a file of the folder, where it is.
pub fn remove(name: &str) {
    // Most inputs leave most files out.
    let _ = fs::remove_file(folder().join(name));
}

/// Stands before each file of an input that holds several; its name and the end of the line follow. No text in UTF-8
/// has these bytes. `xtask/src/fuzz/seeds` writes the same.
const MARK: &[u8] = b"\xff\xfe\xff";

/// The files of an input, each with its name; what stands before the first is dropped.
pub fn files(data: &[u8]) -> Vec<(&str, &[u8])> {
    let mut starts: Vec<usize> = data
        .windows(MARK.len())
        .enumerate()
        .filter(|(_, window)| *window == MARK)
        .map(|(at, _)| at)
        .collect();
    starts.push(data.len());
    let file = |range: &[usize]| {
        // Two marks may overlap; the first of them begins no file.
        let part = data.get(range[0] + MARK.len()..range[1])?;
        let end = part.iter().position(|&byte| byte == b'\n')?;
        Some((std::str::from_utf8(&part[..end]).ok()?, &part[end + 1..]))
    };
    starts.windows(2).filter_map(file).collect()
}
