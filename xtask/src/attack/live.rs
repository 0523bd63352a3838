//! A live server and the outcome of an attack on it.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use super::{
    MEMORY, Outcome, Subject,
    child::{peak_memory, resident_memory},
    files,
};
use xtask_tools::{http::media_type, server::Server};

/// A server under attack.
pub(super) struct Live {
    pub(super) server: Server,
    _home: tempfile::TempDir,
    /// Memory before the attack, in bytes.
    base: u64,
    /// Maximum time of a request.
    hang: Duration,
}

impl Live {
    /// Starts a server with the tiny model under resource limits of the shell.
    pub(super) fn start(subject: &Subject<'_>, limits: &str) -> anyhow::Result<Self> {
        Self::serve(subject, limits, &["-m", "local/tiny"], None)
    }

    /// Starts a server with the tiny model and further arguments. `hub` is the address of a server that replaces the hub.
    pub(super) fn serve(
        subject: &Subject<'_>,
        limits: &str,
        further: &[&str],
        hub: Option<&str>,
    ) -> anyhow::Result<Self> {
        Self::of(subject, limits, further, hub, |home| files::package(subject, home))
    }

    /// Starts a server with further arguments and the store that `fill` writes.
    pub(super) fn of(
        subject: &Subject<'_>,
        limits: &str,
        further: &[&str],
        hub: Option<&str>,
        fill: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let home = tempfile::tempdir()?;
        fill(home.path())?;
        let serve = [&["serve", "--port", "0", "--providers", "cpu", "--slots", "1"][..], further].concat();
        let mut narthex = subject.narthex(home.path(), &serve);
        if let Some(hub) = hub {
            narthex.env_remove("HF_HUB_OFFLINE").env("HF_ENDPOINT", hub);
            narthex.env("HF_HUB_CACHE", home.path().join("hub"));
        }
        let mut shell = subject.session.command("bash");
        shell.args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")]).arg(narthex.get_program());
        shell.args(narthex.get_args());
        for (name, value) in narthex.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let server = Server::listen(shell, &home.path().join("log"))?;
        let base = peak_memory(server.id()).unwrap_or(0);
        Ok(Self { server, _home: home, base, hang: subject.hang() })
    }

    /// Sends bytes and reads the whole answer, for at most the time of a case.
    pub(super) fn send(&self, bytes: &[u8]) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(&self.server.address).context("no connection")?;
        stream.set_read_timeout(Some(self.hang))?;
        stream.set_write_timeout(Some(self.hang))?;
        // A server may answer and close before it has read everything.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
            {
                bail!("no end of the answer within {:?}", self.hang)
            }
            _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
        }
    }

    /// Requests the server's health. Returns the time of the answer.
    pub(super) fn health(&self) -> anyhow::Result<Duration> {
        self.get("/health").map(|(took, _)| took)
    }

    /// Requests a path, which must exist. Returns the time of the answer, and the answer.
    pub(super) fn get(&self, path: &str) -> anyhow::Result<(Duration, String)> {
        let start = Instant::now();
        let answer = self.send(&self.request("GET", path, b""))?;
        if !answer.starts_with("HTTP/1.1 200") {
            bail!("{path} answers {:?}", answer.lines().next());
        }
        Ok((start.elapsed(), answer))
    }

    pub(super) fn request(&self, method: &str, path: &str, body: &[u8]) -> Vec<u8> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            self.server.address,
            media_type(body),
            body.len()
        );
        [head.as_bytes(), body].concat()
    }

    /// Returns the resident memory of the server beyond that with its model, in bytes.
    pub(super) fn memory_beyond_model(&self) -> Option<u64> {
        Some(resident_memory(self.server.id())?.saturating_sub(self.base))
    }

    /// Returns the outcome of an attack. A server that no longer answers is a finding.
    pub(super) fn outcome(mut self, what: String, cases: Cases) -> anyhow::Result<Outcome> {
        let Cases { cases, slowest, note, mut findings } = cases;
        if let Err(error) = self.health() {
            findings.push(format!("afterwards, {error:#}"));
        }
        if let Some(status) = self.server.status()? {
            findings.push(format!("the server ended with {status}"));
        }
        let peak = peak_memory(self.server.id()).unwrap_or(0);
        if peak > self.base + MEMORY {
            findings.push(format!("the server took {} MB beyond its model", (peak - self.base) / 1_000_000));
        }
        let log = fs::read_to_string(&self.server.log).unwrap_or_default();
        findings.extend(log.lines().filter(|line| line.contains("panicked")).map(str::to_owned));
        Ok(Outcome { what, cases, slowest, peak, note, findings })
    }
}

/// The cases of an attack.
#[derive(Default)]
pub(super) struct Cases {
    pub(super) cases: usize,
    pub(super) slowest: Duration,
    pub(super) note: String,
    pub(super) findings: Vec<String>,
}

impl Cases {
    /// Adds the end of a client's thread: the time of its answer, or a finding.
    pub(super) fn add(
        &mut self,
        what: &str,
        end: thread::Result<anyhow::Result<Duration>>,
    ) -> anyhow::Result<()> {
        match end {
            Ok(Ok(took)) => self.slowest = self.slowest.max(took),
            Ok(Err(error)) => self.findings.push(format!("{what}: {error:#}")),
            Err(_) => bail!("a client panicked"),
        }
        Ok(())
    }
}
