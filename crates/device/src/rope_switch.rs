//! Switching between two sets of rotary factors (LongRoPE): one for sequences up to a length, another for longer ones.
//!
//! Keys are cached after rotation. If a sequence grows past the length, or is truncated to less, its keys were rotated
//! by the wrong set. They are then computed again from the sequence's tokens, which this module stores. It runs no
//! graph itself: it rewrites a plan so that each span uses one set.

use std::borrow::Cow;

use narthex_engine::{
    executor::{KvCopy, Limits, LogitRows, StepError, StepPlan},
    position::Position,
};
use narthex_spec::{SlotId, arch::DecoderArch};

/// Set of rotary factors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RopeFactors {
    /// Factors for sequences up to the length.
    Short,
    /// Factors for longer sequences.
    Long,
}

/// Tokens and rotary factors of every slot. It has no slots if the model has only one set of factors.
pub(crate) struct RopeSwitch {
    at: usize,
    chunk: usize,
    slots: Vec<SlotFactors>,
    /// Previous plan, kept to reuse its memory.
    rewritten: RewrittenPlan<'static>,
}

/// A plan in which each span uses one set of factors.
#[derive(Default)]
pub(crate) struct RewrittenPlan<'a> {
    pub(crate) plan: Cow<'a, StepPlan>,
    /// Set of factors of each span; empty if all use the first set.
    pub(crate) factors: Vec<RopeFactors>,
}

/// State of a slot.
#[derive(Default)]
struct SlotFactors {
    /// First tokens of the slot. Tokens are missing only if their keys were handed over.
    tokens: Vec<Position>,
    /// Set by which its keys were rotated. `None` if there are no keys, or if computing them again has failed.
    factors: Option<RopeFactors>,
}

impl RopeSwitch {
    /// Creates the state for a model. Without two sets of factors, the state has no effect.
    pub(crate) fn of(arch: &DecoderArch, limits: &Limits) -> Self {
        arch.switch().map_or_else(Self::none, |at| Self::new(at, limits.slots, limits.chunk))
    }

    /// Creates the state for a model with one set of factors.
    pub(crate) fn none() -> Self {
        Self::new(usize::MAX, 0, 1)
    }

    /// Creates the state for sequences that change their factors after `at` tokens. Spans have at most `chunk` tokens.
    fn new(at: usize, slots: usize, chunk: usize) -> Self {
        let slots = (0..slots).map(|_| SlotFactors::default()).collect();
        Self { at, chunk: chunk.max(1), slots, rewritten: RewrittenPlan::default() }
    }

    /// Returns the set for a sequence of `length` tokens.
    fn factors_for(&self, length: usize) -> RopeFactors {
        if length > self.at { RopeFactors::Long } else { RopeFactors::Short }
    }

    /// Returns the number of tokens after the first `at` that need the same set as the first of them.
    pub(crate) fn tokens_with_same_factors(&self, at: usize) -> usize {
        if at < self.at { self.at - at } else { usize::MAX }
    }

    /// Rewrites a checked plan so that each span uses one set, and adds spans before it that compute keys of the other
    /// set again. The rows of logits are the same. The caller calls [`RopeSwitch::commit`] after the plan has run.
    pub(crate) fn rewrite<'a>(&mut self, plan: &'a StepPlan) -> Result<RewrittenPlan<'a>, StepError> {
        if self.slots.is_empty() {
            return Ok(RewrittenPlan { plan: Cow::Borrowed(plan), factors: Vec::new() });
        }
        let mut rewritten: RewrittenPlan<'a> = std::mem::take(&mut self.rewritten);
        rewritten.plan.to_mut().clear();
        rewritten.plan.to_mut().media.extend_from_slice(&plan.media);
        rewritten.factors.clear();
        for span in &plan.spans {
            let tokens = plan.tokens_of(span);
            // Each token attends to the keys of a sequence that ends with it.
            let short = self.at.saturating_sub(span.at).min(tokens.len());
            for (start, part) in [(0, &tokens[..short]), (short, &tokens[short..])] {
                if part.is_empty() {
                    continue;
                }
                let last = start + part.len() == tokens.len();
                let logits =
                    if last || span.logits == LogitRows::All { span.logits } else { LogitRows::Nothing };
                self.prepare(span.slot, span.at, &tokens[..start], part.len(), &mut rewritten)?;
                let at = span.at + start;
                rewritten.plan.to_mut().push_span(span.slot, at, part.iter().copied(), logits);
                rewritten.factors.push(self.factors_for(span.at + start + part.len()));
            }
        }
        Ok(rewritten)
    }

    /// Adds the spans that compute a slot's keys again, if the next `count` tokens need another set than the keys
    /// before them.
    fn prepare(
        &mut self,
        slot: SlotId,
        at: usize,
        new: &[Position],
        count: usize,
        rewritten: &mut RewrittenPlan<'_>,
    ) -> Result<(), StepError> {
        let wanted = self.factors_for(at + new.len() + count);
        let held = &mut self.slots[slot.index()];
        if held.factors == Some(wanted) || at + new.len() == 0 {
            held.factors = Some(wanted);
            return Ok(());
        }
        if held.tokens.len() < at {
            let reason = format!(
                "slot {} has keys that were handed over for at most {} tokens and cannot be computed again",
                slot.0, self.at
            );
            return Err(StepError::BadPlan { reason });
        }

        // Until the plan has run, the keys may be of either set.
        held.factors = None;
        let before: Vec<Position> = held.tokens[..at].iter().chain(new).copied().collect();
        for (index, part) in before.chunks(self.chunk).enumerate() {
            let at = index * self.chunk;
            rewritten.plan.to_mut().push_span(slot, at, part.iter().copied(), LogitRows::Nothing);
            rewritten.factors.push(wanted);
        }
        Ok(())
    }

    /// Records that a plan has run, and keeps the memory of `rewritten` for reuse.
    pub(crate) fn commit(&mut self, plan: &StepPlan, rewritten: RewrittenPlan<'_>) {
        let Cow::Owned(memory) = rewritten.plan else { return };
        for span in &plan.spans {
            let factors = self.factors_for(span.at + span.tokens.len());
            let held = &mut self.slots[span.slot.index()];
            if held.tokens.len() == span.at {
                held.tokens.extend_from_slice(plan.tokens_of(span));
            }
            held.factors = Some(factors);
        }
        self.rewritten = RewrittenPlan { plan: Cow::Owned(memory), factors: rewritten.factors };
    }

    /// Checks that a slot's first `length` tokens can be continued as a sequence of that length.
    ///
    /// # Errors
    /// [`StepError::CannotRewind`] if the keys are of the other set and some of them were handed over, so that they
    /// cannot be computed again.
    pub(crate) fn check_kept(&self, slot: SlotId, length: usize) -> Result<(), StepError> {
        let Some(held) = self.slots.get(slot.index()) else { return Ok(()) };
        let is_known = held.tokens.len() >= length || held.factors == Some(self.factors_for(length));
        if is_known { Ok(()) } else { Err(StepError::CannotRewind) }
    }

    /// Records that a slot was truncated.
    pub(crate) fn truncate(&mut self, slot: SlotId, length: usize) {
        if let Some(held) = self.slots.get_mut(slot.index()) {
            held.tokens.truncate(length);
        }
    }

    /// Prepares a slot to receive the keys of tokens `at` to `length` from an executor with `length` tokens.
    pub(crate) fn hand_over(&mut self, slot: SlotId, at: usize, length: usize) -> Result<(), StepError> {
        let factors = self.factors_for(length);
        let Some(held) = self.slots.get_mut(slot.index()) else { return Ok(()) };
        if at > 0 && held.factors != Some(factors) {
            let reason = format!(
                "slot {} has keys for sequences of up to {} tokens and cannot be extended beyond that",
                slot.0, self.at
            );
            return Err(StepError::BadPlan { reason });
        }
        held.tokens.truncate(at);
        held.factors = Some(factors);
        Ok(())
    }

    /// Records the tokens of keys that were written after the first `at` tokens of a slot, which are known too.
    pub(crate) fn record_tokens(&mut self, slot: SlotId, at: usize, tokens: &[Position]) {
        let held = self.slots.get_mut(slot.index()).map(|held| &mut held.tokens);
        if let Some(held) = held.filter(|held| held.len() == at) {
            held.extend_from_slice(tokens);
        }
    }

    /// Returns the maximum length of a sequence with the first set.
    pub(crate) fn portable_length(&self) -> usize {
        self.at
    }

    /// Returns true if a slot's keys are of the first set.
    pub(crate) fn is_short(&self, slot: SlotId) -> bool {
        self.slots.get(slot.index()).is_none_or(|held| held.factors == Some(RopeFactors::Short))
    }

    /// Copies keys between slots by calling `run`. If the keys before `tokens` are of another set, they are copied too.
    /// If the set does not match the slot's length, the next step computes the keys again.
    pub(crate) fn copy(
        &mut self,
        copy: &KvCopy,
        run: impl FnOnce(&KvCopy) -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        if self.slots.is_empty() {
            return run(copy);
        }
        let KvCopy { from, to, tokens } = copy.clone();
        self.check_kept(from, tokens.end)?;
        let slots = self.slots.get_disjoint_mut([from.index(), to.index()]);
        let [source, target] = slots.map_err(|_| KvCopy::same_slot(from))?;
        let start = if source.factors == target.factors { tokens.start } else { 0 };
        target.tokens.truncate(tokens.start);
        let known = target.tokens.len();
        target.tokens.extend(source.tokens.iter().take(tokens.end).skip(known));
        // Until the copy has succeeded, the keys may be of either set.
        target.factors = None;
        run(&KvCopy { from, to, tokens: start..tokens.end })?;
        target.factors = source.factors;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::TokenId;

    use super::*;

    /// Position, tokens, requested rows and factors of each span.
    type Shown = Vec<(usize, Vec<TokenId>, LogitRows, RopeFactors)>;

    fn step(
        switch: &mut RopeSwitch,
        at: usize,
        tokens: &[TokenId],
        wanted: LogitRows,
    ) -> Result<Shown, StepError> {
        let mut plan = StepPlan::default();
        plan.push(SlotId(0), at, tokens, wanted);
        let rewritten = switch.rewrite(&plan)?;
        let spans = rewritten.plan.spans.iter().zip(&rewritten.factors);
        let shown = spans
            .map(|(span, factors)| {
                let tokens = rewritten.plan.tokens_of(span).iter().filter_map(|position| position.as_token());
                (span.at, tokens.collect(), span.logits, *factors)
            })
            .collect();
        assert_eq!(rewritten.plan.logits_rows(), plan.logits_rows());
        switch.commit(&plan, rewritten);
        Ok(shown)
    }

    #[test]
    fn copied_keys_are_made_anew_where_their_set_is_not_that_of_their_length() {
        use LogitRows::{Last, Nothing};
        use RopeFactors::{Long, Short};
        let mut switch = RopeSwitch::new(4, 3, 9);
        let copy = |from, to, tokens| KvCopy { from: SlotId(from), to: SlotId(to), tokens };
        step(&mut switch, 0, &[1, 2, 3, 4, 5, 6], Last).unwrap();
        let mut copied = Vec::new();
        let mut run = |switch: &mut RopeSwitch, asked: KvCopy| {
            switch.copy(&asked, |found| {
                copied.push(found.tokens.clone());
                Ok(())
            })
        };
        run(&mut switch, copy(0, 1, 0..5)).unwrap();
        run(&mut switch, copy(0, 1, 2..6)).unwrap();
        assert_eq!(
            (switch.slots[1].factors, &switch.slots[1].tokens[..]),
            (Some(Long), &[1, 2, 3, 4, 5, 6].map(Position::token)[..])
        );
        // The shorter sequence uses the other set, so the slot that receives the copy computes its keys again.
        run(&mut switch, copy(1, 0, 0..3)).unwrap();
        switch.truncate(SlotId(0), 3);
        let next = step(&mut switch, 3, &[9], Last).unwrap();
        assert_eq!(next, [(0, vec![1, 2, 3], Nothing, Short), (3, vec![9], Last, Short)]);
        // If the keys before are of the other set, they are copied too.
        run(&mut switch, copy(1, 0, 3..6)).unwrap();
        // Keys without known tokens keep their set.
        switch.hand_over(SlotId(2), 0, 6).unwrap();
        assert_eq!(run(&mut switch, copy(2, 0, 0..3)), Err(StepError::CannotRewind));
        assert_eq!(switch.check_kept(SlotId(2), 3), Err(StepError::CannotRewind));
        run(&mut switch, copy(2, 0, 0..5)).unwrap();
        assert_eq!(copied, [0..5, 2..6, 0..3, 0..6, 0..5]);
    }

    #[test]
    fn keys_that_were_written_with_their_tokens_are_computed_again() {
        use LogitRows::{Last, Nothing};
        use RopeFactors::{Long, Short};
        let mut switch = RopeSwitch::new(4, 1, 8);
        assert!(!switch.is_short(SlotId(0)));
        for (at, tokens) in [(0, [1, 2]), (2, [3, 4])] {
            switch.hand_over(SlotId(0), at, at + 2).unwrap();
            switch.record_tokens(SlotId(0), at, &Position::of_tokens(&tokens));
        }
        assert!(switch.is_short(SlotId(0)));
        let next = step(&mut switch, 4, &[5], Last).unwrap();
        assert_eq!(next, [(0, vec![1, 2, 3, 4], Nothing, Long), (4, vec![5], Last, Long)]);
        assert!(!switch.is_short(SlotId(0)));
        switch.truncate(SlotId(0), 3);
        // The keys are still those of the longer sequence.
        assert!(!switch.is_short(SlotId(0)));
        let next = step(&mut switch, 3, &[9], Last).unwrap();
        assert_eq!(next, [(0, vec![1, 2, 3], Nothing, Short), (3, vec![9], Last, Short)]);
    }

    #[test]
    fn keys_are_made_anew_on_both_sides_of_the_length() {
        use LogitRows::{All, Last, Nothing};
        use RopeFactors::{Long, Short};
        let mut switch = RopeSwitch::new(4, 1, 3);
        assert_eq!(step(&mut switch, 0, &[1, 2, 3], Last).unwrap(), [(0, vec![1, 2, 3], Last, Short)]);
        let across = step(&mut switch, 3, &[4, 5, 6], All).unwrap();
        let expected = [
            (3, vec![4], All, Short),
            (0, vec![1, 2, 3], Nothing, Long),
            (3, vec![4], Nothing, Long),
            (4, vec![5, 6], All, Long),
        ];
        assert_eq!(across, expected);
        assert_eq!(step(&mut switch, 6, &[7], Last).unwrap(), [(6, vec![7], Last, Long)]);
        switch.truncate(SlotId(0), 2);
        let back = step(&mut switch, 2, &[8], Last).unwrap();
        assert_eq!(back, [(0, vec![1, 2], Nothing, Short), (2, vec![8], Last, Short)]);
        switch.truncate(SlotId(0), 0);
        let whole = step(&mut switch, 0, &[1, 2, 3, 4, 5], Last).unwrap();
        let expected = [
            (0, vec![1, 2, 3, 4], Nothing, Short),
            (0, vec![1, 2, 3], Nothing, Long),
            (3, vec![4], Nothing, Long),
            (4, vec![5], Last, Long),
        ];
        assert_eq!(whole, expected);
    }

    #[test]
    fn keys_that_were_handed_over_last_up_to_the_length() {
        let mut switch = RopeSwitch::new(4, 1, 8);
        switch.hand_over(SlotId(0), 0, 3).unwrap();
        assert_eq!(step(&mut switch, 3, &[4], LogitRows::Last).unwrap().len(), 1);
        let error = step(&mut switch, 4, &[5], LogitRows::Last).unwrap_err().to_string();
        assert!(error.contains("cannot be computed again"), "{error}");
        let error = switch.hand_over(SlotId(0), 4, 6).unwrap_err().to_string();
        assert!(error.contains("cannot be extended"), "{error}");
        switch.hand_over(SlotId(0), 0, 6).unwrap();
        assert_eq!(step(&mut switch, 6, &[7], LogitRows::Last).unwrap().len(), 1);
    }
}
