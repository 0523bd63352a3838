//! Python clients of OpenAI, Anthropic and Ollama against a server on a free port.
//!
//! The scripts in `conformance` send the requests and check the answers. This module prepares their Python environment
//! with the pinned clients, and runs the server.

use std::path::PathBuf;

use anyhow::bail;
use xtask_tools::{process, python::VirtualEnvironment, server::Server, session::Session, terminal};

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
    ScriptedClient { package: "openai==3.52.0", script: "conformance/openai_client.py", base: "/v1" },
    ScriptedClient { package: "anthropic==2.12.0", script: "conformance/anthropic_client.py", base: "" },
    ScriptedClient { package: "ollama==0.6.3", script: "conformance/ollama_client.py", base: "" },
];

/// Runs every script against a new server and returns their last lines.
pub(crate) fn check(session: &Session<'_>) -> anyhow::Result<String> {
    let (folder, environment) = (folder(session), environment(session)?);
    let server = Server::start(session, &folder.join("server.log"), &[])?;
    let mut verdicts = Vec::new();
    for client in &CLIENTS {
        let verdict = run(session, &environment, client, &server)?;
        verdicts.push(format!("{}: {verdict}", client.package));
    }
    Ok(verdicts.join("; "))
}

/// Returns a Python environment with the clients.
pub(super) fn environment(session: &Session<'_>) -> anyhow::Result<VirtualEnvironment> {
    let environment = VirtualEnvironment::prepare(session, &folder(session))?;
    environment.install(session, "client", &CLIENTS.map(|client| client.package))?;
    Ok(environment)
}

fn folder(session: &Session<'_>) -> PathBuf {
    session.workspace.target.join("conformance")
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
