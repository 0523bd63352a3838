//! Streams of a running generation for every protocol: server-sent events (WHATWG HTML, "Server-sent events") and lines
//! of JSON.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::header::CONTENT_TYPE,
    response::{
        Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures::Stream;
use narthex_gateway::request::GenerationEvent;
use serde_json::Value;

use crate::{device_headers::with_device_headers, events::Events, metrics::Metrics};

/// Interval of the comments that keep a quiet stream open and detect disconnected clients.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// Encodes the events of a generation as a protocol's server-sent events.
pub(crate) trait EventEncoder: Send + 'static {
    /// Returns the server-sent events for one event, in order.
    fn encode(&mut self, event: GenerationEvent) -> Vec<Event>;
}

/// Encodes the events of a generation as JSON objects, one per line.
pub(crate) trait LineEncoder: Send + 'static {
    /// Returns the objects for one event, in order.
    fn lines(&mut self, event: GenerationEvent) -> Vec<Value>;
}

/// Encodes an event as items of a stream.
type Encode<T> = Box<dyn FnMut(GenerationEvent) -> Vec<T> + Send>;

struct OpenStream<T> {
    events: Events,
    encode: Encode<T>,
    encoded: VecDeque<T>,
    ended: bool,
    metrics: Arc<Metrics>,
}

impl<T> Drop for OpenStream<T> {
    fn drop(&mut self) {
        self.metrics.streams().dec();
    }
}

impl<T> OpenStream<T> {
    fn push(&mut self, event: GenerationEvent) {
        self.ended = matches!(event, GenerationEvent::Done(_) | GenerationEvent::Failed { .. });
        self.encoded.extend((self.encode)(event));
    }
}

/// Returns the response that streams a generation as server-sent events.
pub(crate) fn respond(events: Events, mut encoder: Box<dyn EventEncoder>, metrics: Arc<Metrics>) -> Response {
    let ran_on = events.ran_on();
    let events = stream(events, Box::new(move |event| encoder.encode(event)), metrics);
    with_device_headers(&ran_on, Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// Returns the response that streams a generation as lines of JSON.
pub(crate) fn respond_lines(
    events: Events,
    mut encoder: Box<dyn LineEncoder>,
    metrics: Arc<Metrics>,
) -> Response {
    let ran_on = events.ran_on();
    let line = |value: Value| Bytes::from(format!("{value}\n"));
    let encode = Box::new(move |event| encoder.lines(event).into_iter().map(line).collect());
    let body = Body::from_stream(stream(events, encode, metrics));
    with_device_headers(&ran_on, ([(CONTENT_TYPE, "application/x-ndjson")], body))
}

fn stream<T: Send + 'static>(
    events: Events,
    encode: Encode<T>,
    metrics: Arc<Metrics>,
) -> impl Stream<Item = Result<T, Infallible>> {
    metrics.streams().inc();
    events.limit_unread();
    let open = OpenStream { events, encode, encoded: VecDeque::new(), ended: false, metrics };
    futures::stream::unfold(open, |mut open| async move {
        loop {
            if let Some(item) = open.encoded.pop_front() {
                return Some((Ok(item), open));
            }
            if open.ended {
                return None;
            }
            match open.events.next().await {
                Some(event) => open.push(event),
                None => return None,
            }
        }
    })
}
