//! What must hold between any two steps, checked on a copy of the engine's state; tests call it after every step.

use narthex_spec::SlotId;

use crate::{kv::SlotState, worker::EngineStats};

/// A copy of the engine's state.
#[derive(Debug, Clone)]
pub struct Snapshot {
    slots: Vec<SlotState>,
    /// Number, slot, cached tokens and all tokens of each running sequence.
    running: Vec<(u64, Option<SlotId>, usize, usize)>,
    queue: Vec<u64>,
    stats: EngineStats,
}

impl Snapshot {
    pub(crate) fn new(
        slots: Vec<SlotState>,
        running: Vec<(u64, Option<SlotId>, usize, usize)>,
        queue: Vec<u64>,
        stats: EngineStats,
    ) -> Self {
        Self { slots, running, queue, stats }
    }

    /// Tokens that each slot holds.
    pub fn lengths(&self) -> Vec<usize> {
        self.slots.iter().map(SlotState::length).collect()
    }

    /// Gives the first rule that is broken.
    pub fn check(&self) -> Result<(), String> {
        let mut held = vec![false; self.slots.len()];
        for &(number, slot, cached, tokens) in &self.running {
            let slot = slot.ok_or(format!("sequence {number} runs without a slot"))?;
            let state =
                self.slots.get(slot.index()).ok_or(format!("sequence {number} holds no slot of ours"))?;
            if std::mem::replace(&mut held[slot.index()], true) {
                return Err(format!("slot {} is held twice", slot.0));
            }
            if *state != (SlotState::Held { length: cached }) {
                return Err(format!("sequence {number} has {cached} tokens cached, its slot is {state:?}"));
            }
            if cached >= tokens {
                return Err(format!("sequence {number} has nothing left to run: {cached} of {tokens}"));
            }
        }
        for (slot, state) in self.slots.iter().enumerate() {
            if matches!(state, SlotState::Held { .. }) != held[slot] {
                return Err(format!("slot {slot} is {state:?}, but held: {}", held[slot]));
            }
        }
        let mut numbers: Vec<u64> =
            self.running.iter().map(|s| s.0).chain(self.queue.iter().copied()).collect();
        numbers.sort_unstable();
        if numbers.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(format!("a sequence is in two places: {numbers:?}"));
        }
        if self.stats.kv_used_bytes > self.stats.kv_budget_bytes {
            return Err(format!("{} KV bytes over {}", self.stats.kv_used_bytes, self.stats.kv_budget_bytes));
        }
        Ok(())
    }
}
