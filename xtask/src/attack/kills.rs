//! `kill -9` at random moments. The next start must find a clean store: `narthex verify` passes, and no file is
//! incomplete.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use narthex_testkit::hub::{HubServer, Repo};

use super::{Outcome, Subject, child::peak_memory, files, mutation::Random};

/// Number of kills of each command.
const KILLS: usize = 50;

/// Maximum time until a kill.
const LATEST: Duration = Duration::from_secs(5);

/// A command to kill. `{}` is replaced by the folder of a checkpoint.
struct Victim {
    what: &'static str,
    command: &'static [&'static str],
    store: StoreState,
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
    Victim { what: "pull", command: &["pull", DOWNLOAD], store: StoreState::Empty },
    Victim {
        what: "compile",
        command: &["compile", "{}", "--scheme", "f32", "--calibrate", "none"],
        store: StoreState::Empty,
    },
    Victim {
        what: "serve",
        command: &["serve", "--port", "0", "-m", "local/tiny"],
        store: StoreState::Package,
    },
    Victim {
        what: "cache writes of a first load",
        command: &["chat", "-q", "-m", "local/tiny", "--providers", "cpu", "--max-tokens", "4", "Hello"],
        store: StoreState::Package,
    },
];

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
            cases: KILLS,
            slowest: Duration::ZERO,
            peak: 0,
            note: format!("within {:.2} s", whole.as_secs_f64()),
            findings: Vec::new(),
        };
        for case in 0..KILLS {
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
        let home = tempfile::tempdir()?;
        if victim.store == StoreState::Package {
            files::copy(self.packed, home.path())?;
        }
        let checkpoint = self.checkpoint.to_string_lossy();
        let args: Vec<String> = victim.command.iter().map(|word| word.replace("{}", &checkpoint)).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = self.subject.narthex(home.path(), &args);
        let start = Instant::now();
        command
            .env_remove("HF_HUB_OFFLINE")
            .env("HF_ENDPOINT", self.hub)
            .env("HF_HUB_CACHE", home.path().join("hub"));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        while start.elapsed() < moment && child.try_wait()?.is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        let (ran, peak) = (start.elapsed(), peak_memory(child.id()).unwrap_or(0));
        child.kill()?;
        child.wait()?;
        let next = self.subject.watch(home.path(), &["verify"])?;
        let clean = next.status.is_some_and(|status| status.success());
        let finding = match (next.finding(), half_written(home.path())?.first()) {
            (Some(finding), _) => Some(format!("`verify` {finding}")),
            (None, Some(left)) => Some(format!("{} is half-written", left.display())),
            (None, None) => (!clean).then(|| format!("`verify` fails: {}", next.stderr.trim())),
        };
        Ok((KillResult { peak, finding, next: next.took }, ran))
    }
}

/// Returns the files that an interrupted write left in a store; the store was opened again after the interruption.
fn half_written(home: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![home.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let temporary = path.extension().is_some_and(|ending| ending == "old" || ending == "part");
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
        assert_eq!(half_written(home.path()).unwrap().len(), 2);
    }
}
