//! `narthex plan`.

use narthex_gateway::{
    Gateway,
    plan::{Conversations, PlanRequest},
};

use super::note_model;
use crate::{args::PlanArgs, interrupt, output, render};

/// Estimates a model from its settings only.
pub(crate) fn run(gateway: &Gateway, args: PlanArgs) -> anyhow::Result<()> {
    note_model(gateway, &args.model);
    let conversations = (args.context.is_some() || args.users.is_some())
        .then(|| Conversations { context: args.context, users: args.users.unwrap_or(1) });
    let request = PlanRequest { subject: args.model, targets: args.target, yarn: args.yarn, conversations };
    let report = gateway.plan(&request, interrupt::cancel())?;
    if args.json { output::json(&report) } else { output::report(render::plan(&report)) }
}
