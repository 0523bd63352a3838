//! `POST /v1/completions`.

use axum::{Json, response::Response};
use narthex_gateway::{
    ReadyModel,
    request::{CompletionRequest, Echo, GenerateOptions, GenerationEvent, Prompt, Summary, TokenInfo},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    CompletionHeader, finish_reason,
    options::{Sampling, StreamOptions},
    prompts::Prompts,
    read_body,
    stream::{ChunkEncoder, Chunks, StreamEnd},
    usage,
};
use crate::{
    app::App,
    body::{self, Body, FromBody},
    device_headers::with_device_headers,
    error::ApiError,
    events::{self, Events},
    hints::{self, Hints},
    ignored::{CALLER_FIELDS, IgnoredParameters},
    reply::{Choice, collect},
    sse,
    timings::Timings,
};

/// Type of the objects that this endpoint returns.
const OBJECT: &str = "text_completion";

/// Maximum number of alternatives per token.
const MAX_LOGPROBS: usize = 5;

/// Default maximum number of generated tokens, as in OpenAI's API.
const DEFAULT_TOKENS: usize = 16;

/// Maximum number of prompts in one request.
const MAX_PROMPTS: usize = 64;

/// Fields of a body in addition to [`Sampling::FIELDS`].
const FIELDS: &[&str] = &["model", "prompt", "logprobs", "echo"];

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct CompletionBody {
    model: String,
    prompt: Prompts<MAX_PROMPTS>,
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
    ignored: IgnoredParameters,
}

impl FromBody for ParsedCompletion {
    const TOKENS: Option<&'static str> = Some("prompt");

    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let request: CompletionBody = read_body(body, &[FIELDS, Sampling::FIELDS, hints::OF_GENERATION])?;
        let ignored = Hints::read(body, &[CALLER_FIELDS, hints::OF_GENERATION])?;
        let sampling: Sampling = body::read_fields(body)?;
        if request.logprobs.is_some_and(|top| top > MAX_LOGPROBS) {
            return Err(ApiError::bad_request(
                "logprobs",
                format!("logprobs: expected at most {MAX_LOGPROBS}"),
            ));
        }
        let mut options = sampling.options(request.logprobs)?;
        options.max_tokens.get_or_insert(DEFAULT_TOKENS);
        let streaming = sampling.streaming();
        let echo = if request.echo.unwrap_or(false) { Echo::PromptAndCompletion } else { Echo::Completion };
        let prompts = request.prompt.0;
        if prompts.is_empty() || prompts.len() > MAX_PROMPTS || (streaming.is_some() && prompts.len() > 1) {
            let most = if streaming.is_some() { 1 } else { MAX_PROMPTS };
            let how = if streaming.is_some() { " in a stream" } else { "" };
            let message = format!("prompt: expected 1 to {most} prompts{how}, found {}", prompts.len());
            return Err(ApiError::bad_request("prompt", message));
        }
        let with_logprobs = request.logprobs.is_some();
        Ok(Self { model: request.model, prompts, echo, options, streaming, with_logprobs, ignored })
    }

    fn ignored(&self) -> Option<&IgnoredParameters> {
        Some(&self.ignored)
    }
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedCompletion>) -> Result<Response, ApiError> {
    let Body(parsed, held) = body;
    let ParsedCompletion { model, prompts, echo, options, streaming, with_logprobs, ignored } = parsed;
    let n = options.n;
    let header = CompletionHeader::new("cmpl", model.clone());
    let mut pending = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let completion = CompletionRequest { prompt, echo, options: options.clone() };
        let call = move |model: &ReadyModel, sink| model.complete(completion, sink);
        pending.push(events::start(&app, &model, held.clone(), call).await?);
    }
    if let Some(options) = streaming
        && let Some(events) = pending.pop()
    {
        let end = StreamEnd::new(n, events.ran_on().device);
        let chunks = TextChunks { header, options, offsets: vec![0; n], end };
        let response = sse::respond(events, Box::new(ChunkEncoder(chunks)), app.meter.metrics);
        return Ok(ignored.name_in(response));
    }
    let Some(ran_on) = pending.first().map(Events::ran_on) else {
        return Err(ApiError::bad_request("prompt", "prompt: expected at least one, found none"));
    };
    let mut choices = Vec::new();
    let mut total: Option<Summary> = None;
    for events in pending {
        let reply = collect(events, n).await?;
        choices.extend(reply.choices);
        total = Some(sum(total, reply.summary));
    }
    let mut answer = header.object(OBJECT);
    answer["choices"] = choices
        .iter()
        .enumerate()
        .map(|(index, choice)| complete_choice(index, choice, with_logprobs))
        .collect();
    if let Some(total) = &total {
        answer["usage"] = usage(total);
        answer["timings"] = json!(Timings::new(total, &ran_on.device));
    }
    Ok(ignored.name_in(with_device_headers(&ran_on, Json(answer))))
}

fn sum(total: Option<Summary>, one: Summary) -> Summary {
    let Some(total) = total else { return one };
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

fn complete_choice(index: usize, choice: &Choice, with_logprobs: bool) -> Value {
    let mut offset = 0;
    json!({
        "index": index,
        "text": choice.text,
        "logprobs": with_logprobs.then(|| logprobs(&choice.tokens, &mut offset)),
        "finish_reason": choice.finish.map(finish_reason),
    })
}

/// Returns log-probabilities as parallel lists, with the offset of each token in the text in characters.
fn logprobs(tokens: &[TokenInfo], offset: &mut usize) -> Value {
    let offsets: Vec<usize> = tokens
        .iter()
        .map(|token| {
            let at = *offset;
            *offset += token.text.chars().count();
            at
        })
        .collect();
    let top: Vec<Value> = tokens
        .iter()
        .map(|token| match token.logprob {
            None => Value::Null,
            Some(_) => token
                .top
                .iter()
                .map(|top| (top.text.clone(), json!(top.logprob)))
                .collect::<Map<_, _>>()
                .into(),
        })
        .collect();
    json!({
        "tokens": tokens.iter().map(|token| &token.text).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| token.logprob).collect::<Vec<_>>(),
        "top_logprobs": top,
        "text_offset": offsets,
    })
}

struct TextChunks {
    header: CompletionHeader,
    options: StreamOptions,
    /// Length of each choice so far, in characters.
    offsets: Vec<usize>,
    end: StreamEnd,
}

impl TextChunks {
    fn chunk(&self, choices: Value, summary: Option<&Summary>) -> Value {
        let mut chunk = self.header.object(OBJECT);
        chunk["choices"] = choices;
        if self.options.include_usage {
            chunk["usage"] = summary.map_or(Value::Null, usage);
        }
        chunk
    }

    fn text(&mut self, index: usize, text: &str, tokens: &[TokenInfo], finish: Option<&str>) -> Value {
        let mut unused = 0;
        let offset = self.offsets.get_mut(index).unwrap_or(&mut unused);
        let logprobs = if tokens.is_empty() { Value::Null } else { logprobs(tokens, offset) };
        let choice = json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish});
        self.chunk(json!([choice]), None)
    }
}

impl Chunks for TextChunks {
    fn chunks(&mut self, event: GenerationEvent) -> Vec<Value> {
        match event {
            GenerationEvent::Text { choice, text, tokens } => vec![self.text(choice, &text, &tokens, None)],
            GenerationEvent::Finished { choice, reason } => {
                let chunk = self.text(choice, "", &[], Some(finish_reason(reason)));
                self.end.finish(chunk)
            }
            GenerationEvent::Done(summary) => {
                let usage = self.options.include_usage.then(|| self.chunk(json!([]), Some(&summary)));
                self.end.done(&summary, usage)
            }
            GenerationEvent::Started { .. }
            | GenerationEvent::Reasoning { .. }
            | GenerationEvent::ToolCall { .. }
            | GenerationEvent::Failed { .. } => Vec::new(),
        }
    }
}
