//! Prefix caching: idle slots keep their tokens, and a prefix that they share with a prompt need not run again.

use std::cmp::Reverse;

use narthex_spec::{SlotId, TokenId};

use super::slots::{PromptEnd, SlotState, Slots};

/// A slot for a new sequence, and the length of the shared prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotChoice {
    /// The slot.
    pub slot: SlotId,
    /// Tokens of the prompt that need not run.
    pub reused: usize,
}

/// Reuse of a prefix in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// A shared prefix is reused.
    Prefix,
    /// Nothing is reused, because the logits of all tokens are needed.
    Nothing,
}

impl Slots {
    /// Returns the idle slot with the longest shared prefix, else an empty slot, else the one idle longest. The last token
    /// of the prompt must run for its logits, unless the slot stores them.
    pub fn choose(&self, prompt: &[TokenId], reuse: Reuse) -> Option<SlotChoice> {
        let most = |prompt_end: &Option<PromptEnd>| match (reuse, prompt_end) {
            (Reuse::Nothing, _) => 0,
            (Reuse::Prefix, Some(end)) if end.length == prompt.len() => prompt.len(),
            (Reuse::Prefix, _) => prompt.len().saturating_sub(1),
        };
        self.ids()
            .filter_map(|(slot, state)| match state {
                SlotState::Idle { tokens, released, prompt_end } => {
                    let reused = common_prefix(tokens, prompt).min(most(prompt_end));
                    Some((reused, tokens.is_empty(), Reverse(*released), Reverse(slot)))
                }
                SlotState::Held { .. } | SlotState::Retired { .. } => None,
            })
            .max()
            .map(|(reused, _, _, Reverse(slot))| SlotChoice { slot, reused })
    }
}

fn common_prefix(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{KvLimits, Limits, RowScan};

    #[test]
    fn the_longest_prefix_wins_then_an_empty_slot_then_the_one_idle_longest() {
        let kv = KvLimits { bytes_per_token: 10, step: 4, budget: 1 << 20 };
        let mut s = Slots::new(&Limits { slots: 3, context: 20, chunk: 8, batch: 3, vocab: 8, kv });
        let check = |s: &Slots, prompt: &[u32], reuse, slot, reused| {
            assert_eq!(
                s.choose(prompt, reuse),
                Some(SlotChoice { slot: SlotId(slot), reused }),
                "{prompt:?}"
            );
        };
        check(&s, &[1], Reuse::Prefix, 0, 0);
        s.release(SlotId(0), vec![1, 2, 3], 5, None);
        s.release(SlotId(1), vec![1, 2], 2, None);
        check(&s, &[1, 2, 3, 4], Reuse::Prefix, 0, 3);
        // Both hold all that can be reused; the older one gives way, and the longer one stays whole.
        check(&s, &[1, 2, 3], Reuse::Prefix, 1, 2);
        check(&s, &[9], Reuse::Prefix, 2, 0);
        check(&s, &[1, 2, 3, 4], Reuse::Nothing, 2, 0);
        s.hold(SlotId(2), 0, 4);
        check(&s, &[9], Reuse::Prefix, 1, 0);
        check(&s, &[1, 2, 3, 4], Reuse::Nothing, 1, 0);
        let end = PromptEnd { length: 2, logits: Box::new([0.5]), scan: RowScan::of(&[0.5]) };
        s.release(SlotId(1), vec![1, 2, 7], 9, Some(end.clone()));
        check(&s, &[1, 2], Reuse::Prefix, 1, 2);
        check(&s, &[1, 2, 7], Reuse::Prefix, 0, 2);
        check(&s, &[1, 2], Reuse::Nothing, 0, 0);
        assert_eq!((s.take_prompt_end(SlotId(1)), s.take_prompt_end(SlotId(1))), (Some(end), None));
        s.hold(SlotId(0), 0, 4);
        s.retire(SlotId(1));
        assert_eq!(s.choose(&[1], Reuse::Prefix), None);
    }
}
