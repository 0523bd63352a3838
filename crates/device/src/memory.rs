//! Aligned buffers that the system fills with zeros when they are first touched, and the process's own memory.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ptr::NonNull,
    slice,
};

/// Alignment of every buffer: a cache line, and wide enough for any vector load.
const ALIGNMENT: usize = 64;

/// Zeroed single-precision numbers. Pages that are never touched take no memory.
#[derive(Debug)]
pub(crate) struct Buffer {
    data: NonNull<f32>,
    length: usize,
}

// SAFETY: the buffer owns plain numbers, like a Vec<f32>.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// No numbers.
    pub(crate) const EMPTY: Self = Self { data: NonNull::dangling(), length: 0 };

    /// Allocates `length` zeros; `None` where the system gives no memory.
    pub(crate) fn zeroed(length: usize) -> Option<Self> {
        if length == 0 {
            return Some(Self::EMPTY);
        }
        let layout = Self::layout(length)?;
        // SAFETY: the layout has a size above zero.
        let data = NonNull::new(unsafe { alloc_zeroed(layout) }.cast::<f32>())?;
        Some(Self { data, length })
    }

    fn layout(length: usize) -> Option<Layout> {
        Layout::from_size_align(length.checked_mul(size_of::<f32>())?, ALIGNMENT).ok()
    }

    pub(crate) fn as_slice(&self) -> &[f32] {
        // SAFETY: the pointer is dangling only for length 0, else it owns `length` initialised numbers.
        unsafe { slice::from_raw_parts(self.data.as_ptr(), self.length) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [f32] {
        // SAFETY: as in `as_slice`, and `&mut self` makes it exclusive.
        unsafe { slice::from_raw_parts_mut(self.data.as_ptr(), self.length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let (Some(layout), true) = (Self::layout(self.length), self.length > 0) {
            // SAFETY: allocated in `zeroed` with the same layout, and freed once.
            unsafe { dealloc(self.data.as_ptr().cast(), layout) };
        }
    }
}

/// Resident bytes of this process, where the system tells.
pub fn rss() -> Option<u64> {
    status("VmRSS:")
}

/// The most resident bytes that this process ever had, where the system tells.
pub fn peak_rss() -> Option<u64> {
    status("VmHWM:")
}

fn status(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zero_and_aligned() {
        let mut buffer = Buffer::zeroed(1000).unwrap();
        assert!(buffer.as_slice().iter().all(|x| *x == 0.0));
        assert_eq!(buffer.as_slice().as_ptr() as usize % ALIGNMENT, 0);
        buffer.as_mut_slice()[999] = 1.0;
        assert_eq!(buffer.as_slice()[999], 1.0);
        assert_eq!(Buffer::zeroed(0).unwrap().as_slice().len(), 0);
        assert!(Buffer::zeroed(usize::MAX / 2).is_none());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_process_knows_its_size() {
        assert!(rss().unwrap() > 1 << 20 && peak_rss() >= rss());
    }
}
