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

use std::{
    fs::{self, File},
    io,
    ops::{Deref, Range},
    path::Path,
    sync::Arc,
    time::SystemTime,
};

use memmap2::Mmap;

#[cfg(unix)]
use crate::faults::Region;
use crate::regular::open_regular;

/// Number of bytes that contain at least one large page, wherever the map starts.
const PROBE: usize = 4 << 20;

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

    /// Requests large pages and reads the whole file into the map. Returns whether most of the map is in large pages
    /// then. That depends on the kernel and the file system of Linux; on other systems, nothing is requested and the
    /// result is `false`.
    pub fn fill_large_pages(&self) -> bool {
        // Small pages take long to fill, so the first bytes show whether there are large ones.
        let (probe, length) = (PROBE.min(self.map.len()), self.map.len());
        self.fill(0..probe);
        if self.large_page_bytes() == 0 {
            return false;
        }
        self.fill(probe..length);
        self.large_page_bytes() >= length / 8 * 7
    }

    /// Requests large pages for a range and reads it, on Linux only. A kernel that does not know a request returns an error,
    /// and the pages are then filled at their first use.
    #[cfg_attr(
        not(target_os = "linux"),
        allow(unused_variables, reason = "other systems have no such request")
    )]
    fn fill(&self, range: Range<usize>) {
        #[cfg(target_os = "linux")]
        for advice in [memmap2::Advice::HugePage, memmap2::Advice::PopulateRead] {
            let _ = self.map.advise_range(advice, range.start, range.len());
        }
    }

    /// Returns the number of bytes in large pages, or 0 if the system does not report it.
    fn large_page_bytes(&self) -> usize {
        let maps = fs::read("/proc/self/smaps").unwrap_or_default();
        large_page_bytes(&String::from_utf8_lossy(&maps), self.map.as_ptr() as usize).unwrap_or(0)
    }
}

/// Returns the number of bytes in large pages of the file map that starts at an address, from the text of
/// `/proc/self/smaps`.
fn large_page_bytes(smaps: &str, start: usize) -> Option<usize> {
    let bounds = format!("{start:08x}-");
    let lines = smaps.lines().skip_while(|line| !line.starts_with(&bounds));
    let kilobytes = lines.skip(1).find_map(|line| line.strip_prefix("FilePmdMapped:"))?;
    kilobytes.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
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
        let (length, modified) = (found.len(), found.modified().ok());
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
        std::fs::write(&path, b"").unwrap();
        assert_eq!(&map(&path).unwrap()[..], b"");
        for absent in [folder.path().join("none"), folder.path().to_owned()] {
            map(&absent).unwrap_err();
        }
    }

    #[test]
    fn a_map_has_the_files_bytes_in_pages_of_any_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        let bytes: Vec<u8> = (0..5usize << 20).map(|at| (at / 3) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let mapped = map(&path).unwrap();
        mapped.fill_large_pages();
        assert!(mapped[..] == bytes[..]);
    }

    #[test]
    fn large_pages_are_counted_for_one_map() {
        let map = |start: &str, kilobytes: usize| {
            format!(
                "{start}000-{start}fff r--p 00000000 08:01 7 /f\nRss: 4 kB\nFilePmdMapped: {kilobytes:8} kB\n"
            )
        };
        let smaps = map("00400", 6) + &map("7f0000400", 4096) + &map("7f0000900", 0);
        let check =
            |start: usize, expected| assert_eq!(large_page_bytes(&smaps, start), expected, "{start:x}");
        check(0x0040_0000, Some(6 << 10));
        check(0x7f00_0040_0000, Some(4 << 20));
        check(0x7f00_0090_0000, Some(0));
        check(0x7f00_0050_0000, None);
        assert_eq!(large_page_bytes("7f0000400000-7f0000401000 r--p\nRss: 4 kB\n", 0x7f00_0040_0000), None);
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
