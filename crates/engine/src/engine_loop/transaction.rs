//! Execution of a planned step: a commit to all of its sequences, or recovery from a failure.

use std::thread;

use super::EngineLoop;
use crate::{
    constraint::ActiveConstraint,
    executor::{Executor, StepError},
    request::Finish,
    sequence::Sequence,
};

/// Maximum number of consecutive device losses after which sequences run again.
const MAX_LOSSES: usize = 2;

impl EngineLoop {
    /// Runs the plan, samples next tokens and reports them.
    ///
    /// # Errors
    /// The errors of the executor. They leave every sequence unchanged.
    pub(super) fn execute(&mut self) -> Result<(), StepError> {
        self.run_plan()?;
        self.losses = 0;
        self.record_time();
        if !self.draft.is_empty() {
            self.verify();
            return Ok(());
        }

        let logits = self.device.logits();
        let mut ended = Vec::new();
        let mut row = 0;
        for (span, grant) in self.plan.spans.iter().zip(&self.grants) {
            let sequence = &mut self.running[grant.index];
            let generated = sequence.generated();
            let rows = span.logits.rows(span.tokens.len());
            let end = sequence.commit(span.tokens.len(), logits.part(row, rows), &mut self.scratch);
            row += rows;
            self.slots.grow(span.slot, sequence.cached);
            self.stats.prompt_tokens += sequence.prompt_tokens_since(span.at) as u64;
            self.stats.generated_tokens += (sequence.generated() - generated) as u64;
            ended.extend(end.map(|finish| (grant.index, finish)));
        }

        // The youngest sequence is removed first, so that the indices of the others stay valid.
        ended.sort_unstable_by_key(|(index, _)| std::cmp::Reverse(*index));
        for (index, finish) in ended {
            self.end(index, finish);
        }
        Ok(())
    }

    /// Runs the plan on the device. At the same time, constraints compute their allowed tokens on another thread.
    fn run_plan(&mut self) -> Result<(), StepError> {
        let Self { device, running, plan, .. } = self;
        let mut stale = running.iter_mut().filter_map(Sequence::stale_constraint).peekable();
        if stale.peek().is_none() {
            return device.execute(plan);
        }
        thread::scope(|scope| {
            // If the thread cannot be started, the constraint computes its tokens when they are needed.
            let _ = thread::Builder::new()
                .name("constraint".to_owned())
                .spawn_scoped(scope, move || stale.for_each(ActiveConstraint::prepare));
            device.execute(plan)
        })
    }

    /// Recovers from a failed step. After an out-of-memory error, memory is freed and the same sequences run again.
    /// After the loss of the device, all sequences run again. After other errors, the participating sequences end with
    /// the reason.
    pub(super) fn recover(&mut self, error: &StepError) {
        if matches!(error, StepError::Lost { .. }) {
            return self.restart(error);
        }
        // The step may fit in memory without its draft.
        let drafted = !self.draft.is_empty();
        let again = matches!(error, StepError::OutOfMemory { .. })
            && (self.slots.has_idle() || self.tree_bytes() > 0 || self.running.len() > 1 || drafted);
        if drafted {
            self.running.iter_mut().for_each(|sequence| sequence.can_draft = false);
        }
        self.grants.sort_unstable_by_key(|grant| std::cmp::Reverse(grant.index));
        for grant in 0..self.grants.len() {
            let index = self.grants[grant].index;
            if !(again && self.roll_back(index)) {
                self.end(index, Finish::Failed(error.clone()));
            }
        }
        if again {
            self.free_memory();
        }
    }

    /// Requeues every sequence after the device was lost and reopened empty. Repeated losses end the sequences.
    fn restart(&mut self, error: &StepError) {
        self.slots.forget();
        self.is_memory_full = false;
        self.losses += 1;
        while let Some(mut sequence) = self.running.pop() {
            sequence.slot = None;
            if self.losses <= MAX_LOSSES {
                self.queue.push_front(sequence);
            } else {
                self.report(sequence, Finish::Failed(error.clone()));
            }
        }
    }

    /// Truncates a sequence's slot to its content before the step.
    fn roll_back(&mut self, index: usize) -> bool {
        let sequence = &self.running[index];
        sequence.slot.is_some_and(|slot| self.device.truncate(slot, sequence.cached).is_ok())
    }

    /// Empties the prefix tree and every idle slot, or preempts the youngest sequence if there is nothing to empty. No
    /// sequence is admitted until one ends, because memory would run out again.
    fn free_memory(&mut self) {
        // The tree takes nothing from the slots that are emptied now.
        self.is_memory_full = true;
        let found = self.slots.has_idle() || self.tree_bytes() > 0;
        self.release_prefixes();
        while self.evict_least(&[]) {}
        if !found && self.running.len() > 1 {
            self.preempt_youngest();
        }
        self.is_memory_full = !self.running.is_empty();
    }
}
