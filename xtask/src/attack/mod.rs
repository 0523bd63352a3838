//! `cargo xtask attack`: malformed files, hostile requests and kills against the program, as scripts.
//!
//! Every attack has a number of cases and a bound on the time of each. A panic, a hang of more than [`HANG`], a death
//! by a signal, memory of more than [`MEMORY`] beyond the model, a late answer of `/health` or `/metrics`, and a store
//! that is not clean afterwards are findings, and any finding fails the run. Start at [`Attack`]; [`files`], [`kills`], [`media`],
//! [`requests`] and [`routes`] implement the attacks, [`child`] and [`live`] watch the processes. With `--windows`, the program is
//! that for Windows, under wine; the attacks of [`Attack::ON_WINDOWS`] run with fewer cases, because each process takes
//! seconds to start.

mod child;
mod files;
mod kills;
mod live;
mod media;
mod mutation;
mod requests;
mod routes;

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use crate::platforms::{self, WindowsProgram, wine::Wine};
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use strum::{IntoStaticStr, VariantArray};
use xtask_tools::{
    record::{self, RecordArgs},
    session::Session,
    terminal,
    workspace::Workspace,
};

/// Maximum time of a case.
const HANG: Duration = Duration::from_secs(10);

/// Maximum time of a case under wine.
const EMULATED_HANG: Duration = Duration::from_secs(60);

/// Maximum memory of a process in addition to its model, in bytes.
const MEMORY: u64 = 1 << 30;

/// Arguments of `cargo xtask attack`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct AttackArgs {
    /// Run one attack.
    #[arg(long, value_name = "ATTACK")]
    only: Option<Attack>,
    /// Attack this program instead of building one.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Attack the program for Windows under wine, with fewer files, kills and requests.
    #[arg(long, conflicts_with = "program")]
    windows: bool,
    /// Seed of the mutations and of the moments of kills.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: RecordArgs,
}

/// The attacks, in the order of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, ValueEnum, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Attack {
    /// Malformed files of every format.
    Files,
    /// Kills at random moments.
    Kills,
    /// Malformed requests on every route.
    Requests,
    /// Bodies that are costly to read.
    Bodies,
    /// Equal costly bodies in several rounds, and the memory that is kept afterwards.
    Rounds,
    /// Silent connections under a low limit on open files.
    Sockets,
    /// Malformed pictures and sounds, and hostile requests with them.
    Media,
    /// Requests that wait for a load, while the server's health and metrics are queried.
    Waiting,
}

/// Result of one line of an attack.
struct Outcome {
    /// Description of the cases.
    what: String,
    cases: usize,
    /// Maximum time of a case.
    slowest: Duration,
    /// Peak memory of a process, in bytes.
    peak: u64,
    /// Further facts.
    note: String,
    findings: Vec<String>,
}

/// The program under attack.
struct Subject<'a> {
    session: Session<'a>,
    program: PathBuf,
    seed: u64,
    /// ONNX Runtime's library.
    runtime: PathBuf,
    /// The Windows that runs the program, if it is one for Windows.
    wine: Option<Wine>,
}

impl Attack {
    /// The attacks that also run under wine. The others measure memory and time, or set limits of Unix.
    const ON_WINDOWS: [Self; 3] = [Self::Files, Self::Kills, Self::Requests];

    fn run(self, subject: &Subject<'_>) -> anyhow::Result<Vec<Outcome>> {
        match self {
            Self::Files => files::run(subject),
            Self::Kills => kills::run(subject),
            Self::Requests => routes::run(subject),
            Self::Bodies => requests::bodies(subject),
            Self::Rounds => requests::rounds(subject),
            Self::Sockets => requests::sockets(subject),
            Self::Media => media::run(subject),
            Self::Waiting => requests::waiting(subject),
        }
    }
}

/// Runs the attacks, prints a table and fails if there is a finding.
pub(crate) fn run(workspace: &Workspace, args: &AttackArgs) -> anyhow::Result<()> {
    let commit = record::commit(workspace)?;
    let subject = Subject::new(Session::new(workspace)?, args)?;
    let all = if args.windows { &Attack::ON_WINDOWS[..] } else { Attack::VARIANTS };
    let chosen = args.only.map_or_else(|| all.to_vec(), |only| vec![only]);
    let (start, mut outcomes) = (Instant::now(), Vec::new());
    for attack in chosen {
        let name: &str = attack.into();
        terminal::line(format!("== {name}"));
        for outcome in attack.run(&subject)? {
            terminal::line(row(&outcome).trim_end());
            outcomes.push(outcome);
        }
    }
    let page = page(&commit, &subject.build(), subject.hang(), &outcomes, start.elapsed());
    if args.output.record {
        let name = if args.windows { "attack-windows" } else { "attack" };
        record::write(workspace, record::CONFORMANCE, name, &page)?;
    }
    let findings: usize = outcomes.iter().map(|outcome| outcome.findings.len()).sum();
    if findings > 0 {
        bail!("{findings} findings:\n{}", listed(&outcomes));
    }
    Ok(())
}

impl<'a> Subject<'a> {
    /// Builds the program, unless the arguments name one.
    fn new(session: Session<'a>, args: &AttackArgs) -> anyhow::Result<Self> {
        if args.windows {
            let WindowsProgram { wine, program, store } = platforms::windows_program(&session)?;
            let runtime = child::runtime(&store).context("the program for Windows installed no runtime")?;
            return Ok(Self { session, program, seed: args.seed, runtime, wine: Some(wine) });
        }
        let program = match &args.program {
            Some(program) => std::path::absolute(program)?,
            None => session.build_narthex()?,
        };
        let runtime = child::runtime(&session.home)
            .context("no ONNX Runtime: run `cargo xtask test --only store` once")?;
        Ok(Self { session, program, seed: args.seed, runtime, wine: None })
    }

    /// Returns a command that starts the program.
    fn start(&self) -> Command {
        match &self.wine {
            Some(wine) => wine.command(&self.session, &self.program),
            None => self.session.command(&self.program),
        }
    }

    /// Returns a path as the program names it.
    fn path(&self, path: &Path) -> String {
        self.wine.as_ref().map_or_else(|| path.display().to_string(), |wine| wine.path(path))
    }

    /// Describes the program's build and the seed.
    fn build(&self) -> String {
        let build = match &self.wine {
            Some(_) => format!("the build for Windows x64 under {}", Wine::version(&self.session)),
            None => "the build that tests run".to_owned(),
        };
        format!("{build}; seed {}", self.seed)
    }

    /// Returns the maximum time of a case.
    fn hang(&self) -> Duration {
        if self.wine.is_some() { EMULATED_HANG } else { HANG }
    }

    /// Returns the number of cases of an attack that has `count` on this machine: under wine, one of `divisor`.
    fn cases(&self, count: usize, divisor: usize) -> usize {
        if self.wine.is_some() { count.div_ceil(divisor) } else { count }
    }
}

fn row(outcome: &Outcome) -> String {
    let Outcome { what, cases, slowest, peak, note, findings } = outcome;
    let (slowest, peak) = (slowest.as_secs_f64(), *peak as f64 / 1e6);
    format!("| {what} | {cases} | {} | {slowest:.2} s | {peak:.0} MB | {note} |\n", findings.len())
}

/// Formats the first findings of each outcome.
fn listed(outcomes: &[Outcome]) -> String {
    let first = |outcome: &Outcome| -> Vec<String> {
        outcome.findings.iter().take(5).map(|finding| format!("- {}: {finding}\n", outcome.what)).collect()
    };
    outcomes.iter().flat_map(first).collect()
}

fn page(commit: &str, build: &str, hang: Duration, outcomes: &[Outcome], took: Duration) -> String {
    let rows: String = outcomes.iter().map(row).collect();
    let findings = match listed(outcomes) {
        none if none.is_empty() => "None.\n".to_owned(),
        some => some,
    };
    format!(
        "# Attacks, {}\n\nCommit {commit}; narthex {}; {}; {build}; {:.0} minutes. A finding is a \
         panic, a hang of more than {} s, a death by a signal, memory of more than {} MiB beyond the model, \
         an answer of /health or /metrics after more than 100 ms, or a store that is not clean afterwards.\n\n| Cases | Number | Findings | Slowest | Peak memory | |\n|---|---:|---:|---:|---:|---|\n{rows}\n\
         ## Findings\n\n{findings}",
        record::today(),
        env!("CARGO_PKG_VERSION"),
        record::platform(),
        took.as_secs_f64() / 60.0,
        hang.as_secs(),
        MEMORY >> 20,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed() {
        let record = RecordArgs { record: true };
        let expect =
            AttackArgs { only: Some(Attack::Kills), program: None, windows: false, seed: 7, output: record };
        let found = crate::parse("attack --only kills --seed 7 --record").unwrap();
        assert_eq!(found, crate::Command::Attack(expect));
        assert!(matches!(crate::parse("attack --windows"), Ok(crate::Command::Attack(args)) if args.windows));
        for line in ["attack --only nonsense", "attack --windows --program x"] {
            assert!(crate::parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn findings_are_counted_and_listed() {
        let outcome = |findings: &[&str]| Outcome {
            what: "x".to_owned(),
            cases: 3,
            slowest: Duration::from_millis(1500),
            peak: 2_000_000,
            note: String::new(),
            findings: findings.iter().map(|&finding| finding.to_owned()).collect(),
        };
        assert_eq!(row(&outcome(&[])), "| x | 3 | 0 | 1.50 s | 2 MB |  |\n");
        let outcomes = [outcome(&["case 2 panicked"])];
        let page = page("abc", "a build; seed 1", HANG, &outcomes, Duration::from_secs(60));
        assert!(page.contains("- x: case 2 panicked\n") && page.contains("| x | 3 | 1 |"), "{page}");
    }
}
