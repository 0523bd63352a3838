//! `POST /v1/responses`, and `GET` and `DELETE /v1/responses/{id}`.

mod event;
mod history;
mod object;
mod request;
mod store;
mod stream;

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, rejection::PathRejection},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use narthex_gateway::request::{ChatRequest, Message};
use schemars::JsonSchema;
use serde::Serialize;

pub(crate) use self::{
    event::NumberedEvent, object::ResponseObject, request::ResponsesBody, store::ResponseStore,
};
use self::{
    history::{InputItem, resolve, to_messages},
    object::{ResponseEnd, ResponseSettings, output_items},
    request::{FIELDS, InputRequest},
    store::{PendingStore, Turns, json_length, memory_of, messages},
    stream::ResponseEvents,
};
use super::{new_id, now};
use crate::{
    app::App,
    body::{self, Body, FromBody},
    conversation::{self, AnswerForm, Conversation},
    error::ApiError,
    events::Events,
    hints::{self, Hints},
    ignored::{CALLER_FIELDS, IgnoredParameters},
    metrics::Metrics,
    reply::Reply,
    sse,
};

/// Maximum bytes of the settings that a response repeats, as JSON.
const MAX_SETTINGS: usize = 4 << 20;

/// A body that was read and checked.
pub(crate) struct ParsedResponses {
    model: String,
    request: InputRequest,
    is_streamed: bool,
    settings: ResponseSettings,
    ignored: IgnoredParameters,
}

impl FromBody for ParsedResponses {
    fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let settings: ResponseSettings = body::read_fields(bytes)?;
        check_length(&settings)?;
        let body: ResponsesBody = body::read_body(bytes, &[FIELDS, CALLER_FIELDS, hints::OF_RESPONSES])?;
        let mut ignored = Hints::read(bytes, &[CALLER_FIELDS, hints::OF_RESPONSES])?;
        let (model, is_streamed) = (body.model.clone(), body.stream == Some(true));
        let request = body.into_request(&mut ignored)?;
        Ok(Self { model, request, is_streamed, settings: settings.with_defaults(), ignored })
    }

    fn ignored(&self) -> Option<&IgnoredParameters> {
        Some(&self.ignored)
    }
}

/// Form of an answer to `/v1/responses`.
struct ResponseForm {
    object: ResponseObject,
    /// Present if the response is stored.
    pending: Option<PendingStore>,
}

impl ResponseForm {
    /// Completes the response and stores it.
    fn complete(self, complete: impl FnOnce(ResponseObject) -> ResponseObject) -> ResponseObject {
        let response = complete(self.object);
        if let Some(pending) = self.pending {
            pending.store(&response);
        }
        response
    }
}

impl AnswerForm for ResponseForm {
    type Whole = ResponseObject;

    fn whole(self, mut reply: Reply) -> ResponseObject {
        let choice = reply.choices.pop().unwrap_or_default();
        let end = ResponseEnd { reason: choice.finish, summary: &reply.summary, timings: reply.timings() };
        let output = output_items(&choice, &self.object.settings);
        self.complete(|object| object.complete(output, end))
    }

    fn streamed(self, events: Events, metrics: Arc<Metrics>) -> Response {
        let encoder = ResponseEvents::new(self, events.ran_on().device);
        sse::respond(events, Box::new(encoder), metrics)
    }
}

/// Handles a request.
pub(crate) async fn create(
    app: App,
    Extension(store): Extension<ResponseStore>,
    body: Body<ParsedResponses>,
) -> Result<Response, ApiError> {
    let Body(ParsedResponses { model, request, is_streamed, settings, ignored }, held) = body;
    let InputRequest { instructions, input, tools, reasoning, of_reasoning, options } = request;
    let owner = app.meter.caller.key_hash();
    let turns = match &settings.previous_response_id {
        Some(id) => store.turns(owner, id).ok_or_else(|| no_previous(id))?,
        None => Turns::new(),
    };
    let refers = input.iter().any(|item| matches!(item, InputItem::Reference(_)));
    let referenced = if refers { store.memory() } else { 0 };
    app.shared.bodies.reserve_work(&held, memory_of(&turns).saturating_add(referenced)).await?;
    let (is_stored, reserved) = (settings.is_stored(), held.clone());
    let gather = move || {
        let _reserved = reserved;
        let input = to_messages(resolve(input, |ids| store.items(owner, ids))?);
        let earlier = instructions.into_iter().chain(messages(&turns));
        let messages: Vec<Message> = earlier.chain(input.iter().cloned()).collect();
        let pending = is_stored.then(|| PendingStore::new(store, owner, turns, input)).transpose()?;
        Ok::<_, ApiError>((messages, pending))
    };
    let (messages, pending) = app.shared.jobs.run(gather).await?;
    let request = ChatRequest { messages, tools, reasoning, options };
    let form =
        ResponseForm { pending, object: ResponseObject::new(new_id("resp"), now(), model.clone(), settings) };
    let conversation = Conversation { model, request, is_streamed, ignored, of_reasoning };
    conversation::answer(&app, conversation, held, form).await
}

/// Fails if the settings, which are written in each response, are too long.
fn check_length(settings: &ResponseSettings) -> Result<(), ApiError> {
    let found = json_length(settings);
    if found <= MAX_SETTINGS {
        return Ok(());
    }
    let message = format!(
        "instructions, tools, metadata and the other settings have {found} bytes together, but at most {MAX_SETTINGS} \
         are allowed; send shorter ones"
    );
    Err(ApiError::plain(StatusCode::PAYLOAD_TOO_LARGE, message))
}

fn no_previous(id: &str) -> ApiError {
    let message =
        format!("previous_response_id: no response {id:?} is stored; send the whole conversation as input");
    ApiError::bad_request("previous_response_id", message).with_code("previous_response_not_found")
}

fn no_response(id: &str) -> ApiError {
    ApiError::plain(StatusCode::NOT_FOUND, format!("no response {id:?} is stored"))
}

fn path(id: Result<Path<String>, PathRejection>) -> Result<String, ApiError> {
    let Path(id) = id.map_err(|rejection| ApiError::plain(StatusCode::BAD_REQUEST, rejection.body_text()))?;
    Ok(id)
}

/// Returns a stored response.
pub(crate) async fn retrieve(
    app: App,
    Extension(store): Extension<ResponseStore>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let id = path(id)?;
    let json = store.get(app.meter.caller.key_hash(), &id).ok_or_else(|| no_response(&id))?;
    Ok(([(CONTENT_TYPE, "application/json")], json).into_response())
}

/// Answer to the removal of a response.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DeletedResponse {
    id: String,
    #[schemars(extend("const" = "response"))]
    object: &'static str,
    deleted: bool,
}

/// Removes a stored response.
pub(crate) async fn remove(
    app: App,
    Extension(store): Extension<ResponseStore>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<DeletedResponse>, ApiError> {
    let id = path(id)?;
    if !store.remove(app.meter.caller.key_hash(), &id) {
        return Err(no_response(&id));
    }
    Ok(Json(DeletedResponse { id, object: "response", deleted: true }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_a_response_have_a_maximum_length() {
        let read = |length: usize| {
            let body = format!(r#"{{"model": "m", "input": "a", "instructions": "{}"}}"#, "x".repeat(length));
            body::read_checked::<ParsedResponses>(body.as_bytes())
        };
        assert!(read(MAX_SETTINGS / 2).is_ok());
        assert_eq!(read(MAX_SETTINGS).err().unwrap().status(), StatusCode::PAYLOAD_TOO_LARGE);
    }
}
