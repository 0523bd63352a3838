//! `POST /v1/rerank`, in the form that Cohere's and Jina's APIs share.

use axum::{Json, response::Response};
use narthex_gateway::{
    Cancel, Gateway,
    request::{Overlong, Ranked, RerankRequest},
};
use serde::Deserialize;
use serde_json::json;

use super::{new_id, read_body, usage_of_prompt};
use crate::{
    app::App,
    blocking::run_cancellable,
    body::{Body, FromBody},
    device_headers::with_device_headers,
    error::ApiError,
    model_name::refuse_path,
};

/// Fields of a body.
const FIELDS: &[&str] = &["model", "query", "documents", "top_n", "return_documents", "truncate"];

#[derive(Debug, Deserialize)]
struct RerankBody {
    model: String,
    query: String,
    documents: Vec<Document>,
    top_n: Option<usize>,
    #[serde(default)]
    return_documents: bool,
    #[serde(default)]
    truncate: bool,
}

/// A document: a text, or an object with one.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text, or an object with the field text")]
enum Document {
    Text(String),
    Object { text: String },
}

impl Document {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}

/// A body that was read and checked.
pub(crate) struct ParsedRerank {
    model: String,
    request: RerankRequest,
    return_documents: bool,
}

impl FromBody for ParsedRerank {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let body: RerankBody = read_body(body, &[FIELDS])?;
        refuse_path(&body.model)?;
        let request = RerankRequest {
            query: body.query,
            documents: body.documents.into_iter().map(Document::into_text).collect(),
            top_n: body.top_n,
            overlong: if body.truncate { Overlong::Truncate } else { Overlong::Refuse },
        };
        Ok(Self { model: body.model, request, return_documents: body.return_documents })
    }
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedRerank>) -> Result<Response, ApiError> {
    let Body(ParsedRerank { model, request, return_documents }, held) = body;
    let name = model.clone();
    let call = move |gateway: &Gateway, cancel: &Cancel| {
        Ok((gateway.rerank(&name, &request, cancel)?, request.documents))
    };
    let (answer, documents) = run_cancellable(&app, &model, held, call).await?;
    app.meter.tokens(answer.prompt_tokens);
    let result = |ranked: &Ranked| {
        let mut result = json!({"index": ranked.index, "relevance_score": ranked.score});
        if return_documents {
            result["document"] = json!({"text": documents[ranked.index]});
        }
        result
    };
    let body = json!({
        "id": new_id("rerank"),
        "model": model,
        "results": answer.results.iter().map(result).collect::<Vec<_>>(),
        "usage": usage_of_prompt(answer.prompt_tokens),
    });
    Ok(with_device_headers(&answer.ran_on, Json(body)))
}
