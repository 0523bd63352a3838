//! `POST /v1/rerank`, in the shape that Cohere's and Jina's APIs share.

use axum::{Json, extract::State, response::Response};
use narthex_gateway::request::{Overlong, RerankRequest};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    body::{Body, read_whole},
    fresh_id, refuse_path, usage_of_prompt,
};
use crate::{
    error::ApiError,
    ran_on::marked,
    routes::{App, wanted},
};

/// Fields that are read.
const FIELDS: &[&str] = &["model", "query", "documents", "top_n", "return_documents", "truncate"];

#[derive(Debug, Deserialize)]
pub(crate) struct Request {
    model: String,
    query: String,
    documents: Vec<Document>,
    top_n: Option<usize>,
    #[serde(default)]
    return_documents: bool,
    #[serde(default)]
    truncate: bool,
}

/// A document: its text, or an object that holds it.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "expected a text, or an object with the field text")]
enum Document {
    Text(String),
    Object { text: String },
}

impl Document {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}

impl Request {
    /// Reads a body.
    pub(crate) fn read(body: &Value) -> Result<Self, ApiError> {
        let request: Self = read_whole(body, &[FIELDS])?;
        refuse_path(&request.model)?;
        Ok(request)
    }

    /// What the gateway makes of it.
    pub(crate) fn rerank(&self) -> RerankRequest {
        RerankRequest {
            query: self.query.clone(),
            documents: self.documents.iter().map(|document| document.text().to_owned()).collect(),
            top_n: self.top_n,
            overlong: if self.truncate { Overlong::Truncate } else { Overlong::Refuse },
        }
    }
}

/// Sorts documents.
pub(crate) async fn create(State(app): State<App>, Body(body): Body) -> Result<Response, ApiError> {
    let request = Request::read(&body)?;
    let rerank = request.rerank();
    let (gateway, model) = (app.gateway.clone(), request.model.clone());
    let answer = wanted(move |cancel| gateway.rerank(&model, &rerank, cancel)).await?;
    let result = |ranked: &narthex_gateway::request::Ranked| {
        let mut result = json!({"index": ranked.index, "relevance_score": ranked.score});
        if request.return_documents {
            result["document"] = json!({"text": request.documents[ranked.index].text()});
        }
        result
    };
    let body = json!({
        "id": fresh_id("rerank"),
        "model": request.model,
        "results": answer.results.iter().map(result).collect::<Vec<_>>(),
        "usage": usage_of_prompt(answer.prompt_tokens),
    });
    Ok(marked(&answer.ran_on, Json(body)))
}
