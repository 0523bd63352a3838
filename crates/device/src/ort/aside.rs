//! Keeps what vendors' libraries print away from the program's own output.
//!
//! Qualcomm's emulator prints a line to standard output when it is loaded, where programs that read ours would find it.

/// While it lives, standard output is standard error, for the whole process.
#[cfg(unix)]
pub(super) struct Aside {
    /// Standard output as it was; `None` where it could not be kept, and then nothing was changed.
    kept: Option<i32>,
}

#[cfg(unix)]
impl Aside {
    pub(super) fn new() -> Self {
        // SAFETY: both calls take and give plain descriptors; the copy is ours and closed once, on drop.
        let kept = unsafe {
            flush();
            let kept = libc::dup(libc::STDOUT_FILENO);
            (kept >= 0 && libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) >= 0).then_some(kept)
        };
        Self { kept }
    }
}

#[cfg(unix)]
impl Drop for Aside {
    fn drop(&mut self) {
        let Some(kept) = self.kept else { return };
        // SAFETY: the descriptor is the copy that `new` made.
        unsafe {
            flush();
            libc::dup2(kept, libc::STDOUT_FILENO);
            libc::close(kept);
        }
    }
}

/// Writes out what the C library holds back.
///
/// # Safety
/// No C code may hold a stream's lock for ever.
#[cfg(unix)]
unsafe fn flush() {
    // SAFETY: a null stream means all of them.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

/// There is no emulator elsewhere.
#[cfg(not(unix))]
pub(super) struct Aside;

#[cfg(not(unix))]
impl Aside {
    pub(super) fn new() -> Self {
        Self
    }
}
