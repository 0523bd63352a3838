//! `narthex ps`.

use narthex_gateway::Gateway;

use crate::{args::JsonArgs, output, render};

/// Lists the servers that use this store.
pub(crate) fn run(gateway: &Gateway, args: &JsonArgs) -> anyhow::Result<()> {
    let servers = gateway.running_servers();
    if args.json {
        return output::json(&servers);
    }
    if servers.is_empty() {
        output::note("No server is running; `narthex serve` starts one.");
        return Ok(());
    }
    output::report(render::servers(&servers))
}
