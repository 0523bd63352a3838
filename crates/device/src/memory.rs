//! Buffers that the system fills with zeros on first access, and the memory of the process and the machine.
//!
//! This module is independent of the contents of the buffers.

use bytemuck::Pod;
use memmap2::MmapMut;

/// Zeroed, page-aligned bytes, mapped directly from the system. Pages that are never touched take no memory, and all
/// pages are released when the buffer is dropped. An allocator guarantees neither.
#[derive(Debug)]
pub(crate) struct Buffer {
    pages: Option<MmapMut>,
}

impl Buffer {
    /// Buffer without bytes.
    pub(crate) const EMPTY: Self = Self { pages: None };

    /// Allocates `length` zeros; `None` if the system has too little memory.
    pub(crate) fn zeroed(length: usize) -> Option<Self> {
        if length == 0 {
            return Some(Self::EMPTY);
        }
        let pages = MmapMut::map_anon(length).ok()?;
        Some(Self { pages: Some(pages) })
    }

    /// Returns the bytes as whole elements.
    pub(crate) fn as_slice<T: Pod>(&self) -> &[T] {
        self.pages.as_ref().map_or(&[], |pages| bytemuck::cast_slice(pages))
    }

    /// Returns the bytes as whole elements, for writing.
    pub(crate) fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        self.pages.as_mut().map_or(&mut [], |pages| bytemuck::cast_slice_mut(pages))
    }
}

/// Returns the resident bytes of this process, if the system reports them.
#[cfg(not(windows))]
pub fn rss() -> Option<u64> {
    status("VmRSS:")
}

/// Returns the bytes of this process's working set.
#[cfg(windows)]
pub fn rss() -> Option<u64> {
    working_set().map(|counters| counters.WorkingSetSize as u64)
}

/// Returns the counters of this process's memory.
#[cfg(windows)]
#[allow(unsafe_code, reason = "a function of Windows")]
fn working_set() -> Option<windows_sys::Win32::System::ProcessStatus::PROCESS_MEMORY_COUNTERS> {
    use windows_sys::Win32::System::{
        ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS},
        Threading::GetCurrentProcess,
    };
    let mut counters = PROCESS_MEMORY_COUNTERS::default();
    let size = size_of_val(&counters) as u32;
    // SAFETY: the handle of this process is always valid, and `size` is that of `counters`, which outlives the call.
    let is_known = unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), &raw mut counters, size) } != 0;
    is_known.then_some(counters)
}

/// Resets [`peak_rss`] to the current value, if the system can.
pub fn reset_peak_rss() -> Option<()> {
    std::fs::write("/proc/self/clear_refs", "5").ok()
}

/// Returns the peak of the resident bytes of this process since its start or since [`reset_peak_rss`], if the system
/// reports it.
#[cfg(not(windows))]
pub fn peak_rss() -> Option<u64> {
    status("VmHWM:")
}

/// Returns the peak of this process's working set since its start.
#[cfg(windows)]
pub fn peak_rss() -> Option<u64> {
    working_set().map(|counters| counters.PeakWorkingSetSize as u64)
}

/// Minimum size of an allocation that returns to the system as soon as it is freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_ALLOCATION: libc::c_int = 4 << 20;

/// Maximum number of the allocator's arenas, each of which keeps freed memory.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ARENAS: libc::c_int = 2;

/// Limits the freed memory that the allocator keeps, if it can. Must be called before other threads start.
///
/// By default, glibc keeps freed blocks of up to 32 MiB in eight arenas for each processor. After a few large requests at
/// once, a gigabyte of freed memory could be left.
pub fn limit_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function only sets parameters of the allocator, and no other thread sets them.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_ALLOCATION);
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
    }
}

/// Returns freed memory to the system, if the allocator keeps it and can return it.
///
/// glibc keeps freed memory between other allocations. Reading a tokenizer or a graph leaves tens of megabytes of it.
pub fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function has no preconditions, and locks each arena of the allocator itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(not(windows))]
fn status(name: &str) -> Option<u64> {
    field(&std::fs::read_to_string("/proc/self/status").ok()?, name)
}

/// Returns the size of the machine's memory in bytes, if the system reports it.
#[cfg(not(any(windows, target_os = "macos")))]
pub(crate) fn installed() -> Option<u64> {
    field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// Returns the size of the machine's memory in bytes, if the system reports it.
#[cfg(target_os = "macos")]
pub(crate) fn installed() -> Option<u64> {
    let mut bytes = 0u64;
    let mut length = size_of::<u64>();
    // SAFETY: the name ends with a zero, `length` is the size of `bytes`, and both outlive the call; no new value is
    // passed.
    let status = unsafe {
        libc::sysctlbyname(
            c"hw.memsize".as_ptr(),
            (&raw mut bytes).cast(),
            &raw mut length,
            std::ptr::null_mut(),
            0,
        )
    };
    (status == 0 && length == size_of::<u64>() && bytes > 0).then_some(bytes)
}

/// Returns the size of the machine's memory in bytes, if the system reports it.
#[cfg(windows)]
pub(crate) fn installed() -> Option<u64> {
    status_of_machine().map(|status| status.ullTotalPhys)
}

#[cfg(windows)]
fn status_of_machine() -> Option<windows_sys::Win32::System::SystemInformation::MEMORYSTATUSEX> {
    use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};

    let mut status = MEMORYSTATUSEX { dwLength: size_of::<MEMORYSTATUSEX>() as u32, ..Default::default() };
    // SAFETY: `dwLength` is the size of `status`, which outlives the call.
    let succeeded = unsafe { GlobalMemoryStatusEx(&raw mut status) };
    (succeeded != 0 && status.ullTotalPhys > 0).then_some(status)
}

/// Returns the bytes of memory that the system can provide without swapping, if it reports them.
#[cfg(not(any(windows, target_os = "macos")))]
pub(crate) fn available() -> Option<u64> {
    field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

/// Returns the bytes of memory that the system can provide without swapping: macOS reports no such number.
#[cfg(target_os = "macos")]
pub(crate) fn available() -> Option<u64> {
    None
}

/// Returns the bytes of memory that the system can provide without swapping, if it reports them.
#[cfg(windows)]
pub(crate) fn available() -> Option<u64> {
    status_of_machine().map(|status| status.ullAvailPhys)
}

/// Returns a size in bytes from the text of `/proc/self/status` or `/proc/meminfo`.
#[cfg(any(test, not(windows)))]
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zero_and_aligned() {
        let mut buffer = Buffer::zeroed(1000).unwrap();
        assert!(buffer.as_slice().iter().all(|x: &u8| *x == 0));
        assert_eq!(
            (buffer.as_slice::<u8>().len(), buffer.as_slice::<u8>().as_ptr() as usize % 64),
            (1000, 0)
        );
        buffer.as_mut_slice()[249] = 1.0_f32;
        assert_eq!(buffer.as_slice::<u8>()[996..], 1.0_f32.to_ne_bytes());
        assert!(Buffer::zeroed(0).unwrap().as_mut_slice::<f32>().is_empty());
        assert!(Buffer::zeroed(usize::MAX / 2).is_none());
        assert!(Buffer::zeroed(usize::MAX / 4).is_none());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn untouched_pages_take_no_memory() {
        use narthex_testkit::memory::anonymous_rss;

        let before = anonymous_rss().unwrap();
        let mut buffer = Buffer::zeroed(1 << 28).unwrap();
        buffer.as_mut_slice()[1 << 27] = 1_u8;
        let grown = anonymous_rss().unwrap().saturating_sub(before);
        assert!(grown < 1 << 26, "{grown} of {} bytes were touched", 1 << 28);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_process_knows_its_size() {
        // The sizes are read one after another while other threads allocate, so they are not compared with each other.
        for size in [rss(), peak_rss()] {
            assert!(size.unwrap() > 1 << 18);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_peak_can_be_forgotten() {
        const SIZE: usize = 1 << 28;
        let mut buffer = Buffer::zeroed(SIZE).unwrap();
        buffer.as_mut_slice().fill(1_u8);
        let high = peak_rss().unwrap();
        drop(buffer);
        if reset_peak_rss().is_some() {
            let low = peak_rss().unwrap();
            assert!(low + (SIZE as u64) / 4 < high, "{low} after {high}");
        }
    }

    #[test]
    fn sizes_are_read_by_name() {
        let status = "Name:\tnarthex\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nRssAnon:\tmany kB\n";
        let check = |name, expected| assert_eq!(field(status, name), expected, "{name}");
        check("VmHWM:", Some(2 << 20));
        check("VmRSS:", Some(1 << 20));
        check("RssAnon:", None);
        check("RssFile:", None);
    }
}
