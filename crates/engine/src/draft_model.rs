//! A draft model: a small decoder with the vocabulary of the model that answers. It proposes the next tokens of a
//! sequence that is the only one running.
//!
//! Its proposals are its most likely tokens, so that they are accepted by the same rule as drafts from earlier text. It
//! has one slot, which holds a prefix of the sequence and the proposals after it. Before the next proposal, rejected
//! tokens are removed from the slot, and the sequence's remaining tokens run.
//!
//! It must save time. The width of its drafts follows from measured times and acceptance. Running a sequence's earlier
//! tokens takes time before anything is saved, so there is a credit for it: accepted tokens increase it, all time of
//! the draft model reduces it, and it grows slowly with each step of the model that answers.

use narthex_spec::{SlotId, TokenId};

use crate::{
    config::EngineConfig,
    executor::{Executor, Limits, LogitRows, RowScan, StepError, StepPlan},
    kv::common_prefix,
    position::Position,
    schedule::pace::PromptPace,
    speculate::{Counts, StepCosts},
    supervise::SupervisedExecutor,
};

/// The only slot that is used.
const SLOT: SlotId = SlotId(0);

/// Acceptance rate assumed before the first measurement.
const PRIOR: f32 = 0.7;

/// Factor by which counts of accepted and rejected tokens are multiplied in each step without a draft, so that drafts
/// are tried again from time to time.
const COUNT_DECAY: f32 = 0.998;

/// Credit before the first draft. At the assumed times, it suffices for a prompt of 3200 tokens.
const FIRST_CREDIT: f32 = 32.0;

/// Maximum credit.
const MAX_CREDIT: f32 = 256.0;

/// Credit that each step adds: the share of the time that a draft model may waste.
const STEP_CREDIT: f32 = 0.02;

/// Times of the draft model, in steps of one token of the model that answers.
#[derive(Debug, Clone, Copy)]
struct Costs {
    /// Time of a proposed token.
    token: f32,
    /// Time of an earlier token, which runs together with others.
    prompt_token: f32,
}

/// Times assumed before the first measurement.
const ASSUMED: Costs = Costs { token: 0.2, prompt_token: 0.01 };

/// A draft model of an engine.
pub struct DraftModel {
    device: SupervisedExecutor,
    on_failure: Box<dyn FnOnce(&StepError) + Send>,
    /// Number of tokens that both models have in common, from the first.
    vocab: usize,
    /// Tokens in the slot.
    held: Vec<Position>,
    plan: StepPlan,
    pace: PromptPace,
    costs: Costs,
    acceptance: Counts,
    /// Remaining time, in steps of one token of the model that answers.
    credit: f32,
}

impl DraftModel {
    /// Creates a draft model. At its first failure, `on_failure` is called and the draft model is dropped.
    pub fn new(
        executor: impl Into<SupervisedExecutor>,
        on_failure: impl FnOnce(&StepError) + Send + 'static,
    ) -> Self {
        let device = executor.into();
        let &Limits { context, chunk, vocab, .. } = device.limits();
        Self {
            device,
            on_failure: Box::new(on_failure),
            vocab,
            // Reserved now, because steps must not allocate.
            held: Vec::with_capacity(context),
            plan: StepPlan {
                tokens: Vec::with_capacity(chunk),
                spans: Vec::with_capacity(1),
                media: Vec::new(),
            },
            pace: PromptPace::default(),
            costs: ASSUMED,
            acceptance: Counts::default(),
            credit: FIRST_CREDIT,
        }
    }

    /// Returns the draft model for a model with these limits, which may have fewer tokens.
    pub(crate) fn for_limits(self, limits: &Limits) -> Self {
        Self { vocab: self.vocab.min(limits.vocab), ..self }
    }

    /// Reports a failure.
    pub(crate) fn fail(self, error: &StepError) {
        (self.on_failure)(error);
    }

    /// Returns the bytes of the KV cache in use.
    pub(crate) fn kv_used_bytes(&self) -> usize {
        let Limits { context, kv, .. } = self.device.limits();
        let rows = usize::from(!self.held.is_empty());
        kv.bytes(rows, kv.capacity_for(self.held.len(), *context))
    }

    /// Returns the maximum number of bytes of the KV cache.
    pub(crate) fn kv_budget_bytes(&self) -> usize {
        self.device.limits().kv.budget
    }

    /// Returns the width of a draft after `tokens`, at most `most`; 0 if no draft is expected to save time, or if the
    /// credit is too low. `steps` are the times of the model that answers.
    pub(crate) fn width(&mut self, tokens: &[Position], steps: &mut StepCosts, most: usize) -> usize {
        let measured = |seconds: Option<f32>| seconds.and_then(|seconds| steps.in_steps(seconds));
        self.costs = Costs {
            token: measured(self.pace.answer_seconds()).unwrap_or(ASSUMED.token),
            prompt_token: measured(self.pace.prompt_seconds()).unwrap_or(ASSUMED.prompt_token),
        };
        self.credit = (self.credit + STEP_CREDIT).min(MAX_CREDIT);
        // The last token of a draft does not run.
        let room = self.device.limits().longest().saturating_sub(tokens.len());
        let width = steps.width(self.acceptance.rate(PRIOR), most.min(room), self.costs.token);
        if width == 0 {
            self.acceptance.scale(COUNT_DECAY);
            return 0;
        }
        let behind = tokens.len() - self.same_as_held(tokens);
        let is_affordable = self.credit >= behind as f32 * self.costs.prompt_token;
        if is_affordable { width } else { 0 }
    }

    /// Appends a draft of `width` tokens after `tokens`. If many of these have not run yet, one chunk of them runs and
    /// nothing is appended.
    ///
    /// # Errors
    /// The errors of the executor, after which the draft model cannot be used.
    pub(crate) fn propose(
        &mut self,
        tokens: &[Position],
        width: usize,
        config: &EngineConfig,
        draft: &mut Vec<TokenId>,
    ) -> Result<(), StepError> {
        // At least one token runs, because its logits are needed.
        let same = self.same_as_held(&tokens[..tokens.len().saturating_sub(1)]);
        if same < self.held.len() {
            self.device.truncate(SLOT, same)?;
            self.held.truncate(same);
        }

        let behind = &tokens[same..];
        // The draft model has neither rows of media nor the tokens that only the other model has.
        let mut tokens = behind.iter().map(|position| position.as_token());
        if !tokens.all(|token| token.is_some_and(|token| (token as usize) < self.vocab)) {
            return Ok(());
        }

        let most = self.device.limits().chunk.min(config.prefill_chunk).max(1);
        let chunk = config.token_latency.map_or(most, |bound| self.pace.tokens(bound, most));
        let now = behind.len().min(chunk);
        self.credit -= (now - 1) as f32 * self.costs.prompt_token;
        if now < behind.len() {
            return self.run(&behind[..now], LogitRows::Nothing);
        }

        self.run(behind, LogitRows::Last)?;
        for drafted in 1..=width {
            let next = self.likeliest()?;
            if next as usize >= self.vocab {
                break;
            }
            draft.push(next);
            if drafted < width {
                self.run(&[Position::token(next)], LogitRows::Last)?;
            }
        }
        Ok(())
    }

    /// Records the number of accepted tokens of a draft of `width`, whose step took `time` steps of one token.
    pub(crate) fn record(&mut self, accepted: usize, width: usize, time: f32) {
        self.acceptance.record(accepted, width);
        let took = time + width as f32 * self.costs.token;
        self.credit += (accepted + 1) as f32 - took;
    }

    /// Returns the number of a sequence's tokens that can stay in the slot.
    fn same_as_held(&self, tokens: &[Position]) -> usize {
        self.device.rewind_length(SLOT, common_prefix(&self.held, tokens))
    }

    /// Runs tokens after those in the slot.
    fn run(&mut self, tokens: &[Position], wanted: LogitRows) -> Result<(), StepError> {
        self.plan.clear();
        self.plan.push_span(SLOT, self.held.len(), tokens.iter().copied(), wanted);
        // Proposed tokens run one by one, and may be rejected.
        self.plan.spans.iter_mut().for_each(|span| span.keeps_state = span.tokens.len() > 1);
        self.device.execute(&self.plan)?;
        if let Some(time) = self.device.step_time() {
            self.pace.record(&self.plan, time);
        }
        self.held.extend_from_slice(tokens);
        Ok(())
    }

    /// Returns the most likely token after those in the slot.
    fn likeliest(&self) -> Result<TokenId, StepError> {
        match self.device.logits().scanned_row(0).scan {
            RowScan::Finite(peak) => Ok(peak.token),
            RowScan::NonFinite(value) => Err(StepError::Device {
                message: format!("it returned logits that are not finite ({value})"),
            }),
        }
    }
}
