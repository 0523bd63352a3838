//! Streamed answers as Anthropic's events.

use axum::{http::StatusCode, response::sse::Event};
use narthex_gateway::request::{FinishReason, GenerationEvent, Summary, ToolCallDelta, ToolCallStart};
use serde_json::{Value, json};

use super::object::{AnthropicMessage, ContentBlock, MessageEnd, MessageUsage};
use crate::{protocol::AnthropicErrorBody, reply::WholeToolCall, sse::EventEncoder, timings::Timings};

/// Encodes an answer as content blocks: text, and one block for each call.
pub(super) struct MessageEvents {
    id: String,
    model: String,
    /// Number of blocks that were started.
    blocks: usize,
    open: Option<OpenBlock>,
    reason: Option<FinishReason>,
    /// The stop sequences of the request.
    stops: Vec<String>,
    device: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    Thinking,
    Text,
    Call,
}

impl MessageEvents {
    /// Creates the encoder of a new answer with these stop sequences, which this device computes.
    pub(super) fn new(id: String, model: String, stops: Vec<String>, device: String) -> Self {
        Self { id, model, blocks: 0, open: None, reason: None, stops, device }
    }

    fn values(&mut self, event: GenerationEvent) -> Vec<Value> {
        match event {
            GenerationEvent::Started { prompt_tokens } => vec![self.message_start(prompt_tokens)],
            GenerationEvent::Text { text, .. } if text.is_empty() => Vec::new(),
            GenerationEvent::Text { text, .. } => {
                let mut values = Vec::new();
                if self.open != Some(OpenBlock::Text) {
                    self.start(OpenBlock::Text, ContentBlock::text(""), &mut values);
                }
                values.push(self.delta(json!({"type": "text_delta", "text": text})));
                values
            }
            GenerationEvent::Reasoning { text, .. } => {
                let mut values = Vec::new();
                if self.open != Some(OpenBlock::Thinking) {
                    self.start(OpenBlock::Thinking, ContentBlock::thinking(""), &mut values);
                }
                values.push(self.delta(json!({"type": "thinking_delta", "thinking": text})));
                values
            }
            GenerationEvent::ToolCall { delta, .. } => self.call(delta),
            GenerationEvent::Finished { reason, .. } => {
                self.reason = Some(reason);
                self.stop().into_iter().collect()
            }
            GenerationEvent::Done(summary) => self.end(&summary),
            GenerationEvent::Failed { message } => {
                vec![json!(AnthropicErrorBody::new(StatusCode::INTERNAL_SERVER_ERROR, &message))]
            }
        }
    }

    fn message_start(&self, prompt_tokens: usize) -> Value {
        let usage = MessageUsage::of_prompt(prompt_tokens);
        let message = AnthropicMessage::new(self.id.clone(), self.model.clone(), usage);
        json!({"type": "message_start", "message": message})
    }

    fn call(&mut self, delta: ToolCallDelta) -> Vec<Value> {
        let mut values = Vec::new();
        if let Some(ToolCallStart { id, name }) = delta.start {
            let call = WholeToolCall { id, name, arguments: String::new() };
            self.start(OpenBlock::Call, ContentBlock::call(&call, json!({})), &mut values);
        }
        if !delta.arguments.is_empty() {
            values.push(self.delta(json!({"type": "input_json_delta", "partial_json": delta.arguments})));
        }
        values
    }

    fn start(&mut self, kind: OpenBlock, block: ContentBlock, values: &mut Vec<Value>) {
        values.extend(self.stop());
        values.push(json!({"type": "content_block_start", "index": self.blocks, "content_block": block}));
        self.blocks += 1;
        self.open = Some(kind);
    }

    fn delta(&self, delta: Value) -> Value {
        json!({"type": "content_block_delta", "index": self.blocks.saturating_sub(1), "delta": delta})
    }

    fn stop(&mut self) -> Option<Value> {
        self.open.take()?;
        Some(json!({"type": "content_block_stop", "index": self.blocks - 1}))
    }

    fn end(&self, summary: &Summary) -> Vec<Value> {
        let mut delta = json!(MessageEnd::new(self.reason, &self.stops));
        delta["container"] = Value::Null;
        let (usage, timings) = (MessageUsage::new(summary), Timings::new(summary, &self.device));
        let end = json!({"type": "message_delta", "delta": delta, "usage": usage, "timings": timings});
        vec![end, json!({"type": "message_stop"})]
    }
}

impl EventEncoder for MessageEvents {
    fn encode(&mut self, event: GenerationEvent) -> Vec<Event> {
        let values = self.values(event).into_iter();
        let named = |value: Value| {
            let name = value["type"].as_str().unwrap_or_default().to_owned();
            Event::default().event(name).data(value.to_string())
        };
        values.map(named).collect()
    }

    /// Returns a ping, as Anthropic's servers send it.
    fn idle(&mut self) -> Vec<Event> {
        vec![Event::default().event("ping").data(json!({"type": "ping"}).to_string())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        reply::samples,
        sse::{event_stream, frames},
    };

    fn encoder() -> MessageEvents {
        MessageEvents::new("msg".to_owned(), "m".to_owned(), Vec::new(), "cpu".to_owned())
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
        let values: Vec<Value> =
            samples::malformed().into_iter().flat_map(|event| events.values(event)).collect();
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
            (values[5]["delta"]["text"].as_str(), choice.calls.len()),
            (Some(choice.text.as_str()), 0)
        );
        let end = json!(MessageEnd::new(choice.finish, &[]));
        for name in ["stop_reason", "stop_details"] {
            assert_eq!(values[7]["delta"][name], end[name]);
        }
    }

    #[test]
    fn blocks_begin_and_end_in_order() {
        let mut events = MessageEvents::new("msg".to_owned(), "m".to_owned(), Vec::new(), "cpu".to_owned());
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
        let values: Vec<Value> = all.into_iter().flat_map(|event| events.values(event)).collect();
        let names: Vec<(&str, Option<u64>)> =
            values.iter().map(|value| (value["type"].as_str().unwrap(), value["index"].as_u64())).collect();
        assert_eq!(
            names,
            [
                ("message_start", None),
                ("content_block_start", Some(0)),
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
        assert_eq!(values[11]["delta"]["stop_reason"], "tool_use");
        assert_eq!(values[11]["timings"]["device"], "cpu");
        assert_eq!(
            (&values[11]["usage"]["input_tokens"], &values[11]["usage"]["cache_read_input_tokens"]),
            (&json!(5), &json!(4))
        );
    }
}
