//! `POST /api/embed`, and its older form `POST /api/embeddings`.

use std::time::Instant;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use narthex_gateway::request::{EmbedRequest, Embeddings, InputOverflow, MAX_INPUTS, Prompt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{nanoseconds, options::Retention, retain};
use crate::{
    app::App,
    error::ApiError,
    protocol::{
        blocking::json_response,
        body::{Body, FromBody},
        device_headers::with_device_headers,
        embeddings,
        fields::BodyFields,
        hints,
        ignored::IgnoredParameters,
        loading,
        prompts::Prompts,
    },
};

/// Body of `/api/embed`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct EmbedBody {
    model: String,
    input: Option<Prompts<MAX_INPUTS>>,
    truncate: Option<bool>,
    dimensions: Option<usize>,
    keep_alive: Option<Value>,
}

/// Body of `/api/embeddings`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct PromptEmbedBody {
    model: String,
    prompt: Option<String>,
    keep_alive: Option<Value>,
}

impl FromBody for EmbedBody {
    const TOKENS: Option<&'static str> = Some("input");

    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let body = fields.read()?;
        hints::ignore(fields, hints::OF_EMBEDDINGS, ignored)?;
        Ok(body)
    }
}

impl FromBody for PromptEmbedBody {
    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let body = fields.read()?;
        hints::ignore(fields, hints::OF_EMBEDDINGS, ignored)?;
        Ok(body)
    }
}

/// Answer of `/api/embed`. Times are in nanoseconds.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EmbedAnswer {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

impl EmbedAnswer {
    fn new(model: String, embeddings: Vec<Vec<f32>>, prompt_eval_count: usize, started: Instant) -> Self {
        let total_duration = nanoseconds(started.elapsed());
        Self { model, embeddings, total_duration, load_duration: 0, prompt_eval_count }
    }
}

/// Answer of `/api/embeddings`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EmbeddingAnswer {
    embedding: Vec<f32>,
}

/// Loads or unloads the model of a request without inputs.
async fn change_memory(app: &App, model: &str, retention: Retention) -> Result<(), ApiError> {
    if retention != Retention::Unload {
        loading::wait(app, model).await?;
    }
    retain(app, model, retention).await
}

/// Handles a request to `/api/embed`. Without inputs it loads or unloads the model.
pub(crate) async fn embed(app: App, body: Body<EmbedBody>) -> Result<Response, ApiError> {
    let Body { request, mut ignored, reservation } = body;
    let EmbedBody { model, input, truncate, dimensions, keep_alive } = request;
    let retention = Retention::read(keep_alive.as_ref(), &mut ignored);
    let started = Instant::now();
    let inputs = input.map_or_else(Vec::new, |input| input.0);
    if inputs.is_empty() {
        let retention = retention.without_work(&app, &mut ignored);
        change_memory(&app, &model, retention).await?;
        return Ok(ignored.name_in(Json(EmbedAnswer::new(model, Vec::new(), 0, started)).into_response()));
    }

    let retention = retention.permitted_for(&app, &mut ignored);
    // Ollama truncates by default.
    let overlong = if truncate == Some(false) { InputOverflow::Refuse } else { InputOverflow::Truncate };
    let request = EmbedRequest { inputs, overlong, dimensions, prompt: None };
    let found = embeddings::embed(&app, &model, request, reservation).await?;
    retain(&app, &model, retention).await?;
    let Embeddings { vectors, prompt_tokens, ran_on } = found;
    let response =
        json_response(&app, move || EmbedAnswer::new(model, vectors, prompt_tokens, started)).await?;
    Ok(ignored.name_in(with_device_headers(&ran_on, response)))
}

/// Handles a request to `/api/embeddings`. Without a prompt it loads or unloads the model.
pub(crate) async fn embeddings(app: App, body: Body<PromptEmbedBody>) -> Result<Response, ApiError> {
    let Body { request: PromptEmbedBody { model, prompt, keep_alive }, mut ignored, reservation } = body;
    let retention = Retention::read(keep_alive.as_ref(), &mut ignored);
    let Some(prompt) = prompt.filter(|prompt| !prompt.is_empty()) else {
        let retention = retention.without_work(&app, &mut ignored);
        change_memory(&app, &model, retention).await?;
        return Ok(ignored.name_in(Json(EmbeddingAnswer { embedding: Vec::new() }).into_response()));
    };

    let retention = retention.permitted_for(&app, &mut ignored);
    let inputs = vec![Prompt::Text(prompt)];
    let request = EmbedRequest { inputs, overlong: InputOverflow::Truncate, dimensions: None, prompt: None };
    let found = embeddings::embed(&app, &model, request, reservation).await?;
    retain(&app, &model, retention).await?;
    let embedding = found.vectors.into_iter().next().unwrap_or_default();
    Ok(ignored.name_in(with_device_headers(&found.ran_on, Json(EmbeddingAnswer { embedding }))))
}
