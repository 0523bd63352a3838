//! Ends a process without the exit handlers and destructors of vendors' libraries.
//!
//! Processes that had used Qualcomm's HTP emulation (QAIRT 2.51) and completed all their work ended with SIGSEGV, in
//! two of about forty runs of one test program. Their users would mistake success for a failure.

/// Makes a regular end of the process skip everything that was registered before this call: handlers of `atexit` and
/// destructors of libraries. The exit status stays the same, and the C library's buffers are flushed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn without_destructors() {
    use std::{
        ffi::{c_int, c_void},
        ptr,
    };

    unsafe extern "C" {
        /// glibc's function. Handlers run in the reverse order of their registration.
        fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }
    extern "C" fn end(status: c_int, _: *mut c_void) {
        // SAFETY: a null stream means all streams; the process ends here.
        unsafe {
            libc::fflush(ptr::null_mut());
            libc::_exit(status)
        }
    }
    // SAFETY: the handler is a function that lives as long as the process and does not use its argument. If it cannot
    // be registered, the process ends as it would without it.
    unsafe { on_exit(end, ptr::null_mut()) };
}

/// Does nothing: the emulator exists only on Linux with glibc.
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
        let name = "ort::process_exit::tests::what_crashes_at_the_end_does_not_run";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{output:?}");
    }
}
