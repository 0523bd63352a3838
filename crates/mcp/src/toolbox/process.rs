//! A child process that leads a group, which ends with it.

use std::{io, process::Stdio};

use tokio::process::{Child, Command};

/// A process that is killed, with the processes of its group, when it is dropped. Processes that it started belong to
/// the group, unless they leave it. Without Unix, only the process itself is killed.
pub(super) struct ToolProcess {
    pub(super) child: Child,
    /// Number of the process and of its group; `None` if the group was killed.
    id: Option<u32>,
}

impl ToolProcess {
    /// Starts a program with pipes for its standard input, output and error.
    pub(super) fn start(program: &str, arguments: &[String]) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C in the terminal is for the conversation.
        #[cfg(unix)]
        command.process_group(0);
        let child = command.spawn()?;
        Ok(Self { id: child.id(), child })
    }

    /// Kills the process with its group, and waits for its end.
    pub(super) async fn kill(&mut self) {
        self.kill_group();
        // The process may have ended already.
        let _ = self.child.kill().await;
    }

    fn kill_group(&mut self) {
        let id = self.id.take();
        #[cfg(unix)]
        if let Some(group) = id.and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw)
        {
            // The group is empty if every process has ended.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        #[cfg(not(unix))]
        let _ = id;
    }
}

impl Drop for ToolProcess {
    fn drop(&mut self) {
        self.kill_group();
        // The process may have ended already.
        let _ = self.child.start_kill();
    }
}
