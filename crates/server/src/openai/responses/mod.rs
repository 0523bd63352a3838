//! `POST /v1/responses`, `POST /v1/responses/input_tokens`, and `GET` and `DELETE /v1/responses/{id}`.

mod event;
mod history;
pub(crate) mod input_items;
mod item;
mod object;
mod request;
mod settings;
mod store;
mod stream;

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, RawQuery, rejection::PathRejection},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use narthex_gateway::request::{ChatRequest, HistoryOverflow, Message, ReadingSettings, UsedSampling};
use narthex_spec::date::unix_now;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

pub(crate) use self::{
    event::NumberedEvent, object::ResponseObject, request::ResponsesBody, store::ResponseStore,
};
use self::{
    history::{InputItem, resolve, to_messages},
    object::{ResponseEnd, output_items},
    request::InputRequest,
    settings::ResponseSettings,
    store::{PendingStore, Turns, json_length, memory_of, messages},
    stream::ResponseEvents,
};
use super::upstream::{self, RequestRoute, UpstreamEndpoint, UpstreamRequest};
use crate::{
    app::App,
    error::ApiError,
    http::budget::Reservation,
    protocol::{
        body::{Body, FromBody},
        conversation::{self, AnswerForm, Conversation},
        events::Events,
        fields::BodyFields,
        hints,
        id::new_id,
        ignored::IgnoredParameters,
        outline::VALUE_BYTES,
        reading::ReadingObject,
        reply::Reply,
        shared_fields::SharedFields,
        sse,
    },
    reports::metrics::Metrics,
};

/// Maximum bytes of the settings that a response repeats, as JSON.
const MAX_SETTINGS: usize = 4 << 20;

/// Number of times that a streamed response holds its settings as text while its client reads nothing: in the response, in
/// two events, and in the connection's buffer.
const SETTINGS_COPIES: usize = 4;

/// Maximum number of pairs of metadata.
const MAX_METADATA: usize = 16;

/// Maximum number of characters in a key of metadata.
const MAX_METADATA_KEY: usize = 64;

/// Maximum number of characters in a value of metadata.
const MAX_METADATA_VALUE: usize = 512;

/// A body that was read and checked.
pub(crate) struct ParsedResponses {
    model: String,
    request: InputRequest,
    is_streamed: bool,
    settings: ResponseSettings,
    /// Maximum memory of the settings in an answer.
    settings_bytes: usize,
}

impl UpstreamRequest for ParsedResponses {
    const ENDPOINT: UpstreamEndpoint = UpstreamEndpoint::Responses;
}

impl FromBody for ParsedResponses {
    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let settings: ResponseSettings = fields.copy()?;
        settings.metadata.as_ref().map_or(Ok(()), check_metadata)?;
        let settings_bytes = SETTINGS_COPIES * checked_length(&settings)? + settings.values() * VALUE_BYTES;
        let body: ResponsesBody = fields.read()?;
        let shared = SharedFields::read(fields)?;
        // Read with the settings. The other ones are fields of the body or hints.
        fields.skip(&["store", "previous_response_id", "truncation"]);
        hints::ignore(fields, hints::OF_RESPONSES, ignored)?;

        let model = body.model.clone();
        let is_streamed = body.stream == Some(true);
        let request = body.into_request(shared, ignored)?;
        let settings = settings.with_defaults();
        Ok(Self { model, request, is_streamed, settings, settings_bytes })
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

    fn started(&mut self, sampling: UsedSampling) {
        self.object.settings.add_sampling(sampling);
    }

    fn read(&mut self, reading: ReadingObject) {
        self.object.reading = Some(reading);
    }

    fn whole(self, mut reply: Reply) -> ResponseObject {
        let choice = reply.choices.pop().unwrap_or_default();
        let end = ResponseEnd { reason: choice.finish, summary: &reply.summary, timings: reply.timings() };
        let output = output_items(&choice, &self.object.settings);
        self.complete(|object| object.complete(output, end))
    }

    fn streamed(self, events: Events, metrics: Arc<Metrics>) -> Response {
        let encoder = ResponseEvents::new(self, events.ran_on());
        sse::respond(events, Box::new(encoder), metrics)
    }
}

/// Handles a request.
pub(crate) async fn create(
    app: App,
    Extension(store): Extension<ResponseStore>,
    body: Body<RequestRoute<ParsedResponses>>,
) -> Result<Response, ApiError> {
    let mut streamed = None;
    let answered = upstream::answer(&app, body, |body| answer(&app, store, body, &mut streamed)).await;
    match (answered.map_err(in_terms_of_responses), streamed) {
        // OpenAI's streams report it as an event, and Codex shortens a conversation only after this event.
        (Err(error), Some(object)) if error.is_overlong() => Ok(stream::overlong(object, &error)),
        (answered, _) => answered,
    }
}

/// Answers a request with a model of this machine. Sets `streamed` to the response at the beginning of its stream.
async fn answer(
    app: &App,
    store: ResponseStore,
    body: Body<ParsedResponses>,
    streamed: &mut Option<ResponseObject>,
) -> Result<Response, ApiError> {
    let Body { request, ignored, reservation } = body;
    let ParsedResponses { model, request, is_streamed, settings, settings_bytes } = request;
    let InputRequest { instructions, input, tools, reasoning, reasoning_parameters, options } = request;
    let previous = settings.previous_response_id.clone();
    let is_stored = settings.is_stored();
    let overflow = settings.overflow();
    let turn = NewTurn { instructions, input, previous, is_stored, settings_bytes };
    let (messages, pending) = turn.gather(app, store, &reservation).await?;
    let reading = ReadingSettings::default();
    let request = ChatRequest { messages, tools, reasoning, overflow, reading, options };
    let form = ResponseForm {
        pending,
        object: ResponseObject::new(new_id("resp_"), unix_now(), model.clone(), settings),
    };
    *streamed = is_streamed.then(|| form.object.clone());
    let request = Conversation { model, request, is_streamed, reasoning_parameters };
    conversation::answer(app, Body { request, ignored, reservation }, form).await
}

/// Returns an error about the conversation as one about this protocol's field.
fn in_terms_of_responses(error: ApiError) -> ApiError {
    error.renamed("messages", "input")
}

/// The turn of a request.
struct NewTurn {
    instructions: Option<Message>,
    input: Vec<InputItem>,
    /// Id of the response before it.
    previous: Option<String>,
    is_stored: bool,
    /// Maximum memory of the settings in the answer.
    settings_bytes: usize,
}

impl NewTurn {
    /// Returns the messages of the conversation up to this turn, and the place for the response if it is stored.
    async fn gather(
        self,
        app: &App,
        store: ResponseStore,
        reservation: &Reservation,
    ) -> Result<(Vec<Message>, Option<PendingStore>), ApiError> {
        let Self { instructions, input, previous, is_stored, settings_bytes } = self;
        let owner = app.meter.caller.key_hash();
        let turns = match &previous {
            Some(id) => store.turns(owner, id).ok_or_else(|| no_previous(id))?,
            None => Turns::new(),
        };

        let refers = input.iter().any(|item| matches!(item, InputItem::Reference(_)));
        let referenced = if refers { store.memory() } else { 0 };
        app.shared.bodies.reserve_work(reservation, memory_of(&turns).saturating_add(referenced)).await?;
        app.answer.reserve(settings_bytes).await?;
        let reserved = reservation.clone();
        let gathering = app.shared.jobs.run(move || {
            let _reserved = reserved;
            let input = to_messages(resolve(input, |ids| store.items(owner, ids))?);
            let earlier = instructions.into_iter().chain(messages(&turns));
            let messages: Vec<Message> = earlier.chain(input.iter().cloned()).collect();
            let pending = is_stored.then(|| PendingStore::new(store, owner, turns, input)).transpose()?;
            Ok::<_, ApiError>((messages, pending))
        });
        gathering.await
    }
}

/// Number of tokens in a request.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ResponseInputTokens {
    #[schemars(extend("const" = "response.input_tokens"))]
    object: &'static str,
    input_tokens: usize,
}

/// Counts the tokens of a request.
pub(crate) async fn count_input_tokens(
    app: App,
    Extension(store): Extension<ResponseStore>,
    body: Body<ParsedResponses>,
) -> Result<Json<ResponseInputTokens>, ApiError> {
    let Body { request: ParsedResponses { model, request, settings, .. }, reservation, .. } = body;
    let InputRequest { instructions, input, tools, reasoning, options, .. } = request;
    let previous = settings.previous_response_id;
    let turn = NewTurn { instructions, input, previous, is_stored: false, settings_bytes: 0 };
    let (messages, _) = turn.gather(&app, store, &reservation).await?;
    let overflow = HistoryOverflow::Refuse;
    let reading = ReadingSettings::default();
    let request = ChatRequest { messages, tools, reasoning, overflow, reading, options };
    let count = conversation::count_tokens(&app, &model, request, reservation).await;
    let input_tokens = count.map_err(in_terms_of_responses)?;
    Ok(Json(ResponseInputTokens { object: "response.input_tokens", input_tokens }))
}

/// Checks metadata against the limits of OpenAI's API.
fn check_metadata(metadata: &Map<String, Value>) -> Result<(), ApiError> {
    check_limit("metadata".to_owned(), metadata.len(), MAX_METADATA, "pairs")?;
    for (key, value) in metadata {
        check_limit("metadata".to_owned(), key.chars().count(), MAX_METADATA_KEY, "characters in a key")?;
        let path = format!("metadata.{key}");
        let Some(text) = value.as_str() else {
            return Err(ApiError::bad_request(path.clone(), format!("{path}: expected a string")));
        };
        check_limit(path, text.chars().count(), MAX_METADATA_VALUE, "characters")?;
    }
    Ok(())
}

fn check_limit(path: String, found: usize, limit: usize, unit: &str) -> Result<(), ApiError> {
    if found <= limit {
        return Ok(());
    }
    let message = format!("{path}: expected at most {limit} {unit}, found {found}");
    Err(ApiError::bad_request(path, message))
}

/// Returns the length of the settings as JSON. Fails if the settings, which are written in each response, are too long.
fn checked_length(settings: &ResponseSettings) -> Result<usize, ApiError> {
    let found = json_length(settings);
    if found <= MAX_SETTINGS {
        return Ok(found);
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

/// Returns a stored response, always as a whole.
pub(crate) async fn retrieve(
    app: App,
    Extension(store): Extension<ResponseStore>,
    RawQuery(query): RawQuery,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let id = path(id)?;
    if query.is_some_and(|query| query.split('&').any(|pair| pair == "stream=true")) {
        let message = "stream: a stored response cannot be streamed; remove the parameter";
        return Err(ApiError::unsupported_as("stream", message.to_owned()));
    }
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
    use serde_json::json;

    use super::*;
    use crate::protocol::body::read_checked;

    #[test]
    fn the_settings_of_a_response_have_a_maximum_length() {
        let read = |length: usize| {
            let body = format!(r#"{{"model": "m", "input": "a", "instructions": "{}"}}"#, "x".repeat(length));
            read_checked::<ParsedResponses>(body.as_bytes())
        };
        assert!(read(MAX_SETTINGS / 2).is_ok());
        assert_eq!(read(MAX_SETTINGS).err().unwrap().status(), StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[test]
    fn metadata_has_the_limits_of_openai() {
        let check = |metadata: Value, expect: Option<[&str; 2]>| {
            let body = json!({"model": "m", "input": "a", "metadata": metadata}).to_string();
            let error = read_checked::<ParsedResponses>(body.as_bytes()).err().map(|error| error.body());
            match (error, expect) {
                (None, None) => {}
                (Some(error), Some([param, text])) => {
                    assert_eq!(error["error"]["param"], param, "{error}");
                    assert!(error["error"]["message"].as_str().unwrap().contains(text), "{error}");
                }
                (error, _) => panic!("{error:?}"),
            }
        };
        let pairs = |count: usize| (0..count).map(|key| (key.to_string(), json!("x"))).collect::<Value>();
        check(Value::Null, None);
        check(pairs(16), None);
        check(pairs(17), Some(["metadata", "at most 16 pairs, found 17"]));
        check(json!({"é".repeat(64): "é".repeat(512)}), None);
        check(json!({"a".repeat(65): ""}), Some(["metadata", "at most 64 characters in a key, found 65"]));
        check(json!({"a": "x".repeat(513)}), Some(["metadata.a", "at most 512 characters, found 513"]));
        check(json!({"a": 1}), Some(["metadata.a", "expected a string"]));
    }

    #[test]
    fn the_memory_of_settings_counts_their_texts_and_their_values() {
        let bytes = |settings: Value| {
            let mut body = json!({"model": "m", "input": "a"});
            body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
            read_checked::<ParsedResponses>(body.to_string().as_bytes()).ok().unwrap().settings_bytes
        };
        assert!(bytes(json!({"instructions": "x".repeat(1 << 20)})) > 4 << 20);
        let tool = json!({"type": "function", "name": "f", "parameters": {"enum": vec![1; 1000]}});
        assert!(bytes(json!({"tools": [tool]})) > 1000 * VALUE_BYTES);
    }
}
