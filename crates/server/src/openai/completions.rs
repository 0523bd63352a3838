//! `POST /v1/completions`.

use axum::{Json, extract::State, response::Response};
use narthex_gateway::request::{
    CompletionRequest, Echo, GenerateOptions, GenerationEvent, Prompt, Summary, TokenInfo,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    body::{Body, read, read_whole},
    finish_reason, fresh_id, now,
    options::{Sampling, StreamOptions},
    refuse_path,
    stream::{self, Chunks},
    usage,
};
use crate::{
    error::ApiError,
    ran_on::marked,
    reply::{Choice, gather},
    routes::App,
    sink::{self, Events},
};

/// The most alternatives per token that this endpoint reports.
const MAX_LOGPROBS: usize = 5;

/// Tokens of a completion when nothing is said, as OpenAI's API has it.
const DEFAULT_TOKENS: usize = 16;

/// The most prompts of one request.
const MAX_PROMPTS: usize = 64;

/// Fields that are read beside [`Sampling::FIELDS`].
const FIELDS: &[&str] = &["model", "prompt", "logprobs", "echo", "best_of"];

#[derive(Debug, Deserialize)]
pub(crate) struct Request {
    model: String,
    prompt: Prompts,
    logprobs: Option<usize>,
    echo: Option<bool>,
    best_of: Option<usize>,
}

/// Every form that `prompt` may have.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text, a list of tokens, or a list of either")]
enum Prompts {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

impl Prompts {
    fn list(self) -> Vec<Prompt> {
        match self {
            Self::Text(text) => vec![Prompt::Text(text)],
            // An empty list has no kind: it holds no prompt.
            Self::Tokens(tokens) if tokens.is_empty() => Vec::new(),
            Self::Tokens(tokens) => vec![Prompt::Tokens(tokens)],
            Self::Texts(texts) => texts.into_iter().map(Prompt::Text).collect(),
            Self::TokenLists(lists) => lists.into_iter().map(Prompt::Tokens).collect(),
        }
    }
}

/// What a body asks for.
pub(crate) struct VendorCompiler {
    model: String,
    prompts: Vec<Prompt>,
    echo: Echo,
    options: GenerateOptions,
    streaming: Option<StreamOptions>,
    wants_logprobs: bool,
}

/// Reads a body.
pub(crate) fn interpret(body: &Value) -> Result<VendorCompiler, ApiError> {
    let request: Request = read_whole(body, &[FIELDS, Sampling::FIELDS])?;
    let sampling: Sampling = read(body)?;
    refuse_path(&request.model)?;
    if request.logprobs.is_some_and(|top| top > MAX_LOGPROBS) {
        return Err(ApiError::bad_request("logprobs", format!("logprobs: expected at most {MAX_LOGPROBS}")));
    }
    let mut options = sampling.options(request.logprobs)?;
    options.max_tokens.get_or_insert(DEFAULT_TOKENS);
    if request.best_of.is_some_and(|best| best != options.n) {
        return Err(ApiError::unsupported("best_of"));
    }
    let streaming = sampling.streaming();
    let echo = if request.echo.unwrap_or(false) { Echo::PromptAndCompletion } else { Echo::Completion };
    let prompts = request.prompt.list();
    if prompts.is_empty() || prompts.len() > MAX_PROMPTS || (streaming.is_some() && prompts.len() > 1) {
        let most = if streaming.is_some() { 1 } else { MAX_PROMPTS };
        let how = if streaming.is_some() { " in a stream" } else { "" };
        let message = format!("prompt: expected 1 to {most} prompts{how}, found {}", prompts.len());
        return Err(ApiError::bad_request("prompt", message));
    }
    let wants_logprobs = request.logprobs.is_some();
    Ok(VendorCompiler { model: request.model, prompts, echo, options, streaming, wants_logprobs })
}

/// Completes one or several prompts.
pub(crate) async fn create(State(app): State<App>, Body(body): Body) -> Result<Response, ApiError> {
    let VendorCompiler { model, prompts, echo, options, streaming, wants_logprobs } = interpret(&body)?;
    let n = options.n;
    let head = Head { id: fresh_id("cmpl"), created: now(), model: model.clone() };
    let mut pending = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let (gateway, model, options) = (app.gateway.clone(), model.clone(), options.clone());
        let completion = CompletionRequest { prompt, echo, options };
        pending.push(sink::start(move |sink| gateway.complete(&model, completion, sink)).await?);
    }
    if let Some(options) = streaming
        && let Some(events) = pending.pop()
    {
        let chunks = TextChunks { head, options, offsets: vec![0; n] };
        return Ok(stream::respond(events, Box::new(chunks), app.metrics));
    }
    let Some(ran_on) = pending.first().map(Events::ran_on) else {
        return Err(ApiError::bad_request("prompt", "prompt: expected at least one, found none"));
    };
    let mut choices = Vec::new();
    let mut total: Option<Summary> = None;
    for events in pending {
        let reply = gather(events, n).await?;
        app.metrics.generation(&reply.summary);
        choices.extend(reply.choices);
        total = Some(add(total, reply.summary));
    }
    let mut answer = head.object();
    answer["choices"] =
        choices.iter().enumerate().map(|(index, choice)| whole(index, choice, wants_logprobs)).collect();
    answer["usage"] = total.as_ref().map_or(Value::Null, usage);
    Ok(marked(&ran_on, Json(answer)))
}

fn add(total: Option<Summary>, one: Summary) -> Summary {
    let Some(total) = total else { return one };
    Summary {
        prompt_tokens: total.prompt_tokens + one.prompt_tokens,
        cached_tokens: total.cached_tokens + one.cached_tokens,
        completion_tokens: total.completion_tokens + one.completion_tokens,
        ..one
    }
}

fn whole(index: usize, choice: &Choice, wants_logprobs: bool) -> Value {
    let mut offset = 0;
    json!({
        "index": index,
        "text": choice.text,
        "logprobs": wants_logprobs.then(|| logprobs(&choice.tokens, &mut offset)),
        "finish_reason": choice.finish.map(finish_reason),
    })
}

/// The legacy shape: parallel lists, with each token's offset in the text in characters.
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

struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn object(&self) -> Value {
        json!({"id": self.id, "object": "text_completion", "created": self.created, "model": self.model})
    }
}

struct TextChunks {
    head: Head,
    options: StreamOptions,
    /// Characters of each choice so far.
    offsets: Vec<usize>,
}

impl TextChunks {
    fn chunk(&self, choices: Value, summary: Option<&Summary>) -> Value {
        let mut chunk = self.head.object();
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
                vec![self.text(choice, "", &[], Some(finish_reason(reason)))]
            }
            GenerationEvent::Done(summary) if self.options.include_usage => {
                vec![self.chunk(json!([]), Some(&summary))]
            }
            GenerationEvent::Started { .. } | GenerationEvent::Done(_) | GenerationEvent::Failed { .. } => {
                Vec::new()
            }
        }
    }
}
