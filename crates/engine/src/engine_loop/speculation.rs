//! Drafts of the next tokens, verified in one step. Only a sequence that runs alone has drafts: several sequences run
//! as one batch of single tokens, and drafts would split that batch.

use narthex_spec::Speculation;

use super::EngineLoop;
use crate::{
    executor::{Executor, LogitRows},
    request::Finish,
    speculate::{DraftSource, Lookup, MAX_WIDTH},
};

impl EngineLoop {
    /// Adds a draft to the plan for the next token of the only sequence, if a speed-up is expected.
    pub(super) fn speculate(&mut self) {
        self.draft.clear();
        let [sequence] = &self.running[..] else { return };
        let Some(slot) = sequence.slot.filter(|_| self.config.speculation == Speculation::Auto) else {
            return;
        };

        let at = sequence.cached;
        let room = sequence.draft_room().min(MAX_WIDTH);
        let most = room.min(self.device.verify_limit(at).saturating_sub(1));
        if most == 0 {
            return;
        }

        let tokens = &sequence.tokens;
        // No slot is evicted for tokens that may be rejected.
        let fits = |width: usize| width > 0 && self.slots.fits(None, tokens.len() + width);
        let found = Lookup::find(tokens).and_then(|found| {
            let rate = sequence.acceptance.rate(found.ngram, &self.acceptance);
            let width = self.costs.width(rate, most, 0.0);
            if width == 0 {
                self.acceptance.record_unused(found.ngram);
            }
            fits(width).then_some((found, width))
        });

        self.draft.extend(tokens.last().and_then(|position| position.as_token()));
        if let Some((found, width)) = found {
            self.draft_source = DraftSource::Lookup { ngram: found.ngram };
            found.draft(tokens, width, &mut self.draft);
        } else if let Some(model) = &mut self.draft_model {
            self.draft_source = DraftSource::Model;
            let width = model.width(tokens, &mut self.costs, most);
            let outcome = if fits(width) {
                model.propose(tokens, width, &self.config, &mut self.draft)
            } else {
                Ok(())
            };
            if let Err(error) = outcome {
                self.draft.truncate(1);
                self.draft_model.take().into_iter().for_each(|model| model.fail(&error));
            }
        }

        if self.draft.len() == 1 {
            return self.draft.clear();
        }

        self.slots.hold(slot, at, at + self.draft.len());
        self.plan.clear();
        self.plan.push(slot, at, &self.draft, LogitRows::All);
        self.plan.media.extend_from_slice(&self.running[0].media);
    }

    /// Records the time of a step that has run.
    pub(super) fn record_time(&mut self) {
        let Some(time) = self.device.step_time() else { return };
        let width = self.draft.len().saturating_sub(1);
        if let [span] = &self.plan.spans[..]
            && span.tokens.len() == width + 1
        {
            self.costs.record(width, time);
        }
        if self.draft.is_empty() {
            self.pace.record(&self.plan, time);
        }
    }

    /// Samples tokens after a draft has run, and truncates the slot by the rejected ones.
    pub(super) fn verify(&mut self) {
        let (Some(sequence), Some(span)) = (self.running.first_mut(), self.plan.spans.first()) else {
            return;
        };

        let slot = span.slot;
        let generated = sequence.generated();
        let draft = &self.draft[1..];

        let (accepted, end) = sequence.verify(draft, self.device.logits(), &mut self.scratch);
        match (self.draft_source, &mut self.draft_model) {
            (DraftSource::Lookup { ngram }, _) => {
                sequence.acceptance.record(ngram, accepted, draft.len());
                self.acceptance.record(ngram, accepted, draft.len());
            }
            (DraftSource::Model, Some(model)) => {
                model.record(accepted, draft.len(), self.costs.relative(draft.len()));
            }
            (DraftSource::Model, None) => {}
        }

        let cached = sequence.cached;
        self.stats.accepted_tokens += accepted as u64;
        self.stats.rejected_tokens += (draft.len() - accepted) as u64;
        self.stats.generated_tokens += (sequence.generated() - generated) as u64;
        self.slots.grow(slot, cached);
        if accepted < draft.len() && self.device.truncate(slot, cached).is_err() {
            return self.start_over(end);
        }

        if let Some(finish) = end {
            self.end(0, finish);
        }
    }

    /// Requeues the only sequence, to run again from its tokens, or reports its end. Called if the device cannot
    /// rewind. Speculation is then disabled.
    fn start_over(&mut self, end: Option<Finish>) {
        self.config.speculation = Speculation::Off;
        self.is_memory_full = false;
        let Some(sequence) = self.pop_running() else { return };
        match end {
            Some(finish) => self.report(sequence, finish),
            None => self.queue.push_front(sequence),
        }
    }
}
