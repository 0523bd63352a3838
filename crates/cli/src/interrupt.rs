//! Ctrl-C and SIGTERM: the first cancels the running job, the second ends the process at once. While a command waits for
//! input, the first ends the process too. A job that has not stopped within a second, because an operator or a vendor's
//! compiler runs that nothing can interrupt, is ended with the process; the store is made for that.

use std::{
    io::{BufRead, stdin},
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Context;
use narthex_gateway::Cancel;

static CANCEL: OnceLock<Cancel> = OnceLock::new();
static COUNT: AtomicU8 = AtomicU8::new(0);
/// Set while a command waits for input, which cannot be cancelled.
static WAITING: AtomicBool = AtomicBool::new(false);
/// Set while a server runs, which finishes its answers after a signal.
static SERVING: AtomicBool = AtomicBool::new(false);

/// Time for a job to stop after the first signal.
const GRACE: Duration = Duration::from_millis(900);

/// Set while a program runs in the foreground, which receives Ctrl-C itself.
static IN_CHILD: AtomicBool = AtomicBool::new(false);

/// Leaves Ctrl-C to a program that runs in the foreground.
pub(crate) fn leave_to_child() {
    IN_CHILD.store(true, Ordering::Relaxed);
}

/// The flag that Ctrl-C sets.
pub(crate) fn cancel() -> &'static Cancel {
    CANCEL.get_or_init(Cancel::new)
}

/// Installs the signal handlers.
pub(crate) fn install() {
    ignore_file_size_signal();
    let flag = cancel().clone();
    let installed = ctrlc::set_handler(move || {
        if IN_CHILD.load(Ordering::Relaxed) {
            return;
        }
        if COUNT.fetch_add(1, Ordering::Relaxed) > 0 || WAITING.load(Ordering::Relaxed) {
            exit_at_once();
        }
        flag.cancel();
        // A failure to start the thread leaves the second signal.
        let _ = thread::Builder::new().name("interrupt".to_owned()).spawn(end_after_grace);
    });
    if let Err(error) = installed {
        tracing::warn!(%error, "Ctrl-C will end the process at once");
    }
}

/// Ends the process if the interrupted job still runs after the grace.
fn end_after_grace() {
    thread::sleep(GRACE);
    if pressed() && !SERVING.load(Ordering::Relaxed) {
        exit_at_once();
    }
}

/// Leaves it to the server to stop after a signal.
pub(crate) fn leave_to_server() {
    SERVING.store(true, Ordering::Relaxed);
}

/// Turns a write beyond the limit on the size of files into an error, in place of the end of the process.
#[cfg(unix)]
#[allow(unsafe_code, reason = "only the C library can ignore a signal")]
fn ignore_file_size_signal() {
    // SAFETY: SIGXFSZ is a valid signal, and ignoring it runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

#[cfg(not(unix))]
fn ignore_file_size_signal() {}

/// Ends the process without running destructors, because a running operator must not lose its library.
#[allow(unsafe_code, reason = "only the C library can end a process without destructors")]
fn exit_at_once() -> ! {
    // SAFETY: `_exit` has no preconditions and does not return.
    unsafe { libc::_exit(130) }
}

/// Reads the input of a command before its job starts.
pub(crate) fn input<T>(read: impl FnOnce() -> T) -> T {
    WAITING.store(true, Ordering::Relaxed);
    let input = read();
    WAITING.store(false, Ordering::Relaxed);
    input
}

/// Reads the lines of standard input before a job starts.
pub(crate) fn lines() -> anyhow::Result<Vec<String>> {
    input(|| stdin().lock().lines().collect::<Result<_, _>>()).context("cannot read standard input")
}

/// Resets a Ctrl-C that stopped one answer, so that the conversation continues.
pub(crate) fn take() -> bool {
    COUNT.swap(0, Ordering::Relaxed) > 0
}

/// Returns true if Ctrl-C was pressed.
pub(crate) fn pressed() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}
