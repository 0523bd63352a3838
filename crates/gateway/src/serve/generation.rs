//! A generation: submits a prompt to the engine, and turns the tokens of its choices into text and events.
//!
//! The sinks run on the engine's thread and do no I/O.

use std::{
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use narthex_engine::{
    engine_loop::EngineLoop,
    executor::Limits,
    position::{MediaRows, Position},
    request::{Finish, LogProbs, Request, Sampling, TokenEvent, TokenSink, Usage},
    worker::{SequenceHandle, SubmitError},
};
use narthex_spec::{ModelName, TokenId};
use narthex_text::stop::StopStrings;
use parking_lot::Mutex;

use crate::{
    energy::{ENERGY, EnergyShare},
    error::{Error, ErrorKind, TokenCount},
    load::{loaded_model::LoadedModel, residency::ReadyModel},
    report::placement::AnsweringDevice,
    serve::{
        answer_rules::AnswerRules,
        constraint::{AnswerConstraint, ConstraintParts, ReasoningTrack},
        options,
        repetition::RepetitionGuard,
        request::{
            FinishReason, GenerateOptions, GenerationEvent, GenerationSink, Reading, Repetition, StopTokens,
            Summary, Times, UsedSampling,
        },
        text::{ChoiceText, TextPart},
    },
};

/// A generation that was accepted. Dropping it does not cancel it.
pub struct Generation {
    /// Model.
    pub model: ModelName,
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Device.
    pub ran_on: AnsweringDevice,
    /// True if the model may reason before it answers.
    pub reasons: bool,
    /// Sampling settings, with those of the publisher.
    pub sampling: UsedSampling,
    /// Number of messages that were omitted because the conversation was too long.
    pub omitted_messages: usize,
    /// The part of a text that is the answer, for question-answering models.
    pub reading: Option<Box<Reading>>,
    sequences: Vec<SequenceHandle>,
}

impl Generation {
    /// Returns an answer that a question-answering model has read, all of whose events were sent.
    pub(super) fn of_reading(model: &LoadedModel, prompt_tokens: usize, reading: Reading) -> Self {
        Self {
            model: model.name().clone(),
            prompt_tokens,
            ran_on: model.ran_on(),
            reasons: false,
            sampling: UsedSampling { temperature: 0.0, top_p: 1.0 },
            omitted_messages: 0,
            reading: Some(Box::new(reading)),
            sequences: Vec::new(),
        }
    }

    /// Ends all choices at the next step.
    pub fn cancel(&self) {
        self.sequences.iter().for_each(SequenceHandle::cancel);
    }
}

pub(super) struct PromptPositions {
    pub(super) positions: Vec<Position>,
    /// Media whose rows are among the positions.
    pub(super) media: Vec<MediaRows>,
    /// Name of the field with the prompt in the API.
    pub(super) param: &'static str,
    /// Text to send before the completion.
    pub(super) echo: Option<String>,
}

/// Checks a prompt and the options of its answers as [`start`] does.
pub(super) fn check(
    ready: &ReadyModel,
    tokens: &[TokenId],
    param: &'static str,
    options: &GenerateOptions,
) -> Result<(), Error> {
    let limits = ready.loaded.engine()?.limits();
    sampling(ready, options)?;
    EngineLoop::check_prompt(limits, &Position::of_tokens(tokens))
        .map_err(|error| refusal(error, param, limits))
}

/// Returns the sampling of the answers of a request, with the settings of the publisher.
fn sampling(ready: &ReadyModel, options: &GenerateOptions) -> Result<Sampling, Error> {
    let model = &*ready.loaded;
    // More choices than the queue's capacity would always be refused.
    options::at_most("n", options.n, model.capacity)?;
    let published = ready.settings.answers.sampling_with(&model.package.manifest.sampling);
    options::sampling(options, &published, model.engine()?.limits())
}

/// Submits every choice of a request to the engine, which checks the prompt.
pub(super) fn start(
    ready: &ReadyModel,
    prompt: PromptPositions,
    options: &GenerateOptions,
    rules: AnswerRules,
    sink: Box<dyn GenerationSink>,
) -> Result<Generation, Error> {
    let PromptPositions { positions, media, param, echo } = prompt;
    let model = &*ready.loaded;
    let engine = model.engine()?;
    let limits = engine.limits();
    let mut sampling = sampling(ready, options)?;
    let room = limits.longest().saturating_sub(positions.len());
    let max_tokens = options.max_tokens.unwrap_or(room).min(room);
    let tokenizer = model.tokenizer()?;
    let stop = model.package.manifest.stop_tokens();
    if options.stop_tokens == StopTokens::Never {
        sampling.logit_bias.extend(stop.iter().map(|&token| (token, f32::NEG_INFINITY)));
    }
    let parts = ConstraintParts {
        grammar: rules.grammar.clone(),
        reasoning: rules
            .reasoning
            .clone()
            .map(|parser| ReasoningTrack::new(tokenizer, parser, rules.reasoning_limit)),
        min_tokens: options.min_tokens,
    };

    let stop_strings = StopStrings::new(options.stop.clone());
    let prompt_tokens = positions.len();
    let state = Arc::new(Mutex::new(GenerationState::new(sink, options.n, prompt_tokens, ready.clone())));
    state.lock().send(GenerationEvent::Started { prompt_tokens });

    let mut sequences: Vec<SequenceHandle> = Vec::with_capacity(options.n);
    for choice in 0..options.n {
        if let Some(text) = echo.clone() {
            state.lock().send(GenerationEvent::Text { choice, text, tokens: Vec::new() });
        }
        let text = ChoiceText::new(tokenizer, stop_strings.clone(), options, &rules);
        let request = Request {
            prompt: positions.clone(),
            media: media.clone(),
            max_tokens,
            stop: stop.to_vec(),
            sampling: Sampling { seed: sampling.seed.wrapping_add(choice as u64), ..sampling.clone() },
            constraint: AnswerConstraint::new(parts.clone(), stop, limits.vocab)
                .map(|one| Box::new(one) as _),
            logprobs: options.logprobs.map(|top| LogProbs {
                top,
                prompt: echo.is_some(),
                tokens: Vec::new(),
            }),
            speculation: options.speculation,
            sink: Box::new(ChoiceSink {
                choice,
                state: state.clone(),
                text,
                last_token: None,
                guard: (options.repetition == Repetition::End).then(RepetitionGuard::new),
                repeats: false,
            }),
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

    let reasons = rules.reasoning.is_some();
    let sampling = UsedSampling { temperature: sampling.temperature, top_p: sampling.top_p };
    Ok(Generation {
        sampling,
        model: model.name().clone(),
        prompt_tokens,
        ran_on: model.ran_on(),
        reasons,
        omitted_messages: 0,
        reading: None,
        sequences,
    })
}

/// Returns the error of a prompt that leaves no room for an answer.
pub(super) fn prompt_too_long(param: &'static str, prompt: TokenCount, limits: &Limits) -> Error {
    Error::ContextLength { param, prompt, context: limits.longest(), of_model: limits.context }
}

/// Returns the engine's refusal in the API's terms.
pub(super) fn refusal(error: SubmitError, param: &'static str, limits: &Limits) -> Error {
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
        SubmitError::Media { reason } => Error::invalid(param, reason),
        SubmitError::ShutDown => Error::ShuttingDown,
    }
}

/// State that the choices of a generation share.
struct GenerationState {
    /// Keeps the model in memory until the generation has ended, even after it was removed.
    model: ReadyModel,
    sink: Box<dyn GenerationSink>,
    prompt_tokens: usize,
    started: Instant,
    queued: Option<Duration>,
    energy: Option<EnergyShare>,
    first_token: Option<Duration>,
    unfinished: usize,
    usage: Usage,
    reasoning_tokens: usize,
    /// Set once the caller is gone or the last event was sent. No event follows.
    closed: bool,
}

impl GenerationState {
    fn new(sink: Box<dyn GenerationSink>, choices: usize, prompt_tokens: usize, model: ReadyModel) -> Self {
        Self {
            model,
            sink,
            prompt_tokens,
            started: Instant::now(),
            queued: None,
            energy: None,
            first_token: None,
            unfinished: choices,
            usage: Usage::default(),
            reasoning_tokens: 0,
            closed: false,
        }
    }

    /// Sends an event, unless the generation is closed.
    fn send(&mut self, event: GenerationEvent) {
        if !self.closed {
            self.closed = self.sink.event(event).is_break();
        }
    }

    /// Returns false if software stands in for an NPU, whose times are meaningless.
    fn has_times(&self) -> bool {
        self.model.loaded.placement().stand_in().is_none()
    }

    /// Returns whether the engine should go on.
    fn flow(&self) -> ControlFlow<()> {
        if self.closed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Ends a choice, and the generation with the last one.
    fn finish_choice(&mut self, choice: usize, reason: FinishReason, usage: Usage) {
        self.send(GenerationEvent::Finished { choice, reason });
        if choice == 0 {
            // The prompt counts once. The first choice starts first, and the others reuse the prompt that it read.
            self.usage.prompt_tokens = usage.prompt_tokens;
            self.usage.cached_tokens = usage.cached_tokens.min(usage.prompt_tokens.saturating_sub(1));
        }
        self.usage.completion_tokens += usage.completion_tokens;
        self.usage.accepted_tokens += usage.accepted_tokens;
        self.usage.rejected_tokens += usage.rejected_tokens;
        self.unfinished -= 1;
        if self.unfinished == 0 {
            let summary = self.summary();
            self.energy = None;
            self.send(GenerationEvent::Done(summary));
            self.closed = true;
        }
    }

    /// Ends the generation with an error.
    fn fail(&mut self, kind: ErrorKind, message: String) {
        self.energy = None;
        self.send(GenerationEvent::Failed { kind, message });
        self.closed = true;
    }

    fn summary(&self) -> Summary {
        let total = self.started.elapsed();
        let times = Times {
            queued: self.queued.unwrap_or(total),
            first_token: self.first_token.unwrap_or(total),
            total,
        };
        Summary {
            prompt_tokens: self.usage.prompt_tokens,
            cached_tokens: self.usage.cached_tokens,
            completion_tokens: self.usage.completion_tokens,
            reasoning_tokens: self.reasoning_tokens,
            accepted_tokens: self.usage.accepted_tokens,
            rejected_tokens: self.usage.rejected_tokens,
            times: self.has_times().then_some(times),
            energy: self.energy.as_ref().and_then(EnergyShare::energy),
        }
    }
}

/// Receives the tokens of one choice from the engine.
struct ChoiceSink {
    choice: usize,
    state: Arc<Mutex<GenerationState>>,
    text: ChoiceText,
    /// Time of the last token.
    last_token: Option<Instant>,
    /// Present if the choice ends when it only repeats itself.
    guard: Option<RepetitionGuard>,
    /// Set once the choice repeats itself.
    repeats: bool,
}

impl ChoiceSink {
    /// Sends the parts of the answer.
    fn send(state: &mut GenerationState, choice: usize, parts: Vec<TextPart>) {
        for part in parts {
            state.send(match part {
                TextPart::Text { text, tokens } => GenerationEvent::Text { choice, text, tokens },
                TextPart::Reasoning(text) => GenerationEvent::Reasoning { choice, text },
                TextPart::Call(delta) => GenerationEvent::ToolCall { choice, delta },
            });
        }
    }
}

impl TokenSink for ChoiceSink {
    fn started(&mut self, cached: usize) {
        let state = &mut *self.state.lock();
        if state.queued.is_none() {
            state.queued = Some(state.started.elapsed());
            state.energy = if state.has_times() { ENERGY.start() } else { None };
        }
        if let Some(energy) = &mut state.energy {
            energy.add_tokens(state.prompt_tokens.saturating_sub(cached));
        }
    }

    fn prompt_token(&mut self, event: TokenEvent<'_>) -> ControlFlow<()> {
        let choice = self.choice;
        let tokens = vec![self.text.info(&event)];
        let mut state = self.state.lock();
        state.send(GenerationEvent::Text { choice, text: String::new(), tokens });
        state.flow()
    }

    fn token(&mut self, event: TokenEvent<'_>) -> ControlFlow<()> {
        let Self { choice, state, text, last_token, guard, repeats } = self;
        let mut state = state.lock();
        state.flow()?;
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(state.started);
        state.first_token.get_or_insert(elapsed);
        if let Some(energy) = &mut state.energy {
            energy.add_tokens(1);
        }
        if let Some(last) = last_token.replace(now).filter(|_| state.has_times()) {
            state.sink.token_gap(now.saturating_duration_since(last));
        }
        Self::send(&mut state, *choice, text.push(&event));
        *repeats = guard.as_mut().is_some_and(|guard| guard.push(event.token));
        if text.is_over() || *repeats { ControlFlow::Break(()) } else { state.flow() }
    }

    fn finish(&mut self, finish: Finish, usage: Usage) {
        let Self { choice, state, text, repeats, .. } = self;
        let mut state = state.lock();
        let reason = match finish {
            Finish::Failed(error) => return state.fail(ErrorKind::Unavailable, error.to_string()),
            Finish::Unsatisfied { reason } => {
                let message = format!("the grammar allows no next token: {reason}");
                return state.fail(ErrorKind::BadRequest, message);
            }
            Finish::Stop => FinishReason::Stop,
            Finish::Length => FinishReason::Length,
            Finish::Cancelled if *repeats => FinishReason::Repetition,
            Finish::Cancelled | Finish::ShutDown => FinishReason::Cancelled,
        };
        let (rest, reason) = text.finish(reason);
        Self::send(&mut state, *choice, rest);
        if text.malformed_calls() > 0 {
            let model = state.model.loaded.name();
            tracing::warn!(%model, "the model wrote a malformed tool call; its text was sent");
        }
        state.reasoning_tokens += text.reasoning_tokens();
        state.finish_choice(*choice, reason, usage);
    }
}
