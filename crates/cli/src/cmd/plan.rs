//! `narthex plan`.

use narthex_gateway::{Gateway, plan::PlanRequest};

use crate::{args::PlanArgs, interrupt, output, render};

/// Estimates a model from its settings only.
pub(crate) fn run(gateway: &Gateway, args: PlanArgs) -> anyhow::Result<()> {
    let request = PlanRequest { subject: args.model, targets: args.target, yarn: args.yarn };
    let report = gateway.plan(&request, interrupt::cancel())?;
    if args.json { output::json(&report) } else { output::report(render::plan(&report)) }
}
