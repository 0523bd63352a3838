//! `cargo xtask fuzz`: builds the fuzz targets, generates their seeds, runs each for a while, and prints a table.
//!
//! The targets are in `fuzz/`, a separate workspace. They run in libFuzzer without cargo-fuzz or a nightly toolchain:
//! [`build`] passes the instrumentation to stable Rust. All outputs are under `target/fuzz`. The corpus is kept there
//! between runs.

mod build;
mod campaign;
pub(crate) mod seeds;
mod table;

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{anyhow, bail};
use clap::{Args, ValueEnum, value_parser};
use parking_lot::Mutex;
use strum::{IntoStaticStr, VariantArray};
use xtask_tools::{
    record::{self, RecordArgs},
    terminal,
    workspace::Workspace,
};

pub(crate) use build::{host, rustc};
use campaign::CampaignResult;

/// Fuzz targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, ValueEnum, VariantArray)]
#[strum(serialize_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(crate) enum Target {
    /// GGUF files.
    Gguf,
    /// Safetensors files and their index.
    Safetensors,
    /// Configuration files of a Hugging Face checkpoint.
    HfConfig,
    /// ONNX files.
    Onnx,
    /// Chat templates.
    Template,
    /// SentencePiece models.
    Pieces,
    /// Folders of ONNX exports.
    Import,
    /// Bodies of requests.
    Request,
    /// Manifests of packages.
    Manifest,
    /// Wheels.
    Wheel,
    /// Files of API keys.
    Keys,
    /// Streams of upstreams.
    UpstreamEvents,
    /// Settings and records.
    Settings,
    /// JSON schemas, Lark grammars and regular expressions.
    Grammar,
    /// Answers of models with reasoning and tool calls.
    Answers,
    /// Files of the prefix cache.
    PrefixBlock,
    /// Operands of CPU kernels.
    Kernels,
    /// Files of sound.
    Audio,
    /// Files of pictures.
    Image,
    /// Files of videos.
    Video,
}

impl Target {
    /// Name of its program.
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }

    /// Maximum length of an input; shorter inputs run faster.
    pub(crate) fn max_bytes(self) -> usize {
        match self {
            Self::Template
            | Self::Pieces
            | Self::Keys
            | Self::Grammar
            | Self::Answers
            | Self::PrefixBlock => 16 << 10,
            // Elements repeat, so a few bytes fill large operands.
            Self::Kernels => 4 << 10,
            Self::Onnx
            | Self::Request
            | Self::Wheel
            | Self::UpstreamEvents
            | Self::Settings
            | Self::Audio
            | Self::Image
            | Self::Video => 32 << 10,
            Self::Gguf | Self::Safetensors | Self::HfConfig | Self::Manifest | Self::Import => 64 << 10,
        }
    }
}

/// Arguments of `cargo xtask fuzz`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct FuzzArgs {
    /// Targets to fuzz, separated by commas [default: all].
    #[arg(long = "target", value_name = "TARGETS", value_delimiter = ',')]
    targets: Vec<Target>,
    /// Seconds for each target.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = value_parser!(u64).range(1..))]
    seconds: u64,
    /// Number of targets that run at once.
    #[arg(long, value_name = "N", default_value_t = NonZeroUsize::MIN)]
    jobs: NonZeroUsize,
    #[command(flatten)]
    output: RecordArgs,
}

/// The folders of a run.
#[derive(Debug)]
struct Folders {
    /// Build outputs.
    build: PathBuf,
    /// Seeds, in a folder for each target.
    seeds: PathBuf,
    /// Inputs that increased coverage, in a folder for each target.
    corpus: PathBuf,
    /// Inputs that crashed a target, in a folder for each target.
    artifacts: PathBuf,
    /// Dictionaries, and logs of libFuzzer.
    logs: PathBuf,
    /// Temporary files of the targets.
    scratch: PathBuf,
}

/// Returns a folder in memory, if the system has one, because targets write files for every input.
fn memory_folder() -> Option<PathBuf> {
    Some(PathBuf::from("/dev/shm")).filter(|folder| cfg!(target_os = "linux") && folder.is_dir())
}

impl Folders {
    fn of(workspace: &Workspace) -> Self {
        let inside = |name: &str| workspace.target.join("fuzz").join(name);
        Self {
            build: inside("build"),
            seeds: inside("seeds"),
            corpus: inside("corpus"),
            artifacts: inside("artifacts"),
            logs: inside("logs"),
            scratch: memory_folder().map_or_else(
                || inside("scratch"),
                |folder| folder.join(format!("narthex-fuzz-{}", std::process::id())),
            ),
        }
    }
}

/// Builds the targets, fuzzes them, and prints the table. Fails if an input crashed a target.
pub(crate) fn run(workspace: &Workspace, args: &FuzzArgs) -> anyhow::Result<()> {
    let commit = record::commit(workspace)?;
    let folders = Folders::of(workspace);
    let targets = if args.targets.is_empty() { Target::VARIANTS } else { &args.targets };
    let programs = build::build(workspace, &folders, targets)?;
    let work = targets.iter().copied().zip(programs.iter().map(PathBuf::as_path));
    let results = run_campaigns(work, args, &folders)?;
    let table = table::table(workspace, &commit, args.jobs, &results)?;
    terminal::line(format!("\n{table}"));
    if args.output.record {
        record::write(workspace, record::CONFORMANCE, "fuzz", &table)?;
    }
    let crashed: Vec<&str> =
        results.iter().filter(|o| !o.crashes.is_empty()).map(|o| o.target.name()).collect();
    if !crashed.is_empty() {
        bail!("{} crashed; the inputs are in {}", crashed.join(", "), folders.artifacts.display());
    }
    Ok(())
}

/// Fuzzes the targets, several at once if `args` says so, and returns their results in the order of the targets.
fn run_campaigns<'a>(
    work: impl Iterator<Item = (Target, &'a Path)> + Send,
    args: &FuzzArgs,
    folders: &Folders,
) -> anyhow::Result<Vec<CampaignResult>> {
    let time = Duration::from_secs(args.seconds);
    let (work, results) = (Mutex::new(work), Mutex::new(Vec::new()));
    let run_next = || -> anyhow::Result<()> {
        loop {
            let Some((target, program)) = work.lock().next() else { return Ok(()) };
            terminal::line(format!("== {}: {} s", target.name(), args.seconds));
            let result = campaign::run(target, program, folders, time)?;
            terminal::line(format!("{}: {}", target.name(), result.summary()));
            results.lock().push(result);
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..args.jobs.get()).map(|_| scope.spawn(run_next)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a campaign panicked"))?)
    })?;
    let mut results = results.into_inner();
    results.sort_by_key(|result: &CampaignResult| result.target as usize);
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expect: Result<FuzzArgs, &str>) {
        match (crate::parse(line), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, crate::Command::Fuzz(expect), "{line}"),
            (Err(found), Err(expect)) => assert!(found.contains(expect), "{line}: {found}"),
            (found, expect) => panic!("{line}: {found:?} instead of {expect:?}"),
        }
    }

    #[test]
    fn arguments_are_parsed() {
        let (jobs, output) = (NonZeroUsize::MIN, RecordArgs { record: false });
        let standard = FuzzArgs { targets: vec![], seconds: 60, jobs, output };
        check("fuzz", Ok(standard.clone()));
        let two = vec![Target::HfConfig, Target::Import];
        check("fuzz --target hf_config,import", Ok(FuzzArgs { targets: two, ..standard }));
        let (jobs, output) = (NonZeroUsize::new(2).unwrap(), RecordArgs { record: true });
        let long = FuzzArgs { targets: vec![], seconds: 300, jobs, output };
        check("fuzz --seconds 300 --jobs 2 --record", Ok(long));
        check("fuzz --jobs 0", Err("--jobs"));
        check("fuzz --target pickle", Err("possible values: gguf, safetensors"));
        check("fuzz --seconds 0", Err("--seconds"));
        check("fuzz --seconds", Err("--seconds"));
    }

    #[test]
    fn every_target_has_a_program() {
        let manifest = include_str!("../../../fuzz/Cargo.toml");
        for target in Target::VARIANTS {
            assert!(manifest.contains(&format!("name = \"{}\"", target.name())), "{target:?}");
        }
        assert_eq!(manifest.matches("[[bin]]").count(), Target::VARIANTS.len());
    }
}
