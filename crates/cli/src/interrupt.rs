//! Ctrl-C and SIGTERM: the first asks the running job to stop, the second ends the process at once. So does the first
//! while a command waits for its input.

use std::{
    io::{BufRead, stdin},
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
};

use anyhow::Context;
use narthex_gateway::Cancel;

static CANCEL: OnceLock<Cancel> = OnceLock::new();
static COUNT: AtomicU8 = AtomicU8::new(0);
/// Whether there is no job, but input to wait for, which cannot be asked to stop.
static WAITING: AtomicBool = AtomicBool::new(false);

/// The flag that Ctrl-C sets, for jobs that end with the process.
pub(crate) fn cancel() -> &'static Cancel {
    CANCEL.get_or_init(Cancel::new)
}

/// Listens for signals from here on.
pub(crate) fn install() {
    let flag = cancel().clone();
    let installed = ctrlc::set_handler(move || {
        if COUNT.fetch_add(1, Ordering::Relaxed) > 0 || WAITING.load(Ordering::Relaxed) {
            exit_at_once();
        }
        flag.cancel();
    });
    if let Err(error) = installed {
        tracing::warn!(%error, "Ctrl-C will end the process at once");
    }
}

/// Ends the process without tearing anything down: an operator that is computing must not see its library go.
#[allow(unsafe_code, reason = "leaving a process at once is a call of the C library")]
fn exit_at_once() -> ! {
    // SAFETY: `_exit` has no preconditions and does not return.
    unsafe { libc::_exit(130) }
}

/// Reads what a command works on, before it begins.
pub(crate) fn input<T>(read: impl FnOnce() -> T) -> T {
    WAITING.store(true, Ordering::Relaxed);
    let input = read();
    WAITING.store(false, Ordering::Relaxed);
    input
}

/// Reads the lines of standard input, before a command begins.
pub(crate) fn lines() -> anyhow::Result<Vec<String>> {
    input(|| stdin().lock().lines().collect::<Result<_, _>>()).context("cannot read standard input")
}

/// Takes a Ctrl-C that was meant for one answer, so that the conversation goes on.
pub(crate) fn take() -> bool {
    COUNT.swap(0, Ordering::Relaxed) > 0
}

/// Whether Ctrl-C was pressed.
pub(crate) fn pressed() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}
