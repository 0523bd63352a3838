//! `POST /v1/fill`: predictions for masked tokens by a masked language model, or a continuation of the text.

use axum::{Json, response::Response};
use narthex_gateway::{
    Cancel, ReadyModel,
    request::{Filling, MaskRequest, RefineRequest},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{read_body, usage_of_prompt};
use crate::{
    app::App,
    blocking::run_cancellable,
    body::{Body, FromBody},
    device_headers::with_device_headers,
    error::ApiError,
    hints::Hints,
    ignored::{CALLER_FIELDS, IgnoredParameters},
};

/// Fields of a body.
const FIELDS: &[&str] = &["model", "text", "top_k", "generate", "rounds"];

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
        let invalid =
            |param: &'static str, why: &str| Err(ApiError::bad_request(param, format!("{param}: {why}")));
        match self.generate {
            Some(_) if self.top_k.is_some() => invalid("top_k", "cannot be combined with generate"),
            Some(tokens) => {
                let request = RefineRequest::new(self.text, tokens);
                Ok(Fill::Refine(RefineRequest { rounds: self.rounds.unwrap_or(request.rounds), ..request }))
            }
            None if self.rounds.is_some() => invalid("rounds", "requires generate"),
            None => Ok(Fill::Masks(MaskRequest { text: self.text, top_k: self.top_k.unwrap_or(5) })),
        }
    }
}

/// A body that was read and checked.
pub(crate) struct ParsedFill {
    model: String,
    request: Fill,
    ignored: IgnoredParameters,
}

impl FromBody for ParsedFill {
    fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let body: FillBody = read_body(bytes, &[FIELDS])?;
        let ignored = Hints::read(bytes, &[CALLER_FIELDS])?;
        Ok(Self { model: body.model.clone(), request: body.into_request()?, ignored })
    }

    fn ignored(&self) -> Option<&IgnoredParameters> {
        Some(&self.ignored)
    }
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedFill>) -> Result<Response, ApiError> {
    let Body(ParsedFill { model, request, ignored }, held) = body;
    let meter = app.meter.clone();
    let call = move |model: &ReadyModel, cancel: &Cancel| match request {
        Fill::Masks(request) => {
            let found = model.fill(&request, cancel)?;
            meter.tokens(found.prompt_tokens);
            let masks: Vec<Vec<Value>> =
                found.masks.iter().map(|mask| mask.iter().map(token).collect()).collect();
            Ok((found.ran_on, json!({"masks": masks, "usage": usage_of_prompt(found.prompt_tokens)})))
        }
        Fill::Refine(request) => {
            let found = model.refine(&request, cancel)?;
            meter.tokens(found.prompt_tokens);
            let body = json!({
                "text": found.text,
                "generated": found.generated,
                "tokens": found.tokens.iter().map(token).collect::<Vec<_>>(),
                "usage": usage_of_prompt(found.prompt_tokens),
            });
            Ok((found.ran_on, body))
        }
    };
    let (ran_on, mut body) = run_cancellable(&app, &model, held, call).await?;
    body["object"] = "fill".into();
    body["model"] = model.into();
    Ok(ignored.name_in(with_device_headers(&ran_on, Json(body))))
}

fn token(filling: &Filling) -> Value {
    json!({"token": filling.token, "text": filling.text, "score": filling.score})
}
