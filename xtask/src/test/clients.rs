//! OpenAI's own Python client against a server that listens on a free port.
//!
//! What is asked and expected stands in `conformance/openai_client.py`; here is only what it needs: a Python
//! environment with the pinned client, and a running server.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use crate::{
    terminal,
    test::{
        session::{self, Session},
        tools::Python,
    },
};

/// The client's exact version.
const CLIENT: &str = "openai==3.52.0";

/// What asks the server, relative to the root.
const SCRIPT: &str = "conformance/openai_client.py";

/// How long a server may take until it listens.
const START: Duration = Duration::from_secs(60);

/// Runs the script against a server of its own.
pub(crate) fn check(session: &Session<'_>) -> anyhow::Result<String> {
    let script = session.workspace.root.join(SCRIPT);
    if !script.is_file() {
        bail!("{SCRIPT} is not there; it belongs to the checkout");
    }
    let folder = session.workspace.target.join("conformance");
    let python = environment(session, &folder)?;
    let server = Server::start(session, &folder.join("server.log"))?;
    let mut verdict = String::new();
    let mut client = session.command(python);
    let asked =
        session::each_line(client.arg(&script).arg(format!("http://{}/v1", server.address)), |line| {
            terminal::line(line);
            verdict = line.to_owned();
        });
    if let Err(error) = asked {
        bail!("{error:#}\nthe server's last words ({}):\n{}", server.log.display(), server.last_words());
    }
    Ok(verdict)
}

/// A Python environment with the client, made once; gives its Python.
fn environment(session: &Session<'_>, folder: &Path) -> anyhow::Result<PathBuf> {
    let inside = if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" };
    let (venv, mark) = (folder.join("venv"), folder.join("installed"));
    let python = venv.join(inside);
    if python.is_file() && fs::read_to_string(&mark).is_ok_and(|text| text == CLIENT) {
        return Ok(python);
    }
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let outer = Python::find(session).context("no Python was found; see `cargo xtask test --only tools`")?;
    session::run(outer.command(session).args(["-m", "venv", "--clear"]).arg(&venv))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", CLIENT];
    session::run(session.command(&python).args(pip))?;
    fs::write(&mark, CLIENT).with_context(|| mark.display().to_string())?;
    Ok(python)
}

/// A running server; it ends with this value.
struct Server {
    child: Child,
    address: String,
    log: PathBuf,
}

impl Server {
    fn start(session: &Session<'_>, log: &Path) -> anyhow::Result<Self> {
        let narthex = session.build_narthex()?;
        let file = File::create(log).with_context(|| log.display().to_string())?;
        let child = session
            .command(narthex)
            .args(["serve", "--port", "0"])
            .stdout(file.try_clone()?)
            .stderr(Stdio::from(file))
            .spawn()
            .context("the server cannot be started")?;
        let mut server = Self { child, address: String::new(), log: log.to_owned() };
        server.address = server.wait_for_address()?;
        Ok(server)
    }

    fn wait_for_address(&mut self) -> anyhow::Result<String> {
        let started = Instant::now();
        loop {
            let said = fs::read_to_string(&self.log).unwrap_or_default();
            if let Some(address) = address(&said) {
                return Ok(address.to_owned());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended with {status}:\n{}", self.last_words());
            }
            if started.elapsed() > START {
                bail!("the server did not listen within {START:?}:\n{}", self.last_words());
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn last_words(&self) -> String {
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself, and there is nothing to do about a process that will not.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The `host:port` in what a server says once it listens; the line must be whole.
fn address(said: &str) -> Option<&str> {
    let whole = &said[..said.rfind('\n')?];
    let line = whole.lines().find(|line| line.starts_with("listening on "))?;
    line.split_once("http://")?.1.split([' ', '/']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_read_from_a_whole_line() {
        let said = "a warning\nlistening on http://127.0.0.1:43210 (OpenAI API under /v1)\n";
        assert_eq!(address(said), Some("127.0.0.1:43210"));
        assert_eq!(address(said.trim_end()), None);
        assert_eq!(address("loading\n"), None);
        assert_eq!(address(""), None);
    }
}
