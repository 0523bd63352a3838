//! The command line: parsing only. Nothing here opens a file or a model.

mod catalogue;
mod compile;
mod config;
mod encoders;
mod exports;
mod generate;
mod keys;
mod launch;
mod load;
mod mcp;
mod runtime;
mod service;
mod speech;
mod tools;
mod top;

use std::{net::Ipv4Addr, path::PathBuf, str::FromStr};

pub(crate) use catalogue::{CompareArgs, ListArgs, PlanArgs, RmArgs, ShowArgs};
use clap::{Args as ClapArgs, Parser, Subcommand};
use clap_complete::Shell;
pub(crate) use compile::{CheckArgs, CompileArgs, LoraOption, TRY_OUT, TryOutArgs};
pub(crate) use config::{ConfigArgs, ConfigCommand, CreateArgs};
pub(crate) use encoders::{AnswerArgs, ClassifyArgs, DecideArgs, EmbedArgs, FillArgs, RerankArgs};
pub(crate) use exports::{ExportArgs, ImportArgs};
pub(crate) use generate::{ChatArgs, CompleteArgs, GenerateArgs, MediaArgs, RunArgs, SamplingArgs};
pub(crate) use keys::{KeyArgs, KeyCommand};
pub(crate) use launch::{Agent, LaunchArgs};
pub(crate) use load::{DecoderLoadArgs, LoadArgs};
pub(crate) use mcp::McpArgs;
use narthex_gateway::{AutoPull, Config, KeepAlive, PrefixCacheConfig, UpstreamUrl};
use narthex_server::{AllowedHost, AllowedOrigin, TracesEndpoint};
use narthex_spec::{DevicePlacements, ModelName, Speculation};
pub(crate) use runtime::{RuntimeArgs, RuntimeCommand};
pub(crate) use service::{ServiceArgs, ServiceCommand, ServiceInstallArgs, ServiceScopeArgs};
pub(crate) use speech::{SayArgs, TextFormat, TranscribeArgs};
pub(crate) use tools::{ModelToolFormat, ToolArgs};
pub(crate) use top::TopArgs;

use crate::output::{DeviceLine, LogFormat};

/// Exit codes, for `--help` and the book.
pub(crate) const EXIT_CODES: &str = "Exit codes:
  0    success
  1    failure; doctor: a problem was found; service status: the service is not running
  2    invalid usage or value
  3    model, runtime or file not found
  4    download failed
  5    busy, or the model or device is unavailable
  6    a limit of this machine: disk space, write permission, open files, threads
  7    check: part of the model would run on another device
  8    check: the model is refused
  9    a file is malformed, damaged or not a regular file
  10   this version does not support the model or format
  127  launch: the agent is not installed
  130  interrupted";

/// Heading of the global options in `--help`.
pub(crate) const EVERY_COMMAND: &str = "Options for every command";

/// Runs language models on the NPU, GPU and CPU of this machine.
#[derive(Debug, Parser)]
#[command(name = "narthex", version, after_help = EXIT_CODES, propagate_version = true)]
pub(crate) struct Args {
    /// Log more (-vv: everything)
    #[arg(short, long, action = clap::ArgAction::Count, global = true, help_heading = EVERY_COMMAND)]
    pub(crate) verbose: u8,

    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Without a command, `narthex` shows the first steps.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

impl Args {
    /// Returns the arguments with the note which of the options for loading `line`, without settings, states.
    pub(crate) fn stated_by(mut self, line: &Self) -> Self {
        if let (Some(Command::Chat(chat)), Some(Command::Chat(stated))) = (&mut self.command, &line.command) {
            chat.load.states_nothing = Some(stated.load.is_standard());
        }
        if let (Some(Command::Run(run)), Some(Command::Run(stated))) = (&mut self.command, &line.command) {
            run.load.states_nothing = Some(stated.load.is_standard());
        }
        self
    }

    /// Returns the format of the log.
    pub(crate) fn log_format(&self) -> LogFormat {
        match &self.command {
            Some(Command::Serve(args)) => args.log_format,
            _ => LogFormat::Text,
        }
    }

    /// Returns whether the log shows the device of a loaded model. Commands that state it themselves need no such line.
    pub(crate) fn device_line(&self) -> DeviceLine {
        match &self.command {
            Some(Command::Run(args)) if args.generate.quiet => DeviceLine::Quiet,
            Some(Command::Chat(args)) if args.generate.quiet => DeviceLine::Quiet,
            Some(Command::Complete(args)) if args.generate.quiet => DeviceLine::Quiet,
            Some(
                Command::Run(_)
                | Command::Chat(_)
                | Command::Complete(_)
                | Command::Bench(_)
                | Command::Compare(_)
                | Command::Compile(_),
            ) => DeviceLine::Hidden,
            _ => DeviceLine::Shown,
        }
    }
}

/// Options of the store and of downloads into it.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = EVERY_COMMAND)]
pub(crate) struct StoreArgs {
    /// Folder for models and runtimes [env: NARTHEX_HOME]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) home: Option<PathBuf>,

    /// Settings file [default: narthex.toml in the folder of --home] [env: NARTHEX_CONFIG]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,

    /// A setting in the notation of the settings file, as in 'models."smollm2:135m".pin=true'; repeatable [env: NARTHEX_SETTING]
    #[arg(long, value_name = "KEY=VALUE", global = true)]
    pub(crate) setting: Vec<String>,

    /// Use only files on this machine; neither the network nor pip is used [env: NARTHEX_OFFLINE, HF_HUB_OFFLINE]
    #[arg(long, global = true)]
    pub(crate) offline: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a model, like `chat` with the model as the first argument
    Run(RunArgs),
    /// Ask a model a question; without a prompt, start a conversation
    Chat(ChatArgs),
    /// Continue a text
    Complete(CompleteArgs),
    /// Compute embeddings of texts
    Embed(EmbedArgs),
    /// Rank documents by their relevance to a query
    Rerank(RerankArgs),
    /// Classify texts, or find entities in them: sentiment, safety, names, personal data
    Classify(ClassifyArgs),
    /// Decide a closed question about a text: the probabilities of its answers
    Decide(DecideArgs),
    /// Find the answer to a question in a text
    Answer(AnswerArgs),
    /// Predict masked tokens, or generate tokens, with a masked language model
    Fill(FillArgs),
    /// Transcribe speech in files, or translate it to English
    Transcribe(TranscribeArgs),
    /// Speak a text
    Say(SayArgs),
    /// Serve the OpenAI API over HTTP
    Serve(ServeArgs),
    /// Serve chat, embeddings, rerank, check and plan as MCP tools over standard input and output
    Mcp(McpArgs),
    /// Run a coding agent with a local model; the agent's settings files do not change
    Launch(LaunchArgs),
    /// Install, show or remove a service that starts `serve` at login or at boot; on Windows, a task that starts at login
    Service(ServiceArgs),
    /// Download and compile a model
    Pull(PullArgs),
    /// List installed models
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show the contents of a package
    Show(ShowArgs),
    /// Remove a model, or one scheme of it
    Rm(RmArgs),
    /// Show the space that models and runtimes take on disk
    Df(JsonArgs),
    /// Remove downloads and files that nothing uses
    Prune(PruneArgs),
    /// Verify the digests of a model's files, or of every file in the store
    Verify(VerifyArgs),
    /// List running servers and their models
    Ps(JsonArgs),
    /// Watch the running servers: models, devices, speed, memory and requests; q ends it
    Top(TopArgs),
    /// Load a model into the memory of a running server
    Load(ServedModelArgs),
    /// Unload a model from the memory of running servers
    #[command(visible_alias = "unload")]
    Stop(StopArgs),
    /// Create a custom model: an existing model with another name, system prompt and sampling
    Create(CreateArgs),
    /// Check, show or edit the settings file
    Config(ConfigArgs),
    /// Compile a checkpoint into a package
    Compile(CompileArgs),
    /// Compare two packages of a model: size, quality and speed
    Compare(CompareArgs),
    /// Estimate a model's size, memory and NPU support before downloading it
    Plan(PlanArgs),
    /// Import an ONNX export as a package
    Import(ImportArgs),
    /// Export a package for another runtime
    Export(ExportArgs),
    /// Check whether a model would run on an NPU, and list problems and fixes
    Check(CheckArgs),
    /// Diagnose the devices, drivers and runtimes of this machine
    Doctor(JsonArgs),
    /// Measure a model on this machine
    Bench(BenchArgs),
    /// Install, list or remove runtime libraries
    Runtime(RuntimeArgs),
    /// Create, list or remove API keys of `serve`
    Key(KeyArgs),
    /// Print shell completions
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages to a folder
    Man {
        /// The folder; it is created if it does not exist
        folder: PathBuf,
    },
}

/// `narthex serve`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ServeArgs {
    /// Address to listen on; localhost means both loopback addresses, 127.0.0.1 and ::1
    #[arg(long, default_value = "localhost", value_parser = host)]
    pub(crate) host: String,

    /// Port to listen on; 0 selects a free one
    #[arg(long, default_value_t = 8000)]
    pub(crate) port: u16,

    /// Listen on this Unix socket instead, only for programs of this user
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port", "tls_cert"])]
    pub(crate) unix_socket: Option<PathBuf>,

    /// TLS certificate: a PEM file with the server's certificate, followed by its chain
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Private key of the certificate: a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Load this model at startup; repeatable
    #[arg(short, long)]
    pub(crate) model: Vec<String>,

    /// Additional name for a model in requests, as in gpt-4o=smollm2:135m; repeatable
    #[arg(long, value_name = "NAME=MODEL", value_parser = alias)]
    pub(crate) alias: Vec<ModelAlias>,

    /// Other server with OpenAI's API, which answers requests for NAME/MODEL, as in box=http://box.lan:8000/v1; repeatable.
    /// narthex.toml can also state its key, its models and rules
    #[arg(long, value_name = "NAME=URL", value_parser = upstream)]
    pub(crate) upstream: Vec<NamedUpstream>,

    /// Model that answers requests for unknown models [default: none; they are refused]
    #[arg(long, value_name = "MODEL")]
    pub(crate) default_model: Option<String>,

    /// Format of tool calls instead of the package's, for all models or one, as in hermes or qwen3:0.6b=mistral;
    /// repeatable
    #[arg(long, value_name = "[MODEL=]FORMAT", value_parser = tools::model_tool_format)]
    pub(crate) tool_format: Vec<ModelToolFormat>,

    /// Refuse parameters that have no effect, instead of ignoring them and naming them in a header
    #[arg(long)]
    pub(crate) strict_parameters: bool,

    /// Truncate texts for embeddings and reranking that are too long, unless a request specifies otherwise
    #[arg(long)]
    pub(crate) truncate: bool,

    /// Origins whose web pages may send requests, as in https://app.example, or vscode-webview://* for an app; * for
    /// all [default: pages from loopback addresses; none if other machines can connect]
    #[arg(long, value_name = "ORIGIN,...", value_delimiter = ',')]
    pub(crate) cors_origin: Vec<AllowedOrigin>,

    /// Names under which requests may reach the server besides localhost, as in box.lan or *.internal; * for all
    #[arg(long, value_name = "HOST,...", value_delimiter = ',')]
    pub(crate) allowed_host: Vec<AllowedHost>,

    /// Do not require API keys, even from other machines
    #[arg(long)]
    pub(crate) insecure_no_auth: bool,

    /// Downloads and compiles that requests without an admin's key may start: never, catalogue (its models that come
    /// through pip, up to 1 GiB) or always [default: catalogue, and never if other machines can connect]
    #[arg(long, value_name = "POLICY", value_parser = auto_pull)]
    pub(crate) auto_pull: Option<AutoPull>,

    /// Read pictures at public http and https addresses in conversations, which are refused otherwise
    #[arg(long)]
    pub(crate) allow_media_urls: bool,

    /// Format of the log on standard error: text, or json for one object on a line; -v adds a line for each request
    #[arg(long, value_name = "FORMAT", default_value = "text", hide_possible_values = true)]
    pub(crate) log_format: LogFormat,

    /// Send a trace of each request to the OpenTelemetry collector at this address, as in http://localhost:4318, by OTLP over
    /// HTTP [default: none]
    #[arg(long, value_name = "URL")]
    pub(crate) otlp_traces_endpoint: Option<TracesEndpoint>,

    /// Open the page of the server in the browser
    #[arg(long, conflicts_with = "unix_socket")]
    pub(crate) open: bool,

    /// End when standard input closes; `launch` uses this for its server
    #[arg(long, hide = true)]
    pub(crate) until_stdin_closes: bool,

    /// Concurrent sequences per model
    #[arg(long, default_value_t = Config::standard().slots, value_name = "N", value_parser = at_least_one)]
    pub(crate) slots: usize,

    /// Memory for the KV caches of all models together, in MiB, at least --kv-budget; idle models are unloaded to make
    /// room [default: twice the default of --kv-budget, at least 2048 and at least --kv-budget]
    #[arg(long, value_name = "MIB", value_parser = load::kv_budget)]
    pub(crate) kv_total: Option<usize>,

    /// Store the keys and values of prompts in this folder, so that prompts with the same beginning start faster after
    /// a restart [default: none]
    #[arg(long, value_name = "DIR")]
    pub(crate) prefix_cache_dir: Option<PathBuf>,

    /// Maximum size of the files in --prefix-cache-dir, in MiB; the least recently used are removed first
    #[arg(
        long, default_value_t = (PrefixCacheConfig::DEFAULT_BYTES >> 20) as usize, value_name = "MIB",
        value_parser = at_least_one, requires = "prefix_cache_dir"
    )]
    pub(crate) prefix_cache_size: usize,

    /// Maximum number of models in memory; idle models are unloaded to make room
    #[arg(long, default_value_t = Config::standard().max_models, value_name = "N", value_parser = at_least_one)]
    pub(crate) max_models: usize,

    /// Memory for the weights of several models together, in MiB; idle models are unloaded to make room, and one model
    /// alone may have more [default: the memory of this machine without 1024]
    #[arg(long, value_name = "MIB", value_parser = at_least_one)]
    pub(crate) weights_total: Option<usize>,

    /// Time after its last request after which a model is unloaded, as in 90s, 5m or 2h; or forever, until another model
    /// needs its memory [default: forever]
    #[arg(long, value_name = "TIME")]
    pub(crate) keep_alive: Option<KeepAlive>,

    /// Maximum number of waiting requests per model
    #[arg(long, default_value_t = Config::standard().max_queue, value_name = "N", value_parser = whole_number::<usize>)]
    pub(crate) max_queue: usize,

    /// Maximum time between two tokens of an answer while other prompts are processed, in milliseconds; limits the
    /// size of prompt chunks; 0 for no limit
    #[arg(
        long, default_value_t = 200, value_name = "MS", value_parser = whole_number::<u64>,
        allow_negative_numbers = true
    )]
    pub(crate) token_latency: u64,

    /// Speculative decoding: auto (when it is faster) or off
    #[arg(long, default_value_t = Config::standard().speculation, value_name = "POLICY")]
    pub(crate) speculation: Speculation,

    #[command(flatten)]
    pub(crate) load: DecoderLoadArgs,
}

/// `narthex pull`.
#[derive(Debug, ClapArgs)]
pub(crate) struct PullArgs {
    /// The model: a name (with @w4 for one scheme), hf:owner/repo, or a path
    pub(crate) model: String,

    /// Remove the downloaded checkpoint after the compile; a compile in another scheme downloads it again
    #[arg(long)]
    pub(crate) discard_checkpoint: bool,
}

/// `narthex load`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ServedModelArgs {
    /// The model
    pub(crate) model: String,
}

/// `narthex stop`.
#[derive(Debug, ClapArgs)]
pub(crate) struct StopArgs {
    /// The model [default: all]
    pub(crate) model: Option<String>,
}

/// `narthex prune`.
#[derive(Debug, ClapArgs)]
pub(crate) struct PruneArgs {
    /// Also remove the checkpoints of installed models; a compile in another scheme downloads them again
    #[arg(long)]
    pub(crate) checkpoints: bool,
}

/// Arguments of a command with JSON output.
#[derive(Debug, ClapArgs)]
pub(crate) struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `narthex verify`.
#[derive(Debug, ClapArgs)]
pub(crate) struct VerifyArgs {
    /// The model, with @w4 for one scheme; without it, the whole store
    pub(crate) model: Option<String>,

    /// Print JSON
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

    /// Measure the engine alone, without the overhead of the gateway
    #[arg(long)]
    pub(crate) engine_only: bool,

    /// Measure the vision tower of a model that reads images, and questions about pictures
    #[arg(long, conflicts_with_all = ["prompt_tokens", "generate_tokens", "engine_only", "devices"])]
    pub(crate) vision: bool,

    /// Compare these devices and splits, as in cpu,qnn,prefill=qnn,decode=cpu
    #[arg(long, value_name = "DEVICE,...", conflicts_with_all = ["providers", "place", "draft_model", "engine_only"])]
    pub(crate) devices: Option<DevicePlacements>,

    /// Also write the comparison to this file, as a self-contained web page
    #[arg(long, value_name = "FILE", requires = "devices")]
    pub(crate) report: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) load: DecoderLoadArgs,
}

/// An additional name of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelAlias {
    pub(crate) name: String,
    pub(crate) model: String,
}

/// `--upstream`.
#[derive(Debug, Clone)]
pub(crate) struct NamedUpstream {
    pub(crate) name: String,
    pub(crate) url: UpstreamUrl,
}

/// Parses an alias.
fn alias(text: &str) -> Result<ModelAlias, String> {
    match text.split_once('=') {
        Some((name, model)) if !name.trim().is_empty() && !model.trim().is_empty() => {
            Ok(ModelAlias { name: name.trim().to_owned(), model: model.trim().to_owned() })
        }
        _ => Err(format!("expected a name and a model, as in gpt-4o=smollm2:135m, found {text:?}")),
    }
}

/// Parses an upstream.
fn upstream(text: &str) -> Result<NamedUpstream, String> {
    let (name, url) = text.split_once('=').unwrap_or_default();
    let is_name = name.parse::<ModelName>().is_ok_and(|parsed| parsed.as_str() == name);
    if !is_name || name.contains(['/', ':']) {
        return Err(
            "expected a name and an address, as in box=http://box.lan:8000/v1, found another text".to_owned()
        );
    }
    Ok(NamedUpstream { name: name.to_owned(), url: url.parse()? })
}

/// Parses the address or the name that a server listens on.
fn host(text: &str) -> Result<String, String> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    match text.parse() {
        Ok(AllowedHost::Exactly(_)) if !is_number || text.parse::<Ipv4Addr>().is_ok() => {
            Ok(text.trim_matches(['[', ']']).to_owned())
        }
        _ => Err(format!(
            "expected an address or a name of this machine without scheme and port, as in 127.0.0.1, ::1, or 0.0.0.0 \
             for other machines; found {text:?}"
        )),
    }
}

/// Parses a count of at least one.
fn at_least_one(text: &str) -> Result<usize, String> {
    let found = text.parse::<usize>().ok().filter(|count| *count > 0);
    found.ok_or_else(|| format!("expected a number of at least 1, found {text:?}"))
}

/// Parses a whole number of this type.
fn whole_number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("expected a whole number of at least 0, found {text:?}"))
}

/// Parses the downloads that requests may start.
fn auto_pull(text: &str) -> Result<AutoPull, String> {
    text.parse().map_err(|_| format!("expected never, catalogue or always, found {text:?}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    /// A command's own option with the name of one for every command would take its place and be read as the other.
    #[test]
    fn no_command_has_an_option_of_the_name_of_one_for_every_command() {
        let command = Args::command();
        let shared = command.get_arguments().filter(|argument| argument.is_global_set());
        let shared: Vec<_> = shared.map(|argument| argument.get_id().clone()).collect();
        assert!(!shared.is_empty());
        for subcommand in command.get_subcommands() {
            for argument in subcommand.get_arguments() {
                let name = argument.get_id();
                assert!(!shared.contains(name), "{} --{name}", subcommand.get_name());
            }
        }
    }

    /// The lists of arguments are written as JSON there.
    #[test]
    fn arguments_of_containers_are_accepted() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut lists = Vec::new();
        for file in [
            "Containerfile",
            "packaging/kubernetes/base/deployment.yaml",
            "packaging/kubernetes/intel/device.yaml",
            "packaging/kubernetes/nvidia/device.yaml",
            "packaging/kubernetes/router/servers.yaml",
        ] {
            let text = std::fs::read_to_string(root.join(file)).unwrap();
            let of_file = text.lines().filter_map(|line| {
                let line = line.trim();
                line.strip_prefix("args: ").or_else(|| line.strip_prefix("CMD "))
            });
            lists.extend(of_file.map(|list| (file, list.replace("$(MODEL)", "smollm2:135m"))));
        }
        // One of the image, two of the base, and one of each of the others; the health check of the image is indented.
        let programs: Vec<_> = lists.iter().filter(|(_, list)| !list.contains("python3")).collect();
        assert_eq!(programs.len(), 6, "{lists:?}");
        for (file, list) in programs {
            let arguments: Vec<String> = serde_json::from_str(list).unwrap();
            let line = ["narthex".to_owned()].into_iter().chain(arguments);
            assert!(Args::try_parse_from(line).is_ok(), "{file}: {list}");
        }
    }

    #[test]
    fn the_environment_adds_nothing_to_a_usage_line() {
        let error = Args::try_parse_from(["narthex", "show"]).unwrap_err().to_string();
        assert!(error.contains("Usage: narthex show <MODEL>"), "{error}");
        assert!(Args::command().get_arguments().all(|argument| argument.get_env().is_none()));
    }

    #[test]
    fn numbers_that_nothing_can_run_with_are_refused() {
        assert_eq!(at_least_one("1"), Ok(1));
        assert!(at_least_one("0").is_err() && at_least_one("-1").is_err());
    }

    #[test]
    fn a_refused_value_is_explained_in_words() {
        let check = |words: &str, expect: &str| {
            let error = Args::try_parse_from(words.split(' ')).unwrap_err().to_string();
            assert!(error.contains(expect), "{words}: {error}");
        };
        check("narthex chat hi --max-tokens -1", "expected a number of at least 1, found \"-1\"");
        check("narthex chat hi --max-tokens 0", "expected a number of at least 1, found \"0\"");
        check("narthex chat hi --seed x", "expected a whole number of at least 0, found \"x\"");
        check("narthex serve --token-latency -1", "expected a whole number of at least 0, found \"-1\"");
        check("narthex serve --auto-pull foo", "expected never, catalogue or always, found \"foo\"");
        check("narthex mcp --auto-pull foo", "expected never, catalogue or always, found \"foo\"");
        check("narthex key add a --concurrency 0", "expected a number of at least 1, found \"0\"");
        check("narthex chat hi --tool-format foo", "expected one of qwen-coder, hermes,");
        // The range of a negative temperature is stated where the request is checked.
        assert!(Args::try_parse_from(["narthex", "chat", "hi", "--temperature", "-1"]).is_ok());
    }

    #[test]
    fn origins_and_hosts_that_match_nothing_are_refused() {
        let parse = |args: &[&str]| Args::try_parse_from([&["narthex", "serve"], args].concat());
        for [option, value] in [
            ["--cors-origin", "app.example"],
            ["--allowed-host", "http://box.lan"],
            ["--host", "http://box.lan"],
            ["--host", "0.0.0.0:8000"],
            ["--host", "*"],
        ] {
            let error = parse(&[option, value]).unwrap_err().to_string();
            assert!(error.contains("expected a") && error.contains(value), "{error}");
        }
        assert_eq!(host("[::1]"), Ok("::1".to_owned()));
        let several =
            ["--cors-origin", "https://a.example,http://b.example:81", "--cors-origin", "https://c.example"];
        let Some(Command::Serve(serve)) = parse(&several).unwrap().command else { panic!("not serve") };
        assert_eq!(serve.cors_origin.len(), 3);
    }

    #[test]
    fn unknown_npu_options_are_refused_with_a_list() {
        let error =
            Args::try_parse_from(["narthex", "serve", "--npu-option", "hvx=4"]).unwrap_err().to_string();
        assert!(error.contains("priority=low|normal|high, vtcm=MIB") && error.contains("hvx=4"), "{error}");
    }

    #[test]
    fn wrong_schemes_and_sizes_are_usage_errors() {
        let check = |option: &str, value: &str, expect: &str| {
            let error = Args::try_parse_from(["narthex", "compile", "m", option, value]).unwrap_err();
            assert!(error.to_string().contains(expect), "{error}");
        };
        check("--scheme", "w2", "expected w8, w4, f16, f32, w8a16, w8a8 or w4a16");
        check("--matformer", "e3b", "expected e2b, or inner widths");
    }
}
