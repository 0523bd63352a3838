//! `kill -9` at random moments. The next start must find a clean store: `narthex verify` passes, and no file is
//! incomplete. After kills of writes to the prefix cache, the next server must accept every file of it. After kills of changes
//! of the settings, the settings file must have every name that the server acknowledged.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use narthex_testkit::hub::{HubServer, Repo};

use super::{Outcome, Subject, child::peak_memory, files, mutation::Random};
use xtask_tools::{
    http::{self, Disconnect, Request},
    server::{self, Server},
};

/// Number of kills of each command; half as many under wine.
const KILLS: usize = 50;

/// Maximum time until a kill.
const LATEST: Duration = Duration::from_secs(5);

/// A command to kill. `{}` is replaced by the folder of a checkpoint, `{prefixes}` by that of a prefix cache.
struct Victim {
    what: &'static str,
    command: &'static [&'static str],
    store: StoreState,
    clients: Clients,
}

/// Requests to a victim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Clients {
    None,
    /// Prompts whose keys and values are stored, until the kill.
    Prompts,
    /// Additional names of the model, until the kill.
    Names,
}

/// Repository of a checkpoint on the local server that replaces the hub.
const DOWNLOAD: &str = "hf:attack/tiny";

/// Pause after each piece of 8 KiB of a download, so that kills happen during it.
const PACE: Duration = Duration::from_millis(5);

/// Contents of the store at the start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreState {
    Empty,
    Package,
}

const VICTIMS: &[Victim] = &[
    Victim { what: "pull", command: &["pull", DOWNLOAD], store: StoreState::Empty, clients: Clients::None },
    Victim {
        what: "compile",
        command: &["compile", "{}", "--scheme", "f32", "--calibrate", "none"],
        store: StoreState::Empty,
        clients: Clients::None,
    },
    Victim {
        what: "serve",
        command: &["serve", "--port", "0", "-m", "local/tiny"],
        store: StoreState::Package,
        clients: Clients::None,
    },
    Victim {
        what: "changes of the settings",
        command: &["serve", "--port", "0"],
        store: StoreState::Package,
        clients: Clients::Names,
    },
    Victim {
        what: "writes to the prefix cache",
        command: SERVE_PREFIXES,
        store: StoreState::Package,
        clients: Clients::Prompts,
    },
    Victim {
        what: "cache writes of a first load",
        command: &[
            "chat",
            "-q",
            "-m",
            "local/tiny",
            "--providers",
            "cpu",
            "--max-tokens",
            "4",
            "--temperature",
            "0",
            "Hello",
        ],
        store: StoreState::Package,
        clients: Clients::None,
    },
];

/// A server with a prefix cache.
const SERVE_PREFIXES: &[&str] =
    &["serve", "--port", "0", "-m", "local/tiny", "--providers", "cpu", "--prefix-cache-dir", "{prefixes}"];

/// Number of tokens of a prompt, which are several blocks, and of different prompts.
const PROMPT_TOKENS: usize = 200;
const PROMPTS: usize = 64;

/// Part of the server's warning about a file of the prefix cache that it does not accept.
const NOT_ACCEPTED: &str = "of the prefix cache is ignored";

/// Kills every command.
pub(super) fn run(subject: &Subject<'_>) -> anyhow::Result<Vec<Outcome>> {
    let (checkpoint, packed) = (tempfile::tempdir()?, tempfile::tempdir()?);
    files::llama(checkpoint.path())?;
    files::package(subject, packed.path())?;
    let repo = Repo::of_folder(checkpoint.path())?;
    let hub = HubServer::start(move |request| repo.answer(request).paced(PACE));
    let bench = Bench { subject, checkpoint: checkpoint.path(), packed: packed.path(), hub: &hub.endpoint };
    VICTIMS.iter().map(|victim| bench.kill_all(victim)).collect()
}

/// Files that the victims use.
struct Bench<'a> {
    subject: &'a Subject<'a>,
    checkpoint: &'a Path,
    packed: &'a Path,
    /// Address of the server that replaces the hub.
    hub: &'a str,
}

/// Result of one kill.
struct KillResult {
    peak: u64,
    finding: Option<String>,
    /// Time of the first command after the kill.
    next: Duration,
}

impl Bench<'_> {
    fn kill_all(&self, victim: &Victim) -> anyhow::Result<Outcome> {
        let mut random = Random::new(self.subject.seed);
        let whole = self.kill(victim, LATEST)?.1;
        let mut outcome = Outcome {
            what: format!("kills of {}", victim.what),
            cases: self.subject.cases(KILLS, 2),
            slowest: Duration::ZERO,
            peak: 0,
            note: format!("within {:.2} s", whole.as_secs_f64()),
            findings: Vec::new(),
        };
        for case in 0..outcome.cases {
            let moment = Duration::from_micros(random.below(whole.as_micros() as usize + 1) as u64);
            let (killed, _) = self.kill(victim, moment)?;
            outcome.peak = outcome.peak.max(killed.peak);
            outcome.slowest = outcome.slowest.max(killed.next);
            outcome
                .findings
                .extend(killed.finding.map(|finding| format!("kill {case} after {moment:?}: {finding}")));
        }
        Ok(outcome)
    }

    /// Runs a victim for the time `moment` and kills it. Also returns the time for which it ran.
    fn kill(&self, victim: &Victim, moment: Duration) -> anyhow::Result<(KillResult, Duration)> {
        let scratch = tempfile::tempdir()?;
        let (home, log) = (scratch.path().join("home"), scratch.path().join("log"));
        fs::create_dir(&home)?;
        if victim.store == StoreState::Package {
            files::copy(self.packed, &home)?;
        }
        let mut command = self.command(victim, scratch.path());
        command
            .env_remove("HF_HUB_OFFLINE")
            .env("HF_ENDPOINT", self.hub)
            .env("HF_HUB_CACHE", scratch.path().join("hub"));
        let output = fs::File::create(&log)?;
        let (start, over) = (Instant::now(), AtomicBool::new(false));
        let names = AtomicUsize::new(0);
        let mut child = command.stdout(output.try_clone()?).stderr(Stdio::from(output)).spawn()?;
        let (ran, peak) = thread::scope(|scope| -> anyhow::Result<_> {
            match victim.clients {
                Clients::None => {}
                Clients::Prompts => drop(scope.spawn(|| send_prompts(&log, &over))),
                Clients::Names => drop(scope.spawn(|| send_names(&log, &over, &names))),
            }
            let waited = loop {
                match child.try_wait() {
                    Ok(None) if start.elapsed() < moment => thread::sleep(Duration::from_millis(1)),
                    other => break other,
                }
            };
            let (ran, peak) = (start.elapsed(), peak_memory(child.id()).unwrap_or(0));
            // The client ends even if the process cannot be killed.
            over.store(true, Ordering::Relaxed);
            child.kill()?;
            waited?;
            Ok((ran, peak))
        })?;
        child.wait()?;
        if victim.clients == Clients::Names {
            // The next change replaces what an interrupted one left beside the file.
            self.subject
                .watch(&home, &["create", "next", "--from", "local/tiny", "--system", "Be brief."])?;
        }
        let next = self.subject.watch(&home, &["verify"])?;
        let clean = next.status.is_some_and(|status| status.success());
        let finding = match (next.finding(), half_written(&home)?.first()) {
            (Some(finding), _) => Some(format!("`verify` {finding}")),
            (None, Some(left)) => Some(format!("{} is half-written", left.display())),
            (None, None) if !clean => Some(format!("`verify` fails: {}", next.stderr.trim())),
            (None, None) => match victim.clients {
                Clients::None => None,
                Clients::Prompts => self.reopened(victim, scratch.path())?,
                Clients::Names => self.lost_name(&home, names.into_inner())?,
            },
        };
        Ok((KillResult { peak, finding, next: next.took }, ran))
    }

    /// Returns the command of a victim whose files are in `scratch`.
    fn command(&self, victim: &Victim, scratch: &Path) -> Command {
        let checkpoint = self.checkpoint.to_string_lossy();
        let prefixes = scratch.join("prefixes").to_string_lossy().into_owned();
        let word = |word: &&str| word.replace("{}", &checkpoint).replace("{prefixes}", &prefixes);
        let args: Vec<String> = victim.command.iter().map(word).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.subject.narthex(&scratch.join("home"), &args)
    }

    /// Starts a killed server again and sends all prompts. Returns the finding if it does not accept a file of its
    /// prefix cache.
    fn reopened(&self, victim: &Victim, scratch: &Path) -> anyhow::Result<Option<String>> {
        let log = scratch.join("next-log");
        let server = Server::listen(self.command(victim, scratch), &log)?;
        for number in 0..PROMPTS {
            let status = send_prompt(&server.address, number)?;
            if status != 200 {
                return Ok(Some(format!("the next server answers prompt {number} with {status}")));
            }
        }
        let text = fs::read_to_string(&log)?;
        Ok(text.lines().find(|line| line.contains(NOT_ACCEPTED)).map(str::to_owned))
    }

    /// Returns the finding if the settings of a killed server have faults, or lack one of the names that it acknowledged.
    fn lost_name(&self, home: &Path, acknowledged: usize) -> anyhow::Result<Option<String>> {
        if acknowledged == 0 {
            return Ok(None);
        }
        let check = self.subject.watch(home, &["config", "check"])?;
        if !check.status.is_some_and(|status| status.success()) {
            return Ok(Some(format!("`config check` fails: {}", check.stderr.trim())));
        }
        let text = fs::read_to_string(home.join("narthex.toml"))?;
        let lost = (0..acknowledged).map(name).find(|name| !text.contains(&format!("{name} = ")));
        Ok(lost.map(|name| format!("{name} is lost of {acknowledged} names")))
    }
}

/// Returns the address of the server whose output is in `log`, unless `over` is set before it listens.
fn listening(log: &Path, over: &AtomicBool) -> Option<String> {
    loop {
        let text = fs::read_to_string(log).unwrap_or_default();
        match server::address(&text) {
            Some(address) => return Some(address.to_owned()),
            None if over.load(Ordering::Relaxed) => return None,
            None => thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Adds names to the model of the server whose output is in `log`, until `over` is set. Counts those that the server
/// acknowledged.
fn send_names(log: &Path, over: &AtomicBool, acknowledged: &AtomicUsize) {
    let Some(address) = listening(log, over) else { return };
    while !over.load(Ordering::Relaxed) {
        let name = name(acknowledged.load(Ordering::Relaxed));
        let body = serde_json::json!({"source": "local/tiny", "destination": name}).to_string();
        let request = Request { method: "POST", path: "/api/copy", body: body.as_bytes() };
        match http::send(&address, request, Disconnect::AfterAnswer) {
            Ok(answer) if answer.status == 200 => acknowledged.fetch_add(1, Ordering::Relaxed),
            // The kill ends the connection.
            _ => return,
        };
    }
}

fn name(number: usize) -> String {
    format!("name-{number}")
}

/// Sends prompts to the server whose output is in `log`, until `over` is set.
fn send_prompts(log: &Path, over: &AtomicBool) {
    let Some(address) = listening(log, over) else { return };
    for number in (0..PROMPTS).cycle() {
        // The kill ends the connection.
        if over.load(Ordering::Relaxed) || send_prompt(&address, number).is_err() {
            return;
        }
    }
}

/// Sends a prompt. Returns the status of the answer.
fn send_prompt(address: &str, number: usize) -> anyhow::Result<u16> {
    let tokens: Vec<usize> = (0..PROMPT_TOKENS).map(|at| 3 + (7 * at + 11 * number + at * at) % 64).collect();
    let body = serde_json::json!({"model": "local/tiny", "prompt": tokens, "max_tokens": 1}).to_string();
    let request = Request { method: "POST", path: "/v1/completions", body: body.as_bytes() };
    Ok(http::send(address, request, Disconnect::AfterAnswer)?.status)
}

/// Returns the files that an interrupted write left in a store; the store was opened again after the interruption.
fn half_written(home: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![home.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let endings = ["old", "part", "new"];
            let temporary =
                path.extension().is_some_and(|found| endings.iter().any(|ending| found == *ending));
            if temporary || folder.ends_with("tmp") {
                found.push(path);
            } else if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_are_found() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join("packages/a/w8")).unwrap();
        fs::write(home.path().join("packages/a/w8/manifest.json"), "{}").unwrap();
        assert_eq!(half_written(home.path()).unwrap().len(), 0);
        fs::create_dir_all(home.path().join("tmp/1-0-x")).unwrap();
        fs::create_dir_all(home.path().join("packages/a/w4.old")).unwrap();
        fs::write(home.path().join("packages/a/w8/verified.json.12-3.new"), "{").unwrap();
        assert_eq!(half_written(home.path()).unwrap().len(), 3);
    }
}
