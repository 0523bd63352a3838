//! The response object: its settings, its output items and its usage.

use narthex_gateway::request::{FinishReason, FunctionCall, Message, Role, Summary, ToolCall};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::super::new_id;
use crate::{
    outline::json_or_text,
    reply::{Choice, WholeToolCall},
    timings::Timings,
};

/// A response.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct ResponseObject {
    pub(super) id: String,
    /// `response`.
    pub(super) object: &'static str,
    /// Seconds since 1970.
    pub(super) created_at: u64,
    pub(super) status: ResponseStatus,
    pub(super) error: Option<ResponseError>,
    pub(super) incomplete_details: Option<IncompleteDetails>,
    pub(super) model: String,
    pub(super) output: Vec<OutputItem>,
    /// Absent until the response ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<ResponseUsage>,
    /// Absent until the response ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
    #[serde(flatten)]
    pub(super) settings: ResponseSettings,
}

/// State of a response or of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResponseStatus {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

/// Failure of a response.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct ResponseError {
    /// `server_error`.
    code: &'static str,
    message: String,
}

/// Reason why an answer is not complete.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct IncompleteDetails {
    /// `max_output_tokens`, or `malformed_tool_call` in a completed response with the text of a malformed call.
    reason: &'static str,
}

/// End of an answer.
pub(super) struct ResponseEnd<'a> {
    pub(super) reason: Option<FinishReason>,
    pub(super) summary: &'a Summary,
    pub(super) timings: Timings,
}

/// Tokens of a response.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct ResponseUsage {
    input_tokens: usize,
    input_tokens_details: InputTokens,
    output_tokens: usize,
    output_tokens_details: OutputTokens,
    total_tokens: usize,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
struct InputTokens {
    cached_tokens: usize,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
struct OutputTokens {
    reasoning_tokens: usize,
}

/// Settings of a request that its response repeats.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
pub(crate) struct ResponseSettings {
    instructions: Option<String>,
    max_output_tokens: Option<u64>,
    metadata: Option<Map<String, Value>>,
    parallel_tool_calls: Option<bool>,
    pub(super) previous_response_id: Option<String>,
    reasoning: Option<Value>,
    store: Option<bool>,
    temperature: Option<f64>,
    text: Option<Value>,
    tool_choice: Option<Value>,
    tools: Option<Vec<Value>>,
    top_p: Option<f64>,
    truncation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
}

impl ResponseSettings {
    /// Fills in the defaults of settings that the request left out.
    pub(super) fn with_defaults(mut self) -> Self {
        self.metadata.get_or_insert_default();
        self.parallel_tool_calls.get_or_insert(true);
        self.reasoning.get_or_insert_with(|| json!({"effort": null, "summary": null}));
        self.store.get_or_insert(true);
        self.temperature.get_or_insert(1.0);
        self.text.get_or_insert_with(|| json!({"format": {"type": "text"}}));
        self.tool_choice.get_or_insert_with(|| json!("auto"));
        self.tools.get_or_insert_default();
        self.top_p.get_or_insert(1.0);
        self.truncation = Some("disabled".to_owned());
        self
    }

    /// Returns the item of a call. A function of a namespace gets the namespace and its own name back.
    pub(super) fn call(&self, id: &str, call: &WholeToolCall, status: ResponseStatus) -> OutputItem {
        let WholeToolCall { id: call_id, name, arguments } = call.clone();
        let tools = self.tools.iter().flatten().filter(|tool| tool["type"] == "namespace");
        let mut spaces = tools.filter_map(|tool| tool["name"].as_str());
        let own =
            |space: &str| Some((space.to_owned(), name.strip_prefix(space)?.strip_prefix('.')?.to_owned()));
        let (namespace, name) = match spaces.find_map(own) {
            Some((space, own)) => (Some(space), own),
            None => (None, name),
        };
        OutputItem::FunctionCall { id: id.to_owned(), call_id, name, namespace, arguments, status }
    }

    /// Returns true if the response is stored.
    pub(super) fn is_stored(&self) -> bool {
        self.store != Some(false)
    }
}

/// An item of an answer.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputItem {
    /// Text.
    Message {
        id: String,
        status: ResponseStatus,
        /// `assistant`.
        role: &'static str,
        content: Vec<OutputPart>,
    },
    /// Reasoning: the model's own text, without a summary.
    Reasoning { id: String, summary: Vec<Value>, content: Vec<ReasoningPart> },
    /// A call of a function.
    FunctionCall {
        id: String,
        call_id: String,
        name: String,
        /// Namespace of the function, if its tool has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// Arguments as JSON text.
        arguments: String,
        status: ResponseStatus,
    },
}

/// Part of a message.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputPart {
    /// Text.
    OutputText { text: String, annotations: Vec<Value>, logprobs: Vec<Value> },
}

/// Part of an item of reasoning.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ReasoningPart {
    /// Text.
    ReasoningText { text: String },
}

impl ReasoningPart {
    /// Creates a part with a text.
    pub(super) fn text(text: &str) -> Self {
        Self::ReasoningText { text: text.to_owned() }
    }
}

impl OutputPart {
    /// Creates a part with a text.
    pub(super) fn text(text: &str) -> Self {
        Self::OutputText { text: text.to_owned(), annotations: Vec::new(), logprobs: Vec::new() }
    }
}

impl OutputItem {
    /// Creates a message with this content.
    pub(super) fn message(id: &str, content: Vec<OutputPart>, status: ResponseStatus) -> Self {
        Self::Message { id: id.to_owned(), status, role: "assistant", content }
    }

    /// Creates an item of reasoning with this content.
    pub(super) fn reasoning(id: &str, content: Vec<ReasoningPart>) -> Self {
        Self::Reasoning { id: id.to_owned(), summary: Vec::new(), content }
    }

    /// Returns the item as a message of the conversation; `None` for reasoning, which the model's template would drop.
    fn to_message(&self) -> Option<Message> {
        Some(match self {
            Self::Reasoning { .. } => return None,
            Self::Message { content, .. } => {
                let texts = content.iter().map(|OutputPart::OutputText { text, .. }| text.as_str());
                Message::new(Role::Assistant, texts.collect())
            }
            Self::FunctionCall { call_id, name, namespace, arguments, .. } => {
                let arguments = arguments_value(arguments.clone());
                let name = namespace.as_ref().map_or_else(|| name.clone(), |space| within(space, name));
                let function = FunctionCall { name, arguments };
                let tool_calls = vec![ToolCall { id: Some(call_id.clone()), function }];
                Message { tool_calls, ..Message::new(Role::Assistant, String::new()) }
            }
        })
    }
}

/// Returns the name under which the model knows a function of a namespace.
pub(super) fn within(namespace: &str, name: &str) -> String {
    format!("{namespace}.{name}")
}

/// Returns a call's arguments as JSON, or as a string if they are not valid JSON.
pub(super) fn arguments_value(arguments: String) -> Value {
    json_or_text(arguments)
}

/// Returns the output items of a whole answer.
pub(super) fn output_items(choice: &Choice, settings: &ResponseSettings) -> Vec<OutputItem> {
    let has_text = !choice.text.is_empty() || choice.calls.is_empty();
    let done = ResponseStatus::Completed;
    let message = || OutputItem::message(&new_id("msg"), vec![OutputPart::text(&choice.text)], done);
    let calls = choice.calls.iter().map(|call| settings.call(&new_id("fc"), call, done));
    let parts = vec![ReasoningPart::text(&choice.reasoning)];
    let reasoning = (!choice.reasoning.is_empty()).then(|| OutputItem::reasoning(&new_id("rs"), parts));
    reasoning.into_iter().chain(has_text.then(message)).chain(calls).collect()
}

impl ResponseObject {
    /// Creates a response without output.
    pub(super) fn new(id: String, created_at: u64, model: String, settings: ResponseSettings) -> Self {
        Self {
            id,
            object: "response",
            created_at,
            status: ResponseStatus::InProgress,
            error: None,
            incomplete_details: None,
            model,
            output: Vec::new(),
            usage: None,
            timings: None,
            settings,
        }
    }

    /// Completes the response with its output, its status and its usage.
    pub(super) fn complete(self, output: Vec<OutputItem>, end: ResponseEnd<'_>) -> Self {
        let ResponseEnd { reason, summary, timings } = end;
        let is_cut = matches!(reason, Some(FinishReason::Length | FinishReason::Cancelled));
        let incomplete = match reason {
            Some(FinishReason::MalformedCall) => Some("malformed_tool_call"),
            _ => is_cut.then_some("max_output_tokens"),
        };
        let usage = ResponseUsage {
            input_tokens: summary.prompt_tokens,
            input_tokens_details: InputTokens { cached_tokens: summary.cached_tokens },
            output_tokens: summary.completion_tokens,
            output_tokens_details: OutputTokens { reasoning_tokens: summary.reasoning_tokens },
            total_tokens: summary.prompt_tokens + summary.completion_tokens,
        };
        Self {
            status: if is_cut { ResponseStatus::Incomplete } else { ResponseStatus::Completed },
            incomplete_details: incomplete.map(|reason| IncompleteDetails { reason }),
            output,
            usage: Some(usage),
            timings: Some(timings),
            ..self
        }
    }

    /// Returns the response of a failed generation.
    pub(super) fn failed(self, output: Vec<OutputItem>, message: String) -> Self {
        let error = Some(ResponseError { code: "server_error", message });
        Self { status: ResponseStatus::Failed, error, output, ..self }
    }

    /// Returns the output as messages of the conversation.
    pub(super) fn messages(&self) -> impl Iterator<Item = Message> {
        self.output.iter().filter_map(OutputItem::to_message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_namespaces_keep_their_names() {
        let tools =
            json!([{"type": "namespace", "name": "s", "tools": []}, {"type": "function", "name": "t.w"}]);
        let settings: ResponseSettings = serde_json::from_value(json!({"tools": tools})).unwrap();
        let check = |name: &str, expect: [Value; 2]| {
            let call =
                WholeToolCall { id: "c".to_owned(), name: name.to_owned(), arguments: "{}".to_owned() };
            let item = settings.call("i", &call, ResponseStatus::Completed);
            let found = serde_json::to_value(&item).unwrap();
            assert_eq!([&found["namespace"], &found["name"]], [&expect[0], &expect[1]]);
            // In the next turn, the model sees the name that it wrote.
            assert_eq!(item.to_message().unwrap().tool_calls[0].function.name, name);
        };
        check("s.w", [json!("s"), json!("w")]);
        check("t.w", [Value::Null, json!("t.w")]);
        check("s", [Value::Null, json!("s")]);
    }

    #[test]
    fn the_end_names_cuts_and_malformed_calls() {
        let check = |reason, status: &str, details: Value| {
            let summary = Summary::default();
            let timings = Timings::new(&summary, "cpu");
            let end = ResponseEnd { reason: Some(reason), summary: &summary, timings };
            let object = ResponseObject::new("r".to_owned(), 0, "m".to_owned(), ResponseSettings::default());
            let found = serde_json::to_value(object.complete(Vec::new(), end)).unwrap();
            assert_eq!((&found["status"], &found["incomplete_details"]), (&json!(status), &details));
        };
        check(FinishReason::Stop, "completed", Value::Null);
        check(FinishReason::Length, "incomplete", json!({"reason": "max_output_tokens"}));
        check(FinishReason::MalformedCall, "completed", json!({"reason": "malformed_tool_call"}));
    }
}
