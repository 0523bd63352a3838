//! `POST /v1/answer`: extractive question answering.

use axum::{Json, response::Response};
use narthex_gateway::request::{Answer, AnswerRequest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PromptUsage, usage_of_prompt};
use crate::{
    app::App,
    error::ApiError,
    protocol::{
        blocking::{WholeText, run_encoder},
        body::{Body, FromBody},
        device_headers::with_device_headers,
        fields::BodyFields,
        hints,
        ignored::IgnoredParameters,
    },
};

/// Type of the objects that this endpoint returns.
const OBJECT: &str = "answer";

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
}

impl FromBody for ParsedAnswer {
    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let body: AnswerBody = fields.read()?;
        hints::ignore(fields, &[], ignored)?;
        let mut request = AnswerRequest::new(body.question, body.context);
        request.top_k = body.top_k.unwrap_or(request.top_k);
        request.longest = body.max_answer_tokens.unwrap_or(request.longest);
        Ok(Self { model: body.model, request })
    }
}

/// Answers to a question.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct QuestionAnswers {
    #[schemars(extend("const" = OBJECT))]
    object: &'static str,
    model: String,
    /// The best answer; null if the context more likely has none.
    answer: Option<String>,
    /// Probability that the context has no answer.
    no_answer_score: f64,
    answers: Vec<AnswerSpan>,
    usage: PromptUsage,
}

/// A span of the context, in characters and in UTF-8 bytes.
#[derive(Debug, Serialize, JsonSchema)]
struct AnswerSpan {
    text: String,
    start: usize,
    end: usize,
    start_byte: usize,
    end_byte: usize,
    /// Probability, 0 to 1.
    score: f64,
}

impl From<Answer> for AnswerSpan {
    fn from(Answer { text, bytes, chars, score }: Answer) -> Self {
        Self { text, start: chars.start, end: chars.end, start_byte: bytes.start, end_byte: bytes.end, score }
    }
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedAnswer>) -> Result<Response, ApiError> {
    let Body { request: ParsedAnswer { model, request }, ignored, reservation } = body;
    let text = WholeText { body: reservation, length: request.context.len() };
    let meter = app.meter.clone();
    let found = run_encoder(
        &app,
        &model,
        text,
        |_| 0,
        move |model, cancel| {
            model.answer(&request, cancel).inspect(|found| meter.tokens(found.prompt_tokens))
        },
    );
    let found = found.await?;
    let body = QuestionAnswers {
        object: OBJECT,
        model,
        answer: found.best().map(|answer| answer.text.clone()),
        no_answer_score: found.no_answer,
        usage: usage_of_prompt(found.prompt_tokens),
        answers: found.answers.into_iter().map(AnswerSpan::from).collect(),
    };
    Ok(ignored.name_in(with_device_headers(&found.ran_on, Json(body))))
}
