//! Streamed responses.

use std::{convert::Infallible, sync::LazyLock};

use axum::response::{
    IntoResponse, Response,
    sse::{Event, Sse},
};
use narthex_gateway::{
    AnsweringDevice,
    request::{FinishReason, GenerationEvent, TokenInfo, ToolCallDelta},
};
use serde_json::json;

use super::{
    ResponseForm,
    event::{ContentPart, ItemPosition, NumberedEvent, PartPosition, ResponseEvent, SummaryPosition},
    item::{OutputItem, OutputPart, ReasoningPart, ResponseStatus, SummaryPart},
    new_id,
    object::{FailureCode, ResponseEnd, ResponseObject},
    settings::ResponseSettings,
};
use crate::{
    error::ApiError,
    openai::logprobs::ChatToken,
    protocol::{
        reply::{WholeToolCall, is_cut},
        sse::EventEncoder,
        timings::Timings,
    },
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
    device: AnsweringDevice,
}

/// An item that is not complete.
struct OpenItem {
    id: String,
    kind: OpenKind,
}

enum OpenKind {
    Reasoning(String),
    Message { text: String, logprobs: Vec<ChatToken> },
    Call(WholeToolCall),
}

impl ResponseEvents {
    /// Creates the encoder of a new response that this device computes.
    pub(super) fn new(form: ResponseForm, device: AnsweringDevice) -> Self {
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

    /// Returns the settings of the request; those of an empty one after the end.
    fn settings(&self) -> &ResponseSettings {
        static EMPTY: LazyLock<ResponseSettings> = LazyLock::new(ResponseSettings::default);
        self.form.as_ref().map_or(&EMPTY, |form| &form.object.settings)
    }

    fn events(&mut self, event: GenerationEvent) -> Vec<ResponseEvent> {
        match event {
            GenerationEvent::Started { .. } if self.is_started => Vec::new(),
            GenerationEvent::Started { .. } => self.progress(),
            // A part may have only the log-probabilities of reasoning or of a call.
            GenerationEvent::Text { text, .. } if text.is_empty() && !self.is_in_message() => Vec::new(),
            GenerationEvent::Text { text, tokens, .. } if text.is_empty() && tokens.is_empty() => Vec::new(),
            GenerationEvent::Text { text, tokens, .. } => self.text(text, tokens),
            GenerationEvent::Reasoning { text, .. } => self.reasoning(text),
            GenerationEvent::ToolCall { delta, .. } => self.call(delta),

            GenerationEvent::Finished { reason, .. } => {
                self.reason = Some(reason);
                let mut events = self.close(is_cut(reason));
                // As in a whole answer, an answer without text and calls has an empty message.
                if self.output.iter().all(OutputItem::is_reasoning) {
                    events.extend(self.open_message());
                    events.extend(self.close(is_cut(reason)));
                }
                events
            }
            GenerationEvent::Done(summary) => {
                let output = std::mem::take(&mut self.output);
                let Some(form) = self.form.take() else { return Vec::new() };
                let timings = Timings::new(&summary, &self.device);
                let end = ResponseEnd { reason: self.reason, summary: &summary, timings };
                let response = Box::new(form.complete(|object| object.complete(output, end)));
                vec![match response.status {
                    ResponseStatus::Completed => ResponseEvent::Completed { response },
                    _ => ResponseEvent::Incomplete { response },
                }]
            }
            GenerationEvent::Failed { message, .. } => {
                let Some(form) = self.form.take() else { return Vec::new() };
                let output = std::mem::take(&mut self.output);
                let response = form.object.failed(output, FailureCode::ServerError, message);
                vec![ResponseEvent::Failed { response: Box::new(response) }]
            }
        }
    }

    /// Returns the event that the response is in progress. At the first call, the event of its creation precedes it.
    fn progress(&mut self) -> Vec<ResponseEvent> {
        let Some(form) = &self.form else { return Vec::new() };
        let response = || Box::new(form.object.clone());
        let created = (!self.is_started).then(|| ResponseEvent::Created { response: response() });
        self.is_started = true;
        created.into_iter().chain([ResponseEvent::InProgress { response: response() }]).collect()
    }

    /// Adds the number of each event, and encodes it.
    fn numbered(&mut self, events: Vec<ResponseEvent>) -> Vec<Event> {
        let encoded = events.into_iter().map(|event| {
            let value = json!(NumberedEvent { event, sequence_number: self.sequence });
            self.sequence += 1;
            Event::default().event(value["type"].as_str().unwrap_or_default()).data(value.to_string())
        });
        encoded.collect()
    }

    fn is_in_message(&self) -> bool {
        matches!(&self.open, Some(OpenItem { kind: OpenKind::Message { .. }, .. }))
    }

    fn text(&mut self, delta: String, tokens: Vec<TokenInfo>) -> Vec<ResponseEvent> {
        let mut events = Vec::new();
        if !self.is_in_message() {
            events.extend(self.close(false));
            events.extend(self.open_message());
        }
        if let Some(OpenItem { id, kind: OpenKind::Message { text, logprobs: all } }) = &mut self.open {
            text.push_str(&delta);
            let logprobs = ChatToken::list(tokens);
            all.extend(logprobs.iter().cloned());
            let place = PartPosition::new(id, self.items);
            events.push(ResponseEvent::TextDelta { place, delta, logprobs });
        }
        events
    }

    /// Starts a message.
    fn open_message(&mut self) -> [ResponseEvent; 2] {
        let id = new_id("msg_");
        let item = OutputItem::message(&id, Vec::new(), ResponseStatus::InProgress);
        let events = self.added(item, ContentPart::Text(OutputPart::text("", Vec::new())));
        let kind = OpenKind::Message { text: String::new(), logprobs: Vec::new() };
        self.open = Some(OpenItem { id, kind });
        events
    }

    fn reasoning(&mut self, delta: String) -> Vec<ResponseEvent> {
        let mut events = Vec::new();
        if !matches!(&self.open, Some(OpenItem { kind: OpenKind::Reasoning(_), .. })) {
            let id = new_id("rs_");
            let item = OutputItem::empty_reasoning(&id);
            events.extend(self.added(item, ContentPart::Reasoning(ReasoningPart::text(""))));
            if self.settings().wants_summary() {
                let place = SummaryPosition::new(&id, self.items);
                events.push(ResponseEvent::SummaryAdded { place, part: SummaryPart::text("") });
            }
            self.open = Some(OpenItem { id, kind: OpenKind::Reasoning(String::new()) });
        }
        let wants_summary = self.settings().wants_summary();
        if let Some(OpenItem { id, kind: OpenKind::Reasoning(text) }) = &mut self.open {
            text.push_str(&delta);
            if wants_summary {
                let place = SummaryPosition::new(id, self.items);
                events.push(ResponseEvent::SummaryDelta { place, delta: delta.clone() });
            }
            events.push(ResponseEvent::ReasoningDelta { place: PartPosition::new(id, self.items), delta });
        }
        events
    }

    fn call(&mut self, delta: ToolCallDelta) -> Vec<ResponseEvent> {
        let mut events = Vec::new();
        if let Some(start) = delta.start {
            events.extend(self.close(false));
            let call = WholeToolCall { id: start.id, name: start.name, arguments: String::new() };
            let id = new_id("fc_");
            let item = self.settings().call(&id, &call, ResponseStatus::InProgress);
            events.push(ResponseEvent::ItemAdded { output_index: self.items, item });
            self.open = Some(OpenItem { id, kind: OpenKind::Call(call) });
        }
        if let Some(OpenItem { id, kind: OpenKind::Call(call) }) = &mut self.open
            && !delta.arguments.is_empty()
        {
            call.arguments.push_str(&delta.arguments);
            let place = ItemPosition::new(id, self.items);
            let name = call.name.clone();
            // The arguments of a custom tool are not its input, which is sent at the end.
            if !self.settings().is_custom(&name) {
                events.push(ResponseEvent::ArgumentsDelta { place, delta: delta.arguments });
            }
        }
        events
    }

    /// Returns the events of a new item with one empty part.
    fn added(&self, item: OutputItem, part: ContentPart) -> [ResponseEvent; 2] {
        let place = PartPosition::new(item.id(), self.items);
        [
            ResponseEvent::ItemAdded { output_index: self.items, item },
            ResponseEvent::PartAdded { place, part },
        ]
    }

    /// Ends the open item. `is_cut` is true if the answer was cut off in it.
    fn close(&mut self, is_cut: bool) -> Vec<ResponseEvent> {
        let Some(OpenItem { id, kind }) = self.open.take() else { return Vec::new() };
        let output_index = self.items;
        let place = PartPosition::new(&id, output_index);
        let mut is_answer = true;
        let (mut events, item) = match kind {
            OpenKind::Reasoning(text) => {
                let item = self.settings().reasoning(&id, &text);
                let mut events = Vec::new();
                if self.settings().wants_summary() {
                    let place = SummaryPosition::new(&id, output_index);
                    let part = SummaryPart::text(&text);
                    events.push(ResponseEvent::SummaryDone { place: place.clone(), text: text.clone() });
                    events.push(ResponseEvent::SummaryPartDone { place, part });
                }
                let part = ContentPart::Reasoning(ReasoningPart::text(&text));
                events.push(ResponseEvent::ReasoningDone { place: place.clone(), text });
                events.push(ResponseEvent::PartDone { place, part });
                (events, item)
            }
            OpenKind::Message { text, logprobs } => {
                let part = OutputPart::text(&text, logprobs.clone());
                let status = if is_cut { ResponseStatus::Incomplete } else { ResponseStatus::Completed };
                let item = OutputItem::message(&id, vec![part.clone()], status);
                let done = ResponseEvent::TextDone { place: place.clone(), text, logprobs };
                (vec![done, ResponseEvent::PartDone { place, part: ContentPart::Text(part) }], item)
            }
            OpenKind::Call(call) => {
                let is_whole = call.is_complete();
                // The text of a malformed call is in the answer.
                is_answer = is_whole || is_cut;
                let status = if is_whole { ResponseStatus::Completed } else { ResponseStatus::Incomplete };
                let item = self.settings().call(&id, &call, status);
                (call_end(&item, call, output_index), item)
            }
        };

        if is_answer {
            self.output.push(item.clone());
        }
        events.push(ResponseEvent::ItemDone { output_index, item });
        self.items += 1;
        events
    }
}

/// Returns the stream of a response whose prompt does not fit into the context.
pub(super) fn overlong(object: ResponseObject, error: &ApiError) -> Response {
    let failed = object.clone().failed(Vec::new(), FailureCode::ContextLengthExceeded, error.message());
    let mut encoder = ResponseEvents::new(ResponseForm { object, pending: None }, AnsweringDevice::default());
    let mut events = encoder.progress();
    events.push(ResponseEvent::Failed { response: Box::new(failed) });
    let events = encoder.numbered(events).into_iter().map(Ok::<_, Infallible>);
    Sse::new(futures::stream::iter(events)).into_response()
}

/// Returns the events with the whole input of a call.
fn call_end(item: &OutputItem, call: WholeToolCall, index: usize) -> Vec<ResponseEvent> {
    let place = ItemPosition::new(item.id(), index);
    match item {
        OutputItem::CustomToolCall { input, .. } => vec![
            ResponseEvent::InputDelta { place: place.clone(), delta: input.clone() },
            ResponseEvent::InputDone { place, input: input.clone() },
        ],
        _ => {
            let WholeToolCall { name, arguments, .. } = call;
            vec![ResponseEvent::ArgumentsDone { place, name, arguments }]
        }
    }
}

impl EventEncoder for ResponseEvents {
    fn encode(&mut self, event: GenerationEvent) -> Vec<Event> {
        let events = self.events(event);
        self.numbered(events)
    }

    fn repeats_answer(&self) -> bool {
        true
    }

    /// Repeats that the response is in progress. Codex gives up on a stream that sends only comments.
    fn idle(&mut self) -> Vec<Event> {
        let events = self.progress();
        self.numbered(events)
    }
}

#[cfg(test)]
mod tests {
    use narthex_gateway::request::{Summary, ToolCallStart};
    use serde_json::Value;

    use super::{super::object::output_items, *};
    use crate::protocol::{
        reply::samples,
        sse::{event_stream, frames},
    };

    fn events(settings: ResponseSettings) -> ResponseEvents {
        let object = ResponseObject::new("resp".to_owned(), 0, "m".to_owned(), settings);
        ResponseEvents::new(ResponseForm { object, pending: None }, samples::device())
    }

    fn values(encoder: &mut ResponseEvents, events: impl IntoIterator<Item = GenerationEvent>) -> Vec<Value> {
        let events = events.into_iter().flat_map(|event| encoder.events(event));
        events.map(|event| json!(event)).collect()
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
            let values = values(&mut events, sample());
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
        check(samples::empty, "response.completed", &["completed"]);
        check(samples::mixed, "response.completed", &["completed"; 5]);
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
        let values = values(&mut events, all);
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

    #[test]
    fn reasoning_is_its_own_summary_if_one_is_requested() {
        let check = |reasoning: Value, expect: &[&str], summary: Value| {
            let settings: ResponseSettings = serde_json::from_value(json!({"reasoning": reasoning})).unwrap();
            let all = [
                GenerationEvent::Reasoning { choice: 0, text: "r".to_owned() },
                GenerationEvent::Text { choice: 0, text: "a".to_owned(), tokens: Vec::new() },
            ];
            let values = values(&mut events(settings), all);
            let names = values.iter().map(|value| value["type"].as_str().unwrap());
            let names: Vec<&str> = names.filter(|name| name.contains("reasoning_summary")).collect();
            assert_eq!(names, expect);
            let done = values.iter().find(|value| value["type"] == "response.output_item.done").unwrap();
            assert_eq!(done["item"]["summary"], summary);
            assert_eq!(done["item"]["content"], json!([{"type": "reasoning_text", "text": "r"}]));
        };
        let events = [
            "response.reasoning_summary_part.added",
            "response.reasoning_summary_text.delta",
            "response.reasoning_summary_text.done",
            "response.reasoning_summary_part.done",
        ];
        check(json!({"summary": "auto"}), &events, json!([{"type": "summary_text", "text": "r"}]));
        check(json!({"effort": "low"}), &[], json!([]));
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
        let mut events = ResponseEvents::new(ResponseForm { object, pending: None }, samples::device());
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
        let values = values(&mut events, all);
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
