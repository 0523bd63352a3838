//! Prefix caching: slots keep their tokens, so a prefix that a prompt shares with a slot need not run again. A prompt
//! either takes over the idle slot with the prefix, or gets a copy of it in another slot. The copy comes from a slot or
//! from the tree of earlier sequences.
//!
//! A slot that is taken over loses its remaining tokens. Their value is the number of tokens to run again, minus an
//! amount that grows with the slot's age. This is GreedyDual (Young 1994): every eviction lowers the value of all older
//! contents by the value of the evicted contents.

use std::cmp::Reverse;

use narthex_spec::SlotId;

use super::slots::{PromptEnd, SlotState, Slots};
#[cfg(doc)]
use crate::executor::Executor;
use crate::position::Position;

/// Minimum length of a prefix that is copied. Copying this many tokens takes less time than a step.
pub(crate) const MIN_COPY: usize = 16;

/// A slot for a new sequence, and the prefix with which it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotChoice {
    /// The slot.
    pub slot: SlotId,
    /// Number of the prompt's tokens that the slot already has.
    pub reused: usize,
    /// A longer prefix to copy from another slot.
    pub copied: Option<Prefix>,
    /// Number of tokens that the slot loses and that would have to run again, minus the deduction for its age.
    pub value: u64,
}

/// First tokens of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Slot with the tokens.
    pub slot: SlotId,
    /// Number of tokens.
    pub length: usize,
}

/// Reuse of a prefix in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// A shared prefix is reused.
    Prefix,
    /// Nothing is reused, because the logits of all tokens are needed.
    Nothing,
}

/// Contents of a slot's cache, whether the slot is held or idle.
#[derive(Debug, Clone, Copy, Default)]
pub struct SlotContent<'a> {
    /// The tokens and rows of media, in order.
    pub tokens: &'a [Position],
    /// Logits at the end of the prompt among the tokens.
    pub prompt_end: Option<&'a PromptEnd>,
}

impl SlotContent<'_> {
    /// Returns the number of a prompt's tokens that need not run. The last token must run to compute its logits, unless
    /// they are stored. `rewind` returns the largest length up to a length to which the slot can be cut.
    fn shared(&self, prompt: &[Position], rewind: impl Fn(usize) -> usize) -> usize {
        let has_end = self.prompt_end.is_some_and(|end| end.length == prompt.len());
        let most = if has_end { prompt.len() } else { prompt.len().saturating_sub(1) };
        rewind(common_prefix(self.tokens, prompt).min(most))
    }
}

/// Returns the content of an idle slot. The content of any other slot is not known here, and is returned as empty.
fn idle_content(state: &SlotState) -> SlotContent<'_> {
    match state {
        SlotState::Idle { tokens, prompt_end, .. } => SlotContent { tokens, prompt_end: prompt_end.as_ref() },
        SlotState::Held { .. } | SlotState::Retired { .. } => SlotContent::default(),
    }
}

impl Slots {
    /// Returns the contents of all slots: those of idle slots at their release, and those of held slots from `running`.
    /// Retired slots have unknown contents and are returned as empty.
    pub fn contents<'a>(
        &'a self,
        running: impl Iterator<Item = (SlotId, SlotContent<'a>)>,
    ) -> Vec<SlotContent<'a>> {
        let mut contents: Vec<_> = self.states().iter().map(idle_content).collect();
        running.for_each(|(slot, content)| contents[slot.index()] = content);
        contents
    }

    /// Returns the longest prefix of a prompt in any slot. `rewind` is [`Executor::rewind_length`].
    pub fn longest_prefix(
        contents: &[SlotContent<'_>],
        prompt: &[Position],
        rewind: impl Fn(SlotId, usize) -> usize,
    ) -> Option<Prefix> {
        let prefixes = (0..).map(SlotId).zip(contents);
        prefixes
            .map(|(slot, content)| Prefix { slot, length: content.shared(prompt, |len| rewind(slot, len)) })
            .max_by_key(|prefix| (prefix.length, Reverse(prefix.slot)))
    }

    /// Returns the idle slot that costs a prompt the fewest tokens. The cost is the number of tokens that must run now,
    /// plus the value of the tokens that the slot loses. If several costs are equal, a slot without a copy is
    /// preferred, then an empty slot, then the slot that has been idle longest. `in_tree` is the number of the prompt's
    /// tokens that can be copied from outside the slots; `rewind` is [`Executor::rewind_length`].
    pub fn choose(
        &self,
        prompt: &[Position],
        reuse: Reuse,
        contents: &[SlotContent<'_>],
        in_tree: usize,
        rewind: impl Fn(SlotId, usize) -> usize,
    ) -> Option<SlotChoice> {
        let longest = Self::longest_prefix(contents, prompt, &rewind).filter(|_| reuse == Reuse::Prefix);
        let choices = self.ids().filter_map(|(slot, state)| {
            let SlotState::Idle { tokens, released, .. } = state else { return None };
            let own = match reuse {
                Reuse::Prefix => contents[slot.index()].shared(prompt, |len| rewind(slot, len)),
                Reuse::Nothing => 0,
            };
            let copied = longest.filter(|prefix| prefix.slot != slot && prefix.length >= own + MIN_COPY);
            let kept = if reuse == Reuse::Prefix { common_prefix(tokens, prompt) } else { 0 };
            let choice = SlotChoice { slot, reused: own, copied, value: self.value(slot, kept, contents) };
            let present = copied.map_or(own, |prefix| prefix.length);
            let restored = reuse == Reuse::Prefix && in_tree >= present + MIN_COPY;
            let run = prompt.len() - if restored { in_tree } else { present };
            let cost = run as u64 + choice.value;
            let is_copied = restored || copied.is_some();
            Some(((cost, is_copied, !tokens.is_empty(), *released, slot), choice))
        });
        choices.min_by_key(|(cost, _)| *cost).map(|(_, choice)| choice)
    }

    /// Returns the non-empty idle slot with the lowest value, and that value. Slots in `except` are not considered.
    pub fn least_idle(&self, except: &[SlotId], contents: &[SlotContent<'_>]) -> Option<(SlotId, u64)> {
        let idle = self.ids().filter_map(|(slot, state)| match state {
            SlotState::Idle { tokens, released, .. } if !tokens.is_empty() && !except.contains(&slot) => {
                Some((self.value(slot, 0, contents), *released, slot))
            }
            _ => None,
        });
        idle.min().map(|(value, _, slot)| (slot, value))
    }

    /// Returns the value of the tokens in an idle slot after its first `kept` tokens: their number, without those that
    /// are also in another slot, minus the deduction for the slot's age.
    fn value(&self, slot: SlotId, kept: usize, contents: &[SlotContent<'_>]) -> u64 {
        let SlotState::Idle { inflation, .. } = self.state(slot) else { return 0 };
        let own = contents[slot.index()].tokens;
        let others = contents.iter().enumerate().filter(|(other, _)| *other != slot.index());
        let elsewhere = others.map(|(_, other)| common_prefix(own, other.tokens)).max().unwrap_or(0);
        let lost = own.len().saturating_sub(elsewhere.max(kept)) as u64;
        (inflation + lost).saturating_sub(self.inflation())
    }
}

/// Returns the length of the longest common prefix.
pub(crate) fn common_prefix<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{KvLimits, Limits, RowScan};

    fn slots(count: usize) -> Slots {
        let kv = KvLimits { bytes_per_token: 10, bytes_per_slot: 0, step: 4, budget: 1 << 20 };
        Slots::new(&Limits { slots: count, context: 2000, chunk: 8, batch: 3, vocab: 8, kv })
    }

    fn choose(s: &Slots, prompt: &[u32], reuse: Reuse) -> Option<SlotChoice> {
        s.choose(&Position::of_tokens(prompt), reuse, &s.contents(std::iter::empty()), 0, |_, len| len)
    }

    #[test]
    fn the_longest_prefix_wins_then_an_empty_slot_then_the_one_idle_longest() {
        let mut s = slots(3);
        let check = |s: &Slots, prompt: &[u32], reuse, slot, reused| {
            let found = choose(s, prompt, reuse).map(|choice| (choice.slot, choice.reused, choice.copied));
            assert_eq!(found, Some((SlotId(slot), reused, None)), "{prompt:?}");
        };
        check(&s, &[1], Reuse::Prefix, 0, 0);
        s.release(SlotId(0), Position::of_tokens(&[1, 2, 3]), 5, None);
        s.release(SlotId(1), Position::of_tokens(&[1, 2]), 2, None);
        check(&s, &[1, 2, 3, 4], Reuse::Prefix, 0, 3);
        // Both slots have everything that can be reused. The older, shorter one is chosen, and the longer one is kept.
        check(&s, &[1, 2, 3], Reuse::Prefix, 1, 2);
        check(&s, &[9], Reuse::Prefix, 2, 0);
        check(&s, &[1, 2, 3, 4], Reuse::Nothing, 2, 0);
        s.hold(SlotId(2), 0, 4);
        // Slot 0 has everything that slot 1 has.
        check(&s, &[9], Reuse::Prefix, 1, 0);
        check(&s, &[1, 2, 3, 4], Reuse::Nothing, 1, 0);
        let end = PromptEnd { length: 2, logits: Box::new([0.5]), scan: RowScan::of(&[0.5]) };
        s.release(SlotId(1), Position::of_tokens(&[1, 2, 7]), 9, Some(end.clone()));
        check(&s, &[1, 2], Reuse::Prefix, 1, 2);
        check(&s, &[1, 2, 7], Reuse::Prefix, 1, 2);
        check(&s, &[1, 2], Reuse::Nothing, 0, 0);
        assert_eq!((s.take_prompt_end(SlotId(1)), s.take_prompt_end(SlotId(1))), (Some(end), None));
        s.hold(SlotId(0), 0, 4);
        s.retire(SlotId(1));
        assert_eq!(choose(&s, &[1], Reuse::Prefix), None);
    }

    /// Returns a prompt that starts with `system` shared tokens and continues with `own` tokens of its own.
    fn prompt(system: usize, agent: u32, own: usize) -> Vec<u32> {
        std::iter::repeat_n(1, system).chain((0..own as u32).map(|i| 1000 * agent + i)).collect()
    }

    fn copy(choice: Option<SlotChoice>) -> (u32, usize, Option<(u32, usize)>) {
        let choice = choice.unwrap();
        (choice.slot.0, choice.reused, choice.copied.map(|prefix| (prefix.slot.0, prefix.length)))
    }

    #[test]
    fn a_prefix_is_copied_from_idle_and_held_slots_and_tails_stay() {
        let mut s = slots(3);
        s.release(SlotId(0), Position::of_tokens(&prompt(300, 1, 100)), 1, None);
        assert_eq!(copy(choose(&s, &prompt(300, 2, 9), Reuse::Prefix)), (1, 0, Some((0, 300))));
        assert_eq!(copy(choose(&s, &prompt(300, 1, 120), Reuse::Prefix)), (0, 400, None));
        assert_eq!(copy(choose(&s, &prompt(300, 2, 9), Reuse::Nothing)), (1, 0, None));
        // A short prefix is computed again, not copied.
        assert_eq!(copy(choose(&s, &prompt(MIN_COPY - 1, 2, 9), Reuse::Prefix)), (1, 0, None));
        s.hold(SlotId(0), 350, 400);
        let held = Position::of_tokens(&prompt(300, 1, 50));
        let running = [(SlotId(0), SlotContent { tokens: &held, prompt_end: None })];
        let contents = s.contents(running.into_iter());
        let found =
            s.choose(&Position::of_tokens(&prompt(300, 2, 9)), Reuse::Prefix, &contents, 0, |_, len| len);
        assert_eq!(copy(found), (1, 0, Some((0, 300))));
        // Without an empty slot, the copy goes to the slot with the shortest tail.
        s.release(SlotId(0), Position::of_tokens(&prompt(300, 1, 100)), 1, None);
        s.release(SlotId(1), Position::of_tokens(&prompt(0, 2, 40)), 9, None);
        s.release(SlotId(2), Position::of_tokens(&prompt(0, 3, 60)), 3, None);
        assert_eq!(copy(choose(&s, &prompt(300, 4, 9), Reuse::Prefix)), (1, 0, Some((0, 300))));
    }

    #[test]
    fn a_slot_with_states_is_reused_up_to_a_checkpoint() {
        let mut s = slots(3);
        s.release(SlotId(0), Position::of_tokens(&prompt(300, 1, 100)), 1, None);
        s.release(SlotId(1), Position::of_tokens(&prompt(250, 2, 9)), 2, None);
        let choose = |prompt: &[u32], checkpoint: usize| {
            let rewind = |_, len| if len < checkpoint { 0 } else { checkpoint };
            let contents = s.contents(std::iter::empty());
            s.choose(&Position::of_tokens(prompt), Reuse::Prefix, &contents, 0, rewind)
        };
        assert_eq!(copy(choose(&prompt(300, 1, 120), 390)), (0, 390, None));
        assert_eq!(copy(choose(&prompt(300, 3, 9), 280)), (2, 0, Some((0, 280))));
        assert_eq!(copy(choose(&prompt(300, 3, 9), 301)), (2, 0, None));
    }

    #[test]
    fn a_long_tail_outlives_short_ones_and_gives_way_in_the_end() {
        let mut s = slots(3);
        s.release(SlotId(0), Position::of_tokens(&prompt(0, 1, 1000)), 0, None);
        let mut held = 0;
        for agent in 2.. {
            let own = prompt(0, agent, 100);
            let choice = choose(&s, &own, Reuse::Prefix).unwrap();
            s.evict(choice.value);
            if choice.slot == SlotId(0) {
                break;
            }
            s.release(choice.slot, Position::of_tokens(&own), u64::from(agent), None);
            held += 1;
        }
        assert!((15..30).contains(&held), "{held}");
    }

    #[test]
    fn the_least_worth_is_forgotten_first() {
        let mut s = slots(4);
        s.release(SlotId(0), Position::of_tokens(&[1]), 9, None);
        s.release(SlotId(1), Position::of_tokens(&[2]), 4, None);
        s.release(SlotId(2), Position::of_tokens(&[]), 1, None);
        s.release(SlotId(3), Position::of_tokens(&[3, 4]), 2, None);
        let least = |except: &[SlotId]| s.least_idle(except, &s.contents(std::iter::empty()));
        assert_eq!(least(&[]), Some((SlotId(1), 1)));
        assert_eq!(least(&[SlotId(1)]), Some((SlotId(0), 1)));
        assert_eq!(least(&[SlotId(1), SlotId(0)]), Some((SlotId(3), 2)));
        assert_eq!(least(&[SlotId(1), SlotId(0), SlotId(3)]), None);
    }
}
