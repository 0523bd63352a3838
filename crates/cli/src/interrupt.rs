//! Ctrl-C, SIGTERM and, except in a server, SIGHUP: the first signal cancels the running job, the second ends the process at
//! once. While a command waits for input, the first signal ends the process too. If a job does not stop within [`GRACE`],
//! because ONNX Runtime or a vendor's compiler cannot be interrupted, the process ends; the store tolerates this. A SIGHUP
//! that was ignored at the start, as under `nohup`, remains ignored. On Windows, the close of the console is a signal too, and
//! ends the process within seconds.

#[cfg(unix)]
use std::fs::File;
use std::{
    io::{self, stdin},
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Context;
use narthex_gateway::Cancel;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::hidden_typing;

static CANCEL: OnceLock<Cancel> = OnceLock::new();
static SIGNALS: SignalCount = SignalCount::new();
/// Set while a command waits for input, which cannot be cancelled.
static WAITING: AtomicBool = AtomicBool::new(false);
/// Set while a server runs, which finishes its answers after a signal.
static SERVING: AtomicBool = AtomicBool::new(false);

/// Time for a job to stop after the first signal. It is short enough for the process to end within a second.
const GRACE: Duration = Duration::from_millis(500);

/// Set while a program runs in the foreground, which gets the signals.
static IN_CHILD: AtomicBool = AtomicBool::new(false);

/// Number of signals, and how many of them are done with.
struct SignalCount {
    received: AtomicU64,
    taken: AtomicU64,
    /// Set by the first signal of the job; `None` until the job uses it.
    job: Mutex<Option<Cancel>>,
}

impl SignalCount {
    const fn new() -> Self {
        Self { received: AtomicU64::new(0), taken: AtomicU64::new(0), job: Mutex::new(None) }
    }

    /// Counts a signal and cancels the job. Returns the number of the signal if it is the first one of the job.
    fn receive(&self) -> Option<u64> {
        // The lock is held until the job is cancelled, so that the signal does not reach the next one.
        let mut job = self.job.lock();
        let before = self.received.fetch_add(1, Ordering::Relaxed);
        job.get_or_insert_default().cancel();
        (before == self.taken.load(Ordering::Relaxed)).then_some(before + 1)
    }

    /// Ends the job of the signals so far. Returns true if there was one.
    fn take(&self) -> bool {
        let mut job = self.job.lock();
        *job = None;
        let received = self.received.load(Ordering::Relaxed);
        self.taken.swap(received, Ordering::Relaxed) < received
    }

    /// Returns the signal of the running job.
    fn job(&self) -> Cancel {
        self.job.lock().get_or_insert_default().clone()
    }

    /// Returns true if the job that received the signal with this number still runs. A later job may have received
    /// one of its own since.
    fn is_overdue(&self, number: u64) -> bool {
        self.taken.load(Ordering::Relaxed) < number
    }
}

/// Disables the handling of signals while a program runs in the foreground. The program receives Ctrl-C itself; its
/// parent passes the other signals on.
pub(crate) fn leave_to_child() {
    IN_CHILD.store(true, Ordering::Relaxed);
}

/// Returns the signal that Ctrl-C sets. It remains set.
pub(crate) fn cancel() -> &'static Cancel {
    CANCEL.get_or_init(Cancel::new)
}

/// Installs the signal handlers.
pub(crate) fn install() {
    ignore_file_size_signal();
    let keeps_hang_up_ignored = ignores_hang_up();
    let installed = ctrlc::set_handler(|| {
        if !IN_CHILD.load(Ordering::Relaxed) {
            interrupt();
        }
    });
    if let Err(error) = installed {
        tracing::warn!(%error, "Ctrl-C will end the process immediately");
    }
    if keeps_hang_up_ignored {
        ignore_hang_up();
    }
    end_with_console();
}

/// Ends the running job, or a server, when the console is closed. Windows reports a shutdown only to services, and the logoff
/// of this user to no program; other programs end without notice.
#[cfg(windows)]
#[allow(unsafe_code, reason = "only the system's function installs this handler")]
fn end_with_console() {
    use windows_sys::{
        Win32::System::Console::{CTRL_CLOSE_EVENT, CTRL_SHUTDOWN_EVENT, SetConsoleCtrlHandler},
        core::BOOL,
    };
    /// Time for a clean end. Windows ends the process when the handler returns, and about five seconds after the close of
    /// the console in any case.
    const TIME: Duration = Duration::from_secs(4);

    unsafe extern "system" fn handle(event: u32) -> BOOL {
        // A service also receives the logoff of any user, which does not end it.
        let ends = matches!(event, CTRL_CLOSE_EVENT | CTRL_SHUTDOWN_EVENT);
        if !ends || IN_CHILD.load(Ordering::Relaxed) {
            return 0;
        }
        interrupt();
        thread::sleep(TIME);
        exit_at_once()
    }

    // SAFETY: the handler is a function of the program and calls only functions that any thread may call.
    if unsafe { SetConsoleCtrlHandler(Some(handle), 1) } == 0 {
        tracing::warn!("closing the console will end the process immediately");
    }
}

#[cfg(not(windows))]
fn end_with_console() {}

/// Cancels the running job at the first signal, and ends the process at the second.
fn interrupt() {
    let Some(number) = SIGNALS.receive().filter(|_| !WAITING.load(Ordering::Relaxed)) else { exit_at_once() };
    cancel().cancel();
    // If the thread cannot be started, a second signal still ends the process.
    let _ = thread::Builder::new().name("interrupt".to_owned()).spawn(move || end_after_grace(number));
}

/// Treats the end of standard input as a signal. Standard input is a pipe that closes when the process at its other end
/// ends, even if that process is killed.
pub(crate) fn end_with_standard_input() -> anyhow::Result<()> {
    let thread = thread::Builder::new().name("stdin".to_owned()).spawn(|| {
        // An error also means that the other end of the pipe is closed.
        let _ = io::copy(&mut stdin().lock(), &mut io::sink());
        interrupt();
    });
    thread.context("cannot start a thread")?;
    Ok(())
}

/// Ends the process if the job that this signal interrupted still runs after [`GRACE`].
fn end_after_grace(number: u64) {
    thread::sleep(GRACE);
    if SIGNALS.is_overdue(number) && !SERVING.load(Ordering::Relaxed) {
        exit_at_once();
    }
}

/// Lets the server stop by itself after a signal. The returned future ends at the first signal, which may have come
/// before this call. A second signal ends the process at once.
pub(crate) fn leave_to_server() -> impl Future<Output = ()> {
    SERVING.store(true, Ordering::Relaxed);
    cancelled(cancel())
}

/// Calls `reload` at each SIGHUP, in place of the usual treatment of this signal. Returns once the terminal of the process
/// was closed, which sends a SIGHUP too.
#[cfg(unix)]
pub(crate) async fn hang_ups(mut reload: impl FnMut()) {
    use tokio::signal::unix::{SignalKind, signal};
    if ignores_hang_up() {
        return std::future::pending().await;
    }
    let has_terminal = File::open(TERMINAL).is_ok();
    // Otherwise, the handler of [`install`] would be called as well.
    reset_hang_up();
    let mut hang_ups = match signal(SignalKind::hangup()) {
        Ok(hang_ups) => hang_ups,
        Err(error) => {
            tracing::warn!(%error, "SIGHUP will end the server");
            return std::future::pending().await;
        }
    };
    while hang_ups.recv().await.is_some() {
        if has_terminal && File::open(TERMINAL).is_err() {
            return;
        }
        reload();
    }
}

#[cfg(not(unix))]
pub(crate) async fn hang_ups(_: impl FnMut()) {
    std::future::pending().await
}

/// The terminal of the process.
#[cfg(unix)]
const TERMINAL: &str = "/dev/tty";

/// Waits until the signal is set.
async fn cancelled(cancel: &Cancel) {
    let (sender, receiver) = oneshot::channel();
    let callback = cancel.on_cancel(move || {
        // The receiver exists until this function returns, and nobody waits after that.
        let _ = sender.send(());
    });
    let _ = receiver.await;
    drop(callback);
}

/// Ignores SIGXFSZ, so that a write beyond the limit on file sizes is an error instead of the end of the process.
#[cfg(unix)]
#[allow(unsafe_code, reason = "only the C library can ignore a signal")]
fn ignore_file_size_signal() {
    // SAFETY: SIGXFSZ is a valid signal, and ignoring it runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

#[cfg(not(unix))]
fn ignore_file_size_signal() {}

/// Returns whether SIGHUP is ignored, as `nohup` leaves it for the programs that it starts.
#[cfg(unix)]
#[allow(unsafe_code, reason = "only the C library returns the action of a signal")]
fn ignores_hang_up() -> bool {
    // SAFETY: SIGHUP is a valid signal, a null pointer changes no action, and the last pointer is valid for a write. An
    // action of zeros is a value of its type.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGHUP, std::ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(not(unix))]
fn ignores_hang_up() -> bool {
    false
}

/// Ignores SIGHUP, for which [`ctrlc`] has installed its handler.
#[cfg(unix)]
#[allow(unsafe_code, reason = "only the C library can ignore a signal")]
fn ignore_hang_up() {
    // SAFETY: SIGHUP is a valid signal, and ignoring it runs no code.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
}

#[cfg(not(unix))]
fn ignore_hang_up() {}

/// Gives SIGHUP its default action.
#[cfg(unix)]
#[allow(unsafe_code, reason = "only the C library can change the action of a signal")]
fn reset_hang_up() {
    // SAFETY: SIGHUP is a valid signal, and its default action runs no code of this process.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
}

/// Ends the process without running destructors, because a running operator must not have its library unloaded.
#[allow(unsafe_code, reason = "only the C library can end a process without destructors")]
fn exit_at_once() -> ! {
    hidden_typing::restore();
    // SAFETY: `_exit` has no preconditions and does not return.
    unsafe { libc::_exit(130) }
}

/// Reads the input of a command before its job starts. Meanwhile, a signal ends the process.
pub(crate) fn input<T>(read: impl FnOnce() -> T) -> T {
    WAITING.store(true, Ordering::Relaxed);
    let input = read();
    WAITING.store(false, Ordering::Relaxed);
    input
}

/// Resets a Ctrl-C that stopped one answer, so that the conversation continues. Returns true if there was one.
pub(crate) fn take() -> bool {
    SIGNALS.take()
}

/// Returns the signal that Ctrl-C sets for the running answer. After [`take`], there is a new one.
pub(crate) fn job() -> Cancel {
    SIGNALS.job()
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    #[test]
    fn a_signal_concerns_the_job_that_received_it() {
        let signals = SignalCount::new();
        let job = signals.job();
        assert!(!job.is_cancelled() && !signals.take());
        let job = signals.job();
        let first = signals.receive().unwrap();
        assert!(job.is_cancelled() && signals.job().is_cancelled() && signals.is_overdue(first));
        assert!(signals.take(), "the first job stopped in time");
        assert!(!signals.job().is_cancelled() && !signals.is_overdue(first));
        // The grace of the first signal ends while the second job is stopping.
        let second = signals.receive().unwrap();
        assert!(signals.job().is_cancelled() && signals.is_overdue(second) && !signals.is_overdue(first));
        assert_eq!(signals.receive(), None, "the same job received a second signal");
        assert!(signals.take() && !signals.is_overdue(second));
    }

    #[test]
    fn a_server_sees_signals_from_before_and_after_its_start() {
        let mut context = Context::from_waker(Waker::noop());
        let cancel = Cancel::new();
        let mut early = pin!(cancelled(&cancel));
        assert_eq!(early.as_mut().poll(&mut context), Poll::Pending);
        cancel.cancel();
        assert_eq!(early.poll(&mut context), Poll::Ready(()));
        assert_eq!(pin!(cancelled(&cancel)).poll(&mut context), Poll::Ready(()));
    }
}
