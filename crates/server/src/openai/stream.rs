//! Server-sent events (WHATWG HTML, "Server-sent events") of a running answer.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::response::{
    Response,
    sse::{Event, KeepAlive, Sse},
};
use futures::Stream;
use narthex_gateway::request::GenerationEvent;
use serde_json::Value;

use crate::{metrics::Metrics, ran_on::marked, sink::Events};

/// How often a quiet stream shows that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Makes the chunks of one endpoint from the events of a request.
pub(crate) trait Chunks: Send + 'static {
    /// The chunks that an event gives, in order.
    fn chunks(&mut self, event: GenerationEvent) -> Vec<Value>;
}

struct OpenStream {
    events: Events,
    chunks: Box<dyn Chunks>,
    ready: std::collections::VecDeque<Event>,
    ended: bool,
    metrics: Arc<Metrics>,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.metrics.streams().dec();
    }
}

impl OpenStream {
    fn take(&mut self, event: GenerationEvent) {
        match &event {
            GenerationEvent::Done(summary) => self.metrics.generation(summary),
            GenerationEvent::Failed { message } => {
                let error = serde_json::json!({
                    "error": {"message": message, "type": "server_error", "param": null, "code": null}
                });
                self.ready.push_back(Event::default().data(error.to_string()));
                self.ended = true;
                return;
            }
            _ => {}
        }
        let done = matches!(event, GenerationEvent::Done(_));
        let chunks = self.chunks.chunks(event);
        self.ready.extend(chunks.into_iter().map(|chunk| Event::default().data(chunk.to_string())));
        if done {
            self.ready.push_back(Event::default().data("[DONE]"));
            self.ended = true;
        }
    }
}

/// The response that streams a request's events.
pub(crate) fn respond(events: Events, chunks: Box<dyn Chunks>, metrics: Arc<Metrics>) -> Response {
    metrics.streams().inc();
    let ran_on = events.ran_on();
    let open = OpenStream { events, chunks, ready: std::collections::VecDeque::new(), ended: false, metrics };
    marked(&ran_on, Sse::new(stream(open)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

fn stream(open: OpenStream) -> impl Stream<Item = Result<Event, Infallible>> {
    futures::stream::unfold(open, |mut open| async move {
        loop {
            if let Some(event) = open.ready.pop_front() {
                return Some((Ok(event), open));
            }
            if open.ended {
                return None;
            }
            match open.events.next().await {
                Some(event) => open.take(event),
                None => return None,
            }
        }
    })
}
