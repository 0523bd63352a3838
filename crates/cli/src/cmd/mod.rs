//! The commands: one file each. A command takes its arguments and a gateway.

mod answer;
mod bench;
mod chat;
mod check;
mod classify;
mod compare;
mod completions;
mod config;
mod conversation_file;
mod converse;
mod create;
mod decide;
mod doctor;
mod embed;
mod exports;
mod fill;
mod generation;
mod key;
mod launch;
mod man;
mod mcp;
mod media;
mod models;
mod plan;
mod program;
mod ps;
mod question_files;
mod reload;
mod rerank;
mod runtime;
mod say;
mod serve;
mod service;
mod tools;
mod top;
mod transcribe;
mod verify;
mod welcome;

use std::{collections::BTreeMap, thread};

use anyhow::Context;
use narthex_files::environment;
use narthex_gateway::{
    Config, Drain, Error, Gateway,
    models::{ModelKind, ModelStatus},
    split_scheme,
};
use narthex_spec::Scheme;

use crate::{
    args::{Args, ChatArgs, Command, ListArgs, TryOutArgs},
    bars::Bars,
    interrupt, output,
    settings::{bench_config, chat_config, check_serve, config, decoder_config, serve_config},
    settings_file::Settings,
};

/// A gateway that is shut down when it is dropped: its models must stop before the process unloads ONNX Runtime.
struct OpenGateway(Gateway);

impl Drop for OpenGateway {
    fn drop(&mut self) {
        self.0.shutdown(Drain::Now);
    }
}

/// Opens the gateway. The names and models of the settings file complete those of the command line.
fn open(config: Config, settings: &Settings) -> anyhow::Result<OpenGateway> {
    Ok(OpenGateway(Gateway::open(named_config(config, settings))?))
}

/// Adds the names and models of the settings file to those of the command line.
fn named_config(config: Config, settings: &Settings) -> Config {
    let mut aliases = settings.aliases.clone();
    aliases.extend(config.aliases);
    let mut tool_formats = settings.tool_formats.clone();
    tool_formats.extend(config.tool_formats);
    let models = settings.models.clone();
    // Only a server needs the keys of upstreams. The option replaces an upstream of the file, with its key.
    let stated = settings.upstreams.iter().map(|(name, stated)| (name.clone(), stated.settings.clone()));
    let mut upstreams: BTreeMap<_, _> = stated.collect();
    upstreams.extend(config.upstreams);
    Config { aliases, models, tool_formats, upstreams, ..config }
}

/// Adds the keys of the upstreams of the settings file to the settings of a server.
///
/// # Errors
/// A key cannot be read.
fn with_upstream_keys(mut config: Config, settings: &Settings) -> anyhow::Result<Config> {
    for (name, stated) in &settings.upstreams {
        if !config.upstreams.contains_key(name) {
            config.upstreams.insert(name.clone(), stated.with_key(name)?);
        }
    }
    Ok(config)
}

/// Refuses a name that no model has.
fn check_name(gateway: &Gateway, model: &str) -> Result<(), Error> {
    match gateway.model(model) {
        Err(error @ Error::UnknownModel { .. }) => Err(error),
        _ => Ok(()),
    }
}

/// Returns the scheme that a model's name, as in `model@w4`, or the option `--scheme` states. Fails if they differ.
fn stated_scheme(model: &str, option: Option<Scheme>) -> Result<Option<Scheme>, Error> {
    let (_, named) = split_scheme(model);
    match (named, option) {
        (Some(named), Some(option)) if named != option => {
            let message =
                format!("expected one scheme, found {model} and --scheme {option}; leave out one of them");
            Err(Error::invalid("scheme", message))
        }
        _ => Ok(named.or(option)),
    }
}

/// Refuses texts that are all empty. Commands check their texts before they load a model, which may take minutes.
fn check_texts(param: &'static str, texts: &[impl AsRef<str>], next_step: &str) -> Result<(), Error> {
    if texts.iter().all(|text| text.as_ref().trim().is_empty()) {
        let message = format!("expected a text, found an empty one; {next_step}");
        return Err(Error::invalid(param, message));
    }
    Ok(())
}

/// Loads a model of one of these kinds, which is fetched and compiled first if it is not installed.
fn load(gateway: &Gateway, model: &str, kinds: &[ModelKind], bars: &Bars) -> anyhow::Result<ModelStatus> {
    stated_scheme(model, gateway.config().scheme)?;
    gateway.check_kind(model, kinds)?;
    let status = gateway.load(model, bars, interrupt::cancel())?;
    bars.summarize(&format!("{model} is ready"));
    Ok(status)
}

/// Number of threads that a command starts in addition to one for each core: those of the server, the engine, a load
/// and pip. Measuring the machine takes one for each core.
const THREADS: usize = 6;

/// Checks that a command can start its threads. Without them, libraries panic in the middle of its work.
fn check_threads(command: &Command) -> anyhow::Result<()> {
    let starts_few = matches!(
        command,
        Command::Service(_)
            | Command::List(ListArgs { available: false, .. })
            | Command::Show(_)
            | Command::Verify(_)
            | Command::Rm(_)
            | Command::Df(_)
            | Command::Prune(_)
            | Command::Ps(_)
            | Command::Top(_)
            | Command::Load(_)
            | Command::Stop(_)
            | Command::Create(_)
            | Command::Config(_)
            | Command::Doctor(_)
            | Command::Key(_)
            | Command::Completions { .. }
            | Command::Man { .. }
    );
    if starts_few {
        return Ok(());
    }
    let threads = THREADS + thread::available_parallelism().map_or(1, usize::from);
    environment::check_threads(threads).with_context(|| format!("cannot start {threads} threads"))
}

/// Notes the model that another name, such as that of a family, denotes.
fn note_model(gateway: &Gateway, subject: &str) {
    let named = split_scheme(subject).0;
    if let Ok(model) = gateway.model(named)
        && model.name.as_str() != named
    {
        output::note(format!("{named} is {} on this machine", model.name));
    }
}

/// Runs a vendor's compiler on one graph, as a process of `check`.
pub(crate) fn try_out(args: &TryOutArgs) -> anyhow::Result<()> {
    check::try_out(&open(config(&args.store, None), &Settings::default())?.0, args)
}

/// Runs a command.
pub(crate) fn run(args: Args, settings: Settings) -> anyhow::Result<()> {
    let Args { store, command, .. } = args;
    let Some(command) = command else { return welcome::run() };
    check_threads(&command)?;
    let open = |config: Config| open(config, &settings);
    let plain = || open(config(&store, None));

    match command {
        Command::Run(run) => {
            let chat = ChatArgs::from(run);
            chat::run(&open(chat_config(&store, &chat))?.0, &chat)
        }
        Command::Chat(chat) => chat::run(&open(chat_config(&store, &chat))?.0, &chat),
        Command::Complete(complete) => {
            chat::complete(&open(decoder_config(&store, &complete.load))?.0, &complete)
        }
        Command::Embed(embed) => embed::run(&open(config(&store, Some(&embed.load)))?.0, &embed),
        Command::Rerank(rerank) => rerank::run(&open(config(&store, Some(&rerank.load)))?.0, &rerank),
        Command::Classify(classify) => {
            classify::run(&open(config(&store, Some(&classify.load)))?.0, &classify)
        }
        Command::Decide(decide) => decide::run(&open(config(&store, Some(&decide.load)))?.0, &decide),
        Command::Answer(answer) => answer::run(&open(config(&store, Some(&answer.load)))?.0, &answer),
        Command::Fill(fill) => fill::run(&open(config(&store, Some(&fill.load)))?.0, &fill),
        Command::Transcribe(transcribe) => {
            transcribe::run(&open(config(&store, Some(&transcribe.load)))?.0, &transcribe)
        }
        Command::Say(say) => say::run(&open(config(&store, Some(&say.load)))?.0, &say),
        Command::Serve(serve) => {
            check_serve(&serve)?;
            let gateway = open(with_upstream_keys(serve_config(&store, &serve), &settings)?)?;
            serve::run(&gateway.0, store.clone(), serve, settings.clone())
        }
        Command::Mcp(mcp) => mcp::run(&open(decoder_config(&store, &mcp.load))?.0, mcp),
        Command::Launch(launch) => launch::run(&plain()?.0, &store, launch),
        Command::Service(service) => service::run(&store, service.command),
        Command::Pull(pull) => models::pull(&plain()?.0, &pull),
        Command::List(list) => models::list(&plain()?.0, &list),
        Command::Show(show) => models::show(&plain()?.0, &show),
        Command::Df(df) => models::df(&plain()?.0, &df),
        Command::Prune(prune) => models::prune(&plain()?.0, &prune),
        Command::Verify(verify) => verify::run(&plain()?.0, &verify),
        Command::Rm(rm) => models::rm(&plain()?.0, &store, &rm),
        Command::Ps(ps) => ps::run(&plain()?.0, &ps),
        Command::Top(top) => top::run(&plain()?.0, &top),
        Command::Load(load) => ps::load(&plain()?.0, &load),
        Command::Stop(stop) => ps::stop(&plain()?.0, &stop),
        Command::Create(create) => create::run(&plain()?.0, &store, &create),
        Command::Config(config) => config::run(&store, config.command),
        Command::Compare(compare) => compare::run(&open(bench_config(&store, &compare.load))?.0, &compare),
        Command::Compile(compile) => models::compile(&plain()?.0, &compile),
        Command::Plan(plan) => plan::run(&plain()?.0, plan),
        Command::Export(export) => exports::export(&plain()?.0, export),
        Command::Import(import) => exports::import(&plain()?.0, import),
        Command::Check(check) => check::run(&plain()?.0, check),
        Command::Doctor(doctor) => doctor::run(&plain()?.0, &doctor),
        Command::Bench(bench) => bench::run(&open(bench_config(&store, &bench.load))?.0, &bench),
        Command::Runtime(runtime) => runtime::run(&plain()?.0, runtime.command),
        Command::Key(key) => key::run(&plain()?.0, key.command),
        Command::Completions { shell } => completions::run(shell),
        Command::Man { folder } => man::run(&folder),
    }
}
