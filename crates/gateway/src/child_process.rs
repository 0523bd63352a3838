//! Processes of other programs.

use std::{
    io,
    process::{Child, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use narthex_check::ProcessEnd;

use crate::{cancel::Cancel, error::Error};

/// A process that is killed when it is dropped before its end.
pub(crate) struct ChildProcess(pub(crate) Child);

/// Reason why a process did not end by itself.
pub(crate) enum WaitError {
    /// The time limit passed.
    TooSlow,
    /// The work was cancelled.
    Cancelled(Error),
    /// The system cannot wait for the process.
    System(io::Error),
}

impl ChildProcess {
    /// Waits for the end of the process until a time, and looks for it at intervals.
    pub(crate) fn wait(
        &mut self,
        until: Instant,
        interval: Duration,
        cancel: Option<&Cancel>,
    ) -> Result<ExitStatus, WaitError> {
        loop {
            if let Some(cancel) = cancel {
                cancel.check().map_err(WaitError::Cancelled)?;
            }
            match self.0.try_wait().map_err(WaitError::System)? {
                Some(status) => return Ok(status),
                None if Instant::now() >= until => return Err(WaitError::TooSlow),
                None => thread::sleep(interval),
            }
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // A process that has ended cannot be killed, and needs not to be.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Signal that ends a process from outside.
const SIGKILL: i32 = 9;

/// Returns how a signal ended a process; `None` if it ended by itself.
pub(crate) fn signalled_end(status: ExitStatus) -> Option<ProcessEnd> {
    Some(match signal(status)? {
        SIGKILL => ProcessEnd::Killed,
        _ => ProcessEnd::Crashed(status.to_string()),
    })
}

/// Returns the signal that ended a process.
#[cfg(unix)]
fn signal(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

/// Returns the exception that ended a process. On Windows it is a negative exit code.
#[cfg(not(unix))]
fn signal(status: ExitStatus) -> Option<i32> {
    status.code().filter(|&code| code < 0)
}
