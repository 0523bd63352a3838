//! The engine loop without its thread: a queue, the running sequences, and steps.
//!
//! A step is a transaction: plan → reserve → execute → sample and commit → report. A failure before the commit leaves
//! each sequence unchanged or ends it with the reason. `admission` assigns slots and preempts sequences; `speculation`
//! adds drafts to plans; `transaction` applies a step to its sequences; `prefix_tree` keeps prefixes in memory after their
//! slots were taken; `stored_prefixes` keeps them in a storage.

mod admission;
mod prefix_tree;
mod speculation;
mod stored_prefixes;
#[cfg(feature = "testing")]
mod testing;
mod transaction;

use std::collections::VecDeque;

use narthex_spec::{SlotId, TokenId};

use crate::{
    config::{EngineConfig, EngineStats},
    draft_model::DraftModel,
    executor::{Executor, Limits, StepError, StepPlan},
    kv::{PrefixTree, Slots},
    position::Position,
    prefix_storage::PrefixStorage,
    request::{Finish, Request, SubmitError},
    sample::Scratch,
    schedule::{
        checkpoints, media,
        pace::PromptPace,
        plan,
        policy::{self, Bounds, Grant},
    },
    sequence::Sequence,
    speculate::{Acceptance, DraftSource, MAX_WIDTH, StepCosts},
    supervise::SupervisedExecutor,
};
use stored_prefixes::{OfferOutcome, StoredPrefixes};

/// Outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Something ran, or work may remain.
    Busy,
    /// Nothing can run until the storage of prefixes has read or written blocks.
    Waiting,
    /// Nothing is queued or running.
    Idle,
}

/// State of the engine.
pub struct EngineLoop {
    device: SupervisedExecutor,
    config: EngineConfig,
    slots: Slots,
    /// Prefixes that have lost their slots; `None` if the executor cannot hand over keys and values.
    tree: Option<PrefixTree>,
    /// Sequences without slots, oldest first. All of them are younger than the running ones.
    queue: VecDeque<Sequence>,
    /// Sequences with slots, oldest first.
    running: Vec<Sequence>,
    /// True after the device ran out of memory. No sequence is admitted until one ends.
    is_memory_full: bool,
    /// Number of consecutive losses of the device.
    losses: usize,
    grants: Vec<Grant>,
    plan: StepPlan,
    /// The last token of the only sequence and a draft after it, if the plan verifies one.
    draft: Vec<TokenId>,
    draft_source: DraftSource,
    draft_model: Option<DraftModel>,
    stored: Option<StoredPrefixes>,
    costs: StepCosts,
    /// Acceptance rates over the drafts of all sequences.
    acceptance: Acceptance,
    pace: PromptPace,
    scratch: Scratch,
    submitted: u64,
    finished: u64,
    /// Counters. Those that follow from other fields are added by `stats`.
    stats: EngineStats,
}

impl EngineLoop {
    /// Creates an idle engine.
    pub fn new(executor: impl Into<SupervisedExecutor>, config: EngineConfig) -> Self {
        let device = executor.into();
        let limits = device.limits();

        Self {
            config: config.within(limits),
            slots: Slots::new(limits),
            tree: Some(PrefixTree::default()),
            queue: VecDeque::new(),
            running: Vec::with_capacity(limits.slots),
            is_memory_full: false,
            losses: 0,
            grants: Vec::with_capacity(limits.slots),
            plan: StepPlan::default(),
            draft: Vec::with_capacity(1 + MAX_WIDTH),
            draft_source: DraftSource::Model,
            draft_model: None,
            stored: None,
            costs: StepCosts::new(),
            acceptance: Acceptance::default(),
            pace: PromptPace::default(),
            scratch: Scratch::new(limits.vocab),
            submitted: 0,
            finished: 0,
            stats: EngineStats::default(),
            device,
        }
    }

    /// Adds a draft model.
    pub fn with_draft_model(self, draft_model: DraftModel) -> Self {
        let draft_model = draft_model.for_limits(self.device.limits());
        Self { draft_model: Some(draft_model), ..self }
    }

    /// Adds a storage of prefixes.
    pub fn with_prefix_storage(self, storage: Box<dyn PrefixStorage>) -> Self {
        let stored = StoredPrefixes::new(storage, self.device.limits().slots);
        Self { stored: Some(stored), ..self }
    }

    /// Checks a request against an executor's limits and the width of its rows of media.
    ///
    /// # Errors
    /// All variants of [`SubmitError`] except [`SubmitError::Overloaded`] and [`SubmitError::ShutDown`].
    pub fn check(limits: &Limits, media_width: Option<usize>, request: &Request) -> Result<(), SubmitError> {
        Self::check_prompt(limits, &request.prompt)?;
        Self::check_media(media_width, request)
    }

    /// Checks the length and the tokens of a prompt against an executor's limits.
    ///
    /// # Errors
    /// [`SubmitError::Empty`], [`SubmitError::PromptTooLong`] and [`SubmitError::BadToken`].
    pub fn check_prompt(limits: &Limits, prompt: &[Position]) -> Result<(), SubmitError> {
        let longest = limits.longest();
        if prompt.is_empty() {
            return Err(SubmitError::Empty);
        }
        if prompt.len() >= longest {
            return Err(SubmitError::PromptTooLong { prompt: prompt.len(), context: longest });
        }
        let mut tokens = prompt.iter().filter_map(|position| position.as_token());
        match tokens.find(|&token| token as usize >= limits.vocab) {
            Some(token) => Err(SubmitError::BadToken { token, vocab: limits.vocab }),
            None => Ok(()),
        }
    }

    fn check_media(width: Option<usize>, request: &Request) -> Result<(), SubmitError> {
        if let Some(media) = request.media.iter().find(|media| Some(media.width()) != width) {
            let found = media.width();
            let reason = match width {
                Some(width) => {
                    format!("expected media with rows of {width} elements, found rows of {found} elements")
                }
                None => "the graph of this model takes only tokens, so it cannot take pictures or sounds"
                    .to_owned(),
            };
            return Err(SubmitError::Media { reason });
        }
        let mut rows = request.prompt.iter().filter_map(|position| position.as_row());
        if !rows.all(|(id, row)| request.media.iter().any(|media| media.id() == id && row < media.rows())) {
            let reason = "expected the rows of all media of the prompt, but some are missing".to_owned();
            return Err(SubmitError::Media { reason });
        }
        Ok(())
    }

    /// Queues a sequence whose request has been checked.
    pub(crate) fn enqueue(&mut self, mut sequence: Sequence) {
        sequence.number = self.submitted;
        self.submitted += 1;
        self.queue.push_back(sequence);
    }

    /// Returns the number of sequences that wait for a slot.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Returns the configuration in effect.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Returns the current counters.
    pub fn stats(&self) -> EngineStats {
        let draft_model = self.draft_model.as_ref();
        let tree_bytes = self.tree_bytes();
        EngineStats {
            running: self.running.len(),
            waiting: self.queue.len(),
            slots: self.device.limits().slots,
            kv_used_bytes: self.slots.bytes() + tree_bytes + draft_model.map_or(0, DraftModel::kv_used_bytes),
            prefix_bytes: tree_bytes,
            kv_budget_bytes: draft_model
                .map_or(0, DraftModel::kv_budget_bytes)
                .saturating_add(self.device.limits().kv.budget),
            kv_token_bytes: self.device.limits().kv.bytes_per_token,
            kv_slot_bytes: self.device.limits().kv.bytes_per_slot,
            ..self.stats
        }
    }

    /// Returns true if the executor has panicked, so that nothing can run.
    pub fn is_dead(&self) -> bool {
        self.device.fault().is_some()
    }

    /// Ends every sequence.
    pub fn finish_all(&mut self, finish: &Finish) {
        while !self.running.is_empty() {
            self.end(self.running.len() - 1, finish.clone());
        }
        while let Some(sequence) = self.queue.pop_front() {
            self.report(sequence, finish.clone());
        }
    }

    /// Runs one step.
    pub fn step(&mut self) -> Work {
        self.drop_cancelled();
        self.admit();
        self.reserve();
        self.plan();
        self.trim_tree();
        if !self.plan.spans.is_empty() && !self.is_dead() {
            self.stats.steps += 1;
            if let Err(error) = self.execute() {
                self.recover(&error);
            }
        }
        if let Some(fault) = self.device.fault() {
            self.finish_all(&Finish::Failed(fault));
            return Work::Idle;
        }
        let offer = self.offer_block();
        match (self.running.is_empty() && self.queue.is_empty(), offer) {
            (true, OfferOutcome::Nothing) => Work::Idle,
            (true, OfferOutcome::QueueFull) => Work::Waiting,
            (false, _) if self.is_only_reading() => Work::Waiting,
            (true, OfferOutcome::Queued) | (false, _) => Work::Busy,
        }
    }

    fn drop_cancelled(&mut self) {
        for index in (0..self.running.len()).rev() {
            if self.running[index].is_cancelled() {
                self.end(index, Finish::Cancelled);
            }
        }
        while let Some(index) = self.queue.iter().position(Sequence::is_cancelled)
            && let Some(sequence) = self.queue.remove(index)
        {
            self.report(sequence, Finish::Cancelled);
        }
    }

    fn plan(&mut self) {
        let bounds = Bounds::new(self.device.limits(), &self.config);
        let demands = self.running.iter().map(Sequence::demand);
        let bounds = match self.config.token_latency {
            Some(bound) if demands.clone().any(|demand| demand == 1) => {
                bounds.with_prompts(self.pace.tokens(bound, self.config.prefill_chunk))
            }
            _ => bounds,
        };
        policy::share(demands, &bounds, self.stats.steps, &mut self.grants);
        let has_states = self.device.limits().kv.has_states();
        let next = self.queue.front();
        if has_states {
            checkpoints::stop_at(&mut self.grants, &self.running, next);
        }
        media::keep_whole(&mut self.grants, &self.running, self.device.limits().chunk);
        plan::fill(&mut self.plan, &self.running, &self.grants);
        if has_states {
            checkpoints::mark(&mut self.plan, &self.grants, &self.running, next);
        }
        self.speculate();
    }

    /// Ends a running sequence. Its slot keeps its tokens for prompts with the same prefix, unless the sequence failed.
    fn end(&mut self, index: usize, finish: Finish) {
        let mut sequence = self.running.remove(index);
        if let Some(slot) = sequence.slot.take() {
            if let Finish::Failed(error) = &finish {
                // The sequence may have started with wrong keys or values.
                if matches!(error, StepError::Device { .. }) {
                    self.forget_tree();
                }
                self.empty(slot);
            } else {
                let kept = sequence.tokens[..sequence.cached].to_vec();
                let prompt_end = sequence.prompt_end.take().filter(|end| end.length <= sequence.cached);
                self.slots.release(slot, kept, self.stats.steps, prompt_end);
            }
        }
        self.is_memory_full = false;
        self.report(sequence, finish);
    }

    fn report(&mut self, sequence: Sequence, finish: Finish) {
        self.finished += 1;
        sequence.finish(finish);
    }

    /// Empties a slot. Returns false if that failed; the slot is then retired.
    fn empty(&mut self, slot: SlotId) -> bool {
        let emptied = self.device.truncate(slot, 0).is_ok();
        if emptied {
            self.slots.release(slot, Vec::new(), self.stats.steps, None);
        } else {
            self.slots.retire(slot);
        }
        emptied
    }
}
