//! Keeps what vendors' libraries print away from the program's own output.
//!
//! Qualcomm's emulator prints a line to standard output when it is loaded, where programs that read ours would find it. It
//! says that there is no file of settings for the emulator itself, which no user has to know; whatever else a library
//! prints goes to standard error.

#[cfg(target_os = "linux")]
use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::{Mutex, PoisonError},
};

/// The line that Qualcomm's emulator prints whatever its settings are.
#[cfg(target_os = "linux")]
const NOTICE: &str = "# LIBNATIVE: No alternate configuration present";

/// While one lives, standard output is a file in memory, for the whole process; with the last, its lines go to standard
/// error. Other systems than Linux have no emulator, and nothing is redirected there.
pub(super) struct StdoutRedirect {
    /// Counts among the users of the redirection.
    #[cfg(target_os = "linux")]
    counts: bool,
}

/// Standard output while it is redirected.
#[cfg(target_os = "linux")]
struct RedirectedStdout {
    /// Number of live [`StdoutRedirect`]s.
    users: usize,
    /// Standard output as it was.
    kept: OwnedFd,
    /// The file that replaces it.
    file: File,
}

#[cfg(target_os = "linux")]
static REDIRECTED: Mutex<Option<RedirectedStdout>> = Mutex::new(None);

#[cfg(target_os = "linux")]
impl StdoutRedirect {
    /// Where output cannot be redirected, nothing is changed.
    pub(super) fn new() -> Self {
        let mut held = REDIRECTED.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut held = REDIRECTED.lock().unwrap_or_else(PoisonError::into_inner);
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
        // SAFETY: the name is a C string; the descriptor that is made is ours alone.
        let file = unsafe {
            match libc::memfd_create(c"aside".as_ptr(), libc::MFD_CLOEXEC) {
                -1 => return Err(io::Error::last_os_error()),
                made => File::from_raw_fd(made),
            }
        };
        redirect(file.as_fd())?;
        Ok(Self { users: 1, kept, file })
    }

    fn end(mut self) {
        // Neither can fail with open descriptors, and there is no way to report it.
        let _ = redirect(self.kept.as_fd());
        let mut bytes = Vec::new();
        let _ = self.file.rewind().and_then(|()| self.file.take(MOST_BYTES).read_to_end(&mut bytes));
        let mut stderr = io::stderr().lock();
        for line in without_notice(&String::from_utf8_lossy(&bytes)) {
            let _ = writeln!(stderr, "{line}");
        }
    }
}

/// The most that is passed on of what was printed, in bytes.
#[cfg(target_os = "linux")]
const MOST_BYTES: u64 = 1 << 20;

/// Makes standard output another file, once what the C library holds back is written out.
#[cfg(target_os = "linux")]
fn redirect(to: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a null stream means all of them, and both descriptors are open.
    let outcome = unsafe {
        libc::fflush(std::ptr::null_mut());
        libc::dup2(to.as_raw_fd(), libc::STDOUT_FILENO)
    };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The lines of what was printed, without the emulator's notice.
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
        let told: Vec<&str> = without_notice(&text).collect();
        assert_eq!(told, ["LIBNATIVE - Error: malloc failed for thread_t.", "[ ERROR ] x"]);
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
