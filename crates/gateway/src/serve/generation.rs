//! One request on its way back: tokens become text, stop strings end it, events reach the caller.
//!
//! Runs on the engine's thread and does no I/O.

use std::{
    mem,
    ops::ControlFlow,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use narthex_engine::{
    request::{Finish, TokenEvent, TokenSink, Usage},
    worker::SequenceHandle,
};
use narthex_spec::ModelName;
use narthex_text::{detokenize::Detokenizer, stop::StopStrings, tokenizer::Tokenizer};

use crate::{
    load::{loaded_model::Loaded, placement::RanOn},
    serve::request::{FinishReason, Summary, Times, TokenAlternative, TokenInfo, TurnEvent, TurnSink},
};

/// A request that was accepted. Dropping it does not cancel it.
pub struct Turn {
    /// The model that answers.
    pub model: ModelName,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Where it runs.
    pub ran_on: RanOn,
    pub(crate) sequences: Vec<SequenceHandle>,
}

impl Turn {
    /// Ends all choices at the next step.
    pub fn cancel(&self) {
        self.sequences.iter().for_each(SequenceHandle::cancel);
    }
}

/// What the choices of one request share.
pub(crate) struct Shared {
    /// The model stays in memory until its last answer has ended, though it may have been removed.
    model: Arc<Loaded>,
    sink: Box<dyn TurnSink>,
    started: Instant,
    first_token: Option<Duration>,
    unfinished: usize,
    usage: Usage,
    /// Set once the caller has gone or the last event was sent; nothing is reported after.
    closed: bool,
}

/// A request's shared state, as each choice holds it.
pub(crate) type SharedTurn = Arc<Mutex<Shared>>;

impl Shared {
    pub(crate) fn new(sink: Box<dyn TurnSink>, choices: usize, model: Arc<Loaded>) -> SharedTurn {
        Arc::new(Mutex::new(Self {
            model,
            sink,
            started: Instant::now(),
            first_token: None,
            unfinished: choices,
            usage: Usage::default(),
            closed: false,
        }))
    }

    pub(crate) fn send(&mut self, event: TurnEvent) -> ControlFlow<()> {
        if self.closed {
            return ControlFlow::Break(());
        }
        let flow = self.sink.event(event);
        self.closed = flow.is_break();
        flow
    }

    /// Reports nothing from here on.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    fn summary(&self) -> Summary {
        let total = self.started.elapsed();
        let times = Times { first_token: self.first_token.unwrap_or(total), total };
        Summary {
            prompt_tokens: self.usage.prompt_tokens,
            cached_tokens: self.usage.cached_tokens,
            completion_tokens: self.usage.completion_tokens,
            times: self.model.placement().stand_in().is_none().then_some(times),
        }
    }
}

pub(crate) fn lock(shared: &SharedTurn) -> MutexGuard<'_, Shared> {
    // A panic in a caller's sink leaves plain counters behind, which are still good.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a choice reports log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    TextOnly,
    LogProbs,
}

/// One choice's tokens on their way to the caller.
pub(crate) struct Choice {
    pub(crate) shared: SharedTurn,
    pub(crate) index: usize,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) detokenizer: Detokenizer,
    pub(crate) stop: StopStrings,
    pub(crate) report: Report,
    /// Tokens whose text is still withheld.
    pending: Vec<TokenInfo>,
    stopped: bool,
}

impl Choice {
    pub(crate) fn new(
        shared: SharedTurn,
        index: usize,
        tokenizer: &Tokenizer,
        stop: &[String],
        report: Report,
    ) -> Self {
        Self {
            shared,
            index,
            detokenizer: Detokenizer::new(tokenizer.clone()),
            tokenizer: tokenizer.clone(),
            stop: StopStrings::new(stop.to_vec()),
            report,
            pending: Vec::new(),
            stopped: false,
        }
    }

    fn info(&self, event: &TokenEvent<'_>) -> TokenInfo {
        let bytes = self.tokenizer.token_bytes(event.token);
        let alternative = |logprob: f32, bytes: Vec<u8>| TokenAlternative {
            text: String::from_utf8_lossy(&bytes).into_owned(),
            bytes,
            logprob,
        };
        TokenInfo {
            text: String::from_utf8_lossy(&bytes).into_owned(),
            bytes,
            logprob: event.logprob,
            top: event
                .top
                .iter()
                .map(|top| alternative(top.logprob, self.tokenizer.token_bytes(top.token)))
                .collect(),
        }
    }

    fn emit(&mut self, text: String) -> ControlFlow<()> {
        if text.is_empty() {
            return ControlFlow::Continue(());
        }
        let tokens = mem::take(&mut self.pending);
        lock(&self.shared).send(TurnEvent::Text { choice: self.index, text, tokens })
    }

    /// Text that no stop string can take back any more.
    fn push(&mut self, text: &str) -> ControlFlow<()> {
        let outcome = self.stop.push(text);
        self.stopped |= outcome.stopped.is_some();
        let flow = self.emit(outcome.text);
        if self.stopped { ControlFlow::Break(()) } else { flow }
    }

    fn flush(&mut self) {
        if let Some(text) = self.detokenizer.finish() {
            let _ = self.push(&text);
        }
        if !self.stopped {
            let rest = self.stop.finish();
            let _ = self.emit(rest);
            let tokens = mem::take(&mut self.pending);
            if !tokens.is_empty() {
                let text = String::new();
                let _ = lock(&self.shared).send(TurnEvent::Text { choice: self.index, text, tokens });
            }
        }
    }

    fn end(&mut self, reason: FinishReason, usage: Usage) {
        let mut shared = lock(&self.shared);
        let _ = shared.send(TurnEvent::Finished { choice: self.index, reason });
        shared.usage.prompt_tokens = usage.prompt_tokens;
        shared.usage.cached_tokens = shared.usage.cached_tokens.max(usage.cached_tokens);
        shared.usage.completion_tokens += usage.completion_tokens;
        shared.unfinished -= 1;
        if shared.unfinished == 0 {
            let summary = shared.summary();
            let _ = shared.send(TurnEvent::Done(summary));
            shared.close();
        }
    }

    fn fail(&mut self, message: String) {
        let mut shared = lock(&self.shared);
        let _ = shared.send(TurnEvent::Failed { message });
        shared.close();
    }
}

impl TokenSink for Choice {
    fn prompt_token(&mut self, event: TokenEvent<'_>) -> ControlFlow<()> {
        let tokens = vec![self.info(&event)];
        lock(&self.shared).send(TurnEvent::Text { choice: self.index, text: String::new(), tokens })
    }

    fn token(&mut self, event: TokenEvent<'_>) -> ControlFlow<()> {
        {
            let mut shared = lock(&self.shared);
            if shared.closed {
                return ControlFlow::Break(());
            }
            let elapsed = shared.started.elapsed();
            shared.first_token.get_or_insert(elapsed);
        }
        if self.report == Report::LogProbs {
            let info = self.info(&event);
            self.pending.push(info);
        }
        match self.detokenizer.push(event.token) {
            Some(text) => self.push(&text),
            None => ControlFlow::Continue(()),
        }
    }

    fn finish(&mut self, finish: Finish, usage: Usage) {
        let reason = match finish {
            Finish::Failed(error) => return self.fail(error.to_string()),
            Finish::Stop => FinishReason::Stop,
            Finish::Length => FinishReason::Length,
            Finish::Cancelled if self.stopped => FinishReason::Stop,
            Finish::Cancelled | Finish::ShutDown => FinishReason::Cancelled,
        };
        if !self.stopped {
            self.flush();
        }
        let reason = if self.stopped { FinishReason::Stop } else { reason };
        self.end(reason, usage);
    }
}
