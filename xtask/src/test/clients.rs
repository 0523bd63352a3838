//! OpenAI's own Python client against a server that listens on a free port.
//!
//! `conformance/openai_client.py` sends the requests and checks the answers. This module prepares its Python environment
//! with the pinned client, and runs the server.

use anyhow::bail;

use crate::{process, python::VirtualEnvironment, session::Session, terminal, test::server::Server};

/// The client's exact version.
const CLIENT: &str = "openai==3.52.0";

/// Script that checks the server, relative to the root.
const SCRIPT: &str = "conformance/openai_client.py";

/// Runs the script against a new server and returns its last line.
pub(crate) fn check(session: &Session<'_>) -> anyhow::Result<String> {
    let script = session.workspace.root.join(SCRIPT);
    if !script.is_file() {
        bail!("{SCRIPT} is missing from the checkout");
    }
    let folder = session.workspace.target.join("conformance");
    let environment = VirtualEnvironment::prepare(session, &folder)?;
    environment.install(session, "client", &[CLIENT])?;
    let server = Server::start(session, &folder.join("server.log"), &[])?;
    let mut verdict = String::new();
    let mut client = session.command(&environment.python);
    let outcome =
        process::each_line(client.arg(&script).arg(format!("http://{}/v1", server.address)), |line| {
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
