//! What a planned step does to its sequences: all of it, or, after a failure, nothing but the failure's own cost.

use super::Core;
use crate::{
    executor::{Executor, StepError},
    request::Finish,
};

/// Losses of the device, with no step between them that succeeded, after which sequences are not run again.
const LOSSES: usize = 2;

impl Core {
    /// Runs the plan, chooses next tokens, and reports them.
    ///
    /// # Errors
    /// The executor's. No sequence has changed then.
    pub(super) fn execute(&mut self) -> Result<(), StepError> {
        let logits = self.device.step(&self.plan)?;
        self.losses = 0;
        let mut ended = Vec::new();
        let mut row = 0;
        for (span, grant) in self.plan.spans.iter().zip(&self.grants) {
            let sequence = &mut self.running[grant.index];
            let (answered, rows) = (sequence.answered(), span.logits.rows(span.tokens.len()));
            let end = sequence.commit(span.tokens.len(), logits.part(row, rows), &mut self.scratch);
            row += rows;
            self.slots.grow(span.slot, sequence.cached);
            self.stats.prompt_tokens += sequence.prompt_tokens_since(span.at) as u64;
            self.stats.generated_tokens += (sequence.answered() - answered) as u64;
            ended.extend(end.map(|finish| (grant.index, finish)));
        }
        // From the youngest on, so that ending one leaves the places of the others as they are.
        ended.sort_unstable_by_key(|(index, _)| std::cmp::Reverse(*index));
        for (index, finish) in ended {
            self.end(index, finish);
        }
        Ok(())
    }

    /// After a failed step: where memory was short it is made and the same sequences run again; otherwise those that
    /// took part end with the reason, and the others go on. After the loss of the device all of them run again.
    pub(super) fn recover(&mut self, error: &StepError) {
        if matches!(error, StepError::Lost { .. }) {
            return self.restart(error);
        }
        let again = matches!(error, StepError::OutOfMemory { .. })
            && (self.slots.oldest_idle(None).is_some() || self.running.len() > 1);
        self.grants.sort_unstable_by_key(|grant| std::cmp::Reverse(grant.index));
        for place in 0..self.grants.len() {
            let index = self.grants[place].index;
            if !(again && self.take_back(index)) {
                self.end(index, Finish::Failed(error.clone()));
            }
        }
        if again {
            self.make_memory();
        }
    }

    /// Goes on with a device that came back empty: every sequence waits to run again from its tokens. One that is lost
    /// time and again takes them with it.
    fn restart(&mut self, error: &StepError) {
        self.slots.forget();
        self.pressed = false;
        self.losses += 1;
        while let Some(mut sequence) = self.running.pop() {
            sequence.slot = None;
            if self.losses <= LOSSES {
                self.queue.push_front(sequence);
            } else {
                self.report(sequence, Finish::Failed(error.clone()));
            }
        }
    }

    /// Leaves in a sequence's slot what was there before the step.
    fn take_back(&mut self, index: usize) -> bool {
        let sequence = &self.running[index];
        sequence.slot.is_some_and(|slot| self.device.truncate(slot, sequence.cached).is_ok())
    }

    /// Empties every idle slot; where there was none, the youngest sequence makes way. Until somebody has ended
    /// nobody new runs, or the same memory would run out again at once.
    fn make_memory(&mut self) {
        let mut found = false;
        while let Some(idle) = self.slots.oldest_idle(None) {
            found = true;
            self.empty(idle);
        }
        if !found && self.running.len() > 1 {
            self.yield_youngest();
        }
        self.pressed = !self.running.is_empty();
    }
}
