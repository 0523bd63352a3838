//! The process of an agent, and the signals that reach it through this process.

use std::{
    io,
    process::{Command, ExitStatus},
    time::Duration,
};

use tokio::{process::Child, runtime, time};

use crate::interrupt;

/// Time for an agent to end after a signal. It may store its conversation.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) enum AgentEnd {
    /// It ended by itself, or by a signal of its own.
    Status(ExitStatus),
    /// This process received a signal to end.
    Stopped,
}

/// Runs an agent to its end. Ctrl-C in the terminal reaches it directly. SIGTERM and SIGHUP are passed on; after
/// [`GRACE`] or a second signal, the agent is killed.
pub(super) fn run(command: Command) -> io::Result<AgentEnd> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = StopSignals::new()?;
        interrupt::leave_to_child();
        let mut agent = tokio::process::Command::from(command).spawn()?;
        let signal = tokio::select! {
            status = agent.wait() => return status.map(AgentEnd::Status),
            signal = signals.next() => signal,
        };
        signal.send(&agent);
        tokio::select! {
            _ = agent.wait() => {}
            _ = signals.next() => {}
            () = time::sleep(GRACE) => {}
        }
        // An error means that the agent has ended.
        let _ = agent.kill().await;
        Ok(AgentEnd::Stopped)
    })
}

/// The signals that ask this process to end, except Ctrl-C. There are none on Windows, whose console sends its events to
/// the agent too.
struct StopSignals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    hang_up: tokio::signal::unix::Signal,
}

/// A signal that this process received.
struct StopSignal(#[cfg(unix)] rustix::process::Signal);

#[cfg(unix)]
impl StopSignals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, hang_up: signal(SignalKind::hangup())? })
    }

    /// Waits for the next signal.
    async fn next(&mut self) -> StopSignal {
        tokio::select! {
            _ = self.terminate.recv() => StopSignal(rustix::process::Signal::TERM),
            _ = self.hang_up.recv() => StopSignal(rustix::process::Signal::HUP),
        }
    }
}

#[cfg(unix)]
impl StopSignal {
    /// Sends the signal to an agent. An agent that has ended and been waited for has no process id.
    fn send(self, agent: &Child) {
        let id = agent.id().and_then(|id| rustix::process::Pid::from_raw(id.try_into().ok()?));
        if let Some(id) = id {
            // An error means that the agent has ended.
            let _ = rustix::process::kill_process(id, self.0);
        }
    }
}

#[cfg(not(unix))]
impl StopSignals {
    fn new() -> io::Result<Self> {
        Ok(Self {})
    }

    /// Waits forever.
    async fn next(&mut self) -> StopSignal {
        std::future::pending().await
    }
}

#[cfg(not(unix))]
impl StopSignal {
    fn send(self, _agent: &Child) {}
}
