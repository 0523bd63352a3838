//! Streams in OpenAI's form: one JSON chunk per event, then `[DONE]`.

use axum::response::sse::Event;
use narthex_gateway::request::{GenerationEvent, Summary};
use serde_json::{Value, json};

use crate::{sse::EventEncoder, timings::Timings};

/// Chunks of one endpoint.
pub(crate) trait Chunks: Send + 'static {
    /// Returns the chunks for one event, in order.
    fn chunks(&mut self, event: GenerationEvent) -> Vec<Value>;
}

/// End of a stream, whose last chunk has the `timings`, as in llama.cpp's server.
pub(crate) struct StreamEnd {
    device: String,
    /// Number of choices that have not ended.
    unfinished: usize,
    /// Chunk with the end of the last choice.
    held: Option<Value>,
}

impl StreamEnd {
    /// Creates the end of a stream of `choices` choices that this device computes.
    pub(crate) fn new(choices: usize, device: String) -> Self {
        Self { device, unfinished: choices, held: None }
    }

    /// Takes the chunk with the end of a choice. Returns the chunks to send, and holds the chunk of the last choice.
    pub(crate) fn finish(&mut self, chunk: Value) -> Vec<Value> {
        self.unfinished = self.unfinished.saturating_sub(1);
        if self.unfinished > 0 {
            return vec![chunk];
        }
        self.held = Some(chunk);
        Vec::new()
    }

    /// Returns the last chunks: the one that was held, and the one with the usage if the client asked for it.
    pub(crate) fn done(&mut self, summary: &Summary, usage: Option<Value>) -> Vec<Value> {
        let mut chunks: Vec<Value> = self.held.take().into_iter().chain(usage).collect();
        if let Some(last) = chunks.last_mut() {
            last["timings"] = json!(Timings::new(summary, &self.device));
        }
        chunks
    }
}

/// Encodes an endpoint's chunks.
pub(crate) struct ChunkEncoder<C>(pub(crate) C);

impl<C: Chunks> EventEncoder for ChunkEncoder<C> {
    fn encode(&mut self, event: GenerationEvent) -> Vec<Event> {
        let data = |value: Value| Event::default().data(value.to_string());
        if let GenerationEvent::Failed { message } = event {
            let error = json!({"message": message, "type": "server_error", "param": null, "code": null});
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

#[cfg(test)]
mod tests {
    use axum::response::{IntoResponse, Sse};
    use futures::StreamExt;

    use super::*;
    use crate::sse::event_stream;

    struct NoChunks;

    impl Chunks for NoChunks {
        fn chunks(&mut self, _event: GenerationEvent) -> Vec<Value> {
            Vec::new()
        }
    }

    #[tokio::test]
    async fn an_idle_stream_has_comments() {
        let waiting = futures::stream::pending();
        let events = event_stream(waiting, Box::new(ChunkEncoder(NoChunks)), std::time::Duration::ZERO);
        let mut body = Sse::new(events).into_response().into_body().into_data_stream();
        let frame = body.next().await.unwrap().unwrap();
        assert!(frame.starts_with(b":") && frame.ends_with(b"\n\n"), "{frame:?}");
    }

    #[test]
    fn the_last_chunk_has_the_timings() {
        let summary = Summary { completion_tokens: 5, ..Summary::default() };
        for (usage, last) in [(None, 2), (Some(json!({"usage": {}})), 3)] {
            let mut end = StreamEnd::new(2, "cpu".to_owned());
            let mut chunks = end.finish(json!({"choice": 1}));
            assert_eq!(chunks, [json!({"choice": 1})]);
            chunks.extend(end.finish(json!({"choice": 0})));
            chunks.extend(end.done(&summary, usage));
            assert_eq!(chunks.len(), last);
            let timed = chunks.iter().filter(|chunk| chunk.get("timings").is_some());
            assert_eq!(timed.count(), 1);
            assert_eq!(chunks[last - 1]["timings"]["predicted_n"], 5);
        }
    }
}
