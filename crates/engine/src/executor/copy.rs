//! Copies of keys and values from one slot to another of the same executor.

use std::ops::Range;

use narthex_spec::SlotId;

use super::{StepError, check_read};

/// Tokens of one slot whose keys and values are copied to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvCopy {
    /// Source slot.
    pub from: SlotId,
    /// Target slot. Its tokens before `tokens.start` are the same as the source's.
    pub to: SlotId,
    /// Positions of the tokens. There is at least one.
    pub tokens: Range<usize>,
}

impl KvCopy {
    /// Checks the copy between slots with these numbers of tokens.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] with the expected and the found value.
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

    /// Returns the error for a copy from a slot to itself.
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
