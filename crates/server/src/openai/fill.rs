//! `POST /v1/fill`: what a masked language model puts in the place of a text's masks, or adds to it.

use axum::{Json, extract::State, response::Response};
use narthex_gateway::request::{Filling, MaskRequest, RefineRequest};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    body::{Body, read_whole},
    refuse_path, usage_of_prompt,
};
use crate::{
    error::ApiError,
    ran_on::marked,
    routes::{App, wanted},
};

/// Fields that are read.
const FIELDS: &[&str] = &["model", "text", "top_k", "generate", "rounds"];

#[derive(Debug, Deserialize)]
pub(crate) struct Request {
    model: String,
    text: String,
    top_k: Option<usize>,
    generate: Option<usize>,
    rounds: Option<usize>,
}

/// What is asked of a text.
pub(crate) enum Fill {
    /// Tokens for each mask.
    Masks(MaskRequest),
    /// Further tokens.
    Refine(RefineRequest),
}

impl Request {
    /// Reads a body.
    pub(crate) fn read(body: &Value) -> Result<Self, ApiError> {
        let request: Self = read_whole(body, &[FIELDS])?;
        refuse_path(&request.model)?;
        Ok(request)
    }

    /// What the gateway makes of it.
    pub(crate) fn fill(&self) -> Result<Fill, ApiError> {
        let apart =
            |param: &'static str, why: &str| Err(ApiError::bad_request(param, format!("{param}: {why}")));
        match self.generate {
            Some(_) if self.top_k.is_some() => {
                apart("top_k", "expected none beside generate, whose tokens are one each")
            }
            Some(tokens) => {
                let request = RefineRequest::new(&self.text, tokens);
                Ok(Fill::Refine(RefineRequest { rounds: self.rounds.unwrap_or(request.rounds), ..request }))
            }
            None if self.rounds.is_some() => apart("rounds", "expected generate beside it"),
            None => Ok(Fill::Masks(MaskRequest { text: self.text.clone(), top_k: self.top_k.unwrap_or(5) })),
        }
    }
}

/// Fills masks.
pub(crate) async fn create(State(app): State<App>, Body(body): Body) -> Result<Response, ApiError> {
    let request = Request::read(&body)?;
    let fill = request.fill()?;
    let (gateway, model) = (app.gateway.clone(), request.model.clone());
    let (ran_on, mut body) = wanted(move |cancel| match fill {
        Fill::Masks(request) => {
            let found = gateway.fill(&model, &request, cancel)?;
            let masks: Vec<Vec<Value>> =
                found.masks.iter().map(|mask| mask.iter().map(token).collect()).collect();
            Ok((found.ran_on, json!({"masks": masks, "usage": usage_of_prompt(found.prompt_tokens)})))
        }
        Fill::Refine(request) => {
            let found = gateway.refine(&model, &request, cancel)?;
            let body = json!({
                "text": found.text,
                "generated": found.generated,
                "tokens": found.tokens.iter().map(token).collect::<Vec<_>>(),
                "usage": usage_of_prompt(found.prompt_tokens),
            });
            Ok((found.ran_on, body))
        }
    })
    .await?;
    body["object"] = "fill".into();
    body["model"] = request.model.into();
    Ok(marked(&ran_on, Json(body)))
}

fn token(filling: &Filling) -> Value {
    json!({"token": filling.token, "text": filling.text, "score": filling.score})
}
