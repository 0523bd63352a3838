//! OpenAI's own Python client against a server that listens on a free port.
//!
//! What is asked and expected stands in `conformance/openai_client.py`; here is only what it needs: a Python
//! environment with the pinned client, and a running server.

use anyhow::bail;

use crate::{
    terminal,
    test::{
        server::Server,
        session::{self, Session},
        tools,
    },
};

/// The client's exact version.
const CLIENT: &str = "openai==3.52.0";

/// What asks the server, relative to the root.
const SCRIPT: &str = "conformance/openai_client.py";

/// Runs the script against a server of its own.
pub(crate) fn check(session: &Session<'_>) -> anyhow::Result<String> {
    let script = session.workspace.root.join(SCRIPT);
    if !script.is_file() {
        bail!("{SCRIPT} is not there; it belongs to the checkout");
    }
    let folder = session.workspace.target.join("conformance");
    let python = tools::environment(session, &folder, &[CLIENT])?;
    let server = Server::start(session, &folder.join("server.log"), &[])?;
    let mut verdict = String::new();
    let mut client = session.command(python);
    let asked =
        session::each_line(client.arg(&script).arg(format!("http://{}/v1", server.address)), |line| {
            terminal::line(line);
            verdict = line.to_owned();
        });
    if let Err(error) = asked {
        bail!("{error:#}\nthe server's last words ({}):\n{}", server.log.display(), server.last_words());
    }
    Ok(verdict)
}
