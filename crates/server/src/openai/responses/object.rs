//! The response object: its settings, its output items and its usage.

use narthex_gateway::request::{FinishReason, Message, Role, Summary};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    super::{
        custom_tools::{self, CUSTOM},
        logprobs::ChatToken,
        new_id,
    },
    history::{HistoryItem, arguments_value, to_messages, within},
};
use crate::{
    outline::values_in,
    reply::{AnswerPart, Choice, WholeToolCall},
    timings::Timings,
};

/// A response.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct ResponseObject {
    pub(super) id: String,
    #[schemars(extend("const" = "response"))]
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
    code: FailureCode,
    message: String,
}

/// Code of a failure, for programs.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FailureCode {
    ServerError,
    ContextLengthExceeded,
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
    pub(super) metadata: Option<Map<String, Value>>,
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

    /// Returns an upper bound on the number of generic values, nested ones included.
    pub(super) fn values(&self) -> usize {
        let single = [&self.reasoning, &self.text, &self.tool_choice].into_iter().flatten();
        let metadata = self.metadata.iter().flat_map(Map::values);
        single.chain(metadata).chain(self.tools.iter().flatten()).map(values_in).sum()
    }

    /// Returns true if this is the name of a custom tool.
    pub(super) fn is_custom(&self, name: &str) -> bool {
        self.tools.iter().flatten().any(|tool| tool["type"] == CUSTOM && tool["name"] == name)
    }

    /// Returns the item of a call. A function of a namespace gets the namespace and its own name back.
    pub(super) fn call(&self, id: &str, call: &WholeToolCall, status: ResponseStatus) -> OutputItem {
        let WholeToolCall { id: call_id, name, arguments } = call.clone();
        if self.is_custom(&name) {
            let input = custom_tools::input(&arguments);
            return OutputItem::CustomToolCall { id: id.to_owned(), call_id, name, input, status };
        }
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
        #[schemars(extend("const" = "assistant"))]
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
    /// A call of a custom tool.
    CustomToolCall { id: String, call_id: String, name: String, input: String, status: ResponseStatus },
}

/// Part of a message.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputPart {
    /// Text.
    OutputText { text: String, annotations: Vec<Value>, logprobs: Vec<ChatToken> },
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
    /// Creates a part with a text and the log-probabilities of its tokens, if they were requested.
    pub(super) fn text(text: &str, logprobs: Vec<ChatToken>) -> Self {
        Self::OutputText { text: text.to_owned(), annotations: Vec::new(), logprobs }
    }
}

impl OutputItem {
    /// Returns true if the item is reasoning.
    pub(super) fn is_reasoning(&self) -> bool {
        matches!(self, Self::Reasoning { .. })
    }

    /// Creates a message with this content.
    pub(super) fn message(id: &str, content: Vec<OutputPart>, status: ResponseStatus) -> Self {
        Self::Message { id: id.to_owned(), status, role: "assistant", content }
    }

    /// Creates an item of reasoning with this content.
    pub(super) fn reasoning(id: &str, content: Vec<ReasoningPart>) -> Self {
        Self::Reasoning { id: id.to_owned(), summary: Vec::new(), content }
    }

    pub(super) fn id(&self) -> &str {
        match self {
            Self::Message { id, .. }
            | Self::Reasoning { id, .. }
            | Self::FunctionCall { id, .. }
            | Self::CustomToolCall { id, .. } => id,
        }
    }

    /// Returns the item as a part of the conversation.
    pub(super) fn to_history(&self) -> HistoryItem {
        match self {
            Self::Reasoning { content, .. } => {
                let texts = content.iter().map(|ReasoningPart::ReasoningText { text }| text.as_str());
                HistoryItem::Reasoning(texts.collect())
            }
            Self::Message { content, .. } => {
                let texts = content.iter().map(|OutputPart::OutputText { text, .. }| text.as_str());
                HistoryItem::Message(Message::new(Role::Assistant, texts.collect()))
            }
            Self::FunctionCall { call_id, name, namespace, arguments, .. } => {
                let name = namespace.as_ref().map_or_else(|| name.clone(), |space| within(space, name));
                HistoryItem::call(Some(call_id.clone()), name, arguments_value(arguments.clone()))
            }
            Self::CustomToolCall { call_id, name, input, .. } => {
                HistoryItem::call(Some(call_id.clone()), name.clone(), custom_tools::arguments(input))
            }
        }
    }
}

/// Returns the output items of a whole answer.
pub(super) fn output_items(choice: &Choice, settings: &ResponseSettings) -> Vec<OutputItem> {
    let status = |is_whole| if is_whole { ResponseStatus::Completed } else { ResponseStatus::Incomplete };
    let message = |text: &str, logprobs, status| {
        OutputItem::message(&new_id("msg_"), vec![OutputPart::text(text, logprobs)], status)
    };
    let last = choice.parts.len().saturating_sub(1);
    let items = choice.parts.iter().enumerate().map(|(index, part)| match part {
        AnswerPart::Text { text, tokens } => {
            let logprobs = ChatToken::list(choice.tokens[tokens.clone()].to_vec());
            message(text, logprobs, status(!choice.is_cut() || index < last))
        }
        AnswerPart::Call(call) => settings.call(&new_id("fc_"), call, status(call.is_complete())),
    });
    // An answer without text and calls has an empty message.
    let empty = choice.parts.is_empty().then(|| message("", Vec::new(), status(!choice.is_cut())));
    let parts = vec![ReasoningPart::text(&choice.reasoning)];
    let reasoning = (!choice.reasoning.is_empty()).then(|| OutputItem::reasoning(&new_id("rs_"), parts));
    reasoning.into_iter().chain(items).chain(empty).collect()
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
            Some(FinishReason::MalformedCall | FinishReason::MixedCalls) => Some("malformed_tool_call"),
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
    pub(super) fn failed(self, output: Vec<OutputItem>, code: FailureCode, message: String) -> Self {
        let error = Some(ResponseError { code, message });
        Self { status: ResponseStatus::Failed, error, output, ..self }
    }

    /// Returns the output as messages of the conversation.
    pub(super) fn messages(&self) -> Vec<Message> {
        to_messages(self.output.iter().map(OutputItem::to_history))
    }
}

#[cfg(test)]
mod tests {
    use narthex_gateway::request::{ToolCallDelta, ToolCallStart};

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
            assert_eq!(to_messages([item.to_history()])[0].tool_calls[0].function.name, name);
        };
        check("s.w", [json!("s"), json!("w")]);
        check("t.w", [Value::Null, json!("t.w")]);
        check("s", [Value::Null, json!("s")]);
    }

    #[test]
    fn calls_of_custom_tools_have_an_input() {
        let tools = json!([{"type": "custom", "name": "patch"}, {"type": "function", "name": "f"}]);
        let settings: ResponseSettings = serde_json::from_value(json!({"tools": tools})).unwrap();
        let item = |name: &str| {
            let arguments = json!({"input": "a\nb"}).to_string();
            let call = WholeToolCall { id: "c".to_owned(), name: name.to_owned(), arguments };
            settings.call("i", &call, ResponseStatus::Completed)
        };
        let found = serde_json::to_value(item("patch")).unwrap();
        assert_eq!((&found["type"], &found["input"]), (&json!("custom_tool_call"), &json!("a\nb")));
        assert_eq!(serde_json::to_value(item("f")).unwrap()["type"], "function_call");
        // In the next turn, the model sees the arguments that it wrote.
        let again = to_messages([item("patch").to_history()]);
        assert_eq!(again[0].tool_calls[0].function.arguments, json!({"input": "a\nb"}));
    }

    #[test]
    fn the_item_that_was_cut_off_is_incomplete() {
        let statuses = |calls: &[&str], last_text: &str, reason| {
            let mut choice = Choice::default();
            choice.add_text("a".to_owned(), Vec::new());
            for (index, arguments) in calls.iter().enumerate() {
                let start = Some(ToolCallStart { id: index.to_string(), name: "f".to_owned() });
                choice.add_call(ToolCallDelta { index, start, arguments: (*arguments).to_owned() });
            }
            choice.add_text(last_text.to_owned(), Vec::new());
            choice.end(reason);
            let items = output_items(&choice, &ResponseSettings::default());
            let status = |item: &OutputItem| json!(item)["status"].as_str().unwrap().to_owned();
            items.iter().map(status).collect::<Vec<_>>()
        };
        let cut = FinishReason::Length;
        assert_eq!(statuses(&[], "", cut), ["incomplete"]);
        assert_eq!(statuses(&[], "", FinishReason::Stop), ["completed"]);
        assert_eq!(statuses(&["{}", "{\"b"], "", cut), ["completed", "completed", "incomplete"]);
        assert_eq!(statuses(&["{}"], "b", cut), ["completed", "completed", "incomplete"]);
        // The text of a malformed call is in the answer.
        assert_eq!(statuses(&["{\"b", "{\"b"], "", cut), ["completed", "incomplete"]);
        assert_eq!(statuses(&["{\"b"], "b", FinishReason::MalformedCall), ["completed", "completed"]);
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
        check(FinishReason::MixedCalls, "completed", json!({"reason": "malformed_tool_call"}));
    }
}
