//! `cargo xtask fuzz`: builds the fuzz targets, makes what they start from, runs each for a while, and writes a table.
//!
//! The targets are in `fuzz/`, a workspace of its own. They are libFuzzer's and need neither cargo-fuzz nor a nightly
//! toolchain: [`build`] asks stable Rust for the instrumentation. Everything lies under `target/fuzz`; the corpus that
//! a run has found is kept there for the next one.

mod build;
mod campaign;
mod record;
mod seeds;

use std::{path::PathBuf, str::FromStr, time::Duration};

use anyhow::{Context, anyhow, bail};

use crate::{
    stamp::{self, Keep},
    terminal,
    workspace::Workspace,
};

use campaign::Outcome;

/// How long a target runs where nothing else is said.
const DEFAULT_TIME: Duration = Duration::from_secs(60);

/// What is fuzzed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// GGUF files.
    Gguf,
    /// Safetensors files and their index.
    Safetensors,
    /// The small files beside safetensors.
    HfConfig,
    /// ONNX files.
    Onnx,
    /// Chat templates.
    Template,
    /// SentencePiece models.
    Pieces,
    /// Folders of existing ONNX exports.
    Import,
    /// Bodies of requests.
    Request,
    /// Manifests of packages.
    Manifest,
    /// Wheels.
    Wheel,
}

impl Target {
    /// Every target.
    pub(crate) const ALL: [Self; 10] = [
        Self::Gguf,
        Self::Safetensors,
        Self::HfConfig,
        Self::Onnx,
        Self::Template,
        Self::Pieces,
        Self::Import,
        Self::Request,
        Self::Manifest,
        Self::Wheel,
    ];

    /// The name of its program.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gguf => "gguf",
            Self::Safetensors => "safetensors",
            Self::HfConfig => "hf_config",
            Self::Onnx => "onnx",
            Self::Template => "template",
            Self::Pieces => "pieces",
            Self::Import => "import",
            Self::Request => "request",
            Self::Manifest => "manifest",
            Self::Wheel => "wheel",
        }
    }

    /// The longest input; the shorter, the more runs a second.
    pub(crate) fn max_bytes(self) -> usize {
        match self {
            Self::Template | Self::Pieces => 16 << 10,
            Self::Onnx | Self::Request | Self::Wheel => 32 << 10,
            Self::Gguf | Self::Safetensors | Self::HfConfig | Self::Manifest | Self::Import => 64 << 10,
        }
    }
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|target| target.name() == name)
            .ok_or_else(|| anyhow!("no fuzz target is called {name:?}: expected one of {}", names()))
    }
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    /// What is fuzzed, in this order.
    pub(crate) targets: Vec<Target>,
    /// How long each runs.
    pub(crate) time: Duration,
    /// What becomes of the table.
    pub(crate) keep: Keep,
}

impl Options {
    /// Reads the words behind `fuzz`.
    pub(crate) fn parse(mut words: &[&str]) -> anyhow::Result<Self> {
        let mut options = Self { targets: Target::ALL.to_vec(), time: DEFAULT_TIME, keep: Keep::Nothing };
        loop {
            words = match words {
                [] => return Ok(options),
                ["--target", names, rest @ ..] => {
                    options.targets = names.split(',').map(str::parse).collect::<Result<_, _>>()?;
                    rest
                }
                ["--seconds", seconds, rest @ ..] => {
                    let seconds = seconds.parse().ok().filter(|&seconds| seconds > 0);
                    let seconds = seconds.with_context(|| "--seconds: expected a whole number above zero")?;
                    options.time = Duration::from_secs(seconds);
                    rest
                }
                ["--record", rest @ ..] => {
                    options.keep = Keep::Record;
                    rest
                }
                [other, ..] => {
                    bail!("`fuzz` has no {other:?}: expected --target T,T, --seconds N or --record")
                }
            };
        }
    }
}

/// The folders of a run.
#[derive(Debug)]
struct Places {
    /// Build outputs.
    build: PathBuf,
    /// A folder of seeds per target.
    seeds: PathBuf,
    /// A folder per target with the inputs that reached something new.
    corpus: PathBuf,
    /// A folder per target with the inputs that broke something.
    artifacts: PathBuf,
    /// Dictionaries, and what libFuzzer printed.
    logs: PathBuf,
    /// Files that targets write.
    scratch: PathBuf,
}

/// A folder whose files lie in memory, where the system has one: targets write files for every input.
fn memory() -> Option<PathBuf> {
    Some(PathBuf::from("/dev/shm")).filter(|folder| cfg!(target_os = "linux") && folder.is_dir())
}

impl Places {
    fn of(workspace: &Workspace) -> Self {
        let inside = |name: &str| workspace.target.join("fuzz").join(name);
        Self {
            build: inside("build"),
            seeds: inside("seeds"),
            corpus: inside("corpus"),
            artifacts: inside("artifacts"),
            logs: inside("logs"),
            scratch: memory().map_or_else(
                || inside("scratch"),
                |folder| folder.join(format!("narthex-fuzz-{}", std::process::id())),
            ),
        }
    }
}

/// Builds, fuzzes, and prints the table; fails if an input broke a target.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let places = Places::of(workspace);
    let programs = build::build(workspace, &places, &options.targets)?;
    let mut outcomes: Vec<Outcome> = Vec::new();
    for (target, program) in options.targets.iter().zip(&programs) {
        terminal::line(format!("\n== {}: {} s", target.name(), options.time.as_secs()));
        let outcome = campaign::run(*target, program, &places, options.time)?;
        terminal::line(outcome.line());
        outcomes.push(outcome);
    }
    let table = record::table(workspace, &outcomes)?;
    terminal::line(format!("\n{table}"));
    if options.keep == Keep::Record {
        stamp::keep(workspace, stamp::CONFORMANCE, "fuzz", &table)?;
    }
    let broken: Vec<&str> =
        outcomes.iter().filter(|o| !o.crashes.is_empty()).map(|o| o.target.name()).collect();
    if !broken.is_empty() {
        bail!("{} broke; the inputs lie in {}", broken.join(", "), places.artifacts.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expect: Result<Options, &str>) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (Options::parse(&words), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect, "{line}"),
            (Err(found), Err(expect)) => assert!(found.to_string().contains(expect), "{line}: {found}"),
            (found, expect) => panic!("{line}: {found:?} instead of {expect:?}"),
        }
    }

    #[test]
    fn options_are_read() {
        let standard = Options { targets: Target::ALL.to_vec(), time: DEFAULT_TIME, keep: Keep::Nothing };
        check("", Ok(standard.clone()));
        let two = vec![Target::Onnx, Target::Import];
        check("--target onnx,import", Ok(Options { targets: two, ..standard.clone() }));
        let long = Options { time: Duration::from_secs(300), keep: Keep::Record, ..standard };
        check("--seconds 300 --record", Ok(long));
        check("--target pickle", Err("expected one of gguf, safetensors"));
        check("--seconds 0", Err("above zero"));
        check("--seconds", Err("--seconds"));
    }

    #[test]
    fn every_target_has_a_program() {
        let manifest = include_str!("../../../fuzz/Cargo.toml");
        for target in Target::ALL {
            assert!(manifest.contains(&format!("name = \"{}\"", target.name())), "{target:?}");
            assert_eq!(target.name().parse::<Target>().unwrap(), target);
        }
        assert_eq!(manifest.matches("[[bin]]").count(), Target::ALL.len());
    }
}
