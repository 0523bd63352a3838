//! Read-only memory maps of files. The one place outside `device` and the terminal's signal handler with `unsafe`.

use std::{fs::File, io, path::Path};

pub use memmap2::Mmap;

/// Maps the whole of `path` read-only. An empty file gives an empty map.
///
/// # Errors
/// Fails if `path` cannot be opened or mapped, or is a directory.
#[allow(unsafe_code, reason = "mapping a file is always unsafe; this is the only place that does it")]
pub fn map(path: &Path) -> io::Result<Mmap> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    // SAFETY: the map is read-only, and its users read it as plain bytes, for which every value is valid. Another process
    // can change the bytes while they are mapped; no reader relies on bytes staying the same after it has checked a
    // length. A process that truncates the file can end this one with SIGBUS. The model store commits files by rename
    // and never writes to them again, so only a user who edits a file while it is being read is exposed.
    unsafe { Mmap::map(&file) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

    use super::*;

    #[test]
    fn a_file_is_mapped_whole_and_an_absent_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        std::fs::write(&path, b"abc").unwrap();
        assert_eq!(&map(&path).unwrap()[..], b"abc");
        std::fs::write(&path, b"").unwrap();
        assert_eq!(&map(&path).unwrap()[..], b"");
        for absent in [folder.path().join("none"), folder.path().to_owned()] {
            map(&absent).unwrap_err();
        }
    }
}
