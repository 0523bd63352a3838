//! Invariants between any two steps, checked on a copy of the engine's state. Tests check them after every step.

use narthex_spec::SlotId;

use crate::{config::EngineStats, kv::SlotState};

/// A copy of the engine's state.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub(crate) slots: Vec<SlotState>,
    pub(crate) running: Vec<RunningSequence>,
    /// Numbers of the waiting sequences, first to last.
    pub(crate) queue: Vec<u64>,
    pub(crate) max_running: usize,
    pub(crate) submitted: u64,
    pub(crate) finished: u64,
    pub(crate) stats: EngineStats,
}

/// A running sequence.
#[derive(Debug, Clone)]
pub(crate) struct RunningSequence {
    pub(crate) number: u64,
    pub(crate) slot: Option<SlotId>,
    pub(crate) cached: usize,
    pub(crate) tokens: usize,
    pub(crate) footprint: usize,
}

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BrokenInvariant {
    /// A running sequence has no slot of its own.
    #[error("sequence {number} runs in slot {slot:?}, which is not its own")]
    Slot {
        /// The sequence.
        number: u64,
        /// Its slot.
        slot: Option<SlotId>,
    },
    /// A slot is held without a sequence.
    #[error("slot {slot} is held, but no sequence runs in it")]
    Leaked {
        /// The slot.
        slot: usize,
    },
    /// A sequence and its slot disagree, or it has nothing to run.
    #[error("sequence {number} has {cached} of {tokens} tokens in its slot, which is {state:?}")]
    Length {
        /// The sequence.
        number: u64,
        /// Its tokens that are in the cache, by its own count.
        cached: usize,
        /// All its tokens.
        tokens: usize,
        /// The slot.
        state: SlotState,
    },
    /// The executor holds something else than the engine believes.
    #[error("slot {slot} should hold {expected} tokens, the executor holds {found}")]
    Executor {
        /// The slot.
        slot: usize,
        /// Tokens by the engine's books.
        expected: usize,
        /// Tokens in the executor.
        found: usize,
    },
    /// Sequences are out of the order in which they came, or one is in two places.
    #[error("sequences run and wait in this order: {numbers:?}")]
    Order {
        /// RunningSequence ones, then waiting ones.
        numbers: Vec<u64>,
    },
    /// More run than may.
    #[error("{running} sequences run, {most} may")]
    Crowd {
        /// RunningSequence sequences.
        running: usize,
        /// The bound.
        most: usize,
    },
    /// A sequence was lost, or ended twice.
    #[error("{submitted} sequences were submitted, {finished} ended, {present} are here")]
    Lost {
        /// Submitted so far.
        submitted: u64,
        /// Ended so far.
        finished: u64,
        /// Number of running and waiting sequences.
        present: usize,
    },
    /// The cache takes more than it may.
    #[error("the cache takes {used} bytes of {budget}")]
    Budget {
        /// Bytes in use.
        used: usize,
        /// Bytes that may be.
        budget: usize,
    },
}

impl Snapshot {
    /// Checks every rule but the one about the executor.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), BrokenInvariant> {
        self.check_slots()?;
        let numbers: Vec<u64> =
            self.running.iter().map(|s| s.number).chain(self.queue.iter().copied()).collect();
        if !numbers.is_sorted_by(|a, b| a < b) {
            return Err(BrokenInvariant::Order { numbers });
        }
        let (running, most) = (self.running.len(), self.max_running);
        if running > most {
            return Err(BrokenInvariant::Crowd { running, most });
        }
        let (submitted, finished, present) = (self.submitted, self.finished, numbers.len());
        if finished + present as u64 != submitted {
            return Err(BrokenInvariant::Lost { submitted, finished, present });
        }
        let (used, budget) = (self.stats.kv_used_bytes, self.stats.kv_budget_bytes);
        if used > budget {
            return Err(BrokenInvariant::Budget { used, budget });
        }
        Ok(())
    }

    fn check_slots(&self) -> Result<(), BrokenInvariant> {
        let mut held = vec![false; self.slots.len()];
        for running in &self.running {
            let &RunningSequence { number, slot, cached, tokens, footprint } = running;
            let state = slot.and_then(|slot| self.slots.get(slot.index()));
            let taken = slot.and_then(|slot| held.get_mut(slot.index()));
            let (Some(state), Some(taken)) = (state, taken.filter(|taken| !**taken)) else {
                return Err(BrokenInvariant::Slot { number, slot });
            };
            *taken = true;
            let agrees = matches!(state, SlotState::Held { length, .. } if *length == cached);
            if !agrees || cached >= tokens || footprint < tokens {
                return Err(BrokenInvariant::Length { number, cached, tokens, state: state.clone() });
            }
        }
        let leaked =
            |(slot, state): (usize, &SlotState)| matches!(state, SlotState::Held { .. }) && !held[slot];
        match self.slots.iter().enumerate().position(leaked) {
            Some(slot) => Err(BrokenInvariant::Leaked { slot }),
            None => Ok(()),
        }
    }

    /// Compares the books with what the executor holds, slot by slot. What is in slots that were given up is unknown.
    ///
    /// # Errors
    /// [`BrokenInvariant::Executor`] for the first slot that differs.
    pub fn check_executor(&self, held: &[usize]) -> Result<(), BrokenInvariant> {
        for (slot, (state, &found)) in self.slots.iter().zip(held).enumerate() {
            let expected = state.length();
            if expected != found && !matches!(state, SlotState::Retired { .. }) {
                return Err(BrokenInvariant::Executor { slot, expected, found });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> Snapshot {
        let running = |number, slot, cached| RunningSequence {
            number,
            slot: Some(SlotId(slot)),
            cached,
            tokens: cached + 1,
            footprint: cached + 2,
        };
        Snapshot {
            slots: vec![
                SlotState::Held { length: 4, reserved: 6 },
                SlotState::Idle { tokens: vec![1, 2], released: 3, prompt_end: None },
                SlotState::Held { length: 0, reserved: 2 },
            ],
            running: vec![running(2, 0, 4), running(5, 2, 0)],
            queue: vec![6, 9],
            max_running: 2,
            submitted: 10,
            finished: 6,
            stats: EngineStats { kv_used_bytes: 9, kv_budget_bytes: 9, ..EngineStats::default() },
        }
    }

    #[test]
    fn every_rule_is_seen_when_it_breaks() {
        assert_eq!(sound().check(), Ok(()));
        let check = |change: fn(&mut Snapshot), expect: &str| {
            let mut snapshot = sound();
            change(&mut snapshot);
            let broken = snapshot.check().expect_err(expect).to_string();
            assert!(broken.contains(expect), "{broken}");
        };
        check(|s| s.running[1].slot = Some(SlotId(0)), "sequence 5 runs in slot Some(SlotId(0))");
        check(|s| s.running[1].slot = Some(SlotId(9)), "not its own");
        check(|s| s.running[0].slot = None, "sequence 2 runs in slot None");
        check(|s| s.running[0].cached = 3, "sequence 2 has 3 of 5 tokens");
        check(|s| s.running[0].tokens = 4, "sequence 2 has 4 of 4 tokens");
        check(|s| s.running.truncate(1), "slot 2 is held");
        check(|s| s.queue.reverse(), "[2, 5, 9, 6]");
        check(|s| s.running[1].number = 7, "[2, 7, 6, 9]");
        check(|s| s.queue[0] = 5, "[2, 5, 5, 9]");
        check(|s| s.max_running = 1, "2 sequences run, 1 may");
        check(|s| s.finished = 7, "10 sequences were submitted, 7 ended, 4 are here");
        check(|s| s.stats.kv_used_bytes = 10, "10 bytes of 9");
    }

    #[test]
    fn the_executor_must_agree_but_for_slots_given_up() {
        let mut snapshot = sound();
        assert_eq!(snapshot.check_executor(&[4, 2, 0]), Ok(()));
        let broken = BrokenInvariant::Executor { slot: 1, expected: 2, found: 3 };
        assert_eq!(snapshot.check_executor(&[4, 3, 0]), Err(broken));
        snapshot.slots[1] = SlotState::Retired { length: 2 };
        assert_eq!(snapshot.check_executor(&[4, 3, 0]), Ok(()));
    }
}
