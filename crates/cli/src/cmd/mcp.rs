//! `narthex mcp`.

use narthex_gateway::{Gateway, check::VendorCompiler};
use narthex_mcp::server::{self, McpOptions};

use super::check;
use crate::{args::McpArgs, interrupt};

/// Serves tools until standard input ends, or a signal.
pub(crate) fn run(gateway: &Gateway, args: McpArgs) -> anyhow::Result<()> {
    let options = McpOptions {
        chat_model: args.chat_model,
        embedding_model: args.embedding_model,
        rerank_model: args.rerank_model,
        auto_pull: args.auto_pull,
        compiler: VendorCompiler::Subprocess(check::compiler_process(gateway)?),
    };
    Ok(server::serve(gateway, options, interrupt::leave_to_server())?)
}
