//! A copy of keys and values from one slot to another of the same executor.

use std::ops::Range;

use narthex_spec::SlotId;

use super::{StepError, check_read};

/// Tokens of one slot whose keys and values another slot gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvCopy {
    /// The slot that holds them.
    pub from: SlotId,
    /// Another slot, which holds the same tokens up to `tokens.start`.
    pub to: SlotId,
    /// Their positions; at least one.
    pub tokens: Range<usize>,
}

impl KvCopy {
    /// Checks the copy between two slots that hold so many tokens.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] that says what was expected and what was found.
    pub fn check(&self, held_from: usize, held_to: usize) -> Result<(), StepError> {
        check_read(&self.tokens, held_from)?;
        if self.from == self.to {
            return Err(Self::same_slot(self.from));
        }
        if self.tokens.start > held_to {
            let start = self.tokens.start;
            return Err(StepError::bad_plan(format!(
                "slot {} holds {held_to} tokens, the copy begins at {start}",
                self.to.0
            )));
        }
        Ok(())
    }

    /// The error for a copy from a slot to itself.
    pub fn same_slot(slot: SlotId) -> StepError {
        StepError::bad_plan(format!("slot {} cannot be copied to itself", slot.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_copies_between_two_slots_that_join_on_are_made() {
        let check = |to: u32, tokens: Range<usize>, expect: &str| {
            let copy = KvCopy { from: SlotId(1), to: SlotId(to), tokens };
            let found = format!("{:?}", copy.check(6, 3).map_err(|error| error.to_string()));
            assert!(found.contains(expect), "{found}");
        };
        check(0, 3..6, "Ok");
        check(0, 0..1, "Ok");
        check(0, 4..6, "slot 0 holds 3 tokens, the copy begins at 4");
        check(0, 3..7, "within the 6 held, found 3 to 7");
        check(0, 2..2, "found 2 to 2");
        check(1, 3..6, "slot 1 cannot be copied to itself");
    }
}
