//! The response object: its settings, its output items and its usage.

use narthex_gateway::request::{FinishReason, FunctionCall, Message, Role, Summary, ToolCall};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::super::new_id;
use crate::reply::{Choice, WholeToolCall};

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
    /// `max_output_tokens`.
    reason: &'static str,
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

    /// Creates the item of a call.
    pub(super) fn call(id: &str, call: &WholeToolCall, status: ResponseStatus) -> Self {
        let WholeToolCall { id: call_id, name, arguments } = call.clone();
        Self::FunctionCall { id: id.to_owned(), call_id, name, arguments, status }
    }

    /// Returns the item as a message of the conversation; `None` for reasoning, which the model's template would drop.
    fn to_message(&self) -> Option<Message> {
        Some(match self {
            Self::Reasoning { .. } => return None,
            Self::Message { content, .. } => {
                let texts = content.iter().map(|OutputPart::OutputText { text, .. }| text.as_str());
                Message::new(Role::Assistant, texts.collect())
            }
            Self::FunctionCall { call_id, name, arguments, .. } => {
                let arguments = arguments_value(arguments.clone());
                let function = FunctionCall { name: name.clone(), arguments };
                let tool_calls = vec![ToolCall { id: Some(call_id.clone()), function }];
                Message { tool_calls, ..Message::new(Role::Assistant, String::new()) }
            }
        })
    }
}

/// Returns a call's arguments as JSON, or as a string if they are not valid JSON.
pub(super) fn arguments_value(arguments: String) -> Value {
    serde_json::from_str(&arguments).unwrap_or(Value::String(arguments))
}

/// Returns the output items of a whole answer.
pub(super) fn output_items(choice: &Choice) -> Vec<OutputItem> {
    let has_text = !choice.text.is_empty() || choice.calls.is_empty();
    let done = ResponseStatus::Completed;
    let message = || OutputItem::message(&new_id("msg"), vec![OutputPart::text(&choice.text)], done);
    let calls = choice.calls.iter().map(|call| OutputItem::call(&new_id("fc"), call, done));
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
            settings,
        }
    }

    /// Completes the response with its output, its status and its usage.
    pub(super) fn complete(
        self,
        output: Vec<OutputItem>,
        reason: Option<FinishReason>,
        summary: &Summary,
    ) -> Self {
        let is_cut = matches!(reason, Some(FinishReason::Length | FinishReason::Cancelled));
        let usage = ResponseUsage {
            input_tokens: summary.prompt_tokens,
            input_tokens_details: InputTokens { cached_tokens: summary.cached_tokens },
            output_tokens: summary.completion_tokens,
            output_tokens_details: OutputTokens { reasoning_tokens: summary.reasoning_tokens },
            total_tokens: summary.prompt_tokens + summary.completion_tokens,
        };
        Self {
            status: if is_cut { ResponseStatus::Incomplete } else { ResponseStatus::Completed },
            incomplete_details: is_cut.then_some(IncompleteDetails { reason: "max_output_tokens" }),
            output,
            usage: Some(usage),
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
