//! `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use std::sync::Arc;

use axum::{Json, response::Response};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    request::{FIELDS, MessagesBody},
    stop_reason,
    stream::MessageEvents,
    usage,
};
use crate::{
    app::App,
    blocking::run_cancellable,
    body::{self, Body, FromBody},
    conversation::{self, AnswerForm, Conversation},
    error::ApiError,
    events::Events,
    metrics::Metrics,
    openai::new_id,
    reply::{Choice, Reply},
    sse,
};

/// A body that was read and checked.
pub(crate) struct ParsedMessages(Conversation);

impl FromBody for ParsedMessages {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let body: MessagesBody = body::read_body(body, &[FIELDS])?;
        let (model, is_streamed) = (body.model.clone(), body.stream == Some(true));
        Ok(Self(Conversation { model, is_streamed, request: body.into_request()? }))
    }
}

/// Form of an answer to `/v1/messages`.
struct MessageForm {
    model: String,
}

impl AnswerForm for MessageForm {
    type Whole = Value;

    fn whole(self, reply: Reply) -> Value {
        let choice = reply.choices.first();
        json!({
            "id": new_id("msg"),
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": choice.map(content),
            "stop_reason": choice.and_then(|choice| choice.finish).map(stop_reason),
            "stop_sequence": null,
            "usage": usage(&reply.summary),
        })
    }

    fn streamed(self, events: Events, metrics: Arc<Metrics>) -> Response {
        sse::respond(events, Box::new(MessageEvents::new(new_id("msg"), self.model)), metrics)
    }
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedMessages>) -> Result<Response, ApiError> {
    let Body(ParsedMessages(conversation), held) = body;
    let form = MessageForm { model: conversation.model.clone() };
    conversation::answer(&app, conversation, held, form).await
}

/// Returns the content blocks of an answer.
fn content(choice: &Choice) -> Value {
    let text = (!choice.text.is_empty()).then(|| json!({"type": "text", "text": choice.text}));
    let calls = choice.calls.iter().map(|call| {
        let input: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
        json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input})
    });
    text.into_iter().chain(calls).collect()
}

/// Number of tokens of a conversation.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct InputTokenCount {
    input_tokens: usize,
}

/// Counts the tokens of a conversation.
pub(crate) async fn count_tokens(
    app: App,
    body: Body<ParsedMessages>,
) -> Result<Json<InputTokenCount>, ApiError> {
    let Body(ParsedMessages(Conversation { model, request, .. }), held) = body;
    let name = model.clone();
    let prompt =
        run_cancellable(&app, &model, held, move |gateway, _| gateway.chat_prompt(&name, request)).await?;
    Ok(Json(InputTokenCount { input_tokens: prompt.tokens.len() }))
}
