//! Requests and their results: an error or a handle, then tokens as they are generated.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use narthex_spec::{Speculation, TokenId};

use crate::{
    constraint::Constraint,
    executor::StepError,
    position::{MediaRows, Position},
    wake::WakeSignal,
};

/// One sequence to generate.
pub struct Request {
    /// Tokens and rows of media of the prompt. There must be at least one.
    pub prompt: Vec<Position>,
    /// Media whose rows the prompt has.
    pub media: Vec<MediaRows>,
    /// Maximum number of generated tokens, which the context and the KV budget also limit
    /// ([`Limits::longest`](crate::executor::Limits::longest)). 0 runs only the prompt.
    pub max_tokens: usize,
    /// Tokens that end the sequence. They are not reported.
    pub stop: Vec<TokenId>,
    /// Sampling settings.
    pub sampling: Sampling,
    /// Restriction of the generated tokens.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Log-probabilities to report for generated tokens and, with [`LogProbs::prompt`], for the prompt.
    pub logprobs: Option<LogProbs>,
    /// Verification of several tokens in one step, unless the engine's configuration disables it.
    pub speculation: Speculation,
    /// Receiver of the tokens. It is not called if the request is refused.
    pub sink: Box<dyn TokenSink>,
}

impl Request {
    /// Creates a request for a greedy answer without stop tokens, constraint and log-probabilities.
    pub fn greedy(prompt: Vec<TokenId>, max_tokens: usize, sink: impl TokenSink + 'static) -> Self {
        Self {
            prompt: Position::of_tokens(&prompt),
            media: Vec::new(),
            max_tokens,
            stop: Vec::new(),
            sampling: Sampling::greedy(),
            constraint: None,
            logprobs: None,
            speculation: Speculation::Auto,
            sink: Box::new(sink),
        }
    }
}

/// Log-probabilities to report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogProbs {
    /// Number of most likely tokens to report in addition to the sampled one.
    pub top: usize,
    /// True to report the prompt's tokens too (`echo`).
    pub prompt: bool,
    /// Tokens to report in addition, whatever their probabilities.
    pub tokens: Vec<TokenId>,
}

/// Sampling settings, applied in this order: constraint, bias, penalties, temperature, top-k, typical, top-p, min-p.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits. 0 selects greedy sampling.
    pub temperature: f32,
    /// Number of most likely tokens to keep. 0 keeps all.
    pub top_k: usize,
    /// Minimum sum of the probabilities of the most likely tokens to keep. 1 keeps all (Holtzman et al. 2019,
    /// arXiv:1904.09751).
    pub top_p: f32,
    /// Minimum probability of the tokens to keep, as a share of the most likely token's. 0 keeps all (Nguyen et al.
    /// 2024, arXiv:2407.01082).
    pub min_p: f32,
    /// Minimum sum of the probabilities of the tokens to keep whose information is closest to the expected one. 1 keeps
    /// all (Meister et al. 2022, arXiv:2202.00666).
    pub typical_p: f32,
    /// Factor that divides positive and multiplies negative logits of tokens in the prompt or the answer. 1 changes
    /// nothing (Keskar et al. 2019, arXiv:1909.05858).
    pub repetition_penalty: f32,
    /// Number subtracted from the logits of tokens that are in the answer.
    pub presence_penalty: f32,
    /// Number subtracted from a token's logit for each of its occurrences in the answer.
    pub frequency_penalty: f32,
    /// Numbers added to the logits of single tokens.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Seed of the random generator. Equal seeds and equal logits give equal tokens.
    pub seed: u64,
}

impl Sampling {
    /// Returns settings for greedy sampling.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// A token with its log-probability under the model's own distribution (before any sampling change).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogProb {
    /// The token.
    pub token: TokenId,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// One token of a running sequence.
#[derive(Debug, Clone, Copy)]
pub struct TokenEvent<'a> {
    /// The token.
    pub token: TokenId,
    /// Its log-probability, if requested. The first token of a prompt has none.
    pub logprob: Option<f32>,
    /// The most likely tokens in descending order, if requested; then [`LogProbs::tokens`] in their order.
    pub top: &'a [TokenLogProb],
}

/// Reason for the end of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// A stop token was sampled, or the constraint is complete.
    Stop,
    /// `max_tokens` was reached, or the context or the KV budget is full.
    Length,
    /// The sink returned `Break`, or the handle was cancelled.
    Cancelled,
    /// A step failed, its logits were not finite, or the sink panicked.
    Failed(StepError),
    /// The constraint failed.
    Unsatisfied {
        /// Reason of the constraint.
        reason: String,
    },
    /// The engine was shut down.
    ShutDown,
}

/// Token counts of a finished sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of prompt tokens, including rows of media.
    pub prompt_tokens: usize,
    /// Number of prompt tokens whose keys and values were already in a slot.
    pub cached_tokens: usize,
    /// Number of generated tokens, including a final stop token.
    pub completion_tokens: usize,
    /// Number of draft tokens that the model accepted. They are included in the generated tokens.
    pub accepted_tokens: usize,
    /// Number of draft tokens that the model rejected.
    pub rejected_tokens: usize,
}

/// Reason for refusing a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Too many requests are waiting.
    #[error("{queued} requests are waiting and the limit is {limit}; try again when some have been answered")]
    Overloaded {
        /// Number of waiting requests.
        queued: usize,
        /// Maximum number of waiting requests.
        limit: usize,
    },
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {prompt} tokens, but prompt and answer together may have {context}; shorten the prompt"
    )]
    PromptTooLong {
        /// Number of tokens in the prompt.
        prompt: usize,
        /// Maximum number of tokens of prompt and answer together:
        /// [`Limits::longest`](crate::executor::Limits::longest).
        context: usize,
    },
    /// The prompt is empty.
    #[error("expected a prompt of at least one token, found none")]
    Empty,
    /// A token is outside the vocabulary.
    #[error(
        "expected tokens below the vocabulary size {vocab}, found {token}; use this model's own tokenizer"
    )]
    BadToken {
        /// The token.
        token: TokenId,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The model does not take the media of the prompt.
    #[error("{reason}")]
    Media {
        /// Reason for the refusal.
        reason: String,
    },
    /// The engine accepts no more requests.
    #[error("the engine has shut down")]
    ShutDown,
}

/// A submitted sequence. Dropping it does not cancel the sequence.
#[derive(Debug, Clone)]
pub struct SequenceHandle {
    cancelled: Arc<AtomicBool>,
    engine: WakeSignal,
}

impl SequenceHandle {
    /// Creates the handle of a sequence. A cancellation wakes the engine through `engine`.
    pub(crate) fn new(engine: WakeSignal) -> Self {
        Self { cancelled: Arc::default(), engine }
    }

    /// Ends the sequence before the next step. Has no effect if the sequence has ended.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        self.engine.wake();
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// Receiver of a sequence's tokens, called on the engine's thread. Its methods must be quick and must not block.
pub trait TokenSink: Send {
    /// Receives the start of the sequence: it has left the queue, and `cached` prompt tokens already have keys and values in
    /// its slot. Called at most once, even if the sequence is preempted later.
    fn started(&mut self, _cached: usize) {}

    /// Receives a prompt token, if [`LogProbs::prompt`] was requested. All prompt tokens come before the first
    /// generated token.
    fn prompt_token(&mut self, _event: TokenEvent<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Receives a generated token. `Break` cancels the sequence, and its slot is free at the next plan.
    fn token(&mut self, event: TokenEvent<'_>) -> ControlFlow<()>;

    /// Receives the end of the sequence. Called exactly once, as the last method, even if another one has panicked.
    fn finish(&mut self, finish: Finish, usage: Usage);
}
