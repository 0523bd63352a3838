//! The slots of the KV cache: their state, the tokens in idle slots, and the total memory.

use narthex_spec::SlotId;

use crate::{
    executor::{KvLimits, Limits, RowScan},
    position::Position,
};

/// Logits after a prompt's last token. They are stored so that the same prompt need not run again and gives identical
/// results.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptEnd {
    /// Number of tokens in the prompt.
    pub length: usize,
    /// Logits after the last of them.
    pub logits: Box<[f32]>,
    /// Result of the scan over them.
    pub scan: RowScan,
}

/// State of one slot.
#[derive(Debug, Clone, PartialEq)]
pub enum SlotState {
    /// Free, with the tokens whose keys and values it still has, if any.
    Idle {
        /// The tokens and rows of media, in order.
        tokens: Vec<Position>,
        /// Number of the step in which it was released.
        released: u64,
        /// Value of all evictions before its release.
        inflation: u64,
        /// Logits at the end of the prompt that ran in it last.
        prompt_end: Option<PromptEnd>,
    },
    /// In use by a running sequence.
    Held {
        /// Number of tokens in the cache.
        length: usize,
        /// Number of tokens for which memory is reserved.
        reserved: usize,
    },
    /// Retired, because the executor could not empty it; its content still takes memory.
    Retired {
        /// Number of tokens that it may still have.
        length: usize,
    },
}

impl SlotState {
    const EMPTY: Self = Self::Idle { tokens: Vec::new(), released: 0, inflation: 0, prompt_end: None };

    /// Returns the number of tokens in the cache.
    pub fn length(&self) -> usize {
        match self {
            Self::Idle { tokens, .. } => tokens.len(),
            Self::Held { length, .. } | Self::Retired { length } => *length,
        }
    }

    /// Returns the number of tokens for which the slot needs memory.
    pub fn footprint(&self) -> usize {
        match self {
            Self::Held { length, reserved } => *length.max(reserved),
            Self::Idle { .. } | Self::Retired { .. } => self.length(),
        }
    }

    /// Returns true if the slot occupies a row of the cache.
    fn takes_row(&self) -> bool {
        matches!(self, Self::Held { .. }) || self.length() > 0
    }
}

/// All slots of an executor, indexed by [`SlotId`].
#[derive(Debug, Clone)]
pub struct Slots {
    states: Vec<SlotState>,
    kv: KvLimits,
    context: usize,
    inflation: u64,
}

impl Slots {
    /// Creates empty slots.
    pub fn new(limits: &Limits) -> Self {
        let states = vec![SlotState::EMPTY; limits.slots];
        Self { states, kv: limits.kv, context: limits.context, inflation: 0 }
    }

    /// Returns the state of every slot.
    pub fn states(&self) -> &[SlotState] {
        &self.states
    }

    /// Returns the state of one slot.
    pub fn state(&self, slot: SlotId) -> &SlotState {
        &self.states[slot.index()]
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = (SlotId, &SlotState)> {
        self.states.iter().enumerate().map(|(index, state)| (SlotId(index as u32), state))
    }

    /// Returns the size of the cache in bytes. Every row in use has the capacity of the longest one.
    pub fn bytes(&self) -> usize {
        self.bytes_with(None, 0)
    }

    /// Returns true if the budget has room for a row of `length` tokens, in `newcomer` (the slot of a new sequence) or
    /// in a slot that is already held.
    pub fn fits(&self, newcomer: Option<SlotId>, length: usize) -> bool {
        self.bytes_with(newcomer, length) <= self.kv.budget
    }

    /// Returns the size of the cache in bytes with a row of `length` tokens, as in [`Self::fits`].
    pub fn bytes_with(&self, newcomer: Option<SlotId>, length: usize) -> usize {
        let mut rows = usize::from(newcomer.is_some());
        let mut longest = length;
        for (_, state) in self.ids().filter(|(id, state)| Some(*id) != newcomer && state.takes_row()) {
            rows += 1;
            longest = longest.max(state.footprint());
        }
        self.kv.bytes(rows, self.kv.capacity_for(longest, self.context))
    }

    /// Returns the value of all evictions so far.
    pub(super) fn inflation(&self) -> u64 {
        self.inflation
    }

    /// Records an eviction of tokens of this value.
    pub fn evict(&mut self, value: u64) {
        self.inflation = self.inflation.saturating_add(value);
    }

    /// Returns true if an idle slot has tokens.
    pub fn has_idle(&self) -> bool {
        self.states.iter().any(|state| matches!(state, SlotState::Idle { tokens, .. } if !tokens.is_empty()))
    }

    /// Returns an idle slot with tokens that fill at most half of its row, if there is one.
    pub fn half_empty(&self) -> Option<SlotId> {
        let longest = self.states.iter().map(SlotState::footprint).max().unwrap_or(0);
        let capacity = self.kv.capacity_for(longest, self.context);
        let mut idle = self.ids().filter(|(_, state)| matches!(state, SlotState::Idle { .. }));
        idle.find(|(_, state)| (1..=capacity / 2).contains(&state.length())).map(|(slot, _)| slot)
    }

    /// Removes and returns the stored end of the last prompt in an idle slot.
    pub fn take_prompt_end(&mut self, slot: SlotId) -> Option<PromptEnd> {
        match &mut self.states[slot.index()] {
            SlotState::Idle { prompt_end, .. } => prompt_end.take(),
            SlotState::Held { .. } | SlotState::Retired { .. } => None,
        }
    }

    /// Assigns a slot to a sequence that has `length` tokens in it and needs memory for `reserved`.
    pub fn hold(&mut self, slot: SlotId, length: usize, reserved: usize) {
        self.states[slot.index()] = SlotState::Held { length, reserved };
    }

    /// Records that a held slot has grown to `length` tokens.
    pub fn grow(&mut self, slot: SlotId, length: usize) {
        let reserved = self.state(slot).footprint().max(length);
        self.hold(slot, length, reserved);
    }

    /// Makes a slot idle. It keeps its tokens, and the logits at the end of the prompt.
    pub fn release(&mut self, slot: SlotId, tokens: Vec<Position>, now: u64, prompt_end: Option<PromptEnd>) {
        self.states[slot.index()] =
            SlotState::Idle { tokens, released: now, inflation: self.inflation, prompt_end };
    }

    /// Empties every slot, including retired ones, after the device has lost its memory.
    pub fn forget(&mut self) {
        self.states.fill(SlotState::EMPTY);
    }

    /// Retires a slot.
    pub fn retire(&mut self, slot: SlotId) {
        self.states[slot.index()] = SlotState::Retired { length: self.state(slot).footprint() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(count: usize, budget: usize) -> Slots {
        let kv = KvLimits { bytes_per_token: 10, bytes_per_slot: 0, step: 4, budget };
        Slots::new(&Limits { slots: count, context: 20, chunk: 8, batch: count, vocab: 8, kv })
    }

    #[test]
    fn rows_share_the_longest_capacity() {
        let mut s = slots(3, 240);
        assert_eq!(s.bytes(), 0);
        s.hold(SlotId(0), 5, 0);
        assert_eq!(s.bytes(), 80);
        s.release(SlotId(1), Position::of_tokens(&[7]), 0, None);
        assert_eq!(s.bytes(), 160);
        assert!(s.fits(Some(SlotId(2)), 8) && !s.fits(Some(SlotId(2)), 9));
        assert!(s.fits(None, 12) && !s.fits(None, 13));
        // The old contents of the newcomer's own slot are not counted in addition.
        assert!(s.fits(Some(SlotId(1)), 12) && !s.fits(Some(SlotId(1)), 13));
    }

    #[test]
    fn room_is_taken_when_it_is_reserved_and_kept_by_slots_that_were_given_up() {
        let mut s = slots(2, 1000);
        s.hold(SlotId(0), 0, 9);
        assert_eq!(s.bytes(), 120);
        s.grow(SlotId(0), 3);
        assert_eq!((s.bytes(), s.state(SlotId(0)).length()), (120, 3));
        s.grow(SlotId(0), 13);
        assert_eq!(s.bytes(), 160);
        s.retire(SlotId(0));
        assert_eq!(s.bytes(), 160);
    }
}
