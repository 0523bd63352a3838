//! The executor's plan for the tokens that the policy granted.

use super::policy::Grant;
use crate::{executor::StepPlan, sequence::Sequence};

/// Fills the plan, one span for each grant in the same order.
pub(crate) fn fill(plan: &mut StepPlan, running: &[Sequence], grants: &[Grant]) {
    plan.clear();
    for grant in grants {
        let sequence = &running[grant.index];
        if let Some(slot) = sequence.slot {
            let end = sequence.cached + grant.tokens;
            plan.push(slot, sequence.cached, &sequence.tokens[sequence.cached..end], sequence.wanted(end));
        }
    }
}
