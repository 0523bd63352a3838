//! One sequence from submission to its end: its tokens, its progress and its sink. It is independent of other
//! sequences, budgets and the executor.

use std::{
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
};

use narthex_spec::{SlotId, Speculation, TokenId};

use crate::{
    constraint::{ActiveConstraint, Progress},
    executor::{LogitRows, Logits, RowScan, ScannedRow, StepError},
    kv::PromptEnd,
    position::{MediaRows, Position},
    request::{Finish, LogProbs, Request, SequenceHandle, TokenEvent, TokenSink, Usage},
    sample::{Sampler, Scratch, log_probs},
    speculate::Acceptance,
};

/// Maximum number of tokens in a step if the logits of all are needed. A row is as wide as the vocabulary, so the rows
/// of a long prompt would take gigabytes.
const ALL_ROWS_CHUNK: usize = 32;

/// Numbers of draft tokens of a sequence.
#[derive(Default)]
struct DraftCounts {
    accepted: usize,
    rejected: usize,
}

/// A sequence in the engine. It reports its end to its sink exactly once, even if it is dropped.
pub(crate) struct Sequence {
    /// Order of submission.
    pub(crate) number: u64,
    /// Tokens and rows of media of the prompt, and generated tokens.
    pub(crate) tokens: Vec<Position>,
    /// Media of the prompt. They are kept until the end, because the prompt may have to run again.
    pub(crate) media: Vec<MediaRows>,
    /// Number of tokens in the slot.
    pub(crate) cached: usize,
    /// Slot of a running sequence.
    pub(crate) slot: Option<SlotId>,
    /// Number of first tokens that another sequence has too, if no checkpoint was there when this one started; else 0.
    pub(crate) branch: usize,
    /// Number of prompt tokens.
    prompt: usize,
    /// Maximum number of tokens of prompt and answer together.
    max_length: usize,
    stop: Vec<TokenId>,
    sampler: Sampler,
    constraint: Option<ActiveConstraint>,
    logprobs: Option<LogProbs>,
    /// Logits after the prompt.
    pub(crate) prompt_end: Option<PromptEnd>,
    /// Number of reported prompt tokens, if requested.
    reported: usize,
    /// Number of prompt tokens that were already in the first slot.
    reused: Option<usize>,
    /// 1 after a final stop token, which is counted but not reported; otherwise 0.
    stopped: usize,
    /// False without speculation, and after a step with a draft ran out of memory.
    pub(crate) can_draft: bool,
    /// Acceptance of its drafts so far.
    pub(crate) acceptance: Acceptance,
    drafted: DraftCounts,
    handle: SequenceHandle,
    sink: Option<Box<dyn TokenSink>>,
    /// True after the sink has panicked.
    sink_panicked: bool,
}

impl Sequence {
    /// Creates a sequence of at most `longest` tokens, for a prompt that has fewer, with the handle that cancels it.
    pub(crate) fn new(number: u64, request: Request, longest: usize, handle: SequenceHandle) -> Self {
        let prompt = request.prompt.len();
        let max_length = prompt.saturating_add(request.max_tokens).min(longest).max(prompt);
        let mut tokens = request.prompt;
        let prompt_tokens: Vec<TokenId> = tokens.iter().copied().filter_map(Position::as_token).collect();
        // Reserved now, because steps must not allocate.
        tokens.reserve_exact(max_length - prompt);

        Self {
            number,
            prompt,
            cached: 0,
            slot: None,
            branch: 0,
            max_length,
            stop: request.stop,
            sampler: Sampler::new(request.sampling, &prompt_tokens, max_length - prompt),
            constraint: request.constraint.map(ActiveConstraint::new),
            tokens,
            media: request.media,
            logprobs: request.logprobs,
            prompt_end: None,
            reported: 0,
            reused: None,
            stopped: 0,
            can_draft: request.speculation == Speculation::Auto,
            acceptance: Acceptance::default(),
            drafted: DraftCounts::default(),
            handle,
            sink: Some(request.sink),
            sink_panicked: false,
        }
    }

    /// Returns the number of tokens that must run before the next one can be chosen.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.cached
    }

    /// Returns the number of tokens that could run in one step.
    pub(crate) fn demand(&self) -> usize {
        if self.has_unreported_prompt() { self.pending().min(ALL_ROWS_CHUNK) } else { self.pending() }
    }

    /// Returns the number of tokens for which the slot needs memory: the present tokens, and the next one unless it is
    /// the last, which never runs.
    pub(crate) fn footprint(&self) -> usize {
        (self.tokens.len() + 1).min(self.max_length.saturating_sub(1)).max(self.tokens.len())
    }

    /// Returns the rows of logits needed for a span that ends before token `end`.
    pub(crate) fn wanted(&self, end: usize) -> LogitRows {
        if self.has_unreported_prompt() {
            LogitRows::All
        } else if end == self.tokens.len() {
            LogitRows::Last
        } else {
            LogitRows::Nothing
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.handle.is_cancelled()
    }

    /// Returns true if prompt tokens remain to be reported.
    pub(crate) fn has_unreported_prompt(&self) -> bool {
        self.logprobs.as_ref().is_some_and(|requested| requested.prompt) && self.reported < self.prompt
    }

    /// Returns the number of prompt tokens.
    pub(crate) fn prompt_length(&self) -> usize {
        self.prompt
    }

    /// Returns the number of generated tokens.
    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Returns the number of prompt tokens that ran since the slot held `at` tokens.
    pub(crate) fn prompt_tokens_since(&self, at: usize) -> usize {
        self.prompt.min(self.cached).saturating_sub(at)
    }

    /// Assigns a slot that has `cached` of its tokens. Returns the number of prompt tokens that need not run; it is 0
    /// after a preemption, because those tokens were counted at the first start.
    pub(crate) fn start(&mut self, slot: SlotId, cached: usize) -> usize {
        self.slot = Some(slot);
        self.cached = cached;
        if self.reused.is_some() {
            return 0;
        }
        let reused = *self.reused.insert(cached.min(self.prompt));
        // If the sink panics here, its next call ends the sequence.
        let _ = self.notify(|sink| {
            sink.started(reused);
            ControlFlow::Continue(())
        });
        reused
    }

    /// Records `ran` more tokens in the slot, reports prompt tokens, and samples the next token if all have run.
    /// Returns the reason if the sequence has ended.
    pub(crate) fn commit(&mut self, ran: usize, logits: Logits<'_>, scratch: &mut Scratch) -> Option<Finish> {
        let at = self.cached;
        self.cached += ran;
        if self.has_unreported_prompt() {
            if (0..logits.rows()).any(|row| logits.scanned_row(row).scan.non_finite().is_some()) {
                return Some(not_finite());
            }
            if self.report_prompt(at, logits, scratch).is_break() {
                return Some(Finish::Cancelled);
            }
        }
        if self.pending() > 0 {
            return None;
        }
        let row = logits.scanned_row(logits.rows().checked_sub(1)?);
        if self.tokens.len() == self.prompt {
            let ScannedRow { logits, scan } = row;
            self.prompt_end = Some(PromptEnd { length: self.prompt, logits: logits.into(), scan });
        }
        self.advance(row, scratch)
    }

    /// Returns the maximum length of a draft after the last token: all of it may be accepted, and one more token is
    /// sampled after it.
    pub(crate) fn draft_room(&self) -> usize {
        let can_draft = self.can_draft && self.generated() > 0 && self.pending() == 1;
        if can_draft { (self.max_length - self.tokens.len()).saturating_sub(1) } else { 0 }
    }

    /// Records that the last token and a draft after it ran. Samples tokens from their rows of logits until one differs
    /// from the draft.
    ///
    /// Returns the number of accepted draft tokens (only these count as cached), and the reason if the sequence has
    /// ended.
    pub(crate) fn verify(
        &mut self,
        draft: &[TokenId],
        logits: Logits<'_>,
        scratch: &mut Scratch,
    ) -> (usize, Option<Finish>) {
        let start = self.tokens.len();
        let mut accepted = 0;
        let end = loop {
            // The row of the last accepted token. One call may take several tokens if some are forced.
            let end = self.advance(logits.scanned_row(accepted), scratch);
            accepted = self.tokens[start..]
                .iter()
                .zip(draft)
                .take_while(|(position, token)| position.as_token() == Some(**token))
                .count();
            if end.is_some() || start + accepted < self.tokens.len() {
                break end;
            }
        };
        self.cached = start + accepted;
        self.drafted.accepted += accepted;
        self.drafted.rejected += draft.len() - accepted;
        (accepted, end)
    }

    /// Reports the prompt tokens that follow the rows of a span: row `i` is the distribution after token `at + i`.
    fn report_prompt(&mut self, at: usize, logits: Logits<'_>, scratch: &mut Scratch) -> ControlFlow<()> {
        let Some(requested) = self.logprobs.clone() else { return ControlFlow::Continue(()) };
        if self.reported == 0 {
            self.reported = 1;
            if let Some(token) = self.tokens[0].as_token() {
                self.notify(|sink| sink.prompt_token(TokenEvent { token, logprob: None, top: &[] }))?;
            }
        }
        for row in 0..logits.rows() {
            let position = at + row + 1;
            // A preempted sequence runs its prompt again, but does not report it again.
            if position != self.reported || position >= self.prompt {
                continue;
            }
            self.reported += 1;
            // Rows of media have no probability.
            let Some(token) = self.tokens[position].as_token() else { continue };
            let (logprob, top) = log_probs(logits.scanned_row(row), token, &requested, scratch);
            self.notify(|sink| sink.prompt_token(TokenEvent { token, logprob: Some(logprob), top }))?;
        }
        ControlFlow::Continue(())
    }

    /// Starts generating from the stored logits of a prompt whose tokens are all in the slot.
    pub(crate) fn resume(&mut self, prompt_end: PromptEnd, scratch: &mut Scratch) -> Option<Finish> {
        let row = ScannedRow { logits: &prompt_end.logits, scan: prompt_end.scan };
        let end = self.advance(row, scratch);
        self.prompt_end = Some(prompt_end);
        end
    }

    /// Selects and reports the next token, which is forced or sampled. Ends the sequence if it has reached its maximum
    /// length.
    fn advance(&mut self, row: ScannedRow<'_>, scratch: &mut Scratch) -> Option<Finish> {
        if self.tokens.len() >= self.max_length {
            return Some(Finish::Length);
        }
        // Later forced tokens were taken with the token before them, unless each needs its row of logits.
        if (self.generated() == 0 || self.logprobs.is_some()) && self.find_forced(scratch) {
            return self.take_forced(row, scratch);
        }
        let allowed = match self.constraint.as_mut().map_or(Ok(None), ActiveConstraint::allowed) {
            Ok(allowed) => allowed,
            Err(reason) => return Some(Finish::Unsatisfied { reason }),
        };
        let Some(token) = self.sampler.sample(row, allowed, scratch) else {
            return Some(if allowed.is_some() { no_token(row) } else { not_finite() });
        };
        let end = self.take_with_logprob(token, row, scratch);
        if end.is_some() || self.logprobs.is_some() || !self.find_forced(scratch) {
            return end;
        }
        self.take_forced(row, scratch)
    }

    /// Writes the tokens that the constraint forces next to `scratch`. Returns true if there are any.
    fn find_forced(&mut self, scratch: &mut Scratch) -> bool {
        let Some(constraint) = &mut self.constraint else { return false };
        constraint.forced(&mut scratch.forced);
        !scratch.forced.is_empty()
    }

    /// Accepts all forced tokens, so that they run in one step. Accepts only the first one if the row of logits of each
    /// is needed.
    fn take_forced(&mut self, row: ScannedRow<'_>, scratch: &mut Scratch) -> Option<Finish> {
        let count = if self.logprobs.is_some() { 1 } else { scratch.forced.len() };
        (0..count).find_map(|index| {
            let token = scratch.forced[index];
            self.sampler.count(token);
            self.take_with_logprob(token, row, scratch)
        })
    }

    fn take_with_logprob(
        &mut self,
        token: TokenId,
        row: ScannedRow<'_>,
        scratch: &mut Scratch,
    ) -> Option<Finish> {
        let Some(requested) = &self.logprobs else {
            return self.take(TokenEvent { token, logprob: None, top: &[] });
        };
        let (logprob, top) = log_probs(row, token, requested, scratch);
        self.take(TokenEvent { token, logprob: Some(logprob), top })
    }

    /// Adds a token to the answer and reports it. Returns the reason if the sequence has ended.
    fn take(&mut self, event: TokenEvent<'_>) -> Option<Finish> {
        if self.stop.contains(&event.token) {
            self.stopped = 1;
            return Some(Finish::Stop);
        }
        self.tokens.push(Position::token(event.token));
        let progress =
            self.constraint.as_mut().map_or(Progress::Open, |constraint| constraint.accept(event.token));
        match self.notify(|sink| sink.token(event)) {
            ControlFlow::Break(()) => Some(Finish::Cancelled),
            ControlFlow::Continue(()) if progress == Progress::Complete => Some(Finish::Stop),
            ControlFlow::Continue(()) if self.tokens.len() >= self.max_length => Some(Finish::Length),
            ControlFlow::Continue(()) => None,
        }
    }

    /// Returns the constraint if its allowed tokens must be computed before the next token is chosen.
    pub(crate) fn stale_constraint(&mut self) -> Option<&mut ActiveConstraint> {
        self.constraint.as_mut().filter(|constraint| constraint.is_stale())
    }

    /// Calls the sink. After a panic it receives only the end.
    fn notify(&mut self, call: impl FnOnce(&mut dyn TokenSink) -> ControlFlow<()>) -> ControlFlow<()> {
        let Some(sink) = self.sink.as_deref_mut().filter(|_| !self.sink_panicked) else {
            return ControlFlow::Break(());
        };
        catch_unwind(AssertUnwindSafe(|| call(sink))).unwrap_or_else(|_| {
            self.sink_panicked = true;
            ControlFlow::Break(())
        })
    }

    /// Reports the end.
    pub(crate) fn finish(mut self, finish: Finish) {
        self.report_end(finish);
    }

    fn report_end(&mut self, finish: Finish) {
        let Some(mut sink) = self.sink.take() else { return };
        let usage = Usage {
            prompt_tokens: self.prompt,
            cached_tokens: self.reused.unwrap_or(0),
            completion_tokens: self.generated() + self.stopped,
            accepted_tokens: self.drafted.accepted,
            rejected_tokens: self.drafted.rejected,
        };
        let finish = if self.sink_panicked {
            let message = "the receiver of its tokens panicked; please report this".to_owned();
            Finish::Failed(StepError::Device { message })
        } else {
            finish
        };
        // A sink that panics here cannot be notified. Dropping it runs the caller's code as well.
        let _ = catch_unwind(AssertUnwindSafe(move || sink.finish(finish, usage)));
    }
}

impl Drop for Sequence {
    /// Reports the end of a sequence that was dropped before it ended, because its caller still waits.
    fn drop(&mut self) {
        self.report_end(Finish::ShutDown);
    }
}

fn not_finite() -> Finish {
    Finish::Failed(StepError::Device { message: "the logits are not finite".to_owned() })
}

/// Returns the reason for the end if no token can be sampled: the logits are not finite, or the settings forbid every
/// token that the constraint allows.
fn no_token(row: ScannedRow<'_>) -> Finish {
    match row.scan {
        RowScan::NonFinite(_) => not_finite(),
        RowScan::Finite(_) => Finish::Unsatisfied { reason: "it allows no token of the model".to_owned() },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::wake::WakeSignal;

    struct Ends(mpsc::Sender<Finish>);

    impl TokenSink for Ends {
        fn token(&mut self, _: TokenEvent<'_>) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }

        fn finish(&mut self, finish: Finish, _: Usage) {
            let _ = self.0.send(finish);
        }
    }

    fn sequence(prompt: usize, max_tokens: usize, longest: usize) -> Sequence {
        reporting(prompt, max_tokens, longest).0
    }

    fn reporting(prompt: usize, max_tokens: usize, longest: usize) -> (Sequence, mpsc::Receiver<Finish>) {
        let (sender, ends) = mpsc::channel();
        let request = Request::greedy(vec![0; prompt], max_tokens, Ends(sender));
        let handle = SequenceHandle::new(WakeSignal::default());
        (Sequence::new(0, request, longest, handle), ends)
    }

    #[test]
    fn the_end_is_reported_once_even_on_drop() {
        let (sequence, ends) = reporting(1, 1, 9);
        drop(sequence);
        assert_eq!(ends.into_iter().collect::<Vec<_>>(), [Finish::ShutDown]);
        let (sequence, ends) = reporting(1, 1, 9);
        sequence.finish(Finish::Stop);
        assert_eq!(ends.into_iter().collect::<Vec<_>>(), [Finish::Stop]);
    }

    #[test]
    fn room_is_wanted_for_the_next_token_only_where_it_will_run() {
        let check = |prompt, max_tokens, longest, expect| {
            let found = sequence(prompt, max_tokens, longest).footprint();
            assert_eq!(found, expect, "{prompt} + {max_tokens} of {longest}");
        };
        check(5, 9, 100, 6);
        check(5, 2, 100, 6);
        // The only generated token is never run.
        check(5, 1, 100, 5);
        check(5, 0, 100, 5);
        check(5, 9, 6, 5);
        check(5, usize::MAX, 100, 6);
    }

    #[test]
    fn a_sequence_ends_at_its_room_and_not_before() {
        let mut scratch = Scratch::new(2);
        let mut s = sequence(3, 2, 100);
        assert_eq!((s.pending(), s.wanted(2), s.wanted(3)), (3, LogitRows::Nothing, LogitRows::Last));
        assert_eq!(s.start(SlotId(0), 1), 1);
        let logits = [0.0, 1.0];
        assert_eq!(s.commit(2, Logits::new(&logits, 2), &mut scratch), None);
        assert_eq!((&s.tokens[..], s.pending()), (&[0, 0, 0, 1].map(Position::token)[..], 1));
        assert_eq!(s.commit(1, Logits::new(&logits, 2), &mut scratch), Some(Finish::Length));
        assert_eq!(s.generated(), 2);
    }
}
