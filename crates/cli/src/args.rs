//! What can be typed. Parsing only; nothing here opens a file or a model.

mod catalogue;
mod compile;
mod encoders;
mod exports;
mod generate;

use std::path::PathBuf;

pub(crate) use catalogue::{ListArgs, PlanArgs};
use clap::{Args as ClapArgs, Parser, Subcommand};
use clap_complete::Shell;
pub(crate) use compile::{CheckArgs, CompileArgs, TryOutArgs};
pub(crate) use encoders::{AnswerArgs, EmbedArgs, FillArgs, RerankArgs};
pub(crate) use exports::{ExportArgs, ImportArgs};
pub(crate) use generate::{ChatArgs, CompleteArgs, GenerateArgs};
use narthex_gateway::Config;
use narthex_spec::{DeviceOrder, DevicePlacements, NpuOptions, NpuPolicy, PlacementChoice, Power, Scheme};

/// Exit codes, for `--help` and the README.
const EXIT_CODES: &str = "Exit codes:
  0    done
  1    failed; doctor: something must be mended
  2    wrong usage or a wrong value
  3    no such model, runtime or file
  4    something could not be fetched
  5    busy, or the model or device is unavailable
  6    no space, or no permission to write
  7    check: some of the model would run elsewhere
  8    check: the model is refused
  130  interrupted";

/// Runs language models on the NPU, GPU and CPU of this machine.
#[derive(Debug, Parser)]
#[command(name = "narthex", version, about, after_help = EXIT_CODES, propagate_version = true)]
pub(crate) struct Args {
    /// Say more about what happens (-vv: everything)
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,

    /// Keep models and runtimes in this folder
    #[arg(long, env = "NARTHEX_HOME", value_name = "DIR", global = true)]
    pub(crate) home: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Ask a model; without a prompt, converse
    Chat(ChatArgs),
    /// Let a model go on from a text
    Complete(CompleteArgs),
    /// Turn texts into vectors
    Embed(EmbedArgs),
    /// Sort documents by how well they answer a query
    Rerank(RerankArgs),
    /// Find the answer to a question in a text
    Answer(AnswerArgs),
    /// Fill a text's masks, or add tokens to it, with a masked language model
    Fill(FillArgs),
    /// Serve the OpenAI API over HTTP
    Serve(ServeArgs),
    /// Fetch a model and compile it
    Pull(ModelArgs),
    /// List installed models
    List(ListArgs),
    /// Show what a package holds
    Show(ShowArgs),
    /// Remove a model
    Rm(ModelArgs),
    /// Show running servers and their models
    Ps(JsonArgs),
    /// Compile a checkpoint into a package
    Compile(CompileArgs),
    /// Say what a model would be before it is downloaded: sizes, cache, NPUs, and what fits this machine
    Plan(PlanArgs),
    /// Make a package of an ONNX export
    Import(ImportArgs),
    /// Write a package for another runtime
    Export(ExportArgs),
    /// Say whether a model would run on an NPU, what keeps it from that, and what can be done
    Check(CheckArgs),
    /// Let a vendor's compiler have one graph; `check` starts this, so that a crash ends it alone
    #[command(hide = true)]
    TryOut(TryOutArgs),
    /// Say what this machine has and what is missing
    Doctor(JsonArgs),
    /// Measure a model on this machine
    Bench(BenchArgs),
    /// Install, list or remove runtime libraries
    Runtime(RuntimeArgs),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Options that decide how a model is loaded.
#[derive(Debug, ClapArgs)]
pub(crate) struct LoadArgs {
    /// Weight scheme: w8, w4, f16 or f32; without it, w8 or whichever is installed
    #[arg(long)]
    pub(crate) scheme: Option<Scheme>,

    /// Devices to try in turn, as in qnn,directml,cpu; or an order: auto, snapdragon, ryzen-ai, core-ultra, apple, nvidia
    #[arg(long, default_value = "auto", value_name = "ORDER")]
    pub(crate) providers: DeviceOrder,

    /// Divide a chat model between devices: prefill=qnn,decode=cpu or layers=qnn,head=cpu; or auto: measure the devices
    /// once and take the fastest, or the fastest to read with the fastest to write
    #[arg(long, value_name = "WHAT=DEVICE,...|auto")]
    pub(crate) place: Option<PlacementChoice>,

    /// What to do about an NPU: require it, prefer it, or leave it off
    #[arg(long, default_value = "prefer", value_name = "POLICY")]
    pub(crate) npu: NpuPolicy,

    /// With --npu require: the least share of the multiply-accumulates on the NPU, 0 to 1
    #[arg(long, default_value_t = Config::standard().npu_share, value_name = "SHARE", value_parser = share)]
    pub(crate) npu_share: f64,

    /// What NPUs and GPUs give for their speed: burst, balanced or saver
    #[arg(long, default_value_t = Power::Burst, value_name = "PRESET")]
    pub(crate) power: Power,

    /// What Qualcomm's NPUs are told besides: priority=low, normal or high, vtcm=MIB, rpc-latency=MICROSECONDS [default:
    /// normal, all that the chip has, what the preset of --power has]
    #[arg(long, value_name = "NAME=VALUE,...")]
    pub(crate) npu_option: Option<NpuOptions>,

    /// Threads for compute; 0 takes one per usable core
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = threads)]
    pub(crate) threads: usize,
}

/// `narthex serve`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ServeArgs {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,

    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000)]
    pub(crate) port: u16,

    /// Load this model at once; may be given several times
    #[arg(short, long)]
    pub(crate) model: Vec<String>,

    /// Let web pages of this origin call the server
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors_origin: Option<String>,

    /// Sequences that run at once, per model
    #[arg(long, default_value_t = Config::standard().slots, value_parser = at_least_one)]
    pub(crate) slots: usize,

    /// Memory for the KV cache, per model, in MiB
    #[arg(long, default_value_t = Config::standard().kv_budget >> 20, value_name = "MIB", value_parser = at_least_one)]
    pub(crate) kv_budget: usize,

    /// Requests that may wait, per model
    #[arg(long, default_value_t = Config::standard().max_queue)]
    pub(crate) max_queue: usize,

    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

/// A command that takes a model.
#[derive(Debug, ClapArgs)]
pub(crate) struct ModelArgs {
    /// The model: a name (with @w4 for one scheme), hf:owner/repo, or a path
    pub(crate) model: String,
}

/// A command that may print JSON.
#[derive(Debug, ClapArgs)]
pub(crate) struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `narthex show`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ShowArgs {
    /// The model, with @w4 for one scheme
    pub(crate) model: String,

    /// Print the manifest
    #[arg(long)]
    pub(crate) json: bool,
}

/// `narthex bench`.
#[derive(Debug, ClapArgs)]
pub(crate) struct BenchArgs {
    /// The model: a name, hf:owner/repo, or a path
    #[arg(short, long, default_value = "smollm2:135m")]
    pub(crate) model: String,

    /// Tokens of each prompt
    #[arg(long, default_value_t = 256, value_name = "N")]
    pub(crate) prompt_tokens: usize,

    /// Tokens generated after each prompt
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub(crate) generate_tokens: usize,

    /// Measured rounds
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub(crate) rounds: usize,

    /// Compare these devices and divisions, as in cpu,qnn,prefill=qnn,decode=cpu
    #[arg(long, value_name = "DEVICE,...", conflicts_with_all = ["providers", "place"])]
    pub(crate) devices: Option<DevicePlacements>,

    /// Also write the comparison to this file, as a web page that needs nothing else
    #[arg(long, value_name = "FILE", requires = "devices")]
    pub(crate) report: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

/// `narthex runtime`.
#[derive(Debug, ClapArgs)]
pub(crate) struct RuntimeArgs {
    #[command(subcommand)]
    pub(crate) command: RuntimeCommand,
}

/// What is done to a runtime.
#[derive(Debug, Subcommand)]
pub(crate) enum RuntimeCommand {
    /// Install a runtime: cpu, qnn, openvino, webgpu, directml or cuda
    Install {
        /// Which
        #[arg(default_value = "cpu")]
        kind: String,
        /// Take this wheel instead of asking pip
        #[arg(long, value_name = "FILE.whl")]
        from: Option<PathBuf>,
    },
    /// List runtimes
    List(JsonArgs),
    /// Remove a runtime
    Rm {
        /// Which
        kind: String,
    },
}

/// Reads a share.
fn share(text: &str) -> Result<f64, String> {
    let found = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    found.ok_or_else(|| format!("expected a number from 0 to 1, found {text:?}"))
}

/// Reads a number of threads. Far more of them than cores do nothing but wait for one another.
fn threads(text: &str) -> Result<usize, String> {
    let most = std::thread::available_parallelism().map_or(1, usize::from).saturating_mul(4).max(8);
    let found = text.parse::<usize>().ok().filter(|threads| *threads <= most);
    found.ok_or_else(|| format!("expected 0 to {most} threads on this machine, found {text:?}"))
}

/// Reads a number of things that there must be.
fn at_least_one(text: &str) -> Result<usize, String> {
    let found = text.parse::<usize>().ok().filter(|count| *count > 0);
    found.ok_or_else(|| format!("expected a number of at least 1, found {text:?}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn numbers_that_nothing_can_run_with_are_refused() {
        assert_eq!((threads("0"), threads("8"), at_least_one("1")), (Ok(0), Ok(8), Ok(1)));
        assert!(threads("5000").unwrap_err().contains("on this machine, found \"5000\""));
        assert!(at_least_one("0").is_err() && at_least_one("-1").is_err());
    }

    #[test]
    fn settings_of_an_npu_are_refused_with_those_that_there_are() {
        let error =
            Args::try_parse_from(["narthex", "serve", "--npu-option", "hvx=4"]).unwrap_err().to_string();
        assert!(
            error.contains("priority=low, normal or high, vtcm=MIB") && error.contains("hvx=4"),
            "{error}"
        );
    }

    #[test]
    fn wrong_schemes_and_sizes_are_usage_errors() {
        let check = |option: &str, value: &str, expect: &str| {
            let error = Args::try_parse_from(["narthex", "compile", "m", option, value]).unwrap_err();
            assert!(error.to_string().contains(expect), "{error}");
        };
        check("--scheme", "w2", "expected w8, w4, f16 or f32");
        check("--matformer", "e3b", "expected e2b, or inner widths");
    }
}
