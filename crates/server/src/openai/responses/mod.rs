//! `POST /v1/responses`. Responses are not stored: clients send the whole conversation.

mod request;
mod stream;

use axum::{Json, response::Response};
use narthex_gateway::{
    Gateway,
    request::{ChatRequest, FinishReason, Summary},
};
use serde_json::{Value, json};

use super::{new_id, now};
use crate::{
    app::App,
    body::{self, Body, FromBody},
    device_headers::with_device_headers,
    error::ApiError,
    events,
    model_name::refuse_path,
    reply::{Choice, WholeToolCall, collect},
    sse,
};
use request::{FIELDS, ResponsesBody};
use stream::ResponseEvents;

/// A body that was read and checked.
pub(crate) struct ParsedResponses {
    request: ChatRequest,
    is_streamed: bool,
    object: ResponseObject,
}

impl FromBody for ParsedResponses {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let body: ResponsesBody = body::read_body(body, &[FIELDS])?;
        refuse_path(&body.model)?;
        let object = ResponseObject { id: new_id("resp"), created: now(), model: body.model.clone() };
        Ok(Self { is_streamed: body.stream == Some(true), request: body.into_request()?, object })
    }
}

/// The fields of a response that do not depend on its answer.
struct ResponseObject {
    id: String,
    created: u64,
    model: String,
}

impl ResponseObject {
    /// Returns the response in a state.
    fn value(&self, status: &str, output: Value) -> Value {
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "model": self.model,
            "output": output,
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "store": false,
            "usage": null,
        })
    }

    /// Returns the response with a whole answer.
    fn complete(&self, output: Value, reason: Option<FinishReason>, summary: &Summary) -> Value {
        let is_cut = matches!(reason, Some(FinishReason::Length | FinishReason::Cancelled));
        let mut value = self.value(if is_cut { "incomplete" } else { "completed" }, output);
        if is_cut {
            value["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        value["usage"] = json!({
            "input_tokens": summary.prompt_tokens,
            "input_tokens_details": {"cached_tokens": summary.cached_tokens},
            "output_tokens": summary.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": summary.prompt_tokens + summary.completion_tokens,
        });
        value
    }
}

fn message_item(id: &str, text: &str, status: &str) -> Value {
    json!({"type": "message", "id": id, "status": status, "role": "assistant", "content": [text_part(text)]})
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": []})
}

fn call_item(id: &str, call: &WholeToolCall, status: &str) -> Value {
    json!({
        "type": "function_call",
        "id": id,
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": status,
    })
}

/// Returns the output items of a whole answer.
fn output(choice: &Choice) -> Value {
    let has_text = !choice.text.is_empty() || choice.calls.is_empty();
    let message = has_text.then(|| message_item(&new_id("msg"), &choice.text, "completed"));
    let calls = choice.calls.iter().map(|call| call_item(&new_id("fc"), call, "completed"));
    message.into_iter().chain(calls).collect()
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedResponses>) -> Result<Response, ApiError> {
    let Body(ParsedResponses { request, is_streamed, object }, held) = body;
    let model = object.model.clone();
    let name = model.clone();
    let call = move |gateway: &Gateway, sink| gateway.chat(&name, request, sink);
    let events = events::start(&app, &model, held, call).await?;
    if is_streamed {
        return Ok(sse::respond(events, Box::new(ResponseEvents::new(object)), app.meter.metrics));
    }
    let ran_on = events.ran_on();
    let mut reply = collect(events, 1).await?;
    let choice = reply.choices.pop().unwrap_or_default();
    let answer = object.complete(output(&choice), choice.finish, &reply.summary);
    Ok(with_device_headers(&ran_on, Json(answer)))
}
