//! `narthex plan`.

use narthex_gateway::{Gateway, plan::PlanRequest};

use crate::{
    args::{NpuTarget, PlanArgs},
    interrupt, output, render,
};

/// Estimates a model from its settings only.
pub(crate) fn run(gateway: &Gateway, args: PlanArgs) -> anyhow::Result<()> {
    // Every plan has the verdict for AMD's NPUs, for which there are no rules.
    let targets = args.target.into_iter().filter_map(|target| match target {
        NpuTarget::WithRules(target) => Some(target),
        NpuTarget::RyzenAi => None,
    });
    let request = PlanRequest { subject: args.model, targets: targets.collect(), yarn: args.yarn };
    let report = gateway.plan(&request, interrupt::cancel())?;
    if args.json { output::json(&report) } else { output::report(render::plan(&report)) }
}
