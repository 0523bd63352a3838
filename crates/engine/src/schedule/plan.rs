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
            let tokens = sequence.tokens[sequence.cached..end].iter().copied();
            plan.push_span(slot, sequence.cached, tokens, sequence.wanted(end));
            plan.media.extend_from_slice(&sequence.media);
        }
    }
}
