//! `POST /v1/answer`: extractive question answering.

use axum::{Json, response::Response};
use narthex_gateway::{
    Cancel, ReadyModel,
    request::{Answer, AnswerRequest},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{read_body, usage_of_prompt};
use crate::{
    app::App,
    blocking::{WholeText, run_tokenising},
    body::{Body, FromBody},
    device_headers::with_device_headers,
    error::ApiError,
    hints::Hints,
    ignored::{CALLER_FIELDS, IgnoredParameters},
};

/// Fields of a body.
const FIELDS: &[&str] = &["model", "question", "context", "top_k", "max_answer_tokens"];

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct AnswerBody {
    model: String,
    question: String,
    context: String,
    top_k: Option<usize>,
    max_answer_tokens: Option<usize>,
}

/// A body that was read and checked.
pub(crate) struct ParsedAnswer {
    model: String,
    request: AnswerRequest,
    ignored: IgnoredParameters,
}

impl FromBody for ParsedAnswer {
    fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let body: AnswerBody = read_body(bytes, &[FIELDS])?;
        let ignored = Hints::read(bytes, &[CALLER_FIELDS])?;
        let mut request = AnswerRequest::new(body.question, body.context);
        request.top_k = body.top_k.unwrap_or(request.top_k);
        request.longest = body.max_answer_tokens.unwrap_or(request.longest);
        Ok(Self { model: body.model, request, ignored })
    }

    fn ignored(&self) -> Option<&IgnoredParameters> {
        Some(&self.ignored)
    }
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedAnswer>) -> Result<Response, ApiError> {
    let Body(ParsedAnswer { model, request, ignored }, held) = body;
    let text = WholeText { body: held, length: request.context.len() };
    let call = move |model: &ReadyModel, cancel: &Cancel| model.answer(&request, cancel);
    let found = run_tokenising(&app, &model, text, call).await?;
    app.meter.tokens(found.prompt_tokens);
    let body = json!({
        "object": "answer",
        "model": model,
        "answer": found.best().map(|answer| &answer.text),
        "no_answer_score": found.no_answer,
        "answers": found.answers.iter().map(span).collect::<Vec<_>>(),
        "usage": usage_of_prompt(found.prompt_tokens),
    });
    Ok(ignored.name_in(with_device_headers(&found.ran_on, Json(body))))
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
