//! Python clients of OpenAI, Anthropic and Ollama against a server on a free port, with texts, and with pictures and sounds.
//!
//! The scripts in `conformance` send the requests and check the answers. This module runs the server.

use std::process::Command;

use anyhow::bail;
use xtask_tools::{process, python::VirtualEnvironment, server::Server, session::Session, terminal};

use crate::{sdk, tiny_models};

/// A client with its script.
struct ScriptedClient {
    /// Package with its exact version.
    package: &'static str,
    /// Script, relative to the root.
    script: &'static str,
    /// Base path of the API for the client.
    base: &'static str,
}

const CLIENTS: [ScriptedClient; 3] = [
    ScriptedClient { package: sdk::OPENAI, script: "conformance/openai_client.py", base: "/v1" },
    ScriptedClient { package: sdk::ANTHROPIC, script: "conformance/anthropic_client.py", base: "" },
    ScriptedClient { package: sdk::OLLAMA, script: "conformance/ollama_client.py", base: "" },
];

/// Script of every client with a model that reads pictures and sounds.
const MEDIA: &str = "conformance/media_client.py";

/// Runs every script against a new server and returns their last lines.
pub(crate) fn check(session: &Session<'_>) -> anyhow::Result<String> {
    let environment = sdk::environment(session)?;
    let program = session.build_narthex()?;
    tiny_models::with(session, &program, || run_all(session, &environment))
}

fn run_all(session: &Session<'_>, environment: &VirtualEnvironment) -> anyhow::Result<String> {
    let server = Server::start(session, &sdk::folder(session).join("server.log"), &[])?;
    let mut verdicts = Vec::new();
    for client in &CLIENTS {
        let mut command = script(session, environment, client.script)?;
        command.arg(format!("http://{}{}", server.address, client.base));
        verdicts.push(format!("{}: {}", client.package, run(command, &server)?));
    }
    let mut command = script(session, environment, MEDIA)?;
    command.arg(format!("http://{}", server.address)).arg(tiny_models::SEES);
    verdicts.push(format!("media: {}", run(command, &server)?));
    Ok(verdicts.join("; "))
}

/// Returns the command that runs a script of the checkout.
fn script(session: &Session<'_>, environment: &VirtualEnvironment, script: &str) -> anyhow::Result<Command> {
    let path = session.workspace.root.join(script);
    if !path.is_file() {
        bail!("{script} is missing from the checkout");
    }
    let mut command = session.command(&environment.python);
    command.arg(path);
    Ok(command)
}

/// Runs a script and returns its last line.
///
/// # Errors
/// The end of the script's output and the last lines of the server's log, if a check failed.
fn run(mut command: Command, server: &Server) -> anyhow::Result<String> {
    let mut verdict = String::new();
    let outcome = process::each_line(&mut command, |line| {
        terminal::line(line);
        verdict = line.to_owned();
    });
    if let Err(error) = outcome {
        bail!(
            "{error:#}\nlast lines of the server's log ({}):\n{}",
            server.log.display(),
            server.last_lines()
        );
    }
    Ok(verdict)
}
