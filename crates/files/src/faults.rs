//! Reads beyond the end of a mapped file that was truncated.
//!
//! The system responds to such a read with SIGBUS. If the address belongs to a registered map, the handler in this
//! module replaces the rest of the map with zeros, as systemd's journal does; every other fault is passed to the
//! earlier disposition. Windows refuses to truncate a mapped file, so no handler is needed there.

#![allow(unsafe_code, reason = "signal handlers and fixed maps exist only in the C library")]

use std::{
    io, mem, ptr,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Maximum number of maps at once; a checkpoint has at most 4,096 files.
const REGIONS: usize = 8192;

/// Bounds of a registered map. `start` is 0 for a free entry and 1 for an entry that is being filled.
struct Bounds {
    start: AtomicUsize,
    end: AtomicUsize,
}

static REGISTERED: [Bounds; REGIONS] =
    [const { Bounds { start: AtomicUsize::new(0), end: AtomicUsize::new(0) } }; REGIONS];
/// One more than the highest index ever used, so that the handler searches only a few entries.
static USED: AtomicUsize = AtomicUsize::new(0);
static PAGE: AtomicUsize = AtomicUsize::new(0);
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// A map that is registered with the handler until it is dropped.
#[derive(Debug)]
pub(crate) struct Region(usize);

impl Region {
    /// Registers a map, which must outlive the region.
    pub(crate) fn new(map: &[u8]) -> io::Result<Self> {
        PREVIOUS.get_or_init(install);
        let start = map.as_ptr() as usize;
        for (place, bounds) in REGISTERED.iter().enumerate() {
            if bounds.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                bounds.end.store(start + map.len(), Ordering::Release);
                bounds.start.store(start, Ordering::Release);
                USED.fetch_max(place + 1, Ordering::AcqRel);
                return Ok(Self(place));
            }
        }
        let message = format!("more than {REGIONS} files are mapped");
        Err(io::Error::new(io::ErrorKind::QuotaExceeded, message))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        REGISTERED[self.0].start.store(0, Ordering::Release);
    }
}

/// Installs the handler and returns the earlier disposition.
fn install() -> libc::sigaction {
    // SAFETY: `sysconf` has no preconditions. A zeroed `sigaction` is a valid one, with the default disposition and an
    // empty mask; both pointers are valid for the calls. The handler does only what is safe in a signal handler:
    // atomics, `mmap` and `sigaction`.
    unsafe {
        PAGE.store(libc::sysconf(libc::_SC_PAGESIZE) as usize, Ordering::Release);
        let mut previous: libc::sigaction = mem::zeroed();
        libc::sigaction(libc::SIGBUS, ptr::null(), &mut previous);
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &action, ptr::null_mut());
        previous
    }
}

extern "C" fn on_fault(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system passes a valid `siginfo_t` to a handler with SA_SIGINFO, and SIGBUS states an address.
    let address = unsafe { (*info).si_addr() } as usize;
    if fill(address) {
        return;
    }
    // The access is repeated when the handler returns, and then has the earlier disposition.
    match PREVIOUS.get() {
        // SAFETY: `previous` was filled by the system.
        Some(previous) => unsafe { libc::sigaction(libc::SIGBUS, previous, ptr::null_mut()) },
        // SAFETY: the default disposition is always valid.
        None => unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) as libc::c_int },
    };
}

/// Replaces the rest of the registered map that contains this address with zeros. Returns `false` if no map contains it.
fn fill(address: usize) -> bool {
    let places = REGISTERED.iter().take(USED.load(Ordering::Acquire));
    for bounds in places {
        let start = bounds.start.load(Ordering::Acquire);
        let end = bounds.end.load(Ordering::Acquire);
        if start > 1 && (start..end).contains(&address) {
            let from = address / PAGE.load(Ordering::Acquire) * PAGE.load(Ordering::Acquire);
            // SAFETY: the range is inside a map that a `Region` keeps registered, so it belongs to this process and
            // contains only the file's bytes; it stays readable, and is unmapped as before.
            let filled = unsafe {
                libc::mmap(
                    from as *mut libc::c_void,
                    end - from,
                    libc::PROT_READ,
                    libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED,
                    -1,
                    0,
                )
            };
            return filled != libc::MAP_FAILED;
        }
    }
    false
}
