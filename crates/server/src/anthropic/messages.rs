//! `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use axum::{Json, response::Response};
use narthex_gateway::{Gateway, request::ChatRequest};
use serde_json::{Value, json};

use super::{
    AnthropicError,
    request::{FIELDS, MessagesBody},
    stop_reason,
    stream::MessageEvents,
    usage,
};
use crate::{
    app::App,
    blocking::run_cancellable,
    body::{self, Body, FromBody},
    device_headers::with_device_headers,
    error::ApiError,
    events,
    model_name::refuse_path,
    openai::new_id,
    reply::{Choice, collect},
    sse,
};

/// A body that was read and checked.
pub(crate) struct ParsedMessages {
    model: String,
    request: ChatRequest,
    is_streamed: bool,
}

impl FromBody for ParsedMessages {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let body: MessagesBody = body::read_body(body, &[FIELDS])?;
        refuse_path(&body.model)?;
        let (model, is_streamed) = (body.model.clone(), body.stream == Some(true));
        Ok(Self { model, is_streamed, request: body.into_request()? })
    }
}

/// Handles a request.
pub(crate) async fn create(
    app: App,
    body: Result<Body<ParsedMessages>, ApiError>,
) -> Result<Response, AnthropicError> {
    let Body(ParsedMessages { model, request, is_streamed }, held) = body?;
    let name = model.clone();
    let call = move |gateway: &Gateway, sink| gateway.chat(&name, request, sink);
    let events = events::start(&app, &model, held, call).await?;
    if is_streamed {
        let encoder = MessageEvents::new(new_id("msg"), model);
        return Ok(sse::respond(events, Box::new(encoder), app.meter.metrics));
    }
    let ran_on = events.ran_on();
    let reply = collect(events, 1).await?;
    let choice = reply.choices.first();
    let answer = json!({
        "id": new_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": choice.map(content),
        "stop_reason": choice.and_then(|choice| choice.finish).map(stop_reason),
        "stop_sequence": null,
        "usage": usage(&reply.summary),
    });
    Ok(with_device_headers(&ran_on, Json(answer)))
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

/// Counts the tokens of a conversation.
pub(crate) async fn count_tokens(
    app: App,
    body: Result<Body<ParsedMessages>, ApiError>,
) -> Result<Json<Value>, AnthropicError> {
    let Body(ParsedMessages { model, request, .. }, held) = body?;
    let name = model.clone();
    let prompt =
        run_cancellable(&app, &model, held, move |gateway, _| gateway.chat_prompt(&name, request)).await?;
    Ok(Json(json!({"input_tokens": prompt.tokens.len()})))
}
