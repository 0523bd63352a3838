//! Scheduling policy: the number of tokens that each sequence runs next. Pure arithmetic, independent of slots.
//!
//! - Every sequence with a single token to run takes part in every step: an answer never waits for a prompt. If there
//!   are more single tokens than the executor's batch, the sequences take turns.
//! - Prompts share the remaining tokens of the step, at most one chunk in total, in order of arrival. The first one
//!   always advances, so a prompt never waits for answers either.

use crate::{config::EngineConfig, executor::Limits};

/// Tokens that one sequence runs in the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Index of the sequence among the running ones.
    pub(crate) index: usize,
    /// Number of tokens, at least one.
    pub(crate) tokens: usize,
}

/// Limits of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Maximum number of sequences that run a single token.
    batch: usize,
    /// Maximum number of tokens of one sequence.
    chunk: usize,
    /// Maximum number of tokens of all prompts.
    prompts: usize,
    /// Maximum number of tokens in total.
    step: usize,
}

impl Bounds {
    pub(crate) fn new(limits: &Limits, config: &EngineConfig) -> Self {
        Self {
            batch: limits.batch.max(1),
            chunk: limits.chunk.min(config.prefill_chunk).max(1),
            prompts: config.prefill_chunk,
            step: config.step_token_budget,
        }
    }

    /// Returns the limits with another maximum number of tokens of all prompts.
    pub(crate) fn with_prompts(self, prompts: usize) -> Self {
        Self { prompts: self.prompts.min(prompts), ..self }
    }
}

/// Divides the next step among the sequences. `demands` has the number of tokens that each running sequence could run,
/// oldest first; `turn` counts steps. Single tokens come first in `grants`.
pub(crate) fn share(
    demands: impl Iterator<Item = usize> + Clone,
    bounds: &Bounds,
    turn: u64,
    grants: &mut Vec<Grant>,
) {
    grants.clear();
    let demands = demands.map(|demand| demand.min(bounds.chunk)).enumerate();
    let singles = demands.clone().filter(|&(_, demand)| demand == 1);
    let count = singles.clone().count();
    // The window over the single tokens moves by its own size in each step.
    let start = if count > bounds.batch { (turn as usize).wrapping_mul(bounds.batch) % count } else { 0 };
    let chosen = singles.enumerate().filter(|&(place, _)| (place + count - start) % count < bounds.batch);
    grants.extend(chosen.map(|(_, (index, tokens))| Grant { index, tokens }));

    let mut single = grants.len();
    // If one token remained, the batch could be full; two tokens always fit.
    let least = bounds.chunk.min(2);
    let mut left = bounds.prompts.min(bounds.step.saturating_sub(single)).max(least);
    for (index, demand) in demands.filter(|&(_, demand)| demand > 1) {
        let tokens = demand.min(left);
        if tokens == 0 || (tokens == 1 && single >= bounds.batch) {
            return;
        }
        single += usize::from(tokens == 1);
        left -= tokens;
        grants.push(Grant { index, tokens });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { batch: 8, chunk: 16, prompts: 16, step: 24 };

    fn check(demands: &[usize], bounds: Bounds, turn: u64, expect: &[(usize, usize)]) {
        let mut grants = Vec::new();
        share(demands.iter().copied(), &bounds, turn, &mut grants);
        let found: Vec<_> = grants.iter().map(|grant| (grant.index, grant.tokens)).collect();
        assert_eq!(found, expect, "{demands:?} {bounds:?} turn {turn}");
    }

    #[test]
    fn answers_run_in_every_step_beside_a_chunk_of_prompt() {
        check(&[], BOUNDS, 0, &[]);
        check(&[1, 1, 1], BOUNDS, 5, &[(0, 1), (1, 1), (2, 1)]);
        check(&[40, 1, 1], BOUNDS, 0, &[(1, 1), (2, 1), (0, 16)]);
        check(&[1, 40, 40], BOUNDS, 0, &[(0, 1), (1, 16)]);
    }

    #[test]
    fn prompts_share_one_chunk_first_come_first_served() {
        check(&[5, 7, 9, 3], BOUNDS, 0, &[(0, 5), (1, 7), (2, 4)]);
        check(&[15, 7, 9], BOUNDS, 0, &[(0, 15), (1, 1)]);
    }

    #[test]
    fn answers_come_out_of_the_steps_tokens_and_prompts_still_advance() {
        let step = |step| Bounds { step, ..BOUNDS };
        check(&[1, 1, 1, 40], step(8), 0, &[(0, 1), (1, 1), (2, 1), (3, 5)]);
        check(&[1, 1, 1, 40], step(1), 0, &[(0, 1), (1, 1), (2, 1), (3, 2)]);
        check(&[40, 40], Bounds { chunk: 1, prompts: 1, ..BOUNDS }, 0, &[(0, 1), (1, 1)]);
    }

    #[test]
    fn more_answers_than_the_batch_take_turns() {
        let bounds = Bounds { batch: 2, ..BOUNDS };
        check(&[1, 1, 1, 1, 1], bounds, 0, &[(0, 1), (1, 1)]);
        check(&[1, 1, 1, 1, 1], bounds, 1, &[(2, 1), (3, 1)]);
        check(&[1, 1, 1, 1, 1], bounds, 2, &[(0, 1), (4, 1)]);
        check(&[1, 1, 15, 9], bounds, 0, &[(0, 1), (1, 1), (2, 15)]);
        let mut served = [0; 5];
        for turn in 0..100 {
            let mut grants = Vec::new();
            share([1; 5].into_iter(), &bounds, turn, &mut grants);
            grants.iter().for_each(|grant| served[grant.index] += 1);
        }
        assert_eq!(served, [40; 5]);
    }

    #[test]
    fn no_step_breaks_its_bounds_and_none_is_empty() {
        for batch in 1..4 {
            for chunk in 1..5 {
                for step in 1..6 {
                    let bounds = Bounds { batch, chunk, prompts: 4, step };
                    for demands in [[1, 1, 1, 3], [9, 1, 2, 1], [2, 2, 2, 2], [1, 5, 5, 5]] {
                        let mut grants = Vec::new();
                        share(demands.into_iter(), &bounds, step as u64, &mut grants);
                        let singles = grants.iter().filter(|grant| grant.tokens == 1).count();
                        assert!(!grants.is_empty() && singles <= batch, "{demands:?} {bounds:?} {grants:?}");
                        let fits =
                            |g: &Grant| g.tokens > 0 && g.tokens <= chunk && g.tokens <= demands[g.index];
                        assert!(grants.iter().all(fits), "{demands:?} {bounds:?} {grants:?}");
                    }
                }
            }
        }
    }
}
