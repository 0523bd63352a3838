//! Maps of files in large pages. Only Linux has them, and only for some file systems.

use std::{fs, io, num::NonZeroU64, ops::Range, path::Path};

use memmap2::Advice;
use rustix::fs::fadvise;

use super::{MappedFile, map};
use crate::regular::open_regular;

/// Length of a range that contains a whole large page wherever it starts.
const PROBE: usize = 4 << 20;

/// Maps a file and reads all of it into large pages. Returns `None` if the kernel or the file system has none for it.
///
/// A file that was read in another way is in the page cache in small pages. These are dropped from the cache and read
/// again, unless a process maps them. Later calls find the large pages in the cache.
///
/// # Errors
/// As [`map`].
pub fn map_in_large_pages(path: &Path) -> io::Result<Option<MappedFile>> {
    let mapped = map(path)?;
    if mapped.fill() {
        return Ok(Some(mapped));
    }
    drop(mapped);
    // At first only the first bytes, because the file system may have no large pages at all.
    drop_cached_pages(path, Some(PROBE))?;
    if !map(path)?.probe() {
        return Ok(None);
    }
    drop_cached_pages(path, None)?;
    let mapped = map(path)?;
    Ok(mapped.fill().then_some(mapped))
}

/// Drops the first `length` bytes of a file, or all of them, from the page cache. Pages that are not written to the disk
/// yet or that a process maps stay there.
fn drop_cached_pages(path: &Path, length: Option<usize>) -> io::Result<()> {
    let length = length.and_then(|length| NonZeroU64::new(length as u64));
    Ok(fadvise(open_regular(path)?, 0, length, rustix::fs::Advice::DontNeed)?)
}

impl MappedFile {
    /// Reads all bytes in large pages. Returns whether most of the map is in such pages afterwards.
    fn fill(&self) -> bool {
        // Small pages take long to read, so nothing more is read if the first ones are small.
        if !self.probe() {
            return false;
        }
        let length = self.map.len();
        self.fill_range(PROBE.min(length)..length);
        self.large_page_bytes() >= length / 8 * 7
    }

    /// Reads the first bytes in large pages. Returns whether some of them are in such pages afterwards.
    fn probe(&self) -> bool {
        self.fill_range(0..PROBE.min(self.map.len()));
        self.large_page_bytes() > 0
    }

    /// Requests large pages for a range and reads it. A kernel that does not know a request returns an error, and the
    /// pages are then filled at their first use.
    fn fill_range(&self, range: Range<usize>) {
        for advice in [Advice::HugePage, Advice::PopulateRead] {
            let _ = self.map.advise_range(advice, range.start, range.len());
        }
    }

    /// Returns the number of bytes in large pages, or 0 if the system does not report it.
    fn large_page_bytes(&self) -> usize {
        let maps = fs::read("/proc/self/smaps").unwrap_or_default();
        large_page_bytes(&String::from_utf8_lossy(&maps), self.map.as_ptr() as usize).unwrap_or(0)
    }
}

/// Parses the text of `/proc/self/smaps`. Returns the number of bytes in large pages of the file that is mapped at
/// `start`.
fn large_page_bytes(smaps: &str, start: usize) -> Option<usize> {
    let bounds = format!("{start:08x}-");
    let lines = smaps.lines().skip_while(|line| !line.starts_with(&bounds));
    let kilobytes = lines.skip(1).find_map(|line| line.strip_prefix("FilePmdMapped:"))?;
    kilobytes.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

    use std::{fs::File, io::Write};

    use super::*;

    #[test]
    fn a_file_in_small_pages_is_read_again_into_large_ones() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..9usize << 20).map(|at| (at / 3) as u8).collect();
        let has_large_pages = |piece: usize| {
            let path = folder.path().join(piece.to_string());
            let mut file = File::create(&path).unwrap();
            bytes.chunks(piece).for_each(|piece| file.write_all(piece).unwrap());
            file.sync_all().unwrap();
            let mapped = map_in_large_pages(&path).unwrap();
            mapped.is_some_and(|mapped| {
                assert!(mapped[..] == bytes[..]);
                mapped.large_page_bytes() > 0
            })
        };
        // A file that is written at once is in large pages if the file system has any.
        assert_eq!(has_large_pages(1000), has_large_pages(bytes.len()));
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
}
