//! The servers that are compared.

use std::{fs, net::TcpListener, process::Command};

use anyhow::{Context, bail};
use serde::{Serialize, de::DeserializeOwned};
use strum::{IntoStaticStr, VariantArray};
use xtask_tools::{
    http::{self, Disconnect, Request},
    process,
    server::Server,
    terminal,
};

use crate::{llama::Llama, runner::openvino_folder, setup::Setup, weights::Weights};

/// A server with one form of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
pub(super) enum ServerSide {
    #[strum(serialize = "narthex serve, w8")]
    NarthexW8,
    #[strum(serialize = "llama-server, Q8_0")]
    LlamaQ8,
    #[strum(serialize = "narthex serve, w4")]
    NarthexW4,
    #[strum(serialize = "llama-server, Q4_0")]
    LlamaQ4,
    #[strum(serialize = "OpenVINO GenAI's continuous batching, Q4_1")]
    OpenVino,
}

/// Two servers that are compared.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerPair {
    pub(super) of: ServerSide,
    pub(super) to: ServerSide,
}

/// Pairs of servers, in display order.
pub(super) const PAIRS: [ServerPair; 3] = [
    ServerPair { of: ServerSide::NarthexW8, to: ServerSide::LlamaQ8 },
    ServerPair { of: ServerSide::NarthexW4, to: ServerSide::LlamaQ4 },
    ServerPair { of: ServerSide::NarthexW4, to: ServerSide::OpenVino },
];

/// Number of slots of a server, and number of tokens that each of them holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerSize {
    pub(super) slots: usize,
    pub(super) context: usize,
}

/// Reason why a server was not measured to the end.
#[derive(Debug, Serialize)]
pub(super) struct ServerFailure {
    pub(super) server: &'static str,
    pub(super) reason: String,
}

impl ServerFailure {
    /// Shows and returns the failure of a side.
    pub(super) fn new(side: ServerSide, setup: &Setup<'_>, error: &anyhow::Error) -> Self {
        terminal::problem(format!("{} failed: {error:#}", side.name()));
        Self { server: side.name(), reason: setup.without_folders(&format!("{error:#}")) }
    }
}

/// Runs a script with OpenVINO GenAI's continuous batching over a plan, and returns its answer.
pub(super) fn run_batching<T: DeserializeOwned>(
    setup: &Setup<'_>,
    weights: &Weights,
    script: &str,
    plan: &serde_json::Value,
) -> anyhow::Result<T> {
    let folder = openvino_folder(setup, weights)?;
    let path = setup.folder.join("plan.json");
    fs::write(&path, plan.to_string()).with_context(|| path.display().to_string())?;
    let mut script = setup.script(script);
    script.arg(folder).arg(&path).args(["--threads", &setup.threads.to_string()]);
    Ok(serde_json::from_value(process::output(&mut script)?.answer()?)?)
}

impl ServerSide {
    /// Returns its name in the record.
    pub(super) fn name(self) -> &'static str {
        self.into()
    }

    /// Starts the server and waits until it is ready. OpenVINO GenAI has none.
    pub(super) fn start(
        self,
        setup: &Setup<'_>,
        weights: &Weights,
        size: ServerSize,
    ) -> anyhow::Result<Server> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        let command = self.command(setup, weights, size, &port)?;
        let address = format!("127.0.0.1:{port}");
        let health = Request { method: "GET", path: "/health", body: b"" };
        Server::spawn(command, &setup.folder.join("server.log"), || {
            let answer = http::send(&address, health, Disconnect::AfterAnswer);
            answer.is_ok_and(|answer| answer.status == 200).then(|| address.clone())
        })
    }

    /// Returns the command that starts the server.
    fn command(
        self,
        setup: &Setup<'_>,
        weights: &Weights,
        size: ServerSize,
        port: &str,
    ) -> anyhow::Result<Command> {
        let (threads, slots) = (setup.threads.to_string(), size.slots.to_string());
        let narthex = |scheme| {
            let mut command = setup.serve(weights.model, scheme, port);
            // A peer's server has no drafts, so Narthex's are measured elsewhere.
            command.args(["--slots", &slots, "--speculation", "off"]);
            Ok(command)
        };
        let llama = |kind| {
            let llama = Llama::prepare(setup)?;
            let mut command = llama.command("llama-server");
            command
                .arg("-m")
                .arg(weights.quantized(&llama, setup, kind)?)
                .args(["--port", port, "-np", &slots]);
            command.args(["-c", &(size.slots * size.context).to_string(), "-t", &threads]);
            Ok(command)
        };
        match self {
            Self::NarthexW8 => narthex("w8"),
            Self::NarthexW4 => narthex("w4"),
            Self::LlamaQ8 => llama("Q8_0"),
            Self::LlamaQ4 => llama("Q4_0"),
            Self::OpenVino => bail!("OpenVINO GenAI has no server"),
        }
    }
}
