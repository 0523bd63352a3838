//! Files as read-only memory: the one place of this crate with `unsafe`.
//!
//! What the bytes mean is the readers' matter.

use std::{fs::File, path::Path};

use memmap2::Mmap;

use super::CheckpointError;

/// Maps the whole of `path` read-only. An empty file gives an empty map.
#[allow(unsafe_code, reason = "mapping a file is unsafe whatever one does with it; this is the only place")]
pub(crate) fn map(path: &Path) -> Result<Mmap, CheckpointError> {
    let failed = |source| CheckpointError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_dir() {
        return Err(failed(std::io::ErrorKind::IsADirectory.into()));
    }
    // SAFETY: the map is read-only and is only ever read as plain bytes, for which every value is valid. Another
    // process that writes to the file meanwhile can change the bytes under us, which no reader here relies on not
    // happening after it has checked a length; one that truncates it can end this process with SIGBUS. The model
    // store commits checkpoints by rename and never writes to them again, so only a user who edits a file while it
    // is compiled is exposed.
    unsafe { Mmap::map(&file) }.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_mapped_whole_and_an_absent_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        std::fs::write(&path, b"abc").unwrap();
        assert_eq!(&map(&path).unwrap()[..], b"abc");
        std::fs::write(&path, b"").unwrap();
        assert_eq!(&map(&path).unwrap()[..], b"");
        for absent in [folder.path().join("none"), folder.path().to_owned()] {
            assert!(map(&absent).unwrap_err().to_string().contains(&absent.display().to_string()));
        }
    }
}
