//! The port between the engine and a device that runs a decoder.
//!
//! The implementation owns the KV memory, the engine owns the accounting: an executor runs each [`StepPlan`] and does not
//! decide which slot is in use. Implemented by `narthex-device`, and by a fake in `narthex-testkit`.

mod block;
mod check;
mod copy;
mod logits;

use std::ops::Range;

use narthex_spec::{SlotId, TokenId};

pub use block::{KvBlock, KvLayer, KvRows};
pub use check::{check_read, check_truncate};
pub use copy::KvCopy;
pub use logits::{Logits, NEVER, Peak, RowScan, ScannedRow};

/// Bounds of an executor, fixed for its lifetime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of slots.
    pub slots: usize,
    /// Maximum length of a sequence, in tokens.
    pub context: usize,
    /// Maximum number of new tokens in one span.
    pub chunk: usize,
    /// Maximum number of single-token spans in one step.
    pub batch: usize,
    /// Width of a logits row.
    pub vocab: usize,
    /// KV memory.
    pub kv: KvLimits,
}

impl Limits {
    /// Maximum number of tokens of one sequence, prompt and answer together: the context, or what the KV budget holds for
    /// that sequence alone. The newest token needs no place in the cache, hence one more.
    pub fn longest(&self) -> usize {
        self.context.min(self.kv.tokens_alone(self.context).saturating_add(1))
    }
}

/// The arithmetic of KV memory: every occupied row of the cache reserves the same capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLimits {
    /// Bytes of one token's keys and values over all layers.
    pub bytes_per_token: usize,
    /// Capacities are multiples of this many tokens.
    pub step: usize,
    /// Maximum number of bytes of the cache.
    pub budget: usize,
}

impl KvLimits {
    /// Returns the capacity that a row needs for `tokens` tokens: the next multiple of `step`, at most `context`.
    pub fn capacity_for(&self, tokens: usize, context: usize) -> usize {
        let step = self.step.max(1);
        tokens.max(1).div_ceil(step).saturating_mul(step).min(context)
    }

    /// Returns the maximum number of tokens in a row that is the only one.
    pub fn tokens_alone(&self, context: usize) -> usize {
        let tokens = self.budget.checked_div(self.bytes_per_token).unwrap_or(context);
        if tokens >= context { context } else { tokens - tokens % self.step.max(1) }
    }

    /// Returns the bytes of `rows` rows of `capacity` tokens.
    pub fn bytes(&self, rows: usize, capacity: usize) -> usize {
        rows.saturating_mul(capacity).saturating_mul(self.bytes_per_token)
    }
}

/// One step. Spans name distinct slots; the storage is reused from step to step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// The new tokens of all spans.
    pub tokens: Vec<TokenId>,
    /// The parts, in the order of their logits.
    pub spans: Vec<Span>,
}

impl StepPlan {
    /// Empties the plan and keeps its storage.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.spans.clear();
    }

    /// Adds a span.
    pub fn push(&mut self, slot: SlotId, at: usize, tokens: &[TokenId], logits: Wanted) {
        let start = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.spans.push(Span { slot, at, tokens: start..self.tokens.len(), logits });
    }

    /// The new tokens of one span.
    pub fn tokens_of(&self, span: &Span) -> &[TokenId] {
        &self.tokens[span.tokens.clone()]
    }

    /// Rows of logits that all spans ask for.
    pub fn logits_rows(&self) -> usize {
        self.spans.iter().map(|span| span.logits.rows(span.tokens.len())).sum()
    }
}

/// New tokens of one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The slot.
    pub slot: SlotId,
    /// Position of the first new token: the number of tokens already in the slot.
    pub at: usize,
    /// The new tokens, as a range of the plan's; at least one.
    pub tokens: Range<usize>,
    /// Rows of logits that it asks for.
    pub logits: Wanted,
}

/// Rows of logits that a span asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// None: an inner chunk of a prompt.
    Nothing,
    /// The last token's.
    Last,
    /// Every token's.
    All,
}

impl Wanted {
    /// Rows for a span of `tokens` tokens.
    pub fn rows(self, tokens: usize) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Last => 1,
            Self::All => tokens,
        }
    }
}

/// Error of a step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The cache cannot grow: memory, or the budget.
    #[error(
        "the KV cache needs {wanted} bytes for {rows} sequences of {capacity} tokens, more than can be had"
    )]
    OutOfMemory {
        /// Rows it would hold.
        rows: usize,
        /// Tokens per row.
        capacity: usize,
        /// Bytes in all.
        wanted: usize,
    },
    /// The plan breaks the executor's limits; a defect of the caller.
    #[error("step plan refused: {reason}")]
    BadPlan {
        /// The reason.
        reason: String,
    },
    /// The executor cannot take tokens back.
    #[error("this device cannot rewind a sequence")]
    CannotRewind,
    /// The device was lost, and the contents of every slot with it.
    #[error("the device was lost: {message}")]
    Lost {
        /// The runtime's message.
        message: String,
    },
    /// The device failed.
    #[error("the device failed: {message}")]
    Device {
        /// The runtime's message.
        message: String,
    },
}

impl StepError {
    /// A refused plan.
    pub fn bad_plan(reason: impl Into<String>) -> Self {
        Self::BadPlan { reason: reason.into() }
    }
}

/// Runs planned steps on a device. The implementation owns the KV memory; the engine owns the accounting.
pub trait Executor: Send {
    /// Bounds of its plans.
    fn limits(&self) -> &Limits;

    /// Runs one step; afterwards each span's slot holds `at + tokens.len()` tokens.
    ///
    /// # Errors
    /// Whatever the error, the slots named in the plan still hold their first `at` tokens and nothing beyond them that
    /// may be relied on; the caller truncates them to `at` or less before it names them again. Only after
    /// [`StepError::Lost`] no slot, named or not, holds anything.
    fn execute(&mut self, plan: &StepPlan) -> Result<(), StepError>;

    /// Returns the logits of the last step. Unspecified rows if that step failed or none has run.
    fn logits(&self) -> Logits<'_>;

    /// Runs one step and returns its logits.
    ///
    /// # Errors
    /// As [`Self::execute`].
    fn step(&mut self, plan: &StepPlan) -> Result<Logits<'_>, StepError> {
        self.execute(plan)?;
        Ok(self.logits())
    }

    /// Keeps only the first `len` tokens of a slot, which holds at least as many; 0 gives its memory back.
    ///
    /// # Errors
    /// [`StepError::CannotRewind`] leaves the slot as it was; a device that cannot rewind can still empty a slot.
    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError>;

    /// Returns the maximum number of tokens in a span after the first `at` of a slot that runs like the next token of an
    /// answer: in one run, on the same device, and with the same rotary factors. 1 means that longer spans cost as much
    /// as their tokens one by one, or more.
    fn verify_limit(&self, at: usize) -> usize {
        let _ = at;
        self.limits().chunk
    }

    /// Copies the keys and values of some of a slot's tokens; at least one, and all of them held.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] for a slot or a range that is not there, and from an executor that hands nothing over.
    fn read_kv(&self, slot: SlotId, range: Range<usize>) -> Result<KvBlock, StepError> {
        let _ = (slot, range);
        Err(StepError::bad_plan(NO_HANDOVER))
    }

    /// Puts a block after the first `at` tokens of a slot, which holds at least as many; afterwards it holds
    /// `at + block.tokens()` tokens, as if it had computed them.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] for a slot, place or shape that does not fit leaves the slot as it was; after any other
    /// error it still holds its first `at` tokens, as after a failed step.
    fn write_kv(&mut self, slot: SlotId, at: usize, block: &KvBlock) -> Result<(), StepError> {
        let _ = (slot, at, block);
        Err(StepError::bad_plan(NO_HANDOVER))
    }

    /// Copies keys and values from one slot to another, which then holds `copy.tokens.end` tokens.
    ///
    /// # Errors
    /// As [`Self::read_kv`] and [`Self::write_kv`]; the slot that is copied from stays as it was.
    fn copy_kv(&mut self, copy: &KvCopy) -> Result<(), StepError> {
        let block = self.read_kv(copy.from, copy.tokens.clone())?;
        self.write_kv(copy.to, copy.tokens.start, &block)
    }
}

const NO_HANDOVER: &str = "this executor hands no keys and values over";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_grows_in_steps_up_to_the_context() {
        let kv = KvLimits { bytes_per_token: 10, step: 8, budget: 0 };
        let check = |tokens, expect| assert_eq!(kv.capacity_for(tokens, 20), expect, "{tokens}");
        check(0, 8);
        check(8, 8);
        check(9, 16);
        check(17, 20);
    }

    #[test]
    fn the_longest_sequence_is_the_context_or_what_the_budget_holds() {
        let check = |bytes_per_token, budget, expect| {
            let kv = KvLimits { bytes_per_token, step: 8, budget };
            let limits = Limits { slots: 1, context: 20, chunk: 4, batch: 1, vocab: 2, kv };
            assert_eq!(limits.longest(), expect, "{budget}");
            let alone = kv.tokens_alone(20);
            assert!(alone == 0 || kv.bytes(1, kv.capacity_for(alone, 20)) <= budget);
        };
        check(10, 1000, 20);
        check(10, 200, 20);
        check(10, 199, 17);
        check(10, 159, 9);
        check(10, 79, 1);
        check(0, 0, 20);
    }

    #[test]
    fn rows_of_all_spans_are_counted() {
        let mut plan = StepPlan::default();
        plan.push(SlotId(0), 0, &[1, 2, 3], Wanted::All);
        plan.push(SlotId(1), 4, &[4, 5], Wanted::Nothing);
        plan.push(SlotId(2), 0, &[6], Wanted::Last);
        assert_eq!(plan.logits_rows(), 4);
        assert_eq!(plan.tokens_of(&plan.spans[1]), [4, 5]);
    }
}
