//! The slots of the cache: who holds each, what idle ones still remember, and the bytes that all take together.

use narthex_spec::{SlotId, TokenId};

use crate::executor::Limits;

/// The distribution after a prompt's last token, kept so that the same prompt need not run again: it costs nothing
/// then, and it is answered from the very same numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptEnd {
    /// Tokens of the prompt.
    pub length: usize,
    /// Logits after the last of them.
    pub logits: Box<[f32]>,
}

/// One slot.
#[derive(Debug, Clone, PartialEq)]
pub enum SlotState {
    /// Nobody's, with the tokens whose keys and values it still holds; none for an empty one.
    Idle {
        /// The tokens, in order.
        tokens: Vec<TokenId>,
        /// When it was released, in steps.
        released: u64,
        /// The end of the prompt that ran in it last.
        prompt_end: Option<PromptEnd>,
    },
    /// A running sequence's, holding `length` tokens.
    Held {
        /// Tokens in the cache.
        length: usize,
    },
    /// Given up: its executor could not empty it.
    Retired,
}

impl SlotState {
    /// Tokens in the cache.
    pub fn length(&self) -> usize {
        match self {
            Self::Idle { tokens, .. } => tokens.len(),
            Self::Held { length } => *length,
            Self::Retired => 0,
        }
    }

    /// Whether it takes a row of the cache.
    fn takes_row(&self) -> bool {
        match self {
            Self::Idle { tokens, .. } => !tokens.is_empty(),
            Self::Held { .. } => true,
            Self::Retired => false,
        }
    }
}

/// All slots of an executor.
#[derive(Debug, Clone)]
pub struct Slots {
    states: Vec<SlotState>,
    limits: Limits,
}

/// A slot for a new sequence, and how much of its prompt the slot holds already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The slot.
    pub slot: SlotId,
    /// Tokens of the prompt that need not run. All of them where the slot holds the distribution after the last.
    pub reused: usize,
}

impl Slots {
    /// Empty slots.
    pub fn new(limits: Limits) -> Self {
        let empty = SlotState::Idle { tokens: Vec::new(), released: 0, prompt_end: None };
        Self { states: vec![empty; limits.slots], limits }
    }

    /// Every slot's state.
    pub fn states(&self) -> &[SlotState] {
        &self.states
    }

    fn ids(&self) -> impl Iterator<Item = (SlotId, &SlotState)> {
        self.states.iter().enumerate().map(|(index, state)| (SlotId(index as u32), state))
    }

    /// Bytes that the cache takes if each slot had at least the given length: rows in use times the longest's
    /// capacity.
    fn bytes_with(&self, slot: SlotId, length: usize) -> usize {
        let others = |id: &SlotId| *id != slot;
        let rows = 1 + self.ids().filter(|(id, state)| others(id) && state.takes_row()).count();
        let longest =
            self.ids().filter(|(id, _)| others(id)).map(|(_, state)| state.length()).fold(length, usize::max);
        self.limits.kv.bytes(rows, self.limits.kv.capacity_for(longest, self.limits.context))
    }

    /// Whether a slot may grow to `length` tokens within the budget.
    pub fn fits(&self, slot: SlotId, length: usize) -> bool {
        self.bytes_with(slot, length) <= self.limits.kv.budget
    }

    /// Whether `length` tokens fit when nothing else does.
    pub fn fits_alone(&self, length: usize) -> bool {
        let capacity = self.limits.kv.capacity_for(length, self.limits.context);
        self.limits.kv.bytes(1, capacity) <= self.limits.kv.budget
    }

    /// Bytes that the cache takes now.
    pub fn bytes(&self) -> usize {
        let rows = self.states.iter().filter(|state| state.takes_row()).count();
        let longest = self.states.iter().map(SlotState::length).max().unwrap_or(0);
        if rows == 0 {
            0
        } else {
            self.limits.kv.bytes(rows, self.limits.kv.capacity_for(longest, self.limits.context))
        }
    }

    /// The idle slot that holds most of a prompt's beginning, else an empty one, else the one idle longest. The last
    /// token of the prompt is left to run, because its logits are wanted, unless the slot has kept them.
    pub fn choose(&self, prompt: &[TokenId]) -> Option<Choice> {
        self.ids()
            .filter_map(|(slot, state)| match state {
                SlotState::Idle { tokens, released, prompt_end } => {
                    let kept = prompt_end.as_ref().is_some_and(|end| end.length == prompt.len());
                    let most = if kept { prompt.len() } else { prompt.len().saturating_sub(1) };
                    let reused = common_prefix(tokens, prompt).min(most);
                    Some((
                        reused,
                        tokens.is_empty(),
                        std::cmp::Reverse(*released),
                        std::cmp::Reverse(slot.0),
                        slot,
                    ))
                }
                SlotState::Held { .. } | SlotState::Retired => None,
            })
            .max()
            .map(|(reused, .., slot)| Choice { slot, reused })
    }

    /// An idle slot that holds something, the one idle longest; never `except`.
    pub fn oldest_idle(&self, except: Option<SlotId>) -> Option<SlotId> {
        self.ids()
            .filter_map(|(slot, state)| match state {
                SlotState::Idle { tokens, released, .. } if !tokens.is_empty() && Some(slot) != except => {
                    Some((*released, slot))
                }
                _ => None,
            })
            .min()
            .map(|(_, slot)| slot)
    }

    /// Gives an idle slot to a sequence that finds `length` of its tokens in it, and what the slot kept.
    pub fn hold(&mut self, slot: SlotId, length: usize) -> Option<PromptEnd> {
        match std::mem::replace(&mut self.states[slot.index()], SlotState::Held { length }) {
            SlotState::Idle { prompt_end, .. } => prompt_end,
            SlotState::Held { .. } | SlotState::Retired => None,
        }
    }

    /// Notes that a held slot has grown.
    pub fn grow(&mut self, slot: SlotId, length: usize) {
        self.states[slot.index()] = SlotState::Held { length };
    }

    /// Takes a slot back with the tokens it holds.
    pub fn release(&mut self, slot: SlotId, tokens: Vec<TokenId>, now: u64, prompt_end: Option<PromptEnd>) {
        self.states[slot.index()] = SlotState::Idle { tokens, released: now, prompt_end };
    }

    /// Gives a slot up.
    pub fn retire(&mut self, slot: SlotId) {
        self.states[slot.index()] = SlotState::Retired;
    }

    /// Whether every slot is given up.
    pub fn all_retired(&self) -> bool {
        self.states.iter().all(|state| *state == SlotState::Retired)
    }
}

fn common_prefix(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::KvLimits;

    fn slots(count: usize, budget: usize) -> Slots {
        let kv = KvLimits { bytes_per_token: 10, step: 4, budget };
        Slots::new(Limits { slots: count, context: 20, chunk: 8, batch: count, vocab: 8, kv })
    }

    #[test]
    fn the_longest_prefix_wins_then_an_empty_slot_then_the_oldest() {
        let mut s = slots(3, 1 << 20);
        s.release(SlotId(0), vec![1, 2, 3], 5, None);
        s.release(SlotId(1), vec![1, 2], 2, None);
        let check = |s: &Slots, prompt: &[u32], slot, reused| {
            assert_eq!(s.choose(prompt), Some(Choice { slot: SlotId(slot), reused }), "{prompt:?}");
        };
        check(&s, &[1, 2, 3, 4], 0, 3);
        // Both hold all that can be reused; the older one gives way, and the longer one stays whole.
        check(&s, &[1, 2, 3], 1, 2);
        check(&s, &[9], 2, 0);
        s.hold(SlotId(2), 0);
        check(&s, &[9], 1, 0);
        let end = PromptEnd { length: 2, logits: Box::new([0.5]) };
        s.release(SlotId(1), vec![1, 2], 9, Some(end.clone()));
        check(&s, &[1, 2], 1, 2);
        check(&s, &[1, 2, 3], 0, 2);
        assert_eq!(s.hold(SlotId(1), 2), Some(end));
        s.hold(SlotId(0), 0);
        s.hold(SlotId(1), 0);
        assert_eq!(s.choose(&[1]), None);
    }

    #[test]
    fn rows_share_the_longest_capacity() {
        let mut s = slots(3, 240);
        assert_eq!(s.bytes(), 0);
        s.hold(SlotId(0), 5);
        assert_eq!(s.bytes(), 80);
        s.hold(SlotId(1), 1);
        assert_eq!(s.bytes(), 160);
        assert!(s.fits(SlotId(2), 8) && !s.fits(SlotId(2), 9));
        assert!(s.fits(SlotId(1), 12) && !s.fits(SlotId(1), 13));
        assert!(s.fits_alone(20));
        s.retire(SlotId(0));
        assert_eq!(s.bytes(), 40);
    }
}
