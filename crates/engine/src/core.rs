//! The engine without its thread: a queue, the running sequences, and one step after another.
//!
//! A step is a transaction: plan → reserve → execute → sample and commit → report. What fails before the commit leaves
//! every sequence as it was, or ended with the reason.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::AtomicBool},
};

use narthex_spec::SlotId;

use crate::{
    executor::{Executor, Limits, StepError, StepPlan},
    invariant::Snapshot,
    kv::{PromptEnd, Slots},
    request::{Finish, Request},
    sample::Scratch,
    schedule,
    sequence::{Sequence, rows},
    worker::{EngineConfig, EngineStats, SubmitError},
};

/// Whether a step found something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// It did, or there may be more.
    Some,
    /// Nothing is queued or running.
    None,
}

/// The engine's state.
pub struct Core {
    executor: Box<dyn Executor>,
    limits: Limits,
    config: EngineConfig,
    slots: Slots,
    queue: VecDeque<Sequence>,
    /// Sequences with slots, oldest first.
    running: Vec<Sequence>,
    plan: StepPlan,
    members: Vec<usize>,
    scratch: Scratch,
    submitted: u64,
    stats: EngineStats,
    /// Set when the executor panicked: its state is unknown.
    dead: bool,
}

impl Core {
    /// An idle engine.
    pub fn new(executor: Box<dyn Executor>, config: EngineConfig) -> Self {
        let limits = executor.limits().clone();
        Self {
            slots: Slots::new(limits.clone()),
            scratch: Scratch::new(limits.vocab),
            queue: VecDeque::new(),
            running: Vec::with_capacity(limits.slots),
            plan: StepPlan::default(),
            members: Vec::with_capacity(limits.slots),
            submitted: 0,
            stats: EngineStats::default(),
            dead: false,
            executor,
            limits,
            config,
        }
    }

    /// Checks a request against the limits.
    pub fn check(limits: &Limits, request: &Request) -> Result<(), SubmitError> {
        if request.prompt.is_empty() {
            return Err(SubmitError::Empty);
        }
        if request.prompt.len() >= limits.context {
            return Err(SubmitError::PromptTooLong { prompt: request.prompt.len(), context: limits.context });
        }
        match request.prompt.iter().find(|&&token| token as usize >= limits.vocab) {
            Some(&token) => Err(SubmitError::BadToken { token, vocab: limits.vocab }),
            None => Ok(()),
        }
    }

    /// Queues a request that [`Self::check`] has passed.
    pub fn submit(&mut self, request: Request, cancelled: Arc<AtomicBool>) {
        let sequence = Sequence::new(self.submitted, request, self.limits.context, cancelled);
        self.submitted += 1;
        self.queue.push_back(sequence);
    }

    /// Sequences that wait for a slot.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Counters.
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            running: self.running.len(),
            waiting: self.queue.len(),
            slots: self.limits.slots,
            kv_used_bytes: self.slots.bytes(),
            kv_budget_bytes: self.limits.kv.budget,
            ..self.stats
        }
    }

    /// Ends every sequence.
    pub fn finish_all(&mut self, finish: &Finish) {
        for sequence in self.running.drain(..).chain(self.queue.drain(..)) {
            sequence.finish(finish.clone());
        }
    }

    /// Whether the executor can no longer be used.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Runs one step.
    pub fn step(&mut self) -> Work {
        self.drop_cancelled();
        self.admit();
        self.reserve();
        if self.plan.spans.is_empty() {
            let idle = self.running.is_empty() && self.queue.is_empty();
            return if idle { Work::None } else { Work::Some };
        }
        self.stats.steps += 1;
        if let Err(error) = self.execute() {
            self.recover(&error);
        }
        Work::Some
    }

    fn drop_cancelled(&mut self) {
        for index in (0..self.running.len()).rev() {
            if self.running[index].is_cancelled() {
                self.end(index, Finish::Cancelled);
            }
        }
        if self.queue.iter().any(Sequence::is_cancelled) {
            let all = std::mem::take(&mut self.queue).into_iter();
            let (gone, kept): (VecDeque<Sequence>, VecDeque<Sequence>) =
                all.partition(Sequence::is_cancelled);
            self.queue = kept;
            gone.into_iter().for_each(|sequence| sequence.finish(Finish::Cancelled));
        }
    }

    /// Gives slots to waiting sequences, first come first served.
    fn admit(&mut self) {
        while let Some(sequence) = self.queue.front() {
            let length = sequence.tokens.len();
            if !self.slots.fits_alone(length) || self.slots.all_retired() {
                if let Some(sequence) = self.queue.pop_front() {
                    sequence.finish(Finish::Failed(self.too_large(length)));
                }
                continue;
            }
            if self.running.len() >= self.config.max_running {
                return;
            }
            let Some(mut choice) = self.slots.choose(&sequence.tokens) else { return };
            if sequence.wants_prompt() {
                choice.reused = 0;
            }
            if !self.make_room(choice.slot, length) {
                return;
            }
            if self.truncate(choice.slot, choice.reused).is_err() {
                self.retire(choice.slot);
                continue;
            }
            let Some(mut sequence) = self.queue.pop_front() else { return };
            let prompt_end = self.slots.hold(choice.slot, choice.reused);
            sequence.slot = Some(choice.slot);
            sequence.cached = choice.reused;
            sequence.reused = choice.reused.min(sequence.prompt);
            self.stats.cached_tokens += choice.reused as u64;
            self.running.push(sequence);
            if choice.reused == length
                && let Some(prompt_end) = prompt_end
            {
                self.begin_from(prompt_end);
            }
        }
    }

    /// Lets the newest sequence, whose whole prompt is in its slot, begin with the distribution kept there.
    fn begin_from(&mut self, prompt_end: PromptEnd) {
        let index = self.running.len() - 1;
        let sequence = &mut self.running[index];
        let before = sequence.tokens.len();
        let logits = &sequence.prompt_end.insert(prompt_end).logits.clone();
        let end = sequence.advance(logits, &mut self.scratch);
        self.stats.generated_tokens += (sequence.tokens.len() - before) as u64;
        if let Some(end) = end {
            self.end(index, end);
        }
    }

    fn too_large(&self, length: usize) -> StepError {
        let capacity = self.limits.kv.capacity_for(length, self.limits.context);
        StepError::OutOfMemory { rows: 1, capacity, wanted: self.limits.kv.bytes(1, capacity) }
    }

    /// Forgets idle slots until `slot` may grow to `length` tokens.
    fn make_room(&mut self, slot: SlotId, length: usize) -> bool {
        while !self.slots.fits(slot, length) {
            let Some(idle) = self.slots.oldest_idle(Some(slot)) else { return false };
            self.forget(idle);
        }
        true
    }

    fn forget(&mut self, slot: SlotId) {
        match self.truncate(slot, 0) {
            Ok(()) => self.slots.release(slot, Vec::new(), self.stats.steps, None),
            Err(_) => self.retire(slot),
        }
    }

    fn truncate(&mut self, slot: SlotId, length: usize) -> Result<(), StepError> {
        if self.slots.states()[slot.index()].length() == length {
            return Ok(());
        }
        self.executor.truncate(slot, length)
    }

    /// An executor that cannot forget a slot may lack rewinding only, so the slot is not used again.
    fn retire(&mut self, slot: SlotId) {
        self.slots.retire(slot);
    }

    /// Plans the step and makes room for it; where there is none, the youngest sequence makes way.
    fn reserve(&mut self) {
        loop {
            schedule::plan(&self.running, &self.limits, &self.config, &mut self.plan, &mut self.members);
            let tight = self
                .plan
                .spans
                .iter()
                .map(|s| (s.slot, s.at + s.tokens.len()))
                .find(|&(slot, length)| !self.slots.fits(slot, length));
            let Some((slot, length)) = tight else { return };
            if self.make_room(slot, length) {
                continue;
            }
            self.yield_youngest();
            if self.running.is_empty() {
                self.plan.clear();
                self.members.clear();
                return;
            }
        }
    }

    /// Takes the slot of the youngest sequence, which waits to run again; a lone one has come as far as it can.
    fn yield_youngest(&mut self) {
        let youngest = (0..self.running.len()).max_by_key(|&index| self.running[index].number);
        let Some(index) = youngest else { return };
        if self.running.len() == 1 {
            return self.end(index, Finish::Length);
        }
        let mut sequence = self.running.remove(index);
        if let Some(slot) = sequence.slot.take() {
            self.slots.release(slot, Vec::new(), self.stats.steps, None);
            if self.executor.truncate(slot, 0).is_err() {
                self.retire(slot);
            }
        }
        sequence.cached = 0;
        self.queue.push_front(sequence);
    }

    fn execute(&mut self) -> Result<(), StepError> {
        let (executor, plan) = (&mut self.executor, &self.plan);
        let outcome = catch_unwind(AssertUnwindSafe(once(move || executor.step(plan))));
        let logits = match outcome {
            Ok(outcome) => outcome?,
            Err(_) => {
                self.dead = true;
                return Err(StepError::Device {
                    message: "the device's code panicked; please report this".to_owned(),
                });
            }
        };
        if logits.rows() != plan.logits_rows() {
            let message =
                format!("{} rows of logits came back, expected {}", logits.rows(), plan.logits_rows());
            return Err(StepError::Device { message });
        }
        let mut ended = Vec::new();
        let mut row = 0;
        for (span, &index) in plan.spans.iter().zip(&self.members) {
            let sequence = &mut self.running[index];
            let (length, count) = (span.tokens.len(), span.logits.rows(span.tokens.len()));
            sequence.cached = span.at + length;
            self.slots.grow(span.slot, sequence.cached);
            let generated = sequence.tokens.len();
            self.stats.prompt_tokens += sequence.prompt.min(sequence.cached).saturating_sub(span.at) as u64;
            let mut end = None;
            if sequence.wants_prompt()
                && sequence.report_prompt(span.at, &rows(&logits, row, count), &mut self.scratch).is_break()
            {
                end = Some(Finish::Cancelled);
            }
            if end.is_none() && count > 0 && sequence.pending() == 0 {
                end = sequence.advance(logits.row(row + count - 1), &mut self.scratch);
                self.stats.generated_tokens += (sequence.tokens.len() - generated) as u64;
            }
            row += count;
            if let Some(end) = end {
                ended.push((index, end));
            }
        }
        ended.sort_by_key(|(index, _)| *index);
        for (index, end) in ended.into_iter().rev() {
            self.end(index, end);
        }
        Ok(())
    }

    /// Ends a running sequence; its slot keeps what it holds, for prompts that begin alike.
    fn end(&mut self, index: usize, finish: Finish) {
        let mut sequence = self.running.remove(index);
        if let Some(slot) = sequence.slot {
            let failed = matches!(finish, Finish::Failed(_));
            let prompt_end =
                sequence.prompt_end.take().filter(|end| !failed && end.length <= sequence.cached);
            let kept = if failed { Vec::new() } else { sequence.tokens[..sequence.cached].to_vec() };
            self.slots.release(slot, kept, self.stats.steps, prompt_end);
            if failed && (self.dead || self.executor.truncate(slot, 0).is_err()) {
                self.retire(slot);
            }
        }
        sequence.finish(finish);
    }

    /// After a failed step: memory is made, or the sequences that took part end with the reason.
    fn recover(&mut self, error: &StepError) {
        if matches!(error, StepError::OutOfMemory { .. }) {
            if let Some(idle) = self.slots.oldest_idle(None) {
                return self.forget(idle);
            }
            if self.running.len() > 1 {
                return self.yield_youngest();
            }
        }
        let mut members = std::mem::take(&mut self.members);
        members.sort_unstable();
        for index in members.drain(..).rev() {
            self.end(index, Finish::Failed(error.clone()));
        }
        self.members = members;
        if self.dead {
            self.finish_all(&Finish::Failed(error.clone()));
        }
    }

    /// A copy of what the invariants speak of.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(
            self.slots.states().to_vec(),
            self.running.iter().map(|s| (s.number, s.slot, s.cached, s.tokens.len())).collect(),
            self.queue.iter().map(|s| s.number).collect(),
            self.stats(),
        )
    }
}

/// Tells the compiler that a closure is called once, so that what it borrows may leave it.
fn once<R>(call: impl FnOnce() -> R) -> impl FnOnce() -> R {
    call
}
