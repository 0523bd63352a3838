//! Streamed responses.

use axum::response::sse::Event;
use narthex_gateway::request::{FinishReason, GenerationEvent, ToolCallDelta};
use serde_json::{Value, json};

use super::{
    ResponseForm, new_id,
    object::{OutputItem, OutputPart, ReasoningPart, ResponseEnd, ResponseSettings, ResponseStatus},
};
use crate::{reply::WholeToolCall, sse::EventEncoder, timings::Timings};

/// Encodes an answer as output items: a message, and one item for each call.
pub(super) struct ResponseEvents {
    /// The response; `None` after its end.
    form: Option<ResponseForm>,
    sequence: u64,
    /// Complete items.
    output: Vec<OutputItem>,
    open: Option<OpenItem>,
    reason: Option<FinishReason>,
    device: String,
}

/// An item that is not complete.
struct OpenItem {
    id: String,
    kind: OpenKind,
}

enum OpenKind {
    Reasoning(String),
    Message(String),
    Call(WholeToolCall),
}

impl ResponseEvents {
    /// Creates the encoder of a new response that this device computes.
    pub(super) fn new(form: ResponseForm, device: String) -> Self {
        Self { form: Some(form), sequence: 0, output: Vec::new(), open: None, reason: None, device }
    }

    /// Returns the item of a call.
    fn call_item(&self, id: &str, call: &WholeToolCall, status: ResponseStatus) -> OutputItem {
        match &self.form {
            Some(form) => form.object.settings.call(id, call, status),
            None => ResponseSettings::default().call(id, call, status),
        }
    }

    fn values(&mut self, event: GenerationEvent) -> Vec<Value> {
        match event {
            GenerationEvent::Started { .. } => {
                let response = self.form.as_ref().map(|form| &form.object);
                vec![
                    json!({"type": "response.created", "response": response}),
                    json!({"type": "response.in_progress", "response": response}),
                ]
            }
            GenerationEvent::Text { text, .. } if text.is_empty() => Vec::new(),
            GenerationEvent::Text { text, .. } => self.text(&text),
            GenerationEvent::Reasoning { text, .. } => self.reasoning(&text),
            GenerationEvent::ToolCall { delta, .. } => self.call(delta),
            GenerationEvent::Finished { reason, .. } => {
                self.reason = Some(reason);
                self.close()
            }
            GenerationEvent::Done(summary) => {
                let output = std::mem::take(&mut self.output);
                let Some(form) = self.form.take() else { return Vec::new() };
                let timings = Timings::new(&summary, &self.device);
                let end = ResponseEnd { reason: self.reason, summary: &summary, timings };
                let response = form.complete(|object| object.complete(output, end));
                let is_whole = response.status == ResponseStatus::Completed;
                let kind = if is_whole { "response.completed" } else { "response.incomplete" };
                vec![json!({"type": kind, "response": response})]
            }
            GenerationEvent::Failed { message } => {
                let Some(form) = self.form.take() else { return Vec::new() };
                let response = form.object.failed(std::mem::take(&mut self.output), message);
                vec![json!({"type": "response.failed", "response": response})]
            }
        }
    }

    fn text(&mut self, delta: &str) -> Vec<Value> {
        let mut values = Vec::new();
        if !matches!(&self.open, Some(OpenItem { kind: OpenKind::Message(_), .. })) {
            values.extend(self.close());
            let id = new_id("msg");
            let item = OutputItem::message(&id, Vec::new(), ResponseStatus::InProgress);
            values.extend(self.added(&id, &item, &json!(OutputPart::text(""))));
            self.open = Some(OpenItem { id, kind: OpenKind::Message(String::new()) });
        }
        if let Some(OpenItem { id, kind: OpenKind::Message(text) }) = &mut self.open {
            text.push_str(delta);
            values.push(json!({
                "type": "response.output_text.delta",
                "item_id": id,
                "output_index": self.output.len(),
                "content_index": 0,
                "delta": delta,
                "logprobs": [],
            }));
        }
        values
    }

    fn reasoning(&mut self, delta: &str) -> Vec<Value> {
        let mut values = Vec::new();
        if !matches!(&self.open, Some(OpenItem { kind: OpenKind::Reasoning(_), .. })) {
            let id = new_id("rs");
            let item = OutputItem::reasoning(&id, Vec::new());
            values.extend(self.added(&id, &item, &json!(ReasoningPart::text(""))));
            self.open = Some(OpenItem { id, kind: OpenKind::Reasoning(String::new()) });
        }
        if let Some(OpenItem { id, kind: OpenKind::Reasoning(text) }) = &mut self.open {
            text.push_str(delta);
            values.push(json!({
                "type": "response.reasoning_text.delta",
                "item_id": id,
                "output_index": self.output.len(),
                "content_index": 0,
                "delta": delta,
            }));
        }
        values
    }

    fn call(&mut self, delta: ToolCallDelta) -> Vec<Value> {
        let mut values = Vec::new();
        if let Some(start) = delta.start {
            values.extend(self.close());
            let call = WholeToolCall { id: start.id, name: start.name, arguments: String::new() };
            let id = new_id("fc");
            let item = self.call_item(&id, &call, ResponseStatus::InProgress);
            let index = self.output.len();
            values.push(json!({"type": "response.output_item.added", "output_index": index, "item": item}));
            self.open = Some(OpenItem { id, kind: OpenKind::Call(call) });
        }
        if let Some(OpenItem { id, kind: OpenKind::Call(call) }) = &mut self.open
            && !delta.arguments.is_empty()
        {
            call.arguments.push_str(&delta.arguments);
            values.push(json!({
                "type": "response.function_call_arguments.delta",
                "item_id": id,
                "output_index": self.output.len(),
                "delta": delta.arguments,
            }));
        }
        values
    }

    /// Returns the events of a new item with one empty part.
    fn added(&self, id: &str, item: &OutputItem, part: &Value) -> [Value; 2] {
        let index = self.output.len();
        let place = json!({
            "type": "response.content_part.added",
            "item_id": id,
            "output_index": index,
            "content_index": 0,
            "part": part,
        });
        [json!({"type": "response.output_item.added", "output_index": index, "item": item}), place]
    }

    /// Completes the open item.
    fn close(&mut self) -> Vec<Value> {
        let Some(OpenItem { id, kind }) = self.open.take() else { return Vec::new() };
        let index = self.output.len();
        let place = json!({"item_id": id, "output_index": index, "content_index": 0});
        let done = |kind: &str, name: &str, value: Value| {
            let mut done = place.clone();
            done["type"] = kind.into();
            done[name] = value;
            done
        };
        let (mut values, item) = match kind {
            OpenKind::Reasoning(text) => {
                let part = ReasoningPart::text(&text);
                let values = vec![
                    done("response.reasoning_text.done", "text", json!(text)),
                    done("response.content_part.done", "part", json!(part)),
                ];
                (values, OutputItem::reasoning(&id, vec![part]))
            }
            OpenKind::Message(text) => {
                let part = OutputPart::text(&text);
                let mut whole = done("response.output_text.done", "text", json!(text));
                whole["logprobs"] = json!([]);
                let values = vec![whole, done("response.content_part.done", "part", json!(part))];
                (values, OutputItem::message(&id, vec![part], ResponseStatus::Completed))
            }
            OpenKind::Call(call) => {
                let done = json!({
                    "type": "response.function_call_arguments.done",
                    "item_id": id,
                    "output_index": index,
                    "name": call.name,
                    "arguments": call.arguments,
                });
                (vec![done], self.call_item(&id, &call, ResponseStatus::Completed))
            }
        };
        values.push(json!({"type": "response.output_item.done", "output_index": index, "item": item}));
        self.output.push(item);
        values
    }
}

impl EventEncoder for ResponseEvents {
    fn encode(&mut self, event: GenerationEvent) -> Vec<Event> {
        let values = self.values(event).into_iter();
        let mut encode = |mut value: Value| {
            value["sequence_number"] = self.sequence.into();
            self.sequence += 1;
            let name = value["type"].as_str().unwrap_or_default().to_owned();
            Event::default().event(name).data(value.to_string())
        };
        values.map(&mut encode).collect()
    }
}

#[cfg(test)]
mod tests {
    use narthex_gateway::request::{Summary, ToolCallStart};

    use super::{super::object::ResponseObject, *};

    #[test]
    fn items_begin_and_end_in_order() {
        let object = ResponseObject::new("resp".to_owned(), 0, "m".to_owned(), ResponseSettings::default());
        let mut events = ResponseEvents::new(ResponseForm { object, pending: None }, "cpu".to_owned());
        let start = Some(ToolCallStart { id: "c".to_owned(), name: "f".to_owned() });
        let summary =
            Summary { prompt_tokens: 9, cached_tokens: 4, completion_tokens: 5, ..Summary::default() };
        let all = [
            GenerationEvent::Started { prompt_tokens: 9 },
            GenerationEvent::Reasoning { choice: 0, text: "r".to_owned() },
            GenerationEvent::Text { choice: 0, text: "a".to_owned(), tokens: Vec::new() },
            GenerationEvent::ToolCall {
                choice: 0,
                delta: ToolCallDelta { index: 0, start, arguments: "{}".to_owned() },
            },
            GenerationEvent::Finished { choice: 0, reason: FinishReason::ToolCalls },
            GenerationEvent::Done(summary),
        ];
        let values: Vec<Value> = all.into_iter().flat_map(|event| events.values(event)).collect();
        let names: Vec<&str> = values
            .iter()
            .map(|value| value["type"].as_str().unwrap().trim_start_matches("response."))
            .collect();
        assert_eq!(
            names,
            [
                "created",
                "in_progress",
                "output_item.added",
                "content_part.added",
                "reasoning_text.delta",
                "reasoning_text.done",
                "content_part.done",
                "output_item.done",
                "output_item.added",
                "content_part.added",
                "output_text.delta",
                "output_text.done",
                "content_part.done",
                "output_item.done",
                "output_item.added",
                "function_call_arguments.delta",
                "function_call_arguments.done",
                "output_item.done",
                "completed",
            ]
        );
        assert!(values[0]["response"].get("usage").is_none() && values[18]["response"]["usage"].is_object());
        assert_eq!(values[18]["response"]["timings"]["device"], "cpu");
        let output = values[18]["response"]["output"].as_array().unwrap();
        assert_eq!(
            (output.len(), &output[1]["content"][0]["text"], &output[2]["arguments"]),
            (3, &json!("a"), &json!("{}"))
        );
    }
}
