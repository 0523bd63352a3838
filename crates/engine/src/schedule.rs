//! What runs next. A pure choice over the running sequences: every decoding one takes part in every step, and prompts
//! share a budget of tokens, first come first served, so that neither starves the other.

use crate::{
    executor::{Limits, StepPlan, Wanted},
    sequence::Sequence,
    worker::EngineConfig,
};

/// The most rows of logits that a prompt chunk asks for at once when every token's are wanted.
const ALL_ROWS_CHUNK: usize = 32;

/// Fills the plan for sequences that hold slots, oldest first; `members` gets the index of each span's sequence.
pub(crate) fn plan(
    running: &[Sequence],
    limits: &Limits,
    config: &EngineConfig,
    plan: &mut StepPlan,
    members: &mut Vec<usize>,
) {
    plan.clear();
    members.clear();
    let mut decoding = 0;
    for (index, sequence) in running.iter().enumerate() {
        if sequence.decodes() && decoding < limits.batch {
            decoding += 1;
            push(plan, members, (index, sequence), 1);
        }
    }
    let mut budget = config.prefill_chunk.min(limits.chunk);
    for (index, sequence) in running.iter().enumerate() {
        if sequence.decodes() || budget == 0 {
            continue;
        }
        let mut length = sequence.pending().min(budget);
        if sequence.wants_prompt() {
            length = length.min(ALL_ROWS_CHUNK);
        }
        budget -= length;
        push(plan, members, (index, sequence), length);
    }
}

fn push(plan: &mut StepPlan, members: &mut Vec<usize>, (index, sequence): (usize, &Sequence), length: usize) {
    let Some(slot) = sequence.slot else { return };
    let end = sequence.cached + length;
    let wanted = if sequence.wants_prompt() {
        Wanted::All
    } else if end == sequence.tokens.len() {
        Wanted::Last
    } else {
        Wanted::Nothing
    };
    plan.push(slot, sequence.cached, &sequence.tokens[sequence.cached..end], wanted);
    members.push(index);
}
