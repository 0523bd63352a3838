//! `narthex doctor`.

use narthex_gateway::Gateway;

use crate::{args::JsonArgs, exit::NegativeResult, output, render};

/// Prints the findings; fails if there is a problem.
pub(crate) fn run(gateway: &Gateway, args: &JsonArgs) -> anyhow::Result<()> {
    let report = gateway.doctor();
    if args.json {
        output::json(&report)?
    } else {
        output::report(render::doctor(&report))?
    }
    if report.has_problem() { Err(NegativeResult::Problem.into()) } else { Ok(()) }
}
