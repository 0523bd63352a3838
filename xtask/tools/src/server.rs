//! Servers as separate processes.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use crate::session::Session;

/// Maximum time until a server is ready.
const START: Duration = Duration::from_secs(120);

/// A running server. It is stopped when this value is dropped.
pub struct Server {
    child: Child,
    /// Its address, as `host:port`.
    pub address: String,
    /// The file with its output.
    pub log: PathBuf,
}

impl Server {
    /// Builds the program and starts `narthex serve` on a free port, with further arguments.
    pub fn start(session: &Session<'_>, log: &Path, arguments: &[&str]) -> anyhow::Result<Self> {
        let mut command = session.command(session.build_narthex()?);
        command.args(["serve", "--port", "0"]).args(arguments);
        Self::listen(command, log)
    }

    /// Starts a command that becomes `narthex serve`, and waits until it listens.
    pub fn listen(command: Command, log: &Path) -> anyhow::Result<Self> {
        Self::spawn(command, log, || address(&fs::read_to_string(log).unwrap_or_default()).map(str::to_owned))
    }

    /// Starts a server whose output goes to `log`, and waits until `ready` returns its address.
    pub fn spawn(
        mut command: Command,
        log: &Path,
        ready: impl Fn() -> Option<String>,
    ) -> anyhow::Result<Self> {
        let file = File::create(log).with_context(|| log.display().to_string())?;
        let child = command.stdout(file.try_clone()?).stderr(Stdio::from(file)).spawn();
        let child = child.with_context(|| format!("{:?} cannot be started", command.get_program()))?;
        let mut server = Self { child, address: String::new(), log: log.to_owned() };
        let started = Instant::now();
        loop {
            if let Some(address) = ready() {
                server.address = address;
                return Ok(server);
            }
            if let Some(status) = server.status()? {
                bail!("the server ended with {status}:\n{}", server.last_lines());
            }
            if started.elapsed() > START {
                bail!("the server was not ready within {START:?}:\n{}", server.last_lines());
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the status of its process, if that has ended.
    pub fn status(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Returns the last lines of its output.
    pub fn last_lines(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already; other errors cannot be handled here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the `host:port` that a server prints when it listens. The line must be complete.
pub fn address(text: &str) -> Option<&str> {
    let whole = &text[..text.rfind('\n')?];
    let line = whole.lines().find(|line| line.starts_with("listening on "))?;
    line.split_once("http://")?.1.split([' ', '/']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_read_from_a_complete_line() {
        let text = "a warning\nlistening on http://127.0.0.1:43210 (OpenAI API under /v1)\n";
        assert_eq!(address(text), Some("127.0.0.1:43210"));
        assert_eq!(address(text.trim_end()), None);
        assert_eq!(address("loading\n"), None);
        assert_eq!(address(""), None);
    }
}
