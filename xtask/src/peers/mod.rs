//! `cargo xtask peers`: Narthex beside a bare ONNX Runtime loop, llama.cpp, onnxruntime-genai and OpenVINO GenAI, all
//! with the weights of one file, in turns, in one run.
//!
//! Generated files lie under `target/peers` and are reused. A side that cannot run is recorded with the reason. Bounds are
//! shown beside the results, but no result is a failure. Start at [`side`] for the sides and at [`runner`] for their
//! measurement; `bench/README.md` explains the result.

mod llama;
mod measurement;
pub(crate) mod perplexity;
mod quality;
mod report;
mod runner;
mod setup;
mod side;
mod spread;
mod table;
mod workload;

use clap::{Args, value_parser};

use crate::{record::RecordArgs, session::Session, terminal, workspace::Workspace};

use measurement::Measurement;
use report::{Report, SideResult};
use runner::Runner;
use setup::Setup;
use side::Side;
use spread::Spread;
use strum::VariantArray;
use workload::WORKLOAD;

/// Arguments of `cargo xtask peers`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct PeersArgs {
    /// Sides to measure, separated by commas; all if there are none.
    #[arg(long, value_name = "SIDES", value_delimiter = ',')]
    only: Vec<Side>,
    /// Measurements of each side.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u64).range(1..))]
    rounds: u64,
    #[command(flatten)]
    output: RecordArgs,
}

impl PeersArgs {
    /// Returns the command line with these arguments.
    fn command(&self) -> String {
        let mut command = "cargo xtask peers".to_owned();
        if !self.only.is_empty() {
            let names: Vec<&str> = self.only.iter().map(|side| side.name()).collect();
            command += &format!(" --only {}", names.join(","));
        }
        command += &format!(" --rounds {}", self.rounds);
        if self.output.record {
            command += " --record";
        }
        command
    }

    fn includes(&self, side: Side) -> bool {
        self.only.is_empty() || self.only.contains(&side)
    }
}

/// A side, its runner and its measurements so far, or the reason why there are none.
struct SideRun<'a> {
    side: Side,
    runner: anyhow::Result<Runner<'a>>,
    measurements: anyhow::Result<Vec<Measurement>>,
}

/// Measures every selected side and writes the result.
pub(crate) fn run(workspace: &Workspace, args: &PeersArgs) -> anyhow::Result<()> {
    let session = Session::new(workspace)?;
    let setup = Setup::prepare(&session)?;
    let sides = Side::VARIANTS.iter().filter(|side| args.includes(**side));
    let mut runs: Vec<SideRun<'_>> = sides.map(|&side| SideRun::prepare(side, &setup)).collect();
    let mut cold_starts = Vec::new();
    for round in 1..=args.rounds {
        terminal::line(format!("\n== round {round} of {}", args.rounds));
        runs.iter_mut().for_each(|run| run.measure(&setup));
        if args.includes(Side::NarthexW8) {
            let milliseconds = runner::cold_start(&setup, "w8")?.as_secs_f64() * 1e3;
            terminal::line(format!("{:<14} {milliseconds:.0} ms", "cold start"));
            cold_starts.push(milliseconds);
        }
    }
    let mut report = Report::new(&setup, args, runs.into_iter().map(SideRun::into_result).collect())?;
    report.cold_start_ms = Spread::of(cold_starts);
    for pair in quality::PAIRS.iter().filter(|pair| args.includes(pair.ours) && args.includes(pair.theirs)) {
        report.perplexity.push(quality::compare(*pair, &setup));
    }
    table::write(workspace, &report, args.output)
}

impl<'a> SideRun<'a> {
    fn prepare(side: Side, setup: &'a Setup<'a>) -> Self {
        terminal::line(format!("preparing {}", side.name()));
        let runner = Runner::prepare(side, setup);
        if let Err(error) = &runner {
            terminal::problem(format!("{} cannot run: {error:#}", side.name()));
        }
        Self { side, runner, measurements: Ok(Vec::new()) }
    }

    /// Measures once more, unless it failed before.
    fn measure(&mut self, setup: &Setup<'_>) {
        let (Ok(runner), Ok(measurements)) = (&self.runner, &mut self.measurements) else { return };
        match runner.measure(setup, WORKLOAD) {
            Ok(measurement) => {
                let (name, prefill, decode) = (self.side.name(), measurement.prefill, measurement.decode);
                terminal::line(format!("{name:<14} {prefill:7.1} prefill {decode:7.1} decode, tokens/s"));
                measurements.push(measurement);
            }
            Err(error) => {
                terminal::problem(format!("{} failed: {error:#}", self.side.name()));
                self.measurements = Err(error);
            }
        }
    }

    fn into_result(self) -> SideResult {
        SideResult::of(self.side, self.runner.and(self.measurements))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expect: Result<PeersArgs, &str>) {
        match (crate::parse(line), expect) {
            (Ok(crate::Command::Peers(found)), Ok(expect)) => {
                assert_eq!(found, expect, "{line}");
                let again = found.command().replace("cargo xtask ", "");
                assert_eq!(crate::parse(&again).unwrap(), crate::Command::Peers(found));
            }
            (Err(found), Err(expect)) => assert!(found.contains(expect), "{line}: {found}"),
            (found, expect) => panic!("{line}: {found:?} instead of {expect:?}"),
        }
    }

    #[test]
    fn arguments_are_parsed() {
        let standard = PeersArgs { only: vec![], rounds: 5, output: RecordArgs { record: false } };
        assert!(Side::VARIANTS.iter().all(|side| standard.includes(*side)));
        check("peers", Ok(standard));
        let only = vec![Side::LoopW8, Side::NarthexW8];
        let two = PeersArgs { only, rounds: 3, output: RecordArgs { record: true } };
        assert!(two.includes(Side::LoopW8) && !two.includes(Side::LlamaQ8));
        check("peers --only loop-w8,narthex-w8 --rounds 3 --record", Ok(two));
        check("peers --only loop-w8,nobody", Err("invalid value 'nobody'"));
        check("peers --rounds 0", Err("--rounds"));
        check("peers --rounds", Err("--rounds"));
    }
}
