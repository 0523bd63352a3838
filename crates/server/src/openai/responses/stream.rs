//! Streamed responses.

use axum::response::sse::Event;
use narthex_gateway::request::{FinishReason, GenerationEvent, ToolCallDelta};
use serde_json::{Value, json};

use super::{
    ResponseForm, new_id,
    object::{OutputItem, OutputPart, ReasoningPart, ResponseEnd, ResponseSettings, ResponseStatus},
};
use crate::{
    reply::{WholeToolCall, is_cut},
    sse::EventEncoder,
    timings::Timings,
};

/// Encodes an answer as output items: a message, and one item for each call.
pub(super) struct ResponseEvents {
    /// The response; `None` after its end.
    form: Option<ResponseForm>,
    sequence: u64,
    is_started: bool,
    /// Number of items that have ended.
    items: usize,
    /// The items of the answer that have ended. Malformed calls are not part of the answer.
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
        Self {
            form: Some(form),
            sequence: 0,
            is_started: false,
            items: 0,
            output: Vec::new(),
            open: None,
            reason: None,
            device,
        }
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
            GenerationEvent::Started { .. } if self.is_started => Vec::new(),
            GenerationEvent::Started { .. } => self.progress(),
            GenerationEvent::Text { text, .. } if text.is_empty() => Vec::new(),
            GenerationEvent::Text { text, .. } => self.text(&text),
            GenerationEvent::Reasoning { text, .. } => self.reasoning(&text),
            GenerationEvent::ToolCall { delta, .. } => self.call(delta),
            GenerationEvent::Finished { reason, .. } => {
                self.reason = Some(reason);
                self.close(is_cut(reason))
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

    /// Returns the event that the response is in progress. At the first call, the event of its creation precedes it.
    fn progress(&mut self) -> Vec<Value> {
        let Some(response) = self.form.as_ref().map(|form| &form.object) else { return Vec::new() };
        let event = |kind: &str| json!({"type": kind, "response": response});
        let created = (!self.is_started).then(|| event("response.created"));
        self.is_started = true;
        created.into_iter().chain([event("response.in_progress")]).collect()
    }

    /// Adds the number of each event, and encodes it.
    fn numbered(&mut self, values: Vec<Value>) -> Vec<Event> {
        let mut encode = |mut value: Value| {
            value["sequence_number"] = self.sequence.into();
            self.sequence += 1;
            let name = value["type"].as_str().unwrap_or_default().to_owned();
            Event::default().event(name).data(value.to_string())
        };
        values.into_iter().map(&mut encode).collect()
    }

    fn text(&mut self, delta: &str) -> Vec<Value> {
        let mut values = Vec::new();
        if !matches!(&self.open, Some(OpenItem { kind: OpenKind::Message(_), .. })) {
            values.extend(self.close(false));
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
                "output_index": self.items,
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
                "output_index": self.items,
                "content_index": 0,
                "delta": delta,
            }));
        }
        values
    }

    fn call(&mut self, delta: ToolCallDelta) -> Vec<Value> {
        let mut values = Vec::new();
        if let Some(start) = delta.start {
            values.extend(self.close(false));
            let call = WholeToolCall { id: start.id, name: start.name, arguments: String::new() };
            let id = new_id("fc");
            let item = self.call_item(&id, &call, ResponseStatus::InProgress);
            let index = self.items;
            values.push(json!({"type": "response.output_item.added", "output_index": index, "item": item}));
            self.open = Some(OpenItem { id, kind: OpenKind::Call(call) });
        }
        if let Some(OpenItem { id, kind: OpenKind::Call(call) }) = &mut self.open
            && !delta.arguments.is_empty()
        {
            call.arguments.push_str(&delta.arguments);
            let settings = self.form.as_ref().map(|form| &form.object.settings);
            // The arguments of a custom tool are not its input, which is sent at the end.
            if !settings.is_some_and(|settings| settings.is_custom(&call.name)) {
                values.push(json!({
                    "type": "response.function_call_arguments.delta",
                    "item_id": id,
                    "output_index": self.items,
                    "delta": delta.arguments,
                }));
            }
        }
        values
    }

    /// Returns the events of a new item with one empty part.
    fn added(&self, id: &str, item: &OutputItem, part: &Value) -> [Value; 2] {
        let index = self.items;
        let place = json!({
            "type": "response.content_part.added",
            "item_id": id,
            "output_index": index,
            "content_index": 0,
            "part": part,
        });
        [json!({"type": "response.output_item.added", "output_index": index, "item": item}), place]
    }

    /// Ends the open item. `is_cut` is true if the answer was cut off in it.
    fn close(&mut self, is_cut: bool) -> Vec<Value> {
        let Some(OpenItem { id, kind }) = self.open.take() else { return Vec::new() };
        let index = self.items;
        let place = json!({"item_id": id, "output_index": index, "content_index": 0});
        let done = |kind: &str, name: &str, value: Value| {
            let mut done = place.clone();
            done["type"] = kind.into();
            done[name] = value;
            done
        };
        let mut is_answer = true;
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
                let status = if is_cut { ResponseStatus::Incomplete } else { ResponseStatus::Completed };
                (values, OutputItem::message(&id, vec![part], status))
            }
            OpenKind::Call(call) => {
                let is_whole = call.is_complete();
                // The text of a malformed call is in the answer.
                is_answer = is_whole || is_cut;
                let status = if is_whole { ResponseStatus::Completed } else { ResponseStatus::Incomplete };
                let item = self.call_item(&id, &call, status);
                (call_end(&item, &call, index), item)
            }
        };
        values.push(json!({"type": "response.output_item.done", "output_index": index, "item": item}));
        self.items += 1;
        if is_answer {
            self.output.push(item);
        }
        values
    }
}

/// Returns the events with the whole input of a call.
fn call_end(item: &OutputItem, call: &WholeToolCall, index: usize) -> Vec<Value> {
    let place = json!({"item_id": item.id(), "output_index": index});
    let event = |kind: &str, fields: Value| {
        let mut event = place.clone();
        event["type"] = kind.into();
        for (name, value) in fields.as_object().into_iter().flatten() {
            event[name] = value.clone();
        }
        event
    };
    match item {
        OutputItem::CustomToolCall { input, .. } => vec![
            event("response.custom_tool_call_input.delta", json!({"delta": input})),
            event("response.custom_tool_call_input.done", json!({"input": input})),
        ],
        _ => {
            let fields = json!({"name": call.name, "arguments": call.arguments});
            vec![event("response.function_call_arguments.done", fields)]
        }
    }
}

impl EventEncoder for ResponseEvents {
    fn encode(&mut self, event: GenerationEvent) -> Vec<Event> {
        let values = self.values(event);
        self.numbered(values)
    }

    /// Repeats that the response is in progress. Codex gives a stream up that sends only comments.
    fn idle(&mut self) -> Vec<Event> {
        let values = self.progress();
        self.numbered(values)
    }
}

#[cfg(test)]
mod tests {
    use narthex_gateway::request::{Summary, ToolCallStart};

    use super::{
        super::object::{ResponseObject, output_items},
        *,
    };
    use crate::{
        reply::samples,
        sse::{event_stream, frames},
    };

    fn events(settings: ResponseSettings) -> ResponseEvents {
        let object = ResponseObject::new("resp".to_owned(), 0, "m".to_owned(), settings);
        ResponseEvents::new(ResponseForm { object, pending: None }, "cpu".to_owned())
    }

    /// Returns the output without ids, which differ.
    fn without_ids(output: &Value) -> Value {
        let mut output = output.clone();
        for item in output.as_array_mut().unwrap() {
            item.as_object_mut().unwrap().remove("id");
        }
        output
    }

    #[test]
    fn malformed_and_cut_calls_are_incomplete_and_the_output_is_that_of_a_whole_answer() {
        let check = |sample: fn() -> Vec<GenerationEvent>, end: &str, statuses: &[&str]| {
            let mut events = events(ResponseSettings::default());
            let values: Vec<Value> = sample().into_iter().flat_map(|event| events.values(event)).collect();
            let last = values.last().unwrap();
            assert_eq!(last["type"], end);
            let whole = output_items(&samples::whole(sample()).choices[0], &ResponseSettings::default());
            assert_eq!(without_ids(&last["response"]["output"]), without_ids(&json!(whole)));
            let done = values.iter().filter(|value| value["type"] == "response.output_item.done");
            let done: Vec<(u64, &str)> = done
                .map(|done| {
                    (done["output_index"].as_u64().unwrap(), done["item"]["status"].as_str().unwrap())
                })
                .collect();
            let expect: Vec<(u64, &str)> = (0..).zip(statuses.iter().copied()).collect();
            assert_eq!(done, expect);
        };
        check(samples::malformed, "response.completed", &["incomplete", "completed"]);
        check(samples::cut, "response.incomplete", &["completed", "incomplete"]);
    }

    #[test]
    fn the_input_of_a_custom_tool_is_streamed() {
        let tools = json!({"tools": [{"type": "custom", "name": "patch"}]});
        let mut events = events(serde_json::from_value(tools).unwrap());
        let start = Some(ToolCallStart { id: "c".to_owned(), name: "patch".to_owned() });
        let arguments = json!({"input": "a\nb"}).to_string();
        let delta = ToolCallDelta { index: 0, start, arguments };
        let all = [
            GenerationEvent::ToolCall { choice: 0, delta },
            GenerationEvent::Finished { choice: 0, reason: FinishReason::ToolCalls },
        ];
        let values: Vec<Value> = all.into_iter().flat_map(|event| events.values(event)).collect();
        let names: Vec<&str> = values.iter().map(|value| value["type"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "response.output_item.added",
                "response.custom_tool_call_input.delta",
                "response.custom_tool_call_input.done",
                "response.output_item.done",
            ]
        );
        assert_eq!((&values[1]["delta"], &values[2]["input"]), (&json!("a\nb"), &json!("a\nb")));
        assert_eq!(values[3]["item"]["type"], "custom_tool_call");
    }

    #[tokio::test]
    async fn an_idle_response_is_in_progress() {
        let encoder = Box::new(events(ResponseSettings::default()));
        // Nothing is computed yet.
        let waiting = futures::stream::pending();
        let events = frames(event_stream(waiting, encoder, std::time::Duration::ZERO), 3).await;
        let found: Vec<(&str, &Value)> =
            events.iter().map(|event| (event["type"].as_str().unwrap(), &event["sequence_number"])).collect();
        let [zero, one, two] = [json!(0), json!(1), json!(2)];
        let expect =
            [("response.created", &zero), ("response.in_progress", &one), ("response.in_progress", &two)];
        assert_eq!(found, expect);
    }

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
