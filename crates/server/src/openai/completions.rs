//! `POST /v1/completions`.

use std::{collections::VecDeque, mem};

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use narthex_gateway::{
    AnswerEnergy, Error,
    request::{CompletionRequest, Echo, GenerateOptions, GenerationEvent, Prompt, Summary},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    CompletionHeader, CompletionUsage, WireFinishReason,
    logprobs::TextLogprobs,
    render::{self, WirePrompt},
    stream::{ChunkChoice, ChunkEncoder},
    upstream::{self, RequestRoute, UpstreamEndpoint, UpstreamRequest},
};
use crate::{
    app::App,
    error::ApiError,
    protocol::{
        blocking::run_tokenizing,
        body::{Body, FromBody},
        device_headers::with_device_headers,
        events,
        fields::BodyFields,
        hints,
        ignored::IgnoredParameters,
        options::{ChoiceOptions, Sampling, StreamOptions},
        prompts::Prompts,
        reply::{Choice, collect},
        response_format::GrammarOptions,
        sse,
        timings::Timings,
    },
};

/// Type of the objects that this endpoint returns.
const OBJECT: &str = "text_completion";

/// Maximum number of alternatives per token.
const MAX_LOGPROBS: usize = 5;

/// Default maximum number of generated tokens, as in OpenAI's API.
const DEFAULT_TOKENS: usize = 16;

/// Maximum number of prompts in one request.
const MAX_PROMPTS: usize = 64;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct CompletionBody {
    model: String,
    prompt: Prompts<MAX_PROMPTS>,
    #[schemars(range(max = 5))]
    logprobs: Option<usize>,
    echo: Option<bool>,
}

/// A body that was read and checked.
pub(crate) struct ParsedCompletion {
    model: String,
    prompts: Vec<Prompt>,
    echo: Echo,
    options: GenerateOptions,
    streaming: Option<StreamOptions>,
    with_logprobs: bool,
}

impl UpstreamRequest for ParsedCompletion {
    const ENDPOINT: UpstreamEndpoint = UpstreamEndpoint::Completions;
}

impl FromBody for ParsedCompletion {
    const TOKENS: Option<&'static str> = Some("prompt");

    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let request: CompletionBody = fields.read()?;
        let choices: ChoiceOptions = fields.read()?;
        let sampling: Sampling = fields.read()?;
        let grammar: GrammarOptions = fields.read()?;
        hints::ignore(fields, &[], ignored)?;

        let grammar = grammar.grammar(None)?;
        if request.logprobs.is_some_and(|top| top > MAX_LOGPROBS) {
            return Err(ApiError::bad_request(
                "logprobs",
                format!("logprobs: expected at most {MAX_LOGPROBS}"),
            ));
        }

        let mut options =
            GenerateOptions { n: choices.n(), logprobs: request.logprobs, grammar, ..sampling.options()? };
        if !sampling.has_limit() {
            options.max_tokens = Some(DEFAULT_TOKENS);
        }
        let streaming = choices.streaming();
        let echo = if request.echo.unwrap_or(false) { Echo::PromptAndCompletion } else { Echo::Completion };
        let prompts = request.prompt.0;
        if prompts.is_empty() || prompts.len() > MAX_PROMPTS || (streaming.is_some() && prompts.len() > 1) {
            let most = if streaming.is_some() { 1 } else { MAX_PROMPTS };
            let how = if streaming.is_some() { " in a stream" } else { "" };
            let message = format!("prompt: expected 1 to {most} prompts{how}, found {}", prompts.len());
            return Err(ApiError::bad_request("prompt", message));
        }
        let with_logprobs = request.logprobs.is_some();
        Ok(Self { model: request.model, prompts, echo, options, streaming, with_logprobs })
    }
}

/// Handles a request.
pub(crate) async fn create(
    app: App,
    body: Body<RequestRoute<ParsedCompletion>>,
) -> Result<Response, ApiError> {
    upstream::answer(&app, body, |body| answer(&app, body)).await
}

/// Answers a request with a model of this machine.
async fn answer(app: &App, body: Body<ParsedCompletion>) -> Result<Response, ApiError> {
    let Body { request, ignored, reservation } = body;
    let ParsedCompletion { model, prompts, echo, options, streaming, with_logprobs } = request;
    let n = options.n;
    let header = CompletionHeader::new("cmpl-", model.clone());
    let mut pending = VecDeque::with_capacity(prompts.len());
    let mut replies = Vec::with_capacity(prompts.len());
    let mut ran_on = None;
    // The request itself counts as one answer, that of one prompt at a time.
    let mut unused = 1;
    for prompt in prompts {
        let more_answers = loop {
            match app.meter.caller.add_answers(n.saturating_sub(unused)) {
                Ok(permit) => break permit,
                Err(error) => {
                    let Some((events, used)) = pending.pop_front() else { return Err(error) };
                    replies.push(collect(events, n).await?);
                    unused += used;
                }
            }
        };
        let completion = CompletionRequest { prompt, echo, options: options.clone() };
        let events = events::start(app, &model, reservation.clone(), more_answers, move |model, sink| {
            model.complete(completion, sink)
        });
        let events = events.await?;
        ran_on.get_or_insert_with(|| events.ran_on());
        pending.push_back((events, mem::take(&mut unused)));
    }

    let Some(ran_on) = ran_on else {
        return Err(ApiError::bad_request("prompt", "prompt: expected at least one, found none"));
    };
    if let Some(options) = streaming
        && let Some((events, _)) = pending.pop_back()
    {
        let encoder = ChunkEncoder::<TextChoice>::new(header, options, n, vec![0; n], ran_on);
        return Ok(ignored.name_in(sse::respond(events, Box::new(encoder), app.meter.metrics.clone())));
    }

    for (events, _) in pending {
        replies.push(collect(events, n).await?);
    }
    let mut choices = Vec::new();
    let mut total = Summary::default();
    let energy = AnswerEnergy::total(replies.iter().map(|reply| reply.summary.energy));
    for reply in replies {
        choices.extend(reply.choices);
        total = sum(total, reply.summary);
    }

    total.energy = energy;
    let choices = choices.into_iter().enumerate();
    let answer = TextCompletion {
        header,
        object: OBJECT,
        choices: choices.map(|(index, choice)| TextChoice::whole(index, choice, with_logprobs)).collect(),
        usage: CompletionUsage::from(&total),
        timings: Timings::new(&total, &ran_on),
    };
    Ok(ignored.name_in(with_device_headers(&ran_on, Json(answer))))
}

/// Returns the prompts of a request.
pub(crate) async fn render(app: App, body: Body<ParsedCompletion>) -> Result<Response, ApiError> {
    let Body { request: ParsedCompletion { model, prompts, echo, options, .. }, ignored, reservation } = body;
    let bytes = prompts.iter().map(|prompt| match prompt {
        Prompt::Text(text) => text.len().saturating_mul(render::TEXT_BYTES),
        Prompt::Tokens(tokens) => tokens.len().saturating_mul(render::TOKEN_BYTES),
    });
    let answer_bytes = bytes.sum();

    let rendered = run_tokenizing(
        &app,
        &model,
        reservation.into(),
        |_| answer_bytes,
        move |model, cancel| {
            let rendered = prompts.into_iter().map(|prompt| {
                let text = match &prompt {
                    Prompt::Text(text) => Some(text.clone()),
                    Prompt::Tokens(_) => None,
                };
                let request = CompletionRequest { prompt, echo, options: options.clone() };
                Ok((model.render_completion(request, cancel)?, text))
            });
            rendered.collect::<Result<Vec<_>, Error>>()
        },
    );
    let prompts = rendered.await?.into_iter();
    let prompts: Vec<WirePrompt> =
        prompts.map(|(tokens, text)| WirePrompt::new("cmpl-", model.clone(), tokens, text)).collect();
    Ok(ignored.name_in(Json(prompts).into_response()))
}

/// Adds the counts of another answer, whose times replace those of the answers before.
fn sum(total: Summary, one: Summary) -> Summary {
    Summary {
        prompt_tokens: total.prompt_tokens + one.prompt_tokens,
        cached_tokens: total.cached_tokens + one.cached_tokens,
        completion_tokens: total.completion_tokens + one.completion_tokens,
        reasoning_tokens: total.reasoning_tokens + one.reasoning_tokens,
        accepted_tokens: total.accepted_tokens + one.accepted_tokens,
        rejected_tokens: total.rejected_tokens + one.rejected_tokens,
        ..one
    }
}

/// Whole answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TextCompletion {
    #[serde(flatten)]
    header: CompletionHeader,
    #[schemars(extend("const" = OBJECT))]
    object: &'static str,
    choices: Vec<TextChoice>,
    usage: CompletionUsage,
    timings: Timings,
}

/// Choice of a whole answer or of a chunk.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TextChoice {
    index: usize,
    text: String,
    /// Null unless the request asks for log-probabilities.
    logprobs: Option<TextLogprobs>,
    /// Null until the choice ends.
    finish_reason: Option<WireFinishReason>,
}

impl TextChoice {
    fn whole(index: usize, choice: Choice, with_logprobs: bool) -> Self {
        Self {
            index,
            text: choice.text(),
            logprobs: with_logprobs.then(|| TextLogprobs::new(&choice.tokens, &mut 0)),
            finish_reason: choice.finish.map(WireFinishReason::from),
        }
    }

    fn part(index: usize, text: String, logprobs: Option<TextLogprobs>) -> Self {
        Self { index, text, logprobs, finish_reason: None }
    }
}

impl ChunkChoice for TextChoice {
    const OBJECT: &'static str = OBJECT;
    /// Length of each choice so far in characters.
    type State = Vec<usize>;

    fn from_event(event: GenerationEvent, lengths: &mut Vec<usize>) -> Vec<Self> {
        match event {
            GenerationEvent::Text { choice, text, tokens } => {
                let length = lengths.get_mut(choice).filter(|_| !tokens.is_empty());
                vec![Self::part(choice, text, length.map(|length| TextLogprobs::new(&tokens, length)))]
            }
            GenerationEvent::Finished { choice, reason } => {
                let end = Self::part(choice, String::new(), None);
                vec![Self { finish_reason: Some(reason.into()), ..end }]
            }
            GenerationEvent::Started { .. }
            | GenerationEvent::Reasoning { .. }
            | GenerationEvent::ToolCall { .. }
            | GenerationEvent::Done(_)
            | GenerationEvent::Failed { .. } => Vec::new(),
        }
    }
}
