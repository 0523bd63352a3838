//! A generation: submits a prompt to the engine, and turns the tokens of its choices into text and events.
//!
//! The sinks run on the engine's thread and do no I/O.

use std::{
    mem,
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use narthex_engine::{
    executor::Limits,
    request::{Finish, LogProbs, Request, Sampling, TokenEvent, TokenSink, Usage},
    worker::{SequenceHandle, SubmitError},
};
use narthex_spec::{ModelName, TokenId};
use narthex_text::{
    detokenize::Detokenizer, grammar::GrammarMatcher, stop::StopStrings, tokenizer::Tokenizer,
};
use parking_lot::Mutex;

use crate::{
    error::{Error, TokenCount},
    load::loaded_model::LoadedModel,
    report::placement::RanOn,
    serve::{
        constraint::GrammarConstraint,
        options,
        request::{
            FinishReason, GenerateOptions, GenerationEvent, GenerationSink, StopTokens, Summary, Times,
            TokenAlternative, TokenInfo,
        },
        tools::{CallParser, Piece},
    },
};

/// A generation that was accepted. Dropping it does not cancel it.
pub struct Generation {
    /// Model.
    pub model: ModelName,
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Device.
    pub ran_on: RanOn,
    sequences: Vec<SequenceHandle>,
}

impl Generation {
    /// Ends all choices at the next step.
    pub fn cancel(&self) {
        self.sequences.iter().for_each(SequenceHandle::cancel);
    }
}

/// The tokens of a prompt.
pub(super) struct PromptTokens {
    pub(super) tokens: Vec<TokenId>,
    /// Name of the field with the prompt in the API.
    pub(super) param: &'static str,
    /// Text to send before the completion.
    pub(super) echo: Option<String>,
}

/// Rules for the text of the answers.
#[derive(Default)]
pub(super) struct AnswerRules {
    /// The grammar at its beginning.
    pub(super) grammar: Option<GrammarMatcher>,
    /// True if the answers may have tool calls.
    pub(super) may_call: bool,
}

/// Submits every choice of a request to the engine, which checks the prompt.
pub(super) fn start(
    model: &Arc<LoadedModel>,
    prompt: PromptTokens,
    options: &GenerateOptions,
    rules: AnswerRules,
    sink: Box<dyn GenerationSink>,
) -> Result<Generation, Error> {
    let PromptTokens { tokens, param, echo } = prompt;
    let engine = model.engine()?;
    let limits = engine.limits();
    // More choices than the queue's capacity would be refused at every attempt.
    options::at_most("n", options.n, model.capacity)?;
    let room = limits.longest().saturating_sub(tokens.len());
    let max_tokens = options.max_tokens.unwrap_or(room).min(room);
    let mut sampling = options::sampling(options, limits)?;
    if options.stop_tokens == StopTokens::Never {
        let stop = &model.package.manifest.tokenizer.stop;
        sampling.logit_bias.extend(stop.iter().map(|&token| (token, f32::NEG_INFINITY)));
    }
    let prompt_tokens = tokens.len();
    let state = Arc::new(Mutex::new(GenerationState::new(sink, options.n, model.clone())));
    state.lock().send(GenerationEvent::Started { prompt_tokens });
    let mut sequences: Vec<SequenceHandle> = Vec::with_capacity(options.n);
    for choice in 0..options.n {
        if let Some(text) = echo.clone() {
            state.lock().send(GenerationEvent::Text { choice, text, tokens: Vec::new() });
        }
        let calls = rules.may_call.then(CallParser::default);
        let text = ChoiceText { calls, ..ChoiceText::new(choice, &model.package.tokenizer, options) };
        let request = Request {
            prompt: tokens.clone(),
            max_tokens,
            stop: model.package.manifest.tokenizer.stop.clone(),
            sampling: Sampling { seed: sampling.seed.wrapping_add(choice as u64), ..sampling.clone() },
            constraint: rules.grammar.clone().map(|grammar| Box::new(GrammarConstraint::new(grammar)) as _),
            logprobs: options.logprobs.map(|top| LogProbs { top, prompt: echo.is_some() }),
            sink: Box::new(ChoiceSink { state: state.clone(), text }),
        };
        match engine.submit(request) {
            Ok(sequence) => sequences.push(sequence),
            Err(error) => {
                state.lock().closed = true;
                sequences.iter().for_each(SequenceHandle::cancel);
                return Err(refusal(error, param, limits));
            }
        }
    }
    Ok(Generation { model: model.name().clone(), prompt_tokens, ran_on: model.ran_on(), sequences })
}

/// Returns the error of a prompt that leaves no room for an answer.
pub(super) fn prompt_too_long(param: &'static str, prompt: TokenCount, limits: &Limits) -> Error {
    Error::ContextLength { param, prompt, context: limits.longest(), of_model: limits.context }
}

/// Returns the engine's refusal in the API's terms.
fn refusal(error: SubmitError, param: &'static str, limits: &Limits) -> Error {
    match error {
        SubmitError::Overloaded { queued, .. } => {
            Error::Overloaded { queued, retry_after: Duration::from_secs(1) }
        }
        SubmitError::PromptTooLong { prompt, .. } => {
            prompt_too_long(param, TokenCount::Exact(prompt), limits)
        }
        SubmitError::Empty => Error::invalid(param, "expected at least one token, found an empty prompt"),
        SubmitError::BadToken { token, vocab } => {
            Error::invalid(param, format!("token {token} is not below the vocabulary size {vocab}"))
        }
        SubmitError::ShutDown => Error::ShuttingDown,
    }
}

/// State that the choices of a generation share.
struct GenerationState {
    /// Keeps the model in memory until its last answer has ended, even after it was removed.
    model: Arc<LoadedModel>,
    sink: Box<dyn GenerationSink>,
    started: Instant,
    first_token: Option<Duration>,
    unfinished: usize,
    usage: Usage,
    /// Set once the caller has gone or the last event was sent. No event follows.
    closed: bool,
}

impl GenerationState {
    fn new(sink: Box<dyn GenerationSink>, choices: usize, model: Arc<LoadedModel>) -> Self {
        Self {
            model,
            sink,
            started: Instant::now(),
            first_token: None,
            unfinished: choices,
            usage: Usage::default(),
            closed: false,
        }
    }

    /// Sends an event, unless the generation is closed.
    fn send(&mut self, event: GenerationEvent) {
        if !self.closed {
            self.closed = self.sink.event(event).is_break();
        }
    }

    /// Returns whether the engine should go on.
    fn flow(&self) -> ControlFlow<()> {
        if self.closed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Ends a choice, and the generation with the last one.
    fn finish_choice(&mut self, choice: usize, reason: FinishReason, usage: Usage) {
        self.send(GenerationEvent::Finished { choice, reason });
        self.usage.prompt_tokens = usage.prompt_tokens;
        self.usage.cached_tokens = self.usage.cached_tokens.max(usage.cached_tokens);
        self.usage.completion_tokens += usage.completion_tokens;
        self.unfinished -= 1;
        if self.unfinished == 0 {
            let summary = self.summary();
            self.send(GenerationEvent::Done(summary));
            self.closed = true;
        }
    }

    /// Ends the generation with an error.
    fn fail(&mut self, message: String) {
        self.send(GenerationEvent::Failed { message });
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

/// Receives the tokens of one choice from the engine.
struct ChoiceSink {
    state: Arc<Mutex<GenerationState>>,
    text: ChoiceText,
}

/// Text of one choice.
struct ChoiceText {
    choice: usize,
    tokenizer: Tokenizer,
    detokenizer: Detokenizer,
    stop: StopStrings,
    /// Set if the events have log-probabilities.
    has_logprobs: bool,
    /// Tokens whose text was not sent yet.
    pending: Vec<TokenInfo>,
    /// Set once a stop string was found.
    stopped: bool,
    /// Parser of tool calls, if there may be some.
    calls: Option<CallParser>,
}

impl ChoiceText {
    fn new(choice: usize, tokenizer: &Tokenizer, options: &GenerateOptions) -> Self {
        Self {
            choice,
            tokenizer: tokenizer.clone(),
            detokenizer: Detokenizer::new(tokenizer.clone()),
            stop: StopStrings::new(options.stop.clone()),
            has_logprobs: options.logprobs.is_some(),
            pending: Vec::new(),
            stopped: false,
            calls: None,
        }
    }

    fn info(&self, event: &TokenEvent<'_>) -> TokenInfo {
        let text_and_bytes = |token: TokenId| {
            let bytes = self.tokenizer.token_bytes(token);
            (String::from_utf8_lossy(&bytes).into_owned(), bytes)
        };
        let (text, bytes) = text_and_bytes(event.token);
        let alternatives = event.top.iter().map(|top| {
            let (text, bytes) = text_and_bytes(top.token);
            TokenAlternative { text, bytes, logprob: top.logprob }
        });
        TokenInfo { text, bytes, logprob: event.logprob, top: alternatives.collect() }
    }

    /// Sends the text that cannot become part of a stop string any more.
    fn push(&mut self, text: &str, state: &mut GenerationState) {
        let outcome = self.stop.push(text);
        self.stopped |= outcome.stopped.is_some();
        self.send(outcome.text, state);
    }

    fn send(&mut self, text: String, state: &mut GenerationState) {
        match &mut self.calls {
            _ if text.is_empty() => {}
            None => self.send_text(text, state),
            Some(calls) => {
                let pieces = calls.push(&text);
                self.send_pieces(pieces, state);
            }
        }
    }

    fn send_text(&mut self, text: String, state: &mut GenerationState) {
        let tokens = mem::take(&mut self.pending);
        state.send(GenerationEvent::Text { choice: self.choice, text, tokens });
    }

    fn send_pieces(&mut self, pieces: Vec<Piece>, state: &mut GenerationState) {
        for piece in pieces {
            match piece {
                Piece::Text(text) => self.send_text(text, state),
                Piece::Call(delta) => state.send(GenerationEvent::ToolCall { choice: self.choice, delta }),
            }
        }
    }

    /// Sends the rest of the calls. Returns true if the answer has some.
    fn finish_calls(&mut self, state: &mut GenerationState) -> bool {
        let Some(mut calls) = self.calls.take() else { return false };
        let rest = calls.finish();
        self.send_pieces(rest, state);
        if calls.malformed() > 0 {
            tracing::warn!(model = %state.model.name(), "the model wrote a malformed tool call; its text was sent");
        }
        calls.calls() > 0
    }

    /// Sends the rest of the text.
    fn finish(&mut self, state: &mut GenerationState) {
        if let Some(text) = self.detokenizer.finish() {
            self.push(&text, state);
        }
        if self.stopped {
            return;
        }
        let rest = self.stop.finish();
        self.send(rest, state);
        let tokens = mem::take(&mut self.pending);
        if !tokens.is_empty() {
            state.send(GenerationEvent::Text { choice: self.choice, text: String::new(), tokens });
        }
    }
}

impl TokenSink for ChoiceSink {
    fn prompt_token(&mut self, event: TokenEvent<'_>) -> ControlFlow<()> {
        let (choice, tokens) = (self.text.choice, vec![self.text.info(&event)]);
        let mut state = self.state.lock();
        state.send(GenerationEvent::Text { choice, text: String::new(), tokens });
        state.flow()
    }

    fn token(&mut self, event: TokenEvent<'_>) -> ControlFlow<()> {
        let Self { state, text } = self;
        let mut state = state.lock();
        state.flow()?;
        let elapsed = state.started.elapsed();
        state.first_token.get_or_insert(elapsed);
        if text.has_logprobs {
            let info = text.info(&event);
            text.pending.push(info);
        }
        if let Some(new) = text.detokenizer.push(event.token) {
            text.push(&new, &mut state);
        }
        if text.stopped { ControlFlow::Break(()) } else { state.flow() }
    }

    fn finish(&mut self, finish: Finish, usage: Usage) {
        let Self { state, text } = self;
        let mut state = state.lock();
        let reason = match finish {
            Finish::Failed(error) => return state.fail(error.to_string()),
            Finish::Unsatisfied { reason } => {
                return state.fail(format!("the answer cannot go on within its grammar: {reason}"));
            }
            Finish::Stop => FinishReason::Stop,
            Finish::Length => FinishReason::Length,
            Finish::Cancelled | Finish::ShutDown => FinishReason::Cancelled,
        };
        if !text.stopped {
            text.finish(&mut state);
        }
        let has_calls = text.finish_calls(&mut state);
        let reason = match reason {
            FinishReason::Stop | FinishReason::Cancelled
                if has_calls && (text.stopped || reason == FinishReason::Stop) =>
            {
                FinishReason::ToolCalls
            }
            _ if text.stopped => FinishReason::Stop,
            reason => reason,
        };
        state.finish_choice(text.choice, reason, usage);
    }
}
