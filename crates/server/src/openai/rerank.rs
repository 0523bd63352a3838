//! `POST /v1/rerank`, in the form that Cohere's and Jina's APIs share.

use axum::{Json, extract::State, response::Response};
use narthex_gateway::request::{Overlong, RerankRequest};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{new_id, read_body, usage_of_prompt};
use crate::{
    app::App, blocking::run_cancellable, body::Body, device_headers::with_device_headers, error::ApiError,
    model_name::refuse_path,
};

/// Fields of a body.
const FIELDS: &[&str] = &["model", "query", "documents", "top_n", "return_documents", "truncate"];

#[derive(Debug, Deserialize)]
pub(crate) struct RerankBody {
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

impl RerankBody {
    /// Reads a body and checks the model name.
    pub(crate) fn read(body: &Value) -> Result<Self, ApiError> {
        let request: Self = read_body(body, &[FIELDS])?;
        refuse_path(&request.model)?;
        Ok(request)
    }

    /// Returns the gateway's request.
    pub(crate) fn to_request(&self) -> RerankRequest {
        RerankRequest {
            query: self.query.clone(),
            documents: self.documents.iter().map(|document| document.text().to_owned()).collect(),
            top_n: self.top_n,
            overlong: if self.truncate { Overlong::Truncate } else { Overlong::Refuse },
        }
    }
}

/// Handles a request.
pub(crate) async fn create(State(app): State<App>, Body(body): Body) -> Result<Response, ApiError> {
    let request = RerankBody::read(&body)?;
    let rerank = request.to_request();
    let (gateway, model) = (app.gateway.clone(), request.model.clone());
    let answer = run_cancellable(move |cancel| gateway.rerank(&model, &rerank, cancel)).await?;
    let result = |ranked: &narthex_gateway::request::Ranked| {
        let mut result = json!({"index": ranked.index, "relevance_score": ranked.score});
        if request.return_documents {
            result["document"] = json!({"text": request.documents[ranked.index].text()});
        }
        result
    };
    let body = json!({
        "id": new_id("rerank"),
        "model": request.model,
        "results": answer.results.iter().map(result).collect::<Vec<_>>(),
        "usage": usage_of_prompt(answer.prompt_tokens),
    });
    Ok(with_device_headers(&answer.ran_on, Json(body)))
}
