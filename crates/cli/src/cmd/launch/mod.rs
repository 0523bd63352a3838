//! `narthex launch`: runs an agent on a model of this machine. Nothing permanent is written: the settings are arguments
//! and environment variables of the agent's process.

mod agent;
mod process;

mod server;

use std::process::{Command, ExitStatus};

use anyhow::{Context, bail};
use narthex_gateway::{
    Error, Gateway, RunningServer,
    models::{ModelKind, ModelState},
};

use self::{
    agent::{AgentCommand, Endpoint, KEY_REFERENCE},
    process::AgentEnd,
    server::AgentServer,
};
use crate::{
    args::{LaunchArgs, StoreArgs},
    cmd::program,
    exit::{ProgramFailed, ProgramMissing},
    output,
    running_server::origin,
};

/// URL of the server in the output of `--print` if no server runs.
const DEFAULT_ORIGIN: &str = "http://127.0.0.1:8000";

/// Key for servers without keys, because agents require one.
const ANY_KEY: &str = "narthex";

/// Number of tokens that a conversation with an agent needs: the instructions and tools of coding agents take 10,000 to
/// 20,000.
const AGENT_CONTEXT: usize = 32_768;

/// Windows' exit code of a program that Ctrl-C ended (`STATUS_CONTROL_C_EXIT`).
#[cfg(not(unix))]
const CONTROL_C_EXIT: i32 = 0xC000_013A_u32.cast_signed();

/// Runs the agent, or prints its environment and command.
pub(crate) fn run(gateway: &Gateway, store: &StoreArgs, args: LaunchArgs) -> anyhow::Result<()> {
    let running = gateway.running_servers().into_iter().find(|server| origin(server).is_some());
    let model = match args.model {
        Some(model) => model,
        None => default_model(gateway, running.as_ref())?,
    };
    let served = served_model(gateway, running.as_ref(), &model);
    gateway.check_kind(&served, &[ModelKind::Chat])?;
    let context = context_length(gateway, &served);
    if let Some(short) = context.filter(|&context| context < AGENT_CONTEXT) {
        output::note(format!(
            "{model} has a context of at most {short} tokens; an agent's instructions may not fit. Choose a model with a longer context."
        ));
    }

    let key = std::env::var("NARTHEX_API_KEY").ok();
    if args.print {
        let running_origin = running.as_ref().and_then(origin);
        let origin = running_origin.unwrap_or_else(|| DEFAULT_ORIGIN.to_owned());
        if running.is_none() {
            output::note(format!("No server is running; launch would start one with {model}."));
        }
        if key.is_some() {
            output::note("The shell reads the key from the environment variable NARTHEX_API_KEY.");
        }
        let key = key.map_or(ANY_KEY, |_| KEY_REFERENCE).to_owned();
        let command = AgentCommand::new(args.agent, &Endpoint { origin, model, context, key });
        return output::line(command.shell(&args.arguments));
    }

    let program = args.agent.program();
    // A missing program is reported before a model is loaded for it.
    let Some(path) = program::find(program) else {
        return Err(ProgramMissing { program, install: args.agent.install() }.into());
    };
    let server = AgentServer::find_or_start(gateway, store, running.as_ref(), &model)?;
    let key = key.unwrap_or_else(|| ANY_KEY.to_owned());
    // A server may load the model with another length.
    let context = context_length(gateway, &served);
    let endpoint = Endpoint { origin: server.origin.clone(), model, context, key };
    let command = AgentCommand::new(args.agent, &endpoint);

    let mut process = Command::new(path);
    process.args(&command.arguments).args(&args.arguments);
    process.envs(command.environment.iter().map(|variable| (variable.name, &variable.value)));
    let end = process::run(process).with_context(|| format!("{program} cannot be started"))?;
    drop(server);
    match end {
        AgentEnd::Status(status) if status.success() => Ok(()),
        AgentEnd::Status(status) if !is_interrupted(status) => Err(ProgramFailed { program, status }.into()),
        AgentEnd::Status(_) | AgentEnd::Stopped => bail!(Error::Cancelled),
    }
}

/// Returns the model that clients of a running server get under a name. The server may have aliases and a default
/// model.
fn served_model(gateway: &Gateway, running: Option<&RunningServer>, name: &str) -> String {
    let Some(server) = running else { return name.to_owned() };
    let served = server.aliases.get(name).map_or(name, String::as_str);
    let is_unknown = matches!(gateway.model(served), Err(Error::UnknownModel { .. }));
    server.default_model.as_deref().filter(|_| is_unknown).unwrap_or(served).to_owned()
}

/// Returns true if Ctrl-C ended a program: by the signal, or with the exit code of shells for it.
fn is_interrupted(status: ExitStatus) -> bool {
    #[cfg(unix)]
    let by_signal = std::os::unix::process::ExitStatusExt::signal(&status) == Some(libc::SIGINT);
    #[cfg(not(unix))]
    let by_signal = status.code() == Some(CONTROL_C_EXIT);
    by_signal || status.code() == Some(130)
}

/// Returns the maximum number of tokens of a conversation with a model: that of a server, else that of the
/// package that requests use.
fn context_length(gateway: &Gateway, model: &str) -> Option<usize> {
    let listing = gateway.model(model).ok()?;
    let servers = gateway.running_servers();
    let mut loaded = servers.iter().flat_map(|server| &server.models);
    let loaded = loaded.find(|status| status.name == listing.name).and_then(|status| status.max_length);
    loaded.or_else(|| listing.usual_package().map(|package| package.context_length))
}

/// Returns a loaded chat model of the running server, else the largest installed one.
fn default_model(gateway: &Gateway, running: Option<&RunningServer>) -> anyhow::Result<String> {
    let mut loaded = running
        .into_iter()
        .flat_map(|server| &server.models)
        .filter(|model| model.state == ModelState::Ready && model.kind == Some(ModelKind::Chat));
    if let Some(model) = loaded.next() {
        return Ok(model.name.to_string());
    }

    let models = gateway.models()?;
    let installed = models.iter().filter(|model| model.kind == ModelKind::Chat);
    let largest = installed
        .filter_map(|model| Some((model.installed.iter().map(|package| package.bytes).max()?, model)))
        .max_by_key(|(bytes, _)| *bytes);
    match largest {
        Some((_, model)) => Ok(model.name.to_string()),
        None => {
            bail!("no chat model is installed; install one with `narthex pull`, or name one with --model")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use narthex_gateway::{Config, Encryption};

    use super::*;

    #[test]
    fn names_of_a_running_server_stand_for_its_models() {
        let home = tempfile::tempdir().unwrap();
        let gateway = Gateway::open(Config { home: Some(home.path().into()), ..Config::standard() }).unwrap();
        let server = |default_model: Option<&str>| RunningServer {
            aliases: BTreeMap::from([("gpt-4o".to_owned(), "smollm2:135m".to_owned())]),
            default_model: default_model.map(str::to_owned),
            ..RunningServer::new("127.0.0.1:8000", Encryption::None)
        };
        let check = |running: Option<&RunningServer>, name: &str, expect: &str| {
            assert_eq!(served_model(&gateway, running, name), expect);
        };
        check(None, "gpt-4o", "gpt-4o");
        check(Some(&server(None)), "gpt-4o", "smollm2:135m");
        check(Some(&server(None)), "nope", "nope");
        let with_default = server(Some("smollm2:360m"));
        check(Some(&with_default), "nope", "smollm2:360m");
        check(Some(&with_default), "smollm2:135m", "smollm2:135m");
    }
}
