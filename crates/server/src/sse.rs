//! Server-sent events (WHATWG HTML, "Server-sent events") of a running generation, for every protocol that streams.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use axum::response::{
    Response,
    sse::{Event, KeepAlive, Sse},
};
use futures::Stream;
use narthex_gateway::request::GenerationEvent;

use crate::{device_headers::with_device_headers, events::Events, metrics::Metrics};

/// Interval of the comments that keep a quiet stream open, and that find out clients that are gone.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// Encodes the events of a generation as a protocol's server-sent events.
pub(crate) trait EventEncoder: Send + 'static {
    /// Returns the server-sent events for one event, in order.
    fn encode(&mut self, event: GenerationEvent) -> Vec<Event>;
}

struct OpenStream {
    events: Events,
    encoder: Box<dyn EventEncoder>,
    encoded: VecDeque<Event>,
    ended: bool,
    metrics: Arc<Metrics>,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.metrics.streams().dec();
    }
}

impl OpenStream {
    fn push(&mut self, event: GenerationEvent) {
        self.ended = matches!(event, GenerationEvent::Done(_) | GenerationEvent::Failed { .. });
        self.encoded.extend(self.encoder.encode(event));
    }
}

/// Returns the response that streams a generation.
pub(crate) fn respond(events: Events, encoder: Box<dyn EventEncoder>, metrics: Arc<Metrics>) -> Response {
    metrics.streams().inc();
    events.limit_unread();
    let ran_on = events.ran_on();
    let open = OpenStream { events, encoder, encoded: VecDeque::new(), ended: false, metrics };
    with_device_headers(&ran_on, Sse::new(stream(open)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

fn stream(open: OpenStream) -> impl Stream<Item = Result<Event, Infallible>> {
    futures::stream::unfold(open, |mut open| async move {
        loop {
            if let Some(event) = open.encoded.pop_front() {
                return Some((Ok(event), open));
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
