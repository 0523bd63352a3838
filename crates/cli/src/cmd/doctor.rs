//! `narthex doctor`.

use narthex_gateway::Gateway;

use crate::{args::JsonArgs, exit::Judged, output, render};

/// Says what this machine has, and what is missing; fails where something must be mended.
pub(crate) fn run(gateway: &Gateway, args: &JsonArgs) -> anyhow::Result<()> {
    let report = gateway.doctor();
    if args.json {
        output::json(&report)?
    } else {
        output::text(&render::doctor(&report))?
    }
    if report.has_problem() { Err(Judged::Broken.into()) } else { Ok(()) }
}
