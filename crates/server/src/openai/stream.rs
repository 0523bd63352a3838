//! Streams in OpenAI's form: one JSON chunk per event, then `[DONE]`.

use axum::response::sse::Event;
use narthex_gateway::{AnsweringDevice, request::GenerationEvent};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::{CompletionHeader, CompletionUsage};
use crate::{
    error::OpenAiErrorBody,
    protocol::{options::StreamOptions, reading::ReadingObject, sse::EventEncoder, timings::Timings},
};

/// Choice of a chunk: a part of an answer, or its end.
pub(crate) trait ChunkChoice: Serialize + JsonSchema + Send + Sized + 'static {
    /// Type of the chunk's object.
    const OBJECT: &'static str;

    /// State between the events of an answer.
    type State: Send;

    /// Returns the choices for an event, in order, each for a chunk of its own.
    fn from_event(event: GenerationEvent, state: &mut Self::State) -> Vec<Self>;
}

/// Chunk of a streamed answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "{C}Chunk")]
pub(crate) struct Chunk<C: ChunkChoice> {
    #[serde(flatten)]
    header: CompletionHeader,
    #[schemars(extend("const" = C::OBJECT))]
    object: &'static str,
    /// One choice; none in the chunk with the usage.
    choices: Vec<C>,
    /// Absent unless the request asks for the usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<ChunkUsage>,
    /// Only in the last chunk, as in llama.cpp's server.
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
    /// Only in the last chunk of a question-answering model.
    #[serde(skip_serializing_if = "Option::is_none")]
    reading: Option<ReadingObject>,
}

/// `usage` of a chunk: null up to the last chunk.
#[derive(Debug, Serialize, JsonSchema)]
struct ChunkUsage(Option<CompletionUsage>);

/// Encodes a generation as chunks. The chunk with the end of the last choice is held until the timings are known.
pub(crate) struct ChunkEncoder<C: ChunkChoice> {
    header: CompletionHeader,
    options: StreamOptions,
    device: AnsweringDevice,
    state: C::State,
    /// Number of choices that have not ended.
    unfinished: usize,
    reading: Option<ReadingObject>,
    held: Option<Chunk<C>>,
}

impl<C: ChunkChoice> ChunkEncoder<C> {
    /// Creates the encoder of an answer that `device` computes. `state` is that of its `n` choices.
    pub(crate) fn new(
        header: CompletionHeader,
        options: StreamOptions,
        n: usize,
        state: C::State,
        device: AnsweringDevice,
    ) -> Self {
        Self { header, options, device, state, unfinished: n, reading: None, held: None }
    }

    /// Returns the encoder of an answer that a question-answering model has read.
    pub(crate) fn with_reading(self, reading: Option<ReadingObject>) -> Self {
        Self { reading, ..self }
    }

    fn includes_usage(&self) -> bool {
        self.options.include_usage.unwrap_or(false)
    }

    fn chunk(&self, choice: Option<C>) -> Chunk<C> {
        Chunk {
            header: self.header.clone(),
            object: C::OBJECT,
            choices: choice.into_iter().collect(),
            usage: self.includes_usage().then_some(ChunkUsage(None)),
            timings: None,
            reading: None,
        }
    }

    /// Returns the chunks for one event, in order.
    pub(super) fn chunks(&mut self, event: GenerationEvent) -> Vec<Chunk<C>> {
        if let GenerationEvent::Done(summary) = event {
            let usage = ChunkUsage(Some(CompletionUsage::from(&summary)));
            let usage = self.includes_usage().then(|| Chunk { usage: Some(usage), ..self.chunk(None) });
            let mut chunks: Vec<_> = self.held.take().into_iter().chain(usage).collect();
            if let Some(last) = chunks.last_mut() {
                last.timings = Some(Timings::new(&summary, &self.device));
                last.reading = self.reading.take();
            }
            return chunks;
        }
        let is_end = matches!(event, GenerationEvent::Finished { .. });
        let choices = C::from_event(event, &mut self.state).into_iter();
        let mut chunks: Vec<_> = choices.map(|choice| self.chunk(Some(choice))).collect();
        if is_end {
            self.unfinished = self.unfinished.saturating_sub(1);
            if self.unfinished == 0 {
                self.held = chunks.pop();
            }
        }
        chunks
    }
}

impl<C: ChunkChoice> EventEncoder for ChunkEncoder<C> {
    fn encode(&mut self, event: GenerationEvent) -> Vec<Event> {
        if let GenerationEvent::Failed { message, .. } = event {
            let error = json!(OpenAiErrorBody::of_stream(message));
            return vec![Event::default().data(error.to_string())];
        }
        let is_last = matches!(event, GenerationEvent::Done(_));
        let chunks = self.chunks(event);
        let encoded = chunks.iter().map(|chunk| Event::default().data(json!(chunk).to_string()));
        let mut encoded: Vec<Event> = encoded.collect();
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
    use narthex_gateway::request::{FinishReason, Summary};
    use serde_json::Value;

    use super::*;
    use crate::protocol::{reply::samples, sse::event_stream};

    /// Index of a choice that ended.
    #[derive(Debug, Serialize, JsonSchema)]
    struct EndedChoice(usize);

    impl ChunkChoice for EndedChoice {
        const OBJECT: &'static str = "chunk";
        type State = ();

        fn from_event(event: GenerationEvent, (): &mut ()) -> Vec<Self> {
            match event {
                GenerationEvent::Finished { choice, .. } => vec![Self(choice)],
                _ => Vec::new(),
            }
        }
    }

    fn encoder(include_usage: bool) -> ChunkEncoder<EndedChoice> {
        let header = CompletionHeader::new("chunk", "m".to_owned());
        ChunkEncoder::new(
            header,
            StreamOptions { include_usage: Some(include_usage) },
            2,
            (),
            samples::device(),
        )
    }

    #[tokio::test]
    async fn an_idle_stream_has_comments() {
        let waiting = futures::stream::pending();
        let events = event_stream(waiting, Box::new(encoder(false)), std::time::Duration::ZERO);
        let mut body = Sse::new(events).into_response().into_body().into_data_stream();
        let frame = body.next().await.unwrap().unwrap();
        assert!(frame.starts_with(b":") && frame.ends_with(b"\n\n"), "{frame:?}");
    }

    #[test]
    fn the_last_chunk_has_the_timings() {
        for (include_usage, choices) in [(false, json!([[1], [0]])), (true, json!([[1], [0], []]))] {
            let mut encoder = encoder(include_usage);
            let end = |choice| GenerationEvent::Finished { choice, reason: FinishReason::Stop };
            let mut chunks = encoder.chunks(end(1));
            assert_eq!(chunks.len(), 1);
            chunks.extend(encoder.chunks(end(0)));
            assert_eq!(chunks.len(), 1);
            let summary = Summary { completion_tokens: 5, ..Summary::default() };
            chunks.extend(encoder.chunks(GenerationEvent::Done(summary)));
            let chunks: Vec<Value> = chunks.iter().map(|chunk| json!(chunk)).collect();
            let found: Value = chunks.iter().map(|chunk| chunk["choices"].clone()).collect();
            assert_eq!(found, choices);
            let (last, others) = chunks.split_last().unwrap();
            assert_eq!(last["timings"]["predicted_n"], 5);
            assert_eq!(
                last["usage"]["completion_tokens"],
                if include_usage { json!(5) } else { Value::Null }
            );
            for chunk in others {
                assert!(chunk.get("timings").is_none());
                // The usage is null up to the last chunk, and absent if it was not requested.
                assert_eq!(chunk.get("usage"), include_usage.then_some(&Value::Null));
            }
        }
    }
}
