//! `narthex plan`.

use narthex_gateway::{
    Gateway,
    plan::{Conversations, PlanRequest},
};

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
    let conversations = (args.context.is_some() || args.users.is_some())
        .then(|| Conversations { context: args.context, users: args.users.unwrap_or(1) });
    let request =
        PlanRequest { subject: args.model, targets: targets.collect(), yarn: args.yarn, conversations };
    let report = gateway.plan(&request, interrupt::cancel())?;
    if args.json { output::json(&report) } else { output::report(render::plan(&report)) }
}
