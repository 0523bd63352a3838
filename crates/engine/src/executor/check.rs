//! Checks that every executor performs first. They refuse calls that violate its limits or do not match its slots.

use std::ops::Range;

use narthex_spec::SlotId;

use super::{Limits, Span, StepError, StepPlan};
use crate::position::MediaRows;

impl Limits {
    /// Checks that the executor has a slot.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] if it does not.
    pub fn check_slot(&self, slot: SlotId) -> Result<(), StepError> {
        if slot.index() < self.slots {
            return Ok(());
        }
        Err(StepError::bad_plan(format!("slot {} is unknown", slot.0)))
    }
}

impl StepPlan {
    /// Checks that an executor with these limits can run the plan. `held` returns the number of tokens in each slot.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] with the first problem.
    pub fn check(&self, limits: &Limits, held: impl Fn(SlotId) -> usize) -> Result<(), StepError> {
        for (index, span) in self.spans.iter().enumerate() {
            let slot = span.slot;
            let at = span.at;
            let length = span.tokens.len();
            limits.check_slot(slot)?;
            if self.spans[..index].iter().any(|other| other.slot == slot) {
                return Err(StepError::bad_plan(format!("slot {} occurs twice", slot.0)));
            }
            let held = held(slot);
            if at != held {
                return Err(StepError::bad_plan(format!(
                    "slot {} holds {held} tokens, the span begins at {at}",
                    slot.0
                )));
            }
            let room = limits.context.saturating_sub(at).min(limits.chunk);
            if length == 0 || length > room || span.tokens.end > self.tokens.len() {
                return Err(StepError::bad_plan(format!("a span of {length} tokens at {at} does not fit")));
            }
            self.check_tokens(span, limits.vocab)?;
        }
        Ok(())
    }

    /// Checks that the tokens of a span are below the size of the vocabulary, and that the plan has its rows of media.
    fn check_tokens(&self, span: &Span, vocab: usize) -> Result<(), StepError> {
        for &position in self.tokens_of(span) {
            match position.as_token() {
                Some(token) if token as usize >= vocab => {
                    return Err(StepError::bad_plan(format!("token {token} is not below {vocab}")));
                }
                None if self.row(position).is_none() => {
                    return Err(StepError::bad_plan("a row of a medium is not in the plan"));
                }
                Some(_) | None => {}
            }
        }
        Ok(())
    }

    /// Checks that no span ends between two rows of a medium.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] with the row.
    pub fn check_whole_media(&self) -> Result<(), StepError> {
        for span in &self.spans {
            let last = self.tokens_of(span).last().and_then(|position| position.as_row());
            let Some((id, row)) = last else { continue };
            let rows = self.media.iter().find(|media| media.id() == id).map_or(0, MediaRows::rows);
            if row + 1 < rows {
                return Err(StepError::bad_plan(format!(
                    "expected all {rows} rows of a medium in one step, found a span that ends with row {row}"
                )));
            }
        }
        Ok(())
    }

    /// Checks that the media of the plan have rows of `width` elements, or that there are none if the graph takes only
    /// tokens.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] with the expected and the found width.
    pub fn check_media(&self, width: Option<usize>) -> Result<(), StepError> {
        let Some(media) = self.media.iter().find(|media| Some(media.width()) != width) else { return Ok(()) };
        let expected =
            width.map_or_else(|| "only tokens".to_owned(), |width| format!("rows of {width} elements"));
        let found = media.width();
        Err(StepError::bad_plan(format!("expected {expected}, found a medium with rows of {found} elements")))
    }
}

/// Checks that a slot with `held` tokens can keep its first `len`.
///
/// # Errors
/// [`StepError::BadPlan`] if it has fewer.
pub fn check_truncate(slot: SlotId, len: usize, held: usize) -> Result<(), StepError> {
    if len <= held {
        return Ok(());
    }
    Err(StepError::bad_plan(format!("slot {} holds only {held} tokens", slot.0)))
}

/// Checks that a range of tokens can be read from a slot with `held` tokens.
///
/// # Errors
/// [`StepError::BadPlan`] for a range that is empty or ends after the last token.
pub fn check_read(range: &Range<usize>, held: usize) -> Result<(), StepError> {
    if range.start < range.end && range.end <= held {
        return Ok(());
    }
    let start = range.start;
    let end = range.end;
    Err(StepError::bad_plan(format!(
        "expected a range of tokens within the {held} held, found {start} to {end}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{KvLimits, LogitRows};

    #[test]
    fn plans_that_break_the_limits_are_refused_in_words() {
        let kv = KvLimits { bytes_per_token: 1, bytes_per_slot: 0, step: 1, budget: 100 };
        let limits = Limits { slots: 2, context: 8, chunk: 4, batch: 2, vocab: 10, kv };
        let check = |spans: &[(u32, usize, &[u32])], expect: &str| {
            let mut plan = StepPlan::default();
            spans.iter().for_each(|&(slot, at, tokens)| plan.push(SlotId(slot), at, tokens, LogitRows::Last));
            let outcome = plan.check(&limits, |slot| [0, 6][slot.index()]);
            let found = format!("{:?}", outcome.map_err(|error| error.to_string()));
            assert!(found.contains(expect), "{found}");
        };
        check(&[(0, 0, &[1, 2, 3, 9]), (1, 6, &[1, 2])], "Ok");
        check(&[(2, 0, &[1])], "slot 2 is unknown");
        check(&[(0, 0, &[1]), (0, 0, &[1])], "slot 0 occurs twice");
        check(&[(1, 5, &[1])], "slot 1 holds 6 tokens, the span begins at 5");
        check(&[(0, 0, &[1; 5])], "a span of 5 tokens at 0 does not fit");
        check(&[(1, 6, &[1; 3])], "a span of 3 tokens at 6 does not fit");
        check(&[(0, 0, &[])], "a span of 0 tokens");
        check(&[(0, 0, &[10])], "token 10 is not below 10");
    }

    #[test]
    fn only_what_is_held_is_read_or_kept() {
        assert!(check_read(&(0..4), 4).is_ok() && check_truncate(SlotId(0), 4, 4).is_ok());
        assert!(check_read(&(0..5), 4).is_err() && check_read(&(2..2), 4).is_err());
        assert!(check_truncate(SlotId(0), 5, 4).is_err());
    }
}
