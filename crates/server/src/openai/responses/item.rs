//! Output items of a response.

use narthex_gateway::request::{Message, Role};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::history::{HistoryItem, full_name};
use crate::{
    openai::logprobs::ChatToken,
    protocol::{custom_tools, outline},
};

/// State of a response or of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResponseStatus {
    InProgress,
    Completed,
    Incomplete,
    Failed,
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
    /// Reasoning: the model's own text. It is the summary too, if the request asked for one, because many clients show only
    /// that.
    Reasoning { id: String, summary: Vec<SummaryPart>, content: Vec<ReasoningPart> },
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
    CustomToolCall {
        id: String,
        call_id: String,
        name: String,
        /// Namespace of the tool, if it has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        input: String,
        status: ResponseStatus,
    },
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

/// Part of a summary of reasoning.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum SummaryPart {
    /// Text.
    SummaryText { text: String },
}

impl SummaryPart {
    /// Creates a part with a text.
    pub(super) fn text(text: &str) -> Self {
        Self::SummaryText { text: text.to_owned() }
    }
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

    /// Creates an item of reasoning that has not begun.
    pub(super) fn empty_reasoning(id: &str) -> Self {
        Self::Reasoning { id: id.to_owned(), summary: Vec::new(), content: Vec::new() }
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
                HistoryItem::Message(Message::new(Role::Assistant, texts.collect::<String>()))
            }
            Self::FunctionCall { call_id, name, namespace, arguments, .. } => {
                let name = full_name(namespace.as_deref(), name.clone());
                HistoryItem::call(Some(call_id.clone()), name, outline::text_arguments(arguments))
            }
            Self::CustomToolCall { call_id, name, namespace, input, .. } => {
                let name = full_name(namespace.as_deref(), name.clone());
                HistoryItem::call(Some(call_id.clone()), name, custom_tools::arguments(input))
            }
        }
    }
}
