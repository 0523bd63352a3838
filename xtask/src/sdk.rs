//! The Python clients of OpenAI, Anthropic and Ollama, pinned, in one environment.

use std::path::PathBuf;

use xtask_tools::{python::VirtualEnvironment, session::Session};

/// OpenAI's client, with its WebSocket.
pub(crate) const OPENAI: &str = "openai[realtime]==3.52.0";

/// Anthropic's client.
pub(crate) const ANTHROPIC: &str = "anthropic==2.12.0";

/// Ollama's client.
pub(crate) const OLLAMA: &str = "ollama==0.6.3";

/// Returns a Python environment with the clients.
pub(crate) fn environment(session: &Session<'_>) -> anyhow::Result<VirtualEnvironment> {
    let environment = VirtualEnvironment::prepare(session, &folder(session))?;
    environment.install(session, "client", &[OPENAI, ANTHROPIC, OLLAMA])?;
    Ok(environment)
}

/// Returns the folder of the environment, which also has the logs of servers.
pub(crate) fn folder(session: &Session<'_>) -> PathBuf {
    session.workspace.target.join("conformance")
}
