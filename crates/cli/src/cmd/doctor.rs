//! `narthex doctor`.

use narthex_gateway::Gateway;

use crate::{args::JsonArgs, output, render};

/// Says what this machine has, and what is missing.
pub(crate) fn run(gateway: &Gateway, args: &JsonArgs) -> anyhow::Result<()> {
    let report = gateway.doctor();
    if args.json { output::json(&report) } else { output::text(&render::doctor(&report)) }
}
