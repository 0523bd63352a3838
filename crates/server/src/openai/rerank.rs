//! `POST /v1/rerank`, in the shape that Cohere's and Jina's APIs share.

use axum::{Json, extract::State, response::Response};
use narthex_gateway::request::{Overlong, RerankRequest};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{body::Body, fresh_id, refuse_path, usage_of_prompt};
use crate::{
    error::ApiError,
    ran_on::marked,
    routes::{App, wanted},
};

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
    rank_fields: Option<Value>,
    max_tokens_per_doc: Option<Value>,
    max_chunks_per_doc: Option<Value>,
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
    /// What the gateway makes of it.
    pub(crate) fn rerank(&self) -> Result<RerankRequest, ApiError> {
        let unsupported = [
            ("rank_fields", &self.rank_fields),
            ("max_tokens_per_doc", &self.max_tokens_per_doc),
            ("max_chunks_per_doc", &self.max_chunks_per_doc),
        ];
        if let Some((param, _)) = unsupported.iter().find(|(_, value)| value.is_some()) {
            return Err(ApiError::unsupported(param));
        }
        Ok(RerankRequest {
            query: self.query.clone(),
            documents: self.documents.iter().map(|document| document.text().to_owned()).collect(),
            top_n: self.top_n,
            overlong: if self.truncate { Overlong::Truncate } else { Overlong::Refuse },
        })
    }
}

/// Sorts documents.
pub(crate) async fn create(
    State(app): State<App>,
    Body(request): Body<Request>,
) -> Result<Response, ApiError> {
    refuse_path(&request.model)?;
    let rerank = request.rerank()?;
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
