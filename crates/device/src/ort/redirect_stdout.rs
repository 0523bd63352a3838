//! Separation of the output of vendors' libraries from the program's own standard output.
//!
//! Qualcomm's emulator prints a line to standard output when it is loaded, which would disturb programs that parse our
//! output. The line states that there is no settings file for the emulator itself, and is dropped. All other output of
//! a library goes to standard error.

#[cfg(target_os = "linux")]
use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

#[cfg(target_os = "linux")]
use parking_lot::Mutex;

/// Line that Qualcomm's emulator prints with any settings.
#[cfg(target_os = "linux")]
const NOTICE: &str = "# LIBNATIVE: No alternate configuration present";

/// Redirects standard output to a file in memory while any instance lives, for the whole process. When the last one is
/// dropped, the lines are written to standard error. On systems other than Linux, which have no emulator, nothing is
/// redirected.
pub(super) struct StdoutRedirect {
    /// True if this instance counts as a user of the redirection.
    #[cfg(target_os = "linux")]
    counts: bool,
}

/// State of standard output while it is redirected.
#[cfg(target_os = "linux")]
struct RedirectedStdout {
    /// Number of live [`StdoutRedirect`]s.
    users: usize,
    /// The original standard output.
    kept: OwnedFd,
    /// The file that replaces it.
    file: File,
}

#[cfg(target_os = "linux")]
static REDIRECTED: Mutex<Option<RedirectedStdout>> = Mutex::new(None);

#[cfg(target_os = "linux")]
impl StdoutRedirect {
    /// Starts or joins the redirection. If output cannot be redirected, nothing is changed.
    pub(super) fn new() -> Self {
        let mut held = REDIRECTED.lock();
        match &mut *held {
            Some(held) => held.users += 1,
            None => *held = RedirectedStdout::begin().ok(),
        }
        Self { counts: held.is_some() }
    }
}

#[cfg(target_os = "linux")]
impl Drop for StdoutRedirect {
    fn drop(&mut self) {
        let mut held = REDIRECTED.lock();
        let last = self.counts
            && held.as_mut().is_some_and(|held| {
                held.users -= 1;
                held.users == 0
            });
        if let Some(held) = held.take_if(|_| last) {
            held.end();
        }
    }
}

#[cfg(target_os = "linux")]
impl RedirectedStdout {
    fn begin() -> io::Result<Self> {
        let kept = io::stdout().as_fd().try_clone_to_owned()?;
        // SAFETY: the name is a C string; the new descriptor belongs only to this file.
        let file = unsafe {
            match libc::memfd_create(c"stdout".as_ptr(), libc::MFD_CLOEXEC) {
                -1 => return Err(io::Error::last_os_error()),
                made => File::from_raw_fd(made),
            }
        };
        redirect(file.as_fd())?;
        Ok(Self { users: 1, kept, file })
    }

    fn end(mut self) {
        // Neither call can fail with open descriptors, and an error could not be reported.
        let _ = redirect(self.kept.as_fd());
        let mut bytes = Vec::new();
        let _ = self.file.rewind().and_then(|()| self.file.take(MAX_BYTES).read_to_end(&mut bytes));
        let mut stderr = io::stderr().lock();
        for line in without_notice(&String::from_utf8_lossy(&bytes)) {
            let _ = writeln!(stderr, "{line}");
        }
    }
}

/// Maximum number of bytes of redirected output that are passed on.
#[cfg(target_os = "linux")]
const MAX_BYTES: u64 = 1 << 20;

/// Replaces standard output by another file, after flushing the C library's buffers.
#[cfg(target_os = "linux")]
fn redirect(to: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a null stream means all streams, and both descriptors are open.
    let outcome = unsafe {
        libc::fflush(std::ptr::null_mut());
        libc::dup2(to.as_raw_fd(), libc::STDOUT_FILENO)
    };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the lines of redirected output without the emulator's notice and without blank lines.
#[cfg(target_os = "linux")]
fn without_notice(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with(NOTICE))
}

#[cfg(not(target_os = "linux"))]
impl StdoutRedirect {
    pub(super) fn new() -> Self {
        Self {}
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn only_the_notice_is_left_out() {
        let notice =
            " # LIBNATIVE: No alternate configuration present in libnative_tls.conf or from LIBNATIVE_CONFIG";
        let text = format!("{notice}\n\nLIBNATIVE - Error: malloc failed for thread_t.\n[ ERROR ] x\n");
        let lines: Vec<&str> = without_notice(&text).collect();
        assert_eq!(lines, ["LIBNATIVE - Error: malloc failed for thread_t.", "[ ERROR ] x"]);
    }

    #[test]
    fn output_is_itself_again_after_the_last() {
        let number = || {
            let file = File::from(io::stdout().as_fd().try_clone_to_owned().unwrap());
            file.metadata().map(|found| (found.dev(), found.ino())).unwrap()
        };
        let before = number();
        let (first, second) = (StdoutRedirect::new(), StdoutRedirect::new());
        let meanwhile = number();
        drop(first);
        assert_eq!((meanwhile != before, number()), (true, meanwhile));
        drop(second);
        assert_eq!(number(), before);
    }
}
