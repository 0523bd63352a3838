//! The port between the engine and a device that runs a decoder.
//!
//! The implementation owns the KV memory, and the engine owns the accounting: an executor runs each [`StepPlan`] and
//! does not decide which slot is used. The port is implemented by `narthex-device`, and by a fake in `narthex-testkit`.

mod block;
mod check;
mod checkpoints;
mod copy;
mod logits;

use std::ops::Range;

use narthex_spec::{SlotId, TokenId};

use crate::position::{MediaRows, Position};

pub use block::{KvBlock, KvLayer, KvRows, KvSlice};
pub use check::{check_read, check_truncate};
pub use checkpoints::Checkpoints;
pub use copy::KvCopy;
pub use logits::{FORBIDDEN_LOGIT, Logits, Peak, RowScan, ScannedRow};

/// Limits of an executor, constant for its lifetime.
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
    /// Limits of the KV memory.
    pub kv: KvLimits,
}

impl Limits {
    /// Returns the maximum number of tokens of one sequence, including prompt and answer: the context, or the capacity
    /// of the KV budget for that sequence alone. The latter is one larger, because the newest token is not in the
    /// cache.
    pub fn longest(&self) -> usize {
        self.kv.longest(self.context)
    }
}

/// Limits of the KV memory. Every row of the cache in use reserves the same capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLimits {
    /// Bytes of one token's keys and values in all layers.
    pub bytes_per_token: usize,
    /// Bytes of one row's states, whose size does not depend on its length, with those of its checkpoints. 0 if all
    /// layers have only keys and values.
    pub bytes_per_slot: usize,
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

    /// Returns the maximum number of tokens in a row if it is the only one.
    pub fn tokens_alone(&self, context: usize) -> usize {
        let Some(budget) = self.budget.checked_sub(self.bytes_per_slot) else { return 0 };
        let tokens = budget.checked_div(self.bytes_per_token).unwrap_or(context);
        if tokens >= context { context } else { tokens - tokens % self.step.max(1) }
    }

    /// Returns the maximum number of tokens of one sequence, as [`Limits::longest`].
    pub fn longest(&self, context: usize) -> usize {
        context.min(self.tokens_alone(context).saturating_add(1))
    }

    /// Returns the bytes of `rows` rows with `capacity` tokens each.
    pub fn bytes(&self, rows: usize, capacity: usize) -> usize {
        let row = capacity.saturating_mul(self.bytes_per_token).saturating_add(self.bytes_per_slot);
        rows.saturating_mul(row)
    }

    /// Returns true if layers have states. Such a slot can be cut back only to a checkpoint, and its tokens cannot be
    /// handed over.
    pub fn has_states(&self) -> bool {
        self.bytes_per_slot > 0
    }
}

/// One step. The spans are of distinct slots. The plan's memory is reused from step to step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// New tokens and rows of media of all spans.
    pub tokens: Vec<Position>,
    /// Spans, in the order of their logits.
    pub spans: Vec<Span>,
    /// Media of all sequences in the plan.
    pub media: Vec<MediaRows>,
}

impl StepPlan {
    /// Empties the plan and keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.spans.clear();
        self.media.clear();
    }

    /// Adds a span of tokens.
    pub fn push(&mut self, slot: SlotId, at: usize, tokens: &[TokenId], logits: LogitRows) {
        self.push_span(slot, at, tokens.iter().copied().map(Position::token), logits);
    }

    /// Adds a span of tokens and rows of media. The media must be in [`Self::media`].
    pub fn push_span(
        &mut self,
        slot: SlotId,
        at: usize,
        tokens: impl IntoIterator<Item = Position>,
        logits: LogitRows,
    ) {
        let start = self.tokens.len();
        self.tokens.extend(tokens);
        let tokens = start..self.tokens.len();
        self.spans.push(Span { slot, at, tokens, logits, keeps_state: false });
    }

    /// Returns the new tokens of one span.
    pub fn tokens_of(&self, span: &Span) -> &[Position] {
        &self.tokens[span.tokens.clone()]
    }

    /// Returns the row of a medium, if the plan has it. A token has none.
    pub fn row(&self, position: Position) -> Option<&[f32]> {
        let (id, row) = position.as_row()?;
        self.media.iter().find(|media| media.id() == id)?.row(row)
    }

    /// Returns the number of rows of logits that all spans request.
    pub fn logits_rows(&self) -> usize {
        self.spans.iter().map(|span| span.logits.rows(span.tokens.len())).sum()
    }
}

/// New tokens of one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Slot of the tokens.
    pub slot: SlotId,
    /// Position of the first new token: the number of tokens already in the slot.
    pub at: usize,
    /// New tokens as a range of the plan's tokens. There is at least one.
    pub tokens: Range<usize>,
    /// Requested rows of logits.
    pub logits: LogitRows,
    /// True if a slot with states makes a checkpoint after the tokens.
    pub keeps_state: bool,
}

/// Rows of logits that a span requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitRows {
    /// No rows, as for an inner chunk of a prompt.
    Nothing,
    /// The row of the last token.
    Last,
    /// The rows of all tokens.
    All,
}

impl LogitRows {
    /// Returns the number of rows for a span of `tokens` tokens.
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
    /// The cache cannot grow, because of the memory or the budget.
    #[error(
        "the KV cache needs {wanted} bytes for {rows} sequences of {capacity} tokens, more than available"
    )]
    OutOfMemory {
        /// Number of rows that the cache would have.
        rows: usize,
        /// Number of tokens in each row.
        capacity: usize,
        /// Size of the cache in bytes.
        wanted: usize,
    },
    /// The plan violates the executor's limits. This is a defect of the caller.
    #[error("step plan refused: {reason}")]
    BadPlan {
        /// Reason for the refusal.
        reason: String,
    },
    /// The executor cannot remove tokens from a slot.
    #[error("this device cannot rewind a sequence")]
    CannotRewind,
    /// The device was lost, with the contents of every slot.
    #[error("the device was lost: {message}")]
    Lost {
        /// Message of the runtime.
        message: String,
    },
    /// The executor panicked. Its state is unknown, so it cannot be used again.
    #[error("the device failed: its code panicked; load the model again, and please report this")]
    Panicked,
    /// The device failed.
    #[error("the device failed: {message}")]
    Device {
        /// Message of the runtime.
        message: String,
    },
}

impl StepError {
    /// Returns the error for a plan that is refused.
    pub fn bad_plan(reason: impl Into<String>) -> Self {
        Self::BadPlan { reason: reason.into() }
    }
}

/// Runs planned steps on a device. The implementation owns the KV memory; the engine owns the accounting.
pub trait Executor: Send {
    /// Returns the limits of its plans.
    fn limits(&self) -> &Limits;

    /// Runs one step. Afterwards, the slot of each span has `at + tokens.len()` tokens.
    ///
    /// # Errors
    /// After any error except [`StepError::Lost`], the slots in the plan have their first `at` tokens. Further contents
    /// are undefined; the caller truncates these slots to `at` tokens or fewer before it uses them again. After
    /// [`StepError::Lost`], all slots are empty, including those that are not in the plan.
    fn execute(&mut self, plan: &StepPlan) -> Result<(), StepError>;

    /// Returns the logits of the last step. If that step failed or no step has run, the rows are unspecified.
    fn logits(&self) -> Logits<'_>;

    /// Runs one step and returns its logits.
    ///
    /// # Errors
    /// The errors of [`Self::execute`].
    fn step(&mut self, plan: &StepPlan) -> Result<Logits<'_>, StepError> {
        self.execute(plan)?;
        Ok(self.logits())
    }

    /// Keeps only the first `len` tokens of a slot, which must have at least as many. If `len` is 0, its memory is
    /// released.
    ///
    /// # Errors
    /// [`StepError::CannotRewind`] leaves the slot unchanged. A device that cannot rewind can still empty a slot.
    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError>;

    /// Returns the largest length, at most `len`, to which [`Self::truncate`] can cut a slot and with which
    /// [`Self::copy_kv`] can copy its tokens. A slot with states can keep all of its tokens or those before a
    /// checkpoint ([`Checkpoints`]).
    fn rewind_length(&self, slot: SlotId, len: usize) -> usize {
        let _ = slot;
        len
    }

    /// Returns the number of elements of a medium's row, or `None` if the graph takes only tokens.
    fn media_width(&self) -> Option<usize> {
        None
    }

    /// Returns the maximum number of tokens in a span that continues a slot of `at` tokens and runs in the same way as
    /// the next token of an answer: in one run, on the same device, and with the same rotary factors. 1 means that a
    /// longer span costs at least as much as its tokens one by one.
    fn verify_limit(&self, at: usize) -> usize {
        let _ = at;
        self.limits().chunk
    }

    /// Copies the keys and values of a range of a slot's tokens, which must contain at least one.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] for a slot or a range that does not exist, and from an executor that does not support it.
    fn read_kv(&self, slot: SlotId, range: Range<usize>) -> Result<KvBlock, StepError> {
        let _ = (slot, range);
        Err(StepError::bad_plan(NO_HANDOVER))
    }

    /// Writes a block after the first `at` tokens of a slot, which must have at least as many. Afterwards, the slot has
    /// `at + block.tokens()` tokens, as if it had computed them.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] for a slot, position or shape that does not fit leaves the slot unchanged. After any
    /// other error, the slot has its first `at` tokens, as after a failed step.
    fn write_kv(&mut self, slot: SlotId, at: usize, block: &KvBlock) -> Result<(), StepError> {
        let _ = (slot, at, block);
        Err(StepError::bad_plan(NO_HANDOVER))
    }

    /// Records the tokens of keys that were written after the first `at` tokens of a slot. An executor whose keys depend
    /// on the length of the sequence needs them to compute the keys again.
    fn record_tokens(&mut self, slot: SlotId, at: usize, tokens: &[Position]) {
        let _ = (slot, at, tokens);
    }

    /// Returns the maximum length of a sequence whose keys and values depend only on its tokens and those before them,
    /// so that they can be stored for other sequences. Keys of longer sequences have other rotary factors.
    fn portable_length(&self) -> usize {
        usize::MAX
    }

    /// Returns true if the keys and values of a slot are those of a sequence of at most [`Self::portable_length`].
    fn is_portable(&self, slot: SlotId) -> bool {
        let _ = slot;
        true
    }

    /// Copies keys and values from one slot to another, which then has `copy.tokens.end` tokens.
    ///
    /// # Errors
    /// The errors of [`Self::read_kv`] and [`Self::write_kv`]. The source slot is unchanged.
    fn copy_kv(&mut self, copy: &KvCopy) -> Result<(), StepError> {
        let block = self.read_kv(copy.from, copy.tokens.clone())?;
        self.write_kv(copy.to, copy.tokens.start, &block)
    }
}

const NO_HANDOVER: &str = "this executor cannot hand over keys and values";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_grows_in_steps_up_to_the_context() {
        let kv = KvLimits { bytes_per_token: 10, bytes_per_slot: 0, step: 8, budget: 0 };
        let check = |tokens, expect| assert_eq!(kv.capacity_for(tokens, 20), expect, "{tokens}");
        check(0, 8);
        check(8, 8);
        check(9, 16);
        check(17, 20);
    }

    #[test]
    fn the_longest_sequence_is_the_context_or_what_the_budget_holds() {
        let check = |bytes_per_token, budget, expect| {
            let kv = KvLimits { bytes_per_token, bytes_per_slot: 0, step: 8, budget };
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
        plan.push(SlotId(0), 0, &[1, 2, 3], LogitRows::All);
        plan.push(SlotId(1), 4, &[4, 5], LogitRows::Nothing);
        plan.push(SlotId(2), 0, &[6], LogitRows::Last);
        assert_eq!(plan.logits_rows(), 4);
        assert_eq!(plan.tokens_of(&plan.spans[1]), [4, 5].map(Position::token));
    }
}
