//! Python clients of OpenAI, Anthropic and Ollama against a server on a free port.
//!
//! The scripts in `conformance` send the requests and check the answers. This module runs the server.

use anyhow::bail;
use xtask_tools::{process, python::VirtualEnvironment, server::Server, session::Session, terminal};

use crate::sdk;

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

/// Runs every script against a new server and returns their last lines.
pub(crate) fn check(session: &Session<'_>) -> anyhow::Result<String> {
    let environment = sdk::environment(session)?;
    let server = Server::start(session, &sdk::folder(session).join("server.log"), &[])?;
    let mut verdicts = Vec::new();
    for client in &CLIENTS {
        let verdict = run(session, &environment, client, &server)?;
        verdicts.push(format!("{}: {verdict}", client.package));
    }
    Ok(verdicts.join("; "))
}

/// Runs a script and returns its last line.
///
/// # Errors
/// The end of the script's output and the last lines of the server's log, if a check failed.
fn run(
    session: &Session<'_>,
    environment: &VirtualEnvironment,
    client: &ScriptedClient,
    server: &Server,
) -> anyhow::Result<String> {
    let script = session.workspace.root.join(client.script);
    if !script.is_file() {
        bail!("{} is missing from the checkout", client.script);
    }
    let mut verdict = String::new();
    let mut command = session.command(&environment.python);
    command.arg(&script).arg(format!("http://{}{}", server.address, client.base));
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
