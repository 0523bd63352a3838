//! The choice of a slot for a prompt: idle slots remember their tokens, and what they share with the prompt from its
//! first token on need not run again.

use std::cmp::Reverse;

use narthex_spec::{SlotId, TokenId};

use super::slots::{PromptEnd, SlotState, Slots};

/// A slot for a new sequence, and how much of its prompt the slot holds already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The slot.
    pub slot: SlotId,
    /// Tokens of the prompt that need not run.
    pub reused: usize,
}

/// Whether a prompt may begin with what a slot remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// It may.
    Prefix,
    /// All of it must run, because the logits of all its tokens are wanted.
    Nothing,
}

impl Slots {
    /// The idle slot that holds most of a prompt's beginning, else an empty one, else the one idle longest. The last
    /// token of the prompt is left to run, because its logits are wanted, unless the slot has kept them.
    pub fn choose(&self, prompt: &[TokenId], reuse: Reuse) -> Option<Choice> {
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
            .map(|(reused, _, _, Reverse(slot))| Choice { slot, reused })
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
            assert_eq!(s.choose(prompt, reuse), Some(Choice { slot: SlotId(slot), reused }), "{prompt:?}");
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
