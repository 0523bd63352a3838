//! `POST /v1/answer`: the parts of a text that answer a question.

use axum::{Json, extract::State, response::Response};
use narthex_gateway::request::{Answer, AnswerRequest};
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
const FIELDS: &[&str] = &["model", "question", "context", "top_k", "max_answer_tokens"];

#[derive(Debug, Deserialize)]
pub(crate) struct Request {
    model: String,
    question: String,
    context: String,
    top_k: Option<usize>,
    max_answer_tokens: Option<usize>,
}

impl Request {
    /// Reads a body.
    pub(crate) fn read(body: &Value) -> Result<Self, ApiError> {
        let request: Self = read_whole(body, &[FIELDS])?;
        refuse_path(&request.model)?;
        Ok(request)
    }

    /// What the gateway makes of it.
    pub(crate) fn answer(&self) -> AnswerRequest {
        let mut request = AnswerRequest::new(&self.question, &self.context);
        request.top_k = self.top_k.unwrap_or(request.top_k);
        request.longest = self.max_answer_tokens.unwrap_or(request.longest);
        request
    }
}

/// Answers a question.
pub(crate) async fn create(State(app): State<App>, Body(body): Body) -> Result<Response, ApiError> {
    let request = Request::read(&body)?;
    let answer = request.answer();
    let (gateway, model) = (app.gateway.clone(), request.model.clone());
    let found = wanted(move |cancel| gateway.answer(&model, &answer, cancel)).await?;
    let body = json!({
        "object": "answer",
        "model": request.model,
        "answer": found.best().map(|answer| &answer.text),
        "no_answer_score": found.no_answer,
        "answers": found.answers.iter().map(span).collect::<Vec<_>>(),
        "usage": usage_of_prompt(found.prompt_tokens),
    });
    Ok(marked(&found.ran_on, Json(body)))
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
