//! `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use std::sync::Arc;

use axum::{Json, response::Response};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    object::{AnthropicMessage, MessageEnd, MessageUsage},
    request::MessagesBody,
    stream::MessageEvents,
};
use crate::{
    app::App,
    error::ApiError,
    protocol::{
        body::{Body, FromBody},
        conversation::{self, AnswerForm, Conversation},
        events::Events,
        fields::BodyFields,
        hints,
        id::new_id,
        ignored::IgnoredParameters,
        reading::ReadingObject,
        reply::Reply,
        shared_fields::SharedFields,
        sse,
    },
    reports::metrics::Metrics,
};

/// A body that was read and checked.
pub(crate) struct ParsedMessages(Conversation);

impl FromBody for ParsedMessages {
    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let mut body: MessagesBody = fields.read()?;
        if let Some(messages) = fields.all().find(|field| field.name == "messages") {
            body.restore_digits(messages.json());
        }
        let shared = SharedFields::read(fields)?;
        hints::ignore(fields, hints::OF_MESSAGES, ignored)?;

        let model = body.model.clone();
        let is_streamed = body.stream == Some(true);
        let reasoning_parameters =
            body.reasoning_parameters().into_iter().chain(shared.reasoning.given()).collect();
        let mut request = body.into_request(shared, ignored)?;
        conversation::continue_last(&mut request);
        Ok(Self(Conversation { model, is_streamed, request, reasoning_parameters }))
    }
}

/// Form of an answer to `/v1/messages`.
struct MessageForm {
    model: String,
    /// The stop sequences of the request.
    stops: Vec<String>,
    reading: Option<ReadingObject>,
}

impl AnswerForm for MessageForm {
    type Whole = AnthropicMessage;

    fn read(&mut self, reading: ReadingObject) {
        self.reading = Some(reading);
    }

    fn whole(self, mut reply: Reply) -> AnthropicMessage {
        let choice = reply.choices.pop().unwrap_or_default();
        let usage = MessageUsage::new(&reply.summary);
        let end = MessageEnd::new(choice.finish, &self.stops);
        let message = AnthropicMessage::new(new_id("msg_"), self.model, usage).with_reading(self.reading);
        message.complete(&choice, end, reply.timings())
    }

    fn streamed(self, events: Events, metrics: Arc<Metrics>) -> Response {
        let encoder = MessageEvents::new(new_id("msg_"), self.model, self.stops, events.ran_on());
        let encoder = encoder.with_reading(self.reading);
        sse::respond(events, Box::new(encoder), metrics)
    }
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedMessages>) -> Result<Response, ApiError> {
    let Body { request: ParsedMessages(conversation), ignored, reservation } = body;
    let stops = conversation.request.options.stop.clone();
    let form = MessageForm { model: conversation.model.clone(), stops, reading: None };
    conversation::answer(&app, Body { request: conversation, ignored, reservation }, form).await
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
    let Body { request: ParsedMessages(Conversation { model, request, .. }), reservation, .. } = body;
    let input_tokens = conversation::count_tokens(&app, &model, request, reservation).await?;
    Ok(Json(InputTokenCount { input_tokens }))
}
