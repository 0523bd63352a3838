//! `POST /v1/fill`: predictions for masked tokens by a masked language model, or a continuation of the text.

use axum::{Json, response::Response};
use narthex_gateway::request::{Filling, MaskRequest, RefineRequest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PromptUsage, usage_of_prompt};
use crate::{
    app::App,
    error::ApiError,
    protocol::{
        blocking::run_encoder,
        body::{Body, FromBody},
        device_headers::with_device_headers,
        fields::BodyFields,
        hints,
        ignored::IgnoredParameters,
    },
};

/// Type of the objects that this endpoint returns.
const OBJECT: &str = "fill";

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct FillBody {
    model: String,
    text: String,
    top_k: Option<usize>,
    generate: Option<usize>,
    rounds: Option<usize>,
}

/// A request for the gateway.
enum Fill {
    /// Predicted tokens for each mask.
    Masks(MaskRequest),
    /// A continuation.
    Refine(RefineRequest),
}

impl FillBody {
    fn into_request(self) -> Result<Fill, ApiError> {
        match self.generate {
            Some(_) if self.top_k.is_some() => {
                Err(ApiError::bad_request("top_k", "top_k: cannot be combined with generate"))
            }
            Some(tokens) => {
                let request = RefineRequest::new(self.text, tokens);
                Ok(Fill::Refine(RefineRequest { rounds: self.rounds.unwrap_or(request.rounds), ..request }))
            }
            None if self.rounds.is_some() => {
                Err(ApiError::bad_request("rounds", "rounds: requires generate"))
            }
            None => Ok(Fill::Masks(MaskRequest { text: self.text, top_k: self.top_k.unwrap_or(5) })),
        }
    }
}

/// A body that was read and checked.
pub(crate) struct ParsedFill {
    model: String,
    request: Fill,
}

impl FromBody for ParsedFill {
    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let body: FillBody = fields.read()?;
        hints::ignore(fields, &[], ignored)?;
        Ok(Self { model: body.model.clone(), request: body.into_request()? })
    }
}

/// Predictions for masks, or a continuation.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FilledText {
    #[schemars(extend("const" = OBJECT))]
    object: &'static str,
    model: String,
    #[serde(flatten)]
    filled: FillContent,
    usage: PromptUsage,
}

/// The part of an answer that depends on the request.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum FillContent {
    /// The likeliest tokens for each mask, in descending order.
    Masks { masks: Vec<Vec<FilledToken>> },
    /// The text with the new tokens.
    Text { text: String, generated: String, tokens: Vec<FilledToken> },
}

#[derive(Debug, Serialize, JsonSchema)]
struct FilledToken {
    /// Token id.
    token: u32,
    text: String,
    /// Probability, 0 to 1.
    score: f64,
}

impl FilledText {
    fn new(model: String, filled: FillContent, prompt_tokens: usize) -> Self {
        Self { object: OBJECT, model, filled, usage: usage_of_prompt(prompt_tokens) }
    }
}

impl From<Filling> for FilledToken {
    fn from(Filling { token, text, score }: Filling) -> Self {
        Self { token, text, score }
    }
}

fn tokens(fillings: Vec<Filling>) -> Vec<FilledToken> {
    fillings.into_iter().map(FilledToken::from).collect()
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedFill>) -> Result<Response, ApiError> {
    let Body { request: ParsedFill { model, request }, ignored, reservation } = body;
    let name = model.clone();
    let meter = app.meter.clone();
    let filled = run_encoder(
        &app,
        &model,
        reservation.into(),
        |_| 0,
        move |model, cancel| match request {
            Fill::Masks(request) => {
                let found = model.fill(&request, cancel)?;
                meter.tokens(found.prompt_tokens);
                let filled = FillContent::Masks { masks: found.masks.into_iter().map(tokens).collect() };
                Ok((found.ran_on, FilledText::new(name, filled, found.prompt_tokens)))
            }
            Fill::Refine(request) => {
                let found = model.refine(&request, cancel)?;
                meter.tokens(found.prompt_tokens);
                let filled = FillContent::Text {
                    text: found.text,
                    generated: found.generated,
                    tokens: tokens(found.tokens),
                };
                Ok((found.ran_on, FilledText::new(name, filled, found.prompt_tokens)))
            }
        },
    );
    let (ran_on, body) = filled.await?;
    Ok(ignored.name_in(with_device_headers(&ran_on, Json(body))))
}
