//! Ends a process without what vendors' libraries do at its end.
//!
//! Processes that had used Qualcomm's HTP emulation (QAIRT 2.51) and done all their work were seen to end with SIGSEGV, twice
//! in some forty runs of one test program: their users would take success for a failure.

/// From now on a regular end of the process, with whatever status, runs nothing that was registered before: neither handlers
/// of `atexit` nor destructors of libraries. What the C library holds back is written out.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn without_destructors() {
    use std::{
        ffi::{c_int, c_void},
        ptr,
    };

    unsafe extern "C" {
        /// glibc's: handlers run from the last one that was registered to the first.
        fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }
    extern "C" fn end(status: c_int, _: *mut c_void) {
        // SAFETY: a null stream means all of them; the process ends here.
        unsafe {
            libc::fflush(ptr::null_mut());
            libc::_exit(status)
        }
    }
    // SAFETY: the handler is a function that lives as long as the process, and reads no argument. Where it cannot be
    // registered, the process ends as it did.
    unsafe { on_exit(end, ptr::null_mut()) };
}

/// There is no emulator elsewhere.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn without_destructors() {}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use std::process::{Command, exit};

    use super::*;

    extern "C" fn crash() {
        std::process::abort();
    }

    #[test]
    fn what_crashes_at_the_end_does_not_run() {
        const CHILD: &str = "NARTHEX_TEST_ENDING";
        if std::env::var_os(CHILD).is_some() {
            // SAFETY: the handler is a function that lives as long as the process.
            unsafe { libc::atexit(crash) };
            without_destructors();
            exit(7);
        }
        let name = "ort::ending::tests::what_crashes_at_the_end_does_not_run";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{output:?}");
    }
}
