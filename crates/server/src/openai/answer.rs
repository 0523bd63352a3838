//! `POST /v1/answer`: extractive question answering.

use axum::{Json, extract::State, response::Response};
use narthex_gateway::request::{Answer, AnswerRequest};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{read_body, usage_of_prompt};
use crate::{
    app::App, blocking::run_cancellable, body::Body, device_headers::with_device_headers, error::ApiError,
    model_name::refuse_path,
};

/// Fields of a body.
const FIELDS: &[&str] = &["model", "question", "context", "top_k", "max_answer_tokens"];

#[derive(Debug, Deserialize)]
pub(crate) struct AnswerBody {
    model: String,
    question: String,
    context: String,
    top_k: Option<usize>,
    max_answer_tokens: Option<usize>,
}

impl AnswerBody {
    /// Reads a body and checks the model name.
    pub(crate) fn read(body: &Value) -> Result<Self, ApiError> {
        let request: Self = read_body(body, &[FIELDS])?;
        refuse_path(&request.model)?;
        Ok(request)
    }

    /// Returns the gateway's request.
    pub(crate) fn to_request(&self) -> AnswerRequest {
        let mut request = AnswerRequest::new(&self.question, &self.context);
        request.top_k = self.top_k.unwrap_or(request.top_k);
        request.longest = self.max_answer_tokens.unwrap_or(request.longest);
        request
    }
}

/// Handles a request.
pub(crate) async fn create(State(app): State<App>, Body(body): Body) -> Result<Response, ApiError> {
    let request = AnswerBody::read(&body)?;
    let answer = request.to_request();
    let (gateway, model) = (app.gateway.clone(), request.model.clone());
    let found = run_cancellable(move |cancel| gateway.answer(&model, &answer, cancel)).await?;
    let body = json!({
        "object": "answer",
        "model": request.model,
        "answer": found.best().map(|answer| &answer.text),
        "no_answer_score": found.no_answer,
        "answers": found.answers.iter().map(span).collect::<Vec<_>>(),
        "usage": usage_of_prompt(found.prompt_tokens),
    });
    Ok(with_device_headers(&found.ran_on, Json(body)))
}

fn span(answer: &Answer) -> Value {
    json!({
        "text": answer.text,
        "start": answer.chars.start,
        "end": answer.chars.end,
        "start_byte": answer.bytes.start,
        "end_byte": answer.bytes.end,
        "score": answer.score,
    })
}
