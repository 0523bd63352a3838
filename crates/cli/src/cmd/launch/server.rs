//! The server of an agent: a running one, or a new one that ends with the agent.

use std::{
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use narthex_gateway::{Gateway, RunningServer};

use crate::{args::StoreArgs, interrupt, output, running_server::origin};

/// Interval between checks whether a started server listens. It reports this in a file, which cannot be waited for.
const INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct AgentServer {
    /// URL without a path.
    pub(super) origin: String,
    /// The process, if it was started for the agent.
    child: Option<Child>,
}

impl Drop for AgentServer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // The process may have ended already; other errors cannot be handled here.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl AgentServer {
    /// Returns the running server, or starts one and waits until its model is loaded.
    pub(super) fn find_or_start(
        gateway: &Gateway,
        store: &StoreArgs,
        running: Option<&RunningServer>,
        model: &str,
    ) -> anyhow::Result<Self> {
        if let Some(origin) = running.and_then(origin) {
            return Ok(Self { origin, child: None });
        }

        output::note(format!("Starting a server with {model}."));
        let mut command =
            Command::new(std::env::current_exe().context("cannot find the path of this program")?);
        // The server ends when this pipe closes, also if this process is killed.
        command
            .args(["serve", "--port", "0", "--model", model, "--until-stdin-closes"])
            .stdin(Stdio::piped());
        command.stdout(Stdio::null());
        if let Some(home) = &store.home {
            command.arg("--home").arg(home);
        }
        if let Some(config) = &store.config {
            command.arg("--config").arg(config);
        }
        for setting in &store.setting {
            command.arg("--setting").arg(setting);
        }
        if store.offline {
            command.arg("--offline");
        }
        // Ctrl-C in the terminal must reach only the agent.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);

        let child = command.spawn().context("the server cannot be started")?;
        let mut server = Self { origin: String::new(), child: Some(child) };
        server.origin = server.wait(gateway)?;
        Ok(server)
    }

    /// Waits until the server listens. The server loads its model first.
    fn wait(&mut self, gateway: &Gateway) -> anyhow::Result<String> {
        let Some(child) = &mut self.child else { bail!("no server was started") };
        loop {
            let records = gateway.running_servers();
            if let Some(origin) = records.iter().find(|server| server.pid == child.id()).and_then(origin) {
                return Ok(origin);
            }
            if let Some(status) = child.try_wait()? {
                bail!("the server ended with {status}");
            }
            if interrupt::cancel().is_cancelled() {
                bail!(narthex_gateway::Error::Cancelled);
            }
            thread::sleep(INTERVAL);
        }
    }
}
