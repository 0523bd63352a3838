//! Streamed answers as Anthropic's events.

use axum::{http::StatusCode, response::sse::Event};
use narthex_gateway::{
    AnsweringDevice,
    request::{FinishReason, GenerationEvent, Summary, ToolCallDelta, ToolCallStart},
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::object::{AnthropicMessage, ContentBlock, MessageEnd, MessageUsage};
use crate::protocol::{
    errors::AnthropicErrorBody, reading::ReadingObject, reply::WholeToolCall, sse::EventEncoder,
    timings::Timings,
};

/// Event of a streamed message.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum AnthropicEvent {
    MessageStart { message: AnthropicMessage },
    ContentBlockStart { index: usize, content_block: ContentBlock },
    ContentBlockDelta { index: usize, delta: BlockDelta },
    ContentBlockStop { index: usize },
    MessageDelta { delta: EndDelta, usage: MessageUsage, timings: Timings },
    MessageStop,
    Ping,
}

/// Part of a content block. The input of a call comes in parts of its JSON text.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type")]
pub(crate) enum BlockDelta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    /// End of a block of reasoning. Clients keep only reasoning with a signature.
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
}

/// End of a message.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EndDelta {
    #[serde(flatten)]
    end: MessageEnd,
    container: Option<Value>,
}

/// Encodes an answer as content blocks: text, and one block for each call.
pub(super) struct MessageEvents {
    id: String,
    model: String,
    /// Number of blocks that were started.
    blocks: usize,
    open: Option<OpenBlock>,
    reason: Option<FinishReason>,
    reading: Option<ReadingObject>,
    /// The stop sequences of the request.
    stops: Vec<String>,
    device: AnsweringDevice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    Thinking,
    Text,
    Call,
}

impl MessageEvents {
    /// Creates the encoder of a new answer with these stop sequences, which this device computes.
    pub(super) fn new(id: String, model: String, stops: Vec<String>, device: AnsweringDevice) -> Self {
        Self { id, model, blocks: 0, open: None, reason: None, stops, device, reading: None }
    }

    /// Returns the encoder of the answer of a question-answering model.
    pub(super) fn with_reading(self, reading: Option<ReadingObject>) -> Self {
        Self { reading, ..self }
    }

    fn events(&mut self, event: GenerationEvent) -> Vec<AnthropicEvent> {
        match event {
            GenerationEvent::Started { prompt_tokens } => {
                let usage = MessageUsage::of_prompt(prompt_tokens);
                let message = AnthropicMessage::new(self.id.clone(), self.model.clone(), usage);
                let message = message.with_reading(self.reading.take());
                vec![AnthropicEvent::MessageStart { message }]
            }
            GenerationEvent::Text { text, .. } if text.is_empty() => Vec::new(),
            GenerationEvent::Text { text, .. } => {
                self.part(OpenBlock::Text, ContentBlock::text(""), BlockDelta::Text { text })
            }
            GenerationEvent::Reasoning { text: thinking, .. } => {
                let delta = BlockDelta::Thinking { thinking };
                self.part(OpenBlock::Thinking, ContentBlock::thinking(""), delta)
            }
            GenerationEvent::ToolCall { delta, .. } => self.call(delta),
            GenerationEvent::Finished { reason, .. } => {
                self.reason = Some(reason);
                self.stop()
            }
            GenerationEvent::Done(summary) => vec![self.end(&summary), AnthropicEvent::MessageStop],
            GenerationEvent::Failed { .. } => Vec::new(),
        }
    }

    /// Returns the events of a part of a block, which starts with this content if it is not open.
    fn part(&mut self, kind: OpenBlock, content: ContentBlock, delta: BlockDelta) -> Vec<AnthropicEvent> {
        let mut events = Vec::new();
        if self.open != Some(kind) {
            self.start(kind, content, &mut events);
        }
        events.push(self.delta(delta));
        events
    }

    fn call(&mut self, delta: ToolCallDelta) -> Vec<AnthropicEvent> {
        let mut events = Vec::new();
        if let Some(ToolCallStart { id, name }) = delta.start {
            let call = WholeToolCall { id, name, arguments: String::new() };
            self.start(OpenBlock::Call, ContentBlock::call(&call, json!({}).into()), &mut events);
        }
        if !delta.arguments.is_empty() {
            events.push(self.delta(BlockDelta::InputJson { partial_json: delta.arguments }));
        }
        events
    }

    fn start(&mut self, kind: OpenBlock, content_block: ContentBlock, events: &mut Vec<AnthropicEvent>) {
        events.extend(self.stop());
        events.push(AnthropicEvent::ContentBlockStart { index: self.blocks, content_block });
        self.blocks += 1;
        self.open = Some(kind);
    }

    fn delta(&self, delta: BlockDelta) -> AnthropicEvent {
        AnthropicEvent::ContentBlockDelta { index: self.blocks.saturating_sub(1), delta }
    }

    /// Ends the open block.
    fn stop(&mut self) -> Vec<AnthropicEvent> {
        let Some(open) = self.open.take() else { return Vec::new() };
        let end = AnthropicEvent::ContentBlockStop { index: self.blocks - 1 };
        if open != OpenBlock::Thinking {
            return vec![end];
        }
        vec![self.delta(BlockDelta::Signature { signature: String::new() }), end]
    }

    fn end(&self, summary: &Summary) -> AnthropicEvent {
        let delta = EndDelta { end: MessageEnd::new(self.reason, &self.stops), container: None };
        let timings = Timings::new(summary, &self.device);
        AnthropicEvent::MessageDelta { delta, usage: MessageUsage::new(summary), timings }
    }
}

impl EventEncoder for MessageEvents {
    fn encode(&mut self, event: GenerationEvent) -> Vec<Event> {
        if let GenerationEvent::Failed { message, .. } = event {
            return vec![named(json!(AnthropicErrorBody::new(StatusCode::INTERNAL_SERVER_ERROR, &message)))];
        }
        self.events(event).iter().map(|event| named(json!(event))).collect()
    }

    /// Returns a ping, as Anthropic's servers send it.
    fn idle(&mut self) -> Vec<Event> {
        vec![named(json!(AnthropicEvent::Ping))]
    }
}

/// Returns the server-sent event of an object, whose name is its type.
fn named(value: Value) -> Event {
    Event::default().event(value["type"].as_str().unwrap_or_default()).data(value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{
        reply::samples,
        sse::{event_stream, frames},
    };

    fn encoder() -> MessageEvents {
        MessageEvents::new("msg".to_owned(), "m".to_owned(), Vec::new(), samples::device())
    }

    fn values(encoder: &mut MessageEvents, events: impl IntoIterator<Item = GenerationEvent>) -> Vec<Value> {
        let events = events.into_iter().flat_map(|event| encoder.events(event));
        events.map(|event| json!(event)).collect()
    }

    #[tokio::test]
    async fn an_idle_stream_pings() {
        let waiting = futures::stream::pending();
        let events = frames(event_stream(waiting, Box::new(encoder()), std::time::Duration::ZERO), 2).await;
        assert_eq!(events, [json!({"type": "ping"}), json!({"type": "ping"})]);
    }

    #[test]
    fn the_block_of_a_malformed_call_ends_before_the_text() {
        let mut events = encoder();
        let values = values(&mut events, samples::malformed());
        let names: Vec<(&str, Option<u64>)> =
            values.iter().map(|value| (value["type"].as_str().unwrap(), value["index"].as_u64())).collect();
        assert_eq!(
            names[1..],
            [
                ("content_block_start", Some(0)),
                ("content_block_delta", Some(0)),
                ("content_block_stop", Some(0)),
                ("content_block_start", Some(1)),
                ("content_block_delta", Some(1)),
                ("content_block_stop", Some(1)),
                ("message_delta", None),
                ("message_stop", None),
            ]
        );
        let choice = samples::whole(samples::malformed()).choices.remove(0);
        assert_eq!(
            (values[5]["delta"]["text"].as_str(), choice.calls().count()),
            (Some(choice.text().as_str()), 0)
        );
        let end = json!(MessageEnd::new(choice.finish, &[]));
        for name in ["stop_reason", "stop_details"] {
            assert_eq!(values[7]["delta"][name], end[name]);
        }
    }

    #[test]
    fn whole_messages_have_the_blocks_of_streams() {
        let streamed = values(&mut encoder(), samples::mixed());
        let of_kind = |kind: &'static str| streamed.iter().filter(move |value| value["type"] == kind);
        let streamed = of_kind("content_block_start").map(|start| {
            let mut block = start["content_block"].clone();
            let deltas = of_kind("content_block_delta").filter(|delta| delta["index"] == start["index"]);
            let text: String = deltas.filter_map(|delta| delta["delta"]["text"].as_str()).collect();
            if block["type"] == "text" {
                block["text"] = json!(text);
            }
            block
        });
        let usage = MessageUsage::of_prompt(9);
        let message = AnthropicMessage::new("msg".to_owned(), "m".to_owned(), usage);
        let reply = samples::whole(samples::mixed());
        let whole = json!(message.complete(&reply.choices[0], MessageEnd::default(), reply.timings()));
        assert_eq!(whole["content"], streamed.collect::<Value>());
        let kinds = whole["content"].as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap());
        assert_eq!(kinds.collect::<Vec<_>>(), ["text", "tool_use", "text", "tool_use", "text"]);
    }

    #[test]
    fn blocks_begin_and_end_in_order() {
        let mut events = MessageEvents::new("msg".to_owned(), "m".to_owned(), Vec::new(), samples::device());
        let text =
            |text: &str| GenerationEvent::Text { choice: 0, text: text.to_owned(), tokens: Vec::new() };
        let start = Some(ToolCallStart { id: "c".to_owned(), name: "f".to_owned() });
        let call = |start, arguments: &str| GenerationEvent::ToolCall {
            choice: 0,
            delta: ToolCallDelta { index: 0, start, arguments: arguments.to_owned() },
        };
        let summary =
            Summary { prompt_tokens: 9, cached_tokens: 4, completion_tokens: 5, ..Summary::default() };
        let all = [
            GenerationEvent::Started { prompt_tokens: 9 },
            GenerationEvent::Reasoning { choice: 0, text: "r".to_owned() },
            text("a"),
            text("b"),
            call(start, ""),
            call(None, "{}"),
            GenerationEvent::Finished { choice: 0, reason: FinishReason::ToolCalls },
            GenerationEvent::Done(summary),
        ];
        let values = values(&mut events, all);
        let names: Vec<(&str, Option<u64>)> =
            values.iter().map(|value| (value["type"].as_str().unwrap(), value["index"].as_u64())).collect();
        assert_eq!(
            names,
            [
                ("message_start", None),
                ("content_block_start", Some(0)),
                ("content_block_delta", Some(0)),
                ("content_block_delta", Some(0)),
                ("content_block_stop", Some(0)),
                ("content_block_start", Some(1)),
                ("content_block_delta", Some(1)),
                ("content_block_delta", Some(1)),
                ("content_block_stop", Some(1)),
                ("content_block_start", Some(2)),
                ("content_block_delta", Some(2)),
                ("content_block_stop", Some(2)),
                ("message_delta", None),
                ("message_stop", None),
            ]
        );
        assert_eq!(values[3]["delta"], json!({"type": "signature_delta", "signature": ""}));
        assert_eq!(values[12]["delta"]["stop_reason"], "tool_use");
        assert_eq!(values[12]["timings"]["device"], "cpu");
        assert_eq!(
            (&values[12]["usage"]["input_tokens"], &values[12]["usage"]["cache_read_input_tokens"]),
            (&json!(5), &json!(4))
        );
    }
}
