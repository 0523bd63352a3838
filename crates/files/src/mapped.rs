//! Read-only memory maps of files that may change while they are read.
//!
//! A checkpoint belongs to the user, who can truncate or replace it during a compile that takes minutes. Copying it
//! through bounded buffers would cost a second copy of every weight that is read more than once, and a borrowed row
//! would need an owner. Therefore files stay mapped, and two measures turn a change into an error:
//!
//! - A read beyond a shrunken file's end, to which the system responds with SIGBUS, returns zeros instead of ending the
//!   process (the module `faults`).
//! - [`FileWatch::check`] compares the file's length and modification time with those at its opening. Readers call it
//!   after their last read and before they use their results, so zeros never reach a package.
//!
//! Files of the store need no watch: the store renames whole folders into place, never writes to them again, keeps them
//! private to their user, and verifies their digests before a model is loaded.

#[cfg(target_os = "linux")]
mod large_pages;

use std::{fs::File, io, ops::Deref, path::Path, sync::Arc, time::SystemTime};

use memmap2::Mmap;

#[cfg(unix)]
use crate::faults::Region;
use crate::regular::open_regular;

#[cfg(target_os = "linux")]
pub use large_pages::map_in_large_pages;

/// A file mapped as read-only memory.
#[derive(Debug)]
pub struct MappedFile {
    // Declared before `map`, so that the region is unregistered before the memory is unmapped.
    #[cfg(unix)]
    _region: Option<Region>,
    map: Mmap,
    watch: FileWatch,
}

impl MappedFile {
    /// Returns the watch on the file, which may outlive the map.
    pub fn watch(&self) -> FileWatch {
        self.watch.clone()
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

/// State of a file at its opening. The default has no file, for bytes that do not come from one.
#[derive(Debug, Clone, Default)]
pub struct FileWatch(Option<Arc<FileState>>);

#[derive(Debug)]
struct FileState {
    file: File,
    length: u64,
    /// Modification time; `None` if the file system does not record it.
    modified: Option<SystemTime>,
}

impl FileWatch {
    fn new(file: File) -> io::Result<Self> {
        let found = file.metadata()?;
        let length = found.len();
        let modified = found.modified().ok();
        Ok(Self(Some(Arc::new(FileState { file, length, modified }))))
    }

    /// Fails if the file has changed since it was opened.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] with both lengths for a changed file; otherwise the system's error.
    pub fn check(&self) -> io::Result<()> {
        let Some(opened) = &self.0 else { return Ok(()) };
        let found = opened.file.metadata()?;
        if found.len() == opened.length && found.modified().ok() == opened.modified {
            return Ok(());
        }
        let message = format!(
            "the file changed while it was read: it had {} bytes and now has {}; run the command again once it is complete",
            opened.length,
            found.len()
        );
        Err(io::Error::new(io::ErrorKind::InvalidData, message))
    }
}

/// Maps the whole of a regular file read-only. An empty file returns an empty map.
///
/// # Errors
/// As [`open_regular`]; [`io::ErrorKind::QuotaExceeded`] if too many files are mapped; otherwise the system's error.
#[allow(unsafe_code, reason = "mapping a file is always unsafe; this is the only place that does it")]
pub fn map(path: &Path) -> io::Result<MappedFile> {
    let file = open_regular(path)?;
    // Before the map, so that the map of a file that shrinks in between has a watch that notices it.
    let watch = FileWatch::new(file.try_clone()?)?;
    // SAFETY: the map is read-only, and its users read it as plain bytes, for which every value is valid. Another
    // process can change the bytes while they are mapped; no reader relies on bytes staying the same after it has
    // checked them, and text is copied before it is checked. A read beyond the end of a truncated file returns zeros,
    // see `faults`.
    let map = unsafe { Mmap::map(&file) }?;
    Ok(MappedFile {
        #[cfg(unix)]
        _region: if map.is_empty() { None } else { Some(Region::new(&map)?) },
        map,
        watch,
    })
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
        let mapped = map(&path).unwrap();
        assert_eq!(&mapped[..], b"abc");
        mapped.watch().check().unwrap();
        // Windows refuses to truncate a mapped file.
        drop(mapped);
        std::fs::write(&path, b"").unwrap();
        assert_eq!(&map(&path).unwrap()[..], b"");
        for absent in [folder.path().join("none"), folder.path().to_owned()] {
            map(&absent).unwrap_err();
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_shrinks_is_an_error_and_not_the_end_of_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("weights"), folder.path().join("other"));
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        std::fs::write(&other, vec![5; 1 << 20]).unwrap();
        let (mapped, other) = (map(&path).unwrap(), map(&other).unwrap());
        let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        assert_eq!(sum(&mapped), 7 << 20);
        File::options().write(true).open(&path).unwrap().set_len(1 << 18).unwrap();
        assert_eq!(sum(&mapped), 7 << 18);
        assert_eq!(sum(&other), 5 << 20, "another map is untouched");
        let watch = mapped.watch();
        drop(mapped);
        let error = watch.check().unwrap_err();
        assert!(error.to_string().contains("had 1048576 bytes and now has 262144"), "{error}");
        other.watch().check().unwrap();
    }

    #[test]
    fn a_file_of_the_same_length_may_have_other_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        std::fs::write(&path, b"abc").unwrap();
        let mapped = map(&path).unwrap();
        let later = SystemTime::now() + std::time::Duration::from_secs(60);
        File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert!(mapped.watch().check().unwrap_err().to_string().contains("changed while it was read"));
        FileWatch::default().check().unwrap();
    }
}
