//! `narthex mcp`.

use std::io::{IsTerminal, stderr, stdin};

use narthex_gateway::{Gateway, check::VendorCompiler};
use narthex_mcp::server::{self, McpOptions};

use super::check;
use crate::{args::McpArgs, interrupt, output};

/// Serves tools until standard input ends, or a signal.
pub(crate) fn run(gateway: &Gateway, args: McpArgs) -> anyhow::Result<()> {
    for model in [&args.chat_model, &args.embedding_model, &args.rerank_model].into_iter().flatten() {
        super::check_name(gateway, model)?;
    }
    let options = McpOptions {
        chat_model: args.chat_model,
        embedding_model: args.embedding_model,
        rerank_model: args.rerank_model,
        auto_pull: args.auto_pull,
        compiler: VendorCompiler::Subprocess(check::compiler_process(gateway)?),
    };
    let stopped = interrupt::leave_to_server();
    if stdin().is_terminal() && stderr().is_terminal() {
        output::note(
            "This command answers MCP messages on standard input, so an MCP client has to start it. Ctrl-C stops it.",
        );
    }
    Ok(server::serve(gateway, options, stopped)?)
}
