//! `cargo xtask peers`: compares Narthex with a bare ONNX Runtime loop, llama.cpp, onnxruntime-genai, OpenVINO GenAI
//! and, for embeddings, OpenVINO. All run the weights of one file, in turns. [`Part`] lists the measurements.
//! `cargo xtask perplexity` compares accuracies.
//!
//! Generated files are under `target/peers` and are reused. If a side cannot run, the reason is recorded. Bounds are
//! shown with the results, but no result is a failure. Start at [`side`] for the sides and at [`runner`] for their
//! measurement. `bench/README.md` explains the results.

mod completions;
mod cost;
mod drafts;
mod embeddings;
mod footprint;
mod limits;
mod llama;
mod measurement;
mod perplexity;
mod plot;
mod quality;
mod report;
mod runner;
mod server_side;
mod servers;
mod setup;
mod side;
mod spread;
mod table;
mod turns;
mod verdict;
mod weights;
mod workload;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use narthex_kernels::Kernels;
use xtask_tools::{record::RecordArgs, session::Session, terminal, workspace::Workspace};

use cost::ModelCost;
use footprint::Footprint;
use limits::{LimitSpreads, MachineLimits};
use measurement::Measurement;
use report::{Report, SideResult, SpeedRun};
use runner::Runner;
use setup::Setup;
use side::{AT_DEPTH, PEERS, Side, TargetRatios};
use spread::Spread;
use strum::{IntoStaticStr, VariantArray};
use weights::Weights;
use workload::{DEPTHS, SHAPES, STANDARD, Workload};

/// Benchmarks of Narthex beside other runtimes.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, PartialEq, Subcommand)]
enum Command {
    /// Compare the speed of Narthex with other runtimes, as bench/README.md describes.
    Peers(PeersArgs),
    /// Compare the perplexity of models in f32 with llama.cpp on the same files.
    Perplexity(RecordArgs),
}

fn main() -> ExitCode {
    match execute(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::problem(format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> anyhow::Result<()> {
    let workspace = Workspace::read()?;
    match command {
        Command::Peers(args) => run(&workspace, &args),
        Command::Perplexity(args) => perplexity::run(&workspace, args),
    }
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, ValueEnum, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum Part {
    /// All sides with prompts of 256 tokens, cold start, memory of a server and perplexity.
    Standard,
    /// Short prompts, long prompts, long answers.
    Shapes,
    /// Prompts of 128 to 8160 tokens, and answers after them.
    Depths,
    /// Conversations of growing turns.
    Turns,
    /// Decode with drafts from earlier text.
    Drafts,
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
    /// Sides to measure in the parts standard, shapes, depths and models, separated by commas [default: all].
    #[arg(long, value_name = "SIDES", value_delimiter = ',')]
    only: Vec<Side>,
    /// Parts to measure, separated by commas [default: all].
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    parts: Vec<Part>,
    /// Prompt lengths of the part depths, separated by commas [default: all]. The longest one takes most of an hour.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = workload::parse_depth)]
    depths: Vec<usize>,
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
        if !self.depths.is_empty() {
            let depths: Vec<String> = self.depths.iter().map(usize::to_string).collect();
            command += &format!(" --depths {}", depths.join(","));
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

/// Minimum ratios to the peers with SmolLM2.
const STANDARD_WANTED: TargetRatios = TargetRatios { prefill: 1.7, decode: 2.0 };

/// Minimum ratios to llama.cpp at depth.
const DEEP_WANTED: TargetRatios = TargetRatios { prefill: 2.5, decode: 1.5 };

/// Minimum ratios to the peers with larger models.
const MODELS_WANTED: TargetRatios = TargetRatios { prefill: 1.5, decode: 1.25 };

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
    // The generated models must not appear in the store of the tests.
    let session = Session::new(workspace)?.with_store(workspace.target.join("peers/store"));
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
        measure_standard(setup, args, &published, report)?;
    }
    let mut measure = |work, sides, wanted| {
        report.speeds.push(SpeedPlan { weights: &published, work, sides, wanted }.measure(setup, args));
    };
    if args.has(Part::Shapes) {
        SHAPES.into_iter().for_each(|work| measure(work, &PEERS, STANDARD_WANTED));
    }
    if args.has(Part::Depths) {
        let is_selected = |work: &Workload| args.depths.is_empty() || args.depths.contains(&work.prompt);
        for work in DEPTHS.into_iter().filter(is_selected) {
            let wanted = if work.is_deep() { DEEP_WANTED } else { STANDARD_WANTED };
            measure(work, &AT_DEPTH, wanted);
        }
    }
    if args.has(Part::Turns) {
        report.turns = Some(turns::measure(setup, &published, args.rounds)?);
    }
    if args.has(Part::Drafts) {
        report.drafts = drafts::measure(setup, &published, args.rounds)?;
    }
    if args.has(Part::Models) {
        for shape in weights::SHAPES {
            let weights = Weights::random(setup, shape)?;
            let work = Workload { repeat: 1, ..STANDARD };
            let plan = SpeedPlan { weights: &weights, work, sides: &PEERS, wanted: MODELS_WANTED };
            report.speeds.push(plan.measure(setup, args));
        }
    }
    if args.has(Part::Servers) {
        report.servers = servers::measure(setup, &published, args.rounds)?;
    }
    Ok(())
}

/// Measures the standard workload, cold start, memory of a server and perplexity.
fn measure_standard(
    setup: &Setup<'_>,
    args: &PeersArgs,
    weights: &Weights,
    report: &mut Report,
) -> anyhow::Result<()> {
    let plan = SpeedPlan { weights, work: STANDARD, sides: Side::VARIANTS, wanted: STANDARD_WANTED };
    report.speeds.push(plan.measure(setup, args));
    report.cold_start_ms = cold_starts(setup, args)?;
    report.footprints = footprints(setup, args, weights)?;
    for pair in quality::PAIRS.iter().filter(|pair| args.includes(pair.ours) && args.includes(pair.theirs)) {
        report.perplexity.push(quality::compare(*pair, setup, weights));
    }
    Ok(())
}

impl SpeedPlan<'_> {
    /// Measures the selected sides in rounds.
    fn measure(&self, setup: &Setup<'_>, args: &PeersArgs) -> SpeedRun {
        let Self { weights, work, sides, wanted } = self;
        let sides = sides.iter().filter(|side| args.includes(**side));
        let mut runs: Vec<SideRun<'_>> = sides.map(|&side| SideRun::prepare(side, setup, weights)).collect();
        let (kernels, mut limits) = (Kernels::measured(), Vec::new());
        for round in 1..=args.rounds {
            terminal::line(format!(
                "\n== {}, {work} tokens, round {round} of {}",
                weights.model, args.rounds
            ));
            let machine = MachineLimits::measure(&kernels, setup.threads);
            terminal::line(machine);
            limits.push(machine);
            runs.iter_mut().for_each(|run| run.measure(setup, *work));
        }
        let limits = LimitSpreads::of(&limits);
        let results = runs.into_iter().map(|run| run.into_result(setup, weights, limits.as_ref())).collect();
        SpeedRun { limits, ..SpeedRun::new(setup, weights.model, *work, *wanted, results) }
    }
}

/// Measures the memory of servers of the selected schemes.
fn footprints(setup: &Setup<'_>, args: &PeersArgs, weights: &Weights) -> anyhow::Result<Vec<Footprint>> {
    let mut all = Vec::new();
    for side in [Side::NarthexW8, Side::NarthexW4].into_iter().filter(|side| args.includes(*side)) {
        let Some(scheme) = side.scheme() else { continue };
        all.extend(footprint::measure(setup, weights, scheme, args.rounds)?);
    }
    Ok(all)
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

    /// Summarises the measurements, with shares of the limits if the costs of the model are known.
    fn into_result(self, setup: &Setup<'_>, weights: &Weights, limits: Option<&LimitSpreads>) -> SideResult {
        let Self { side, runner, measurements } = self;
        let cost = ModelCost::of_package(&setup.package(weights.model, "w8")).ok();
        let bytes = runner.as_ref().ok().and_then(|runner| runner.weight_bytes(setup).ok());
        let result = SideResult::of(side, runner.and(measurements));
        match cost.zip(bytes) {
            Some((cost, bytes)) => result.with_shares(side, limits, cost.multiply_accumulates, bytes),
            None => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, String> {
        let words = std::iter::once("xtask-peers").chain(line.split_whitespace());
        Cli::try_parse_from(words).map(|cli| cli.command).map_err(|error| error.to_string())
    }

    fn check(line: &str, expect: Result<PeersArgs, &str>) {
        match (parse(line), expect) {
            (Ok(Command::Peers(found)), Ok(expect)) => {
                assert_eq!(found, expect, "{line}");
                let again = found.command().replace("cargo xtask ", "");
                assert_eq!(parse(&again).unwrap(), Command::Peers(found));
            }
            (Err(found), Err(expect)) => assert!(found.contains(expect), "{line}: {found}"),
            (found, expect) => panic!("{line}: {found:?} instead of {expect:?}"),
        }
    }

    #[test]
    fn arguments_are_parsed() {
        let standard = PeersArgs {
            only: vec![],
            parts: vec![],
            depths: vec![],
            rounds: 5,
            output: RecordArgs { record: false },
        };
        assert!(Side::VARIANTS.iter().all(|side| standard.includes(*side)));
        check("peers", Ok(standard));
        let only = vec![Side::LoopW8, Side::NarthexW8];
        let parts = vec![Part::Shapes, Part::Servers, Part::Embeddings];
        let two =
            PeersArgs { only, parts, depths: vec![1024], rounds: 3, output: RecordArgs { record: true } };
        assert!(two.includes(Side::LoopW8) && !two.includes(Side::LlamaQ8));
        assert!(two.has(Part::Servers) && !two.has(Part::Standard));
        check(
            "peers --only loop-w8,narthex-w8 --parts shapes,servers,embeddings --depths 1024 --rounds 3 --record",
            Ok(two),
        );
        check("peers --only loop-w8,nobody", Err("invalid value 'nobody'"));
        check("peers --depths 100", Err("expected one of 128, 1024, 4096, 8160"));
        check("peers --rounds 0", Err("--rounds"));
        check("peers --rounds", Err("--rounds"));
        assert_eq!(parse("perplexity"), Ok(Command::Perplexity(RecordArgs { record: false })));
    }
}
