//! `cargo xtask peers`: Narthex beside a bare ONNX Runtime loop, llama.cpp, onnxruntime-genai and OpenVINO GenAI, all
//! with the weights of one file, in turns, in one run.
//!
//! What it makes lies under `target/peers` and is made once. A side that cannot run is recorded with the reason. Nothing
//! here passes or fails: bounds are shown beside what was found. Start at [`side`] for who is measured, at [`visit`]
//! for how; `bench/README.md` says how to read the result.

mod figures;
mod llama;
mod program;
mod quality;
mod report;
pub(crate) mod same;
mod side;
mod stand;
mod table;
mod visit;

use anyhow::{Context, bail};

use crate::{stamp::Keep, terminal, test::session::Session, workspace::Workspace};

use figures::Spread;
use report::{Measured, Report};
use side::Side;
use stand::Stand;
use visit::{Ready, Visit};

/// How often each side is visited where nothing else is said.
const ROUNDS: usize = 5;

/// Tokens of a window of the perplexity text.
const WINDOW: &str = "256";

/// What each visit measures.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workload {
    /// Tokens of a prompt.
    prompt: usize,
    /// Tokens generated after it.
    decode: usize,
    /// Counted repetitions, whose median is the visit's figure.
    repeat: usize,
}

/// The workload of every run, so that runs can be held against each other.
const WORKLOAD: Workload = Workload { prompt: 256, decode: 64, repeat: 2 };

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    /// Who is measured, in the order of [`Side::ALL`].
    sides: Vec<Side>,
    /// How often each is visited.
    rounds: usize,
    /// What becomes of the result.
    keep: Keep,
}

impl Options {
    /// Reads the words behind `peers`.
    pub(crate) fn parse(mut words: &[&str]) -> anyhow::Result<Self> {
        let mut options = Self { sides: Side::ALL.to_vec(), rounds: ROUNDS, keep: Keep::Nothing };
        loop {
            words = match words {
                [] => return Ok(options),
                ["--only", names, rest @ ..] => {
                    let only: Vec<Side> = names.split(',').map(str::parse).collect::<Result<_, _>>()?;
                    options.sides.retain(|side| only.contains(side));
                    rest
                }
                ["--rounds", rounds, rest @ ..] => {
                    let rounds = rounds.parse().ok().filter(|&rounds| rounds > 0);
                    options.rounds =
                        rounds.with_context(|| "--rounds: expected a whole number above zero")?;
                    rest
                }
                ["--record", rest @ ..] => {
                    options.keep = Keep::Record;
                    rest
                }
                [other, ..] => bail!("`peers` has no {other:?}: expected --only S,S, --rounds N or --record"),
            };
        }
    }

    /// The command that asks for this.
    fn command(&self) -> String {
        let mut command = "cargo xtask peers".to_owned();
        if self.sides != Side::ALL {
            let names: Vec<&str> = self.sides.iter().map(|side| side.name()).collect();
            command += &format!(" --only {}", names.join(","));
        }
        command += &format!(" --rounds {}", self.rounds);
        if self.keep == Keep::Record {
            command += " --record";
        }
        command
    }

    fn wants(&self, side: Side) -> bool {
        self.sides.contains(&side)
    }
}

/// A side, what it needs or why that cannot be had, and its visits so far or why they ended.
struct Seat<'a> {
    side: Side,
    ready: anyhow::Result<Ready<'a>>,
    visits: anyhow::Result<Vec<Visit>>,
}

/// Prepares, measures, and writes the result.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let session = Session::new(workspace)?;
    let stand = Stand::prepare(&session)?;
    let mut seats: Vec<Seat<'_>> = options.sides.iter().map(|&side| seat(side, &stand)).collect();
    let mut cold = Vec::new();
    for round in 1..=options.rounds {
        terminal::line(format!("\n== round {round} of {}", options.rounds));
        seats.iter_mut().for_each(|seat| seat.visit(&stand));
        if options.wants(Side::NarthexW8) {
            cold.push(visit::cold_start(&stand, "w8")?.as_secs_f64() * 1e3);
            terminal::line(format!("{:<14} {:.0} ms", "cold start", cold[cold.len() - 1]));
        }
    }
    let mut report = Report::new(&stand, options, seats.into_iter().map(Seat::measured).collect())?;
    report.cold_start_ms = Spread::of(cold);
    for pair in quality::PAIRS.iter().filter(|pair| options.wants(pair.ours) && options.wants(pair.theirs)) {
        report.perplexity.push(quality::compare(*pair, &stand));
    }
    table::write(workspace, &report, options.keep)
}

fn seat<'a>(side: Side, stand: &'a Stand<'a>) -> Seat<'a> {
    terminal::line(format!("preparing {}", side.name()));
    let ready = Ready::prepare(side, stand);
    if let Err(error) = &ready {
        terminal::problem(format!("{} cannot run: {error:#}", side.name()));
    }
    Seat { side, ready, visits: Ok(Vec::new()) }
}

impl Seat<'_> {
    /// Measures once more, unless it failed before.
    fn visit(&mut self, stand: &Stand<'_>) {
        let (Ok(ready), Ok(visits)) = (&self.ready, &mut self.visits) else { return };
        match ready.visit(stand, WORKLOAD) {
            Ok(visit) => {
                let (name, prefill, decode) = (self.side.name(), visit.prefill, visit.decode);
                terminal::line(format!("{name:<14} {prefill:7.1} prefill {decode:7.1} decode, tokens/s"));
                visits.push(visit);
            }
            Err(error) => {
                terminal::problem(format!("{} failed: {error:#}", self.side.name()));
                self.visits = Err(error);
            }
        }
    }

    fn measured(self) -> Measured {
        Measured::of(self.side, self.ready.and(self.visits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expect: Result<(&[Side], usize, Keep), &str>) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (Options::parse(&words), expect) {
            (Ok(found), Ok((sides, rounds, keep))) => {
                assert_eq!(found, Options { sides: sides.to_vec(), rounds, keep }, "{line}");
                assert_eq!(
                    Options::parse(&found.command().split(' ').skip(3).collect::<Vec<_>>()).unwrap(),
                    found
                );
            }
            (Err(found), Err(expect)) => assert!(found.to_string().contains(expect), "{line}: {found}"),
            (found, expect) => panic!("{line}: {found:?} instead of {expect:?}"),
        }
    }

    #[test]
    fn options_are_read() {
        check("", Ok((&Side::ALL, ROUNDS, Keep::Nothing)));
        let two = [Side::NarthexW8, Side::LoopW8];
        check("--only loop-w8,narthex-w8 --rounds 3 --record", Ok((&two, 3, Keep::Record)));
        check("--only loop-w8,nobody", Err("no side is called \"nobody\""));
        check("--rounds 0", Err("above zero"));
        check("--rounds", Err("expected --only"));
    }
}
