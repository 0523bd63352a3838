//! Conversations of every protocol: the request in a body, and its answer in the form of the protocol.

use std::sync::Arc;

use axum::{Json, response::Response};
use narthex_gateway::{ReadyModel, request::ChatRequest};
use serde::Serialize;

use crate::{
    app::App,
    budget::Reservation,
    device_headers::with_device_headers,
    error::ApiError,
    events::{self, Events},
    ignored::IgnoredParameters,
    metrics::Metrics,
    reply::{Reply, collect},
};

/// A request for the next answer of a conversation.
pub(crate) struct Conversation {
    pub(crate) model: String,
    pub(crate) request: ChatRequest,
    pub(crate) is_streamed: bool,
    /// Parameters that were ignored.
    pub(crate) ignored: IgnoredParameters,
    /// Parameters of reasoning, which have no effect on a model that does not reason.
    pub(crate) of_reasoning: Vec<&'static str>,
}

/// Form of the answers in a protocol.
pub(crate) trait AnswerForm {
    /// The JSON of a whole answer.
    type Whole: Serialize;

    /// Returns the whole answer.
    fn whole(self, reply: Reply) -> Self::Whole;

    /// Returns the response that streams the answer.
    fn streamed(self, events: Events, metrics: Arc<Metrics>) -> Response;
}

/// Answers a conversation.
pub(crate) async fn answer(
    app: &App,
    conversation: Conversation,
    body: Reservation,
    form: impl AnswerForm,
) -> Result<Response, ApiError> {
    let Conversation { model, request, is_streamed, mut ignored, of_reasoning } = conversation;
    let n = request.options.n;
    let call = move |model: &ReadyModel, sink| model.chat(request, sink);
    let events = events::start(app, &model, body, call).await?;
    if !events.reasons() {
        ignored.extend(of_reasoning);
    }
    Ok(ignored.name_in(whole_or_streamed(app, events, form, Delivery { n, is_streamed }).await?))
}

/// Number of choices of an answer, and whether it is streamed.
pub(crate) struct Delivery {
    pub(crate) n: usize,
    pub(crate) is_streamed: bool,
}

/// Responds with an answer that has started.
pub(crate) async fn whole_or_streamed(
    app: &App,
    events: Events,
    form: impl AnswerForm,
    delivery: Delivery,
) -> Result<Response, ApiError> {
    if delivery.is_streamed {
        return Ok(form.streamed(events, app.meter.metrics.clone()));
    }
    let ran_on = events.ran_on();
    let reply = collect(events, delivery.n).await?;
    Ok(with_device_headers(&ran_on, Json(form.whole(reply))))
}
