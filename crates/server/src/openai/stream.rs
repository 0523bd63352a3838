//! Streams in OpenAI's form: one JSON chunk per event, then `[DONE]`.

use axum::response::sse::Event;
use narthex_gateway::request::GenerationEvent;
use serde_json::{Value, json};

use crate::{error::cut, sse::EventEncoder};

/// Chunks of one endpoint.
pub(crate) trait Chunks: Send + 'static {
    /// Returns the chunks for one event, in order.
    fn chunks(&mut self, event: GenerationEvent) -> Vec<Value>;
}

/// Encodes an endpoint's chunks.
pub(crate) struct ChunkEncoder<C>(pub(crate) C);

impl<C: Chunks> EventEncoder for ChunkEncoder<C> {
    fn encode(&mut self, event: GenerationEvent) -> Vec<Event> {
        let data = |value: Value| Event::default().data(value.to_string());
        if let GenerationEvent::Failed { message } = event {
            let error =
                json!({"message": cut(&message), "type": "server_error", "param": null, "code": null});
            return vec![data(json!({"error": error}))];
        }
        let is_last = matches!(event, GenerationEvent::Done(_));
        let mut encoded: Vec<Event> = self.0.chunks(event).into_iter().map(data).collect();
        if is_last {
            encoded.push(Event::default().data("[DONE]"));
        }
        encoded
    }
}
