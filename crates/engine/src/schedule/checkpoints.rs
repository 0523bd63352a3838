//! Checkpoints of slots with states, where later prompts will need them: before the last tokens of a prompt, at its end,
//! and where the prompt of another sequence differs.

use super::policy::Grant;
use crate::{executor::StepPlan, kv::common_prefix, sequence::Sequence};

/// Number of last tokens of a prompt after its first checkpoint. Many templates write the end of a prompt otherwise once
/// it has an answer: they drop the reasoning, or change the mark that requests an answer. The next prompt of a
/// conversation then shares all but these tokens.
const TAIL: usize = 16;

/// Minimum number of tokens of a span that ends early for a checkpoint. Fewer tokens cost less to run again than a step.
const MIN_SPAN: usize = 8;

/// Minimum length of a checkpoint within a long prompt, a power of two.
const MIN_LENGTH: usize = 256;

/// Shortens grants that would pass a length at which a checkpoint is wanted. `next` waits for a slot.
pub(crate) fn stop_at(grants: &mut [Grant], running: &[Sequence], next: Option<&Sequence>) {
    for grant in grants.iter_mut().filter(|grant| grant.tokens > MIN_SPAN) {
        let sequence = &running[grant.index];
        let within = sequence.cached + MIN_SPAN..sequence.cached + grant.tokens;
        let lengths = wanted(sequence, next).into_iter();
        if let Some(end) = lengths.filter(|length| within.contains(length)).min() {
            grant.tokens = end - sequence.cached;
        }
    }
}

/// Marks the spans after which a checkpoint is wanted. A long prompt has others at lengths that double.
pub(crate) fn mark(plan: &mut StepPlan, grants: &[Grant], running: &[Sequence], next: Option<&Sequence>) {
    for (span, grant) in plan.spans.iter_mut().zip(grants) {
        let sequence = &running[grant.index];
        let end = span.at + span.tokens.len();
        if span.tokens.len() > 1 || end <= sequence.prompt_length() {
            let doubles = end.ilog2() > span.at.max(MIN_LENGTH - 1).ilog2();
            span.keeps_state = doubles || wanted(sequence, next).contains(&end);
        }
    }
}

/// Returns the lengths at which checkpoints of a sequence are wanted.
fn wanted(sequence: &Sequence, next: Option<&Sequence>) -> [usize; 4] {
    let prompt = sequence.prompt_length();
    let shared = next.map_or(0, |next| common_prefix(&sequence.tokens, &next.tokens));
    [prompt.saturating_sub(TAIL), prompt, sequence.branch, shared]
}
