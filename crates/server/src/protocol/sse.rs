//! Streams of a running generation for every protocol: server-sent events (WHATWG HTML, "Server-sent events") and lines
//! of JSON.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::header::CONTENT_TYPE,
    response::{
        Response,
        sse::{Event, Sse},
    },
};
use futures::{Stream, StreamExt};
use narthex_gateway::request::GenerationEvent;
use tokio::time::timeout;

use super::{device_headers::with_device_headers, events::Events};
use crate::reports::metrics::{Metrics, OpenStream};

/// Interval of the events that keep a quiet stream open and detect disconnected clients.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// Encodes the events of a generation as a protocol's server-sent events.
pub(crate) trait EventEncoder: Send + 'static {
    /// Returns the server-sent events for one event, in order.
    fn encode(&mut self, event: GenerationEvent) -> Vec<Event>;

    /// Returns true if the stream repeats its answer at its end, which holds memory until then.
    fn repeats_answer(&self) -> bool {
        false
    }

    /// Returns the events that keep a quiet stream open: a comment, unless the protocol has an event for this.
    fn idle(&mut self) -> Vec<Event> {
        vec![Event::default().comment("")]
    }
}

/// Returns the response that streams a generation as server-sent events.
pub(crate) fn respond(mut events: Events, encoder: Box<dyn EventEncoder>, metrics: Arc<Metrics>) -> Response {
    let ran_on = events.ran_on();
    if encoder.repeats_answer() {
        events.retain();
    }
    let events = event_stream(generation(events, metrics), encoder, KEEP_ALIVE);
    with_device_headers(&ran_on, Sse::new(events))
}

/// Returns the response that streams a generation as lines of JSON. `lines_of` returns those for an event, in order.
pub(crate) fn respond_lines(
    events: Events,
    mut lines_of: impl FnMut(GenerationEvent) -> Vec<String> + Send + 'static,
    metrics: Arc<Metrics>,
) -> Response {
    let ran_on = events.ran_on();
    let lines = generation(events, metrics).flat_map(move |event| {
        let lines = lines_of(event).into_iter();
        futures::stream::iter(lines.map(|line| Ok::<_, Infallible>(Bytes::from(line + "\n"))))
    });
    let body = Body::from_stream(lines);
    with_device_headers(&ran_on, ([(CONTENT_TYPE, "application/x-ndjson")], body))
}

/// Returns the events of a generation up to its end.
fn generation(events: Events, metrics: Arc<Metrics>) -> impl Stream<Item = GenerationEvent> + Send {
    events.limit_unread();
    let open = (events, OpenStream::new(metrics));
    futures::stream::unfold(Some(open), |open| async move {
        let (mut events, count) = open?;
        let event = events.next().await?;
        let is_last = matches!(event, GenerationEvent::Done(_) | GenerationEvent::Failed { .. });
        Some((event, (!is_last).then_some((events, count))))
    })
}

/// Returns the server-sent events of a generation. After each `interval` without an event, the encoder's events for a
/// quiet stream are sent.
pub(crate) fn event_stream(
    generation: impl Stream<Item = GenerationEvent> + Send + 'static,
    encoder: Box<dyn EventEncoder>,
    interval: Duration,
) -> impl Stream<Item = Result<Event, Infallible>> {
    let open = (Box::pin(generation), encoder, VecDeque::new());
    futures::stream::unfold(open, move |(mut generation, mut encoder, mut encoded)| async move {
        loop {
            if let Some(event) = encoded.pop_front() {
                return Some((Ok(event), (generation, encoder, encoded)));
            }
            match timeout(interval, generation.next()).await {
                Ok(Some(event)) => encoded.extend(encoder.encode(event)),
                Ok(None) => return None,
                Err(_) => encoded.extend(encoder.idle()),
            }
        }
    })
}

/// Returns the data of the first `count` events of a stream as JSON.
#[cfg(test)]
pub(crate) async fn frames(
    events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static,
    count: usize,
) -> Vec<serde_json::Value> {
    use axum::response::IntoResponse;

    let body = Sse::new(events).into_response().into_body().into_data_stream();
    let frames: Vec<_> = body.take(count).collect().await;
    let data = |frame: Bytes| {
        let text = String::from_utf8(frame.to_vec()).unwrap();
        let data = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        serde_json::from_str(data).unwrap()
    };
    frames.into_iter().map(|frame| data(frame.unwrap())).collect()
}
