//! `cargo xtask attack`: malformed files, hostile requests and kills against the program, as scripts.
//!
//! Every attack has a number of cases and a bound on the time of each. A panic, a hang of more than [`HANG`], a death
//! by a signal, memory of more than [`MEMORY`] beyond the model, a late answer of `/health` or `/metrics`, and a store
//! that is not clean afterwards are findings, and any finding fails the run. Start at [`Attack`]; [`files`], [`kills`], [`media`],
//! [`requests`] and [`routes`] implement the attacks, [`child`] and [`live`] watch the processes.

mod child;
mod files;
mod kills;
mod live;
mod media;
mod mutation;
mod requests;
mod routes;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

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
    /// ONNX Runtime of the session's store.
    runtime: PathBuf,
}

impl Attack {
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
    let session = Session::new(workspace)?;
    let program = match &args.program {
        Some(program) => std::path::absolute(program)?,
        None => session.build_narthex()?,
    };
    let runtime =
        child::runtime(&session.home).context("no ONNX Runtime: run `cargo xtask test --only store` once")?;
    let subject = Subject { session, program, seed: args.seed, runtime };
    let chosen = args.only.map_or_else(|| Attack::VARIANTS.to_vec(), |only| vec![only]);
    let (start, mut outcomes) = (Instant::now(), Vec::new());
    for attack in chosen {
        let name: &str = attack.into();
        terminal::line(format!("== {name}"));
        for outcome in attack.run(&subject)? {
            terminal::line(row(&outcome).trim_end());
            outcomes.push(outcome);
        }
    }
    let page = page(&commit, args.seed, &outcomes, start.elapsed());
    if args.output.record {
        record::write(workspace, record::CONFORMANCE, "attack", &page)?;
    }
    let findings: usize = outcomes.iter().map(|outcome| outcome.findings.len()).sum();
    if findings > 0 {
        bail!("{findings} findings:\n{}", listed(&outcomes));
    }
    Ok(())
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

fn page(commit: &str, seed: u64, outcomes: &[Outcome], took: Duration) -> String {
    let rows: String = outcomes.iter().map(row).collect();
    let findings = match listed(outcomes) {
        none if none.is_empty() => "None.\n".to_owned(),
        some => some,
    };
    format!(
        "# Attacks, {}\n\nCommit {commit}; narthex {}; {}; the build that tests run; seed {seed}; {:.0} minutes. A finding is a \
         panic, a hang of more than {} s, a death by a signal, memory of more than {} MiB beyond the model, \
         an answer of /health or /metrics after more than 100 ms, or a store that is not clean afterwards.\n\n| Cases | Number | Findings | Slowest | Peak memory | |\n|---|---:|---:|---:|---:|---|\n{rows}\n\
         ## Findings\n\n{findings}",
        record::today(),
        env!("CARGO_PKG_VERSION"),
        record::platform(),
        took.as_secs_f64() / 60.0,
        HANG.as_secs(),
        MEMORY >> 20,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed() {
        let record = RecordArgs { record: true };
        let expect = AttackArgs { only: Some(Attack::Kills), program: None, seed: 7, output: record };
        let found = crate::parse("attack --only kills --seed 7 --record").unwrap();
        assert_eq!(found, crate::Command::Attack(expect));
        assert!(crate::parse("attack --only nonsense").is_err());
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
        let page = page("abc", 1, &[outcome(&["case 2 panicked"])], Duration::from_secs(60));
        assert!(page.contains("- x: case 2 panicked\n") && page.contains("| x | 3 | 1 |"), "{page}");
    }
}
