//! `cargo xtask peers`: compares Narthex with a bare ONNX Runtime loop, llama.cpp, onnxruntime-genai, OpenVINO GenAI
//! and, for embeddings, OpenVINO. All run the weights of one file, in turns. [`Part`] lists the measurements.
//!
//! Generated files are under `target/peers` and are reused. If a side cannot run, the reason is recorded. Bounds are
//! shown with the results, but no result is a failure. Start at [`side`] for the sides and at [`runner`] for their
//! measurement. `bench/README.md` explains the results.

mod embeddings;
mod llama;
mod measurement;
pub(crate) mod perplexity;
mod plot;
mod quality;
mod report;
mod runner;
mod servers;
mod setup;
mod side;
mod spread;
mod table;
mod weights;
mod workload;

use clap::{Args, ValueEnum, value_parser};

use crate::{record::RecordArgs, session::Session, terminal, workspace::Workspace};

use measurement::Measurement;
use report::{Report, SideResult, SpeedRun};
use runner::Runner;
use setup::Setup;
use side::{PEERS, Side, TargetRatios};
use spread::Spread;
use strum::{IntoStaticStr, VariantArray};
use weights::Weights;
use workload::{SHAPES, STANDARD, Workload};

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, ValueEnum, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum Part {
    /// All sides with prompts of 256 tokens, cold start and perplexity.
    Standard,
    /// Short prompts, long prompts, long answers.
    Shapes,
    /// Larger models with random weights.
    Models,
    /// Servers with 1, 4 and 16 clients.
    Servers,
    /// Embeddings of MiniLM: many texts at once, and texts one by one.
    Embeddings,
}

/// Arguments of `cargo xtask peers`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct PeersArgs {
    /// Sides to measure in the parts standard, shapes and models, separated by commas [default: all].
    #[arg(long, value_name = "SIDES", value_delimiter = ',')]
    only: Vec<Side>,
    /// Parts to measure, separated by commas [default: all].
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    parts: Vec<Part>,
    /// Number of measurements of each side.
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
        if !self.parts.is_empty() {
            let names: Vec<&str> = self.parts.iter().map(|part| part.into()).collect();
            command += &format!(" --parts {}", names.join(","));
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

    fn has(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }
}

/// A side, its runner and its measurements so far, or the reason why it cannot be measured.
struct SideRun<'a> {
    side: Side,
    runner: anyhow::Result<Runner<'a>>,
    measurements: anyhow::Result<Vec<Measurement>>,
}

/// One model and one workload, and the sides that run them.
struct SpeedPlan<'a> {
    weights: &'a Weights,
    work: Workload,
    sides: &'a [Side],
    wanted: TargetRatios,
}

/// Measures every selected part and writes the result.
pub(crate) fn run(workspace: &Workspace, args: &PeersArgs) -> anyhow::Result<()> {
    let session = Session::new(workspace)?;
    let setup = Setup::prepare(&session)?;
    let mut report = Report::new(&setup, args)?;
    let outcome = measure_parts(&setup, args, &mut report);
    // What was measured before a failure is kept.
    table::write(workspace, &report, args.output)?;
    outcome
}

/// Measures the selected parts.
fn measure_parts(setup: &Setup<'_>, args: &PeersArgs, report: &mut Report) -> anyhow::Result<()> {
    if Part::VARIANTS.iter().any(|part| *part != Part::Embeddings && args.has(*part)) {
        measure_decoders(setup, args, report)?;
    }
    if args.has(Part::Embeddings) {
        report.embeddings = Some(embeddings::measure(setup, args.rounds)?);
    }
    Ok(())
}

/// Measures the selected parts with models that generate text.
fn measure_decoders(setup: &Setup<'_>, args: &PeersArgs, report: &mut Report) -> anyhow::Result<()> {
    let published = Weights::published(setup)?;
    if args.has(Part::Standard) {
        let wanted = TargetRatios { prefill: 1.7, decode: 2.0 };
        let plan = SpeedPlan { weights: &published, work: STANDARD, sides: Side::VARIANTS, wanted };
        report.speeds.push(plan.measure(setup, args));
        report.cold_start_ms = cold_starts(setup, args)?;
        for pair in
            quality::PAIRS.iter().filter(|pair| args.includes(pair.ours) && args.includes(pair.theirs))
        {
            report.perplexity.push(quality::compare(*pair, setup, &published));
        }
    }
    if args.has(Part::Shapes) {
        for work in SHAPES {
            let wanted = match work.prompt {
                4096 => TargetRatios { prefill: 2.5, decode: 1.5 },
                _ => TargetRatios { prefill: 1.7, decode: 2.0 },
            };
            let plan = SpeedPlan { weights: &published, work, sides: &PEERS, wanted };
            report.speeds.push(plan.measure(setup, args));
        }
    }
    if args.has(Part::Models) {
        for shape in weights::SHAPES {
            let weights = Weights::random(setup, shape)?;
            let wanted = TargetRatios { prefill: 1.5, decode: 1.25 };
            let plan = SpeedPlan { weights: &weights, work: STANDARD, sides: &PEERS, wanted };
            report.speeds.push(plan.measure(setup, args));
        }
    }
    if args.has(Part::Servers) {
        report.servers = servers::measure(setup, &published, args.rounds)?;
    }
    Ok(())
}

impl SpeedPlan<'_> {
    /// Measures the selected sides in rounds.
    fn measure(&self, setup: &Setup<'_>, args: &PeersArgs) -> SpeedRun {
        let Self { weights, work, sides, wanted } = self;
        let sides = sides.iter().filter(|side| args.includes(**side));
        let mut runs: Vec<SideRun<'_>> = sides.map(|&side| SideRun::prepare(side, setup, weights)).collect();
        for round in 1..=args.rounds {
            terminal::line(format!(
                "\n== {}, {work} tokens, round {round} of {}",
                weights.model, args.rounds
            ));
            runs.iter_mut().for_each(|run| run.measure(setup, *work));
        }
        let results = runs.into_iter().map(SideRun::into_result).collect();
        SpeedRun::new(setup, weights.model, *work, *wanted, results)
    }
}

/// Measures the cold start of the default scheme once in every round.
fn cold_starts(setup: &Setup<'_>, args: &PeersArgs) -> anyhow::Result<Option<Spread>> {
    if !args.includes(Side::NarthexW8) {
        return Ok(None);
    }
    let mut milliseconds = Vec::new();
    for _ in 0..args.rounds {
        milliseconds.push(runner::cold_start(setup, "w8")?.as_secs_f64() * 1e3);
    }
    Ok(Spread::of(milliseconds))
}

impl<'a> SideRun<'a> {
    fn prepare(side: Side, setup: &'a Setup<'a>, weights: &Weights) -> Self {
        terminal::line(format!("preparing {}", side.name()));
        let runner = Runner::prepare(side, setup, weights);
        if let Err(error) = &runner {
            terminal::problem(format!("{} cannot run: {error:#}", side.name()));
        }
        Self { side, runner, measurements: Ok(Vec::new()) }
    }

    /// Measures the side once more, unless it has failed.
    fn measure(&mut self, setup: &Setup<'_>, work: Workload) {
        let (Ok(runner), Ok(measurements)) = (&self.runner, &mut self.measurements) else { return };
        match runner.measure(setup, work) {
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
        let standard =
            PeersArgs { only: vec![], parts: vec![], rounds: 5, output: RecordArgs { record: false } };
        assert!(Side::VARIANTS.iter().all(|side| standard.includes(*side)));
        check("peers", Ok(standard));
        let only = vec![Side::LoopW8, Side::NarthexW8];
        let parts = vec![Part::Shapes, Part::Servers, Part::Embeddings];
        let two = PeersArgs { only, parts, rounds: 3, output: RecordArgs { record: true } };
        assert!(two.includes(Side::LoopW8) && !two.includes(Side::LlamaQ8));
        assert!(two.has(Part::Servers) && !two.has(Part::Standard));
        check(
            "peers --only loop-w8,narthex-w8 --parts shapes,servers,embeddings --rounds 3 --record",
            Ok(two),
        );
        check("peers --only loop-w8,nobody", Err("invalid value 'nobody'"));
        check("peers --rounds 0", Err("--rounds"));
        check("peers --rounds", Err("--rounds"));
    }
}
