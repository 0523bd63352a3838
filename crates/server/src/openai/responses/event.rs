//! Events of streamed responses.

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    item::{OutputItem, OutputPart, ReasoningPart, SummaryPart},
    object::ResponseObject,
};
use crate::openai::logprobs::ChatToken;

/// Event with its number in the stream.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct NumberedEvent {
    #[serde(flatten)]
    pub(super) event: ResponseEvent,
    pub(super) sequence_number: u64,
}

/// Event of a streamed response.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type")]
pub(crate) enum ResponseEvent {
    #[serde(rename = "response.created")]
    Created { response: Box<ResponseObject> },
    #[serde(rename = "response.in_progress")]
    InProgress { response: Box<ResponseObject> },
    #[serde(rename = "response.completed")]
    Completed { response: Box<ResponseObject> },
    #[serde(rename = "response.incomplete")]
    Incomplete { response: Box<ResponseObject> },
    #[serde(rename = "response.failed")]
    Failed { response: Box<ResponseObject> },
    #[serde(rename = "response.output_item.added")]
    ItemAdded { output_index: usize, item: OutputItem },
    #[serde(rename = "response.output_item.done")]
    ItemDone { output_index: usize, item: OutputItem },
    /// Start of a part.
    #[serde(rename = "response.content_part.added")]
    PartAdded {
        #[serde(flatten)]
        place: PartPosition,
        part: ContentPart,
    },
    /// Whole part.
    #[serde(rename = "response.content_part.done")]
    PartDone {
        #[serde(flatten)]
        place: PartPosition,
        part: ContentPart,
    },
    /// More of a text.
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        #[serde(flatten)]
        place: PartPosition,
        delta: String,
        logprobs: Vec<ChatToken>,
    },
    /// Whole text.
    #[serde(rename = "response.output_text.done")]
    TextDone {
        #[serde(flatten)]
        place: PartPosition,
        text: String,
        logprobs: Vec<ChatToken>,
    },
    /// More of the reasoning.
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta {
        #[serde(flatten)]
        place: PartPosition,
        delta: String,
    },
    /// Whole reasoning.
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone {
        #[serde(flatten)]
        place: PartPosition,
        text: String,
    },
    /// Start of the summary.
    #[serde(rename = "response.reasoning_summary_part.added")]
    SummaryAdded {
        #[serde(flatten)]
        place: SummaryPosition,
        part: SummaryPart,
    },
    /// Whole part of the summary.
    #[serde(rename = "response.reasoning_summary_part.done")]
    SummaryPartDone {
        #[serde(flatten)]
        place: SummaryPosition,
        part: SummaryPart,
    },
    /// More of the summary.
    #[serde(rename = "response.reasoning_summary_text.delta")]
    SummaryDelta {
        #[serde(flatten)]
        place: SummaryPosition,
        delta: String,
    },
    /// Whole text of the summary.
    #[serde(rename = "response.reasoning_summary_text.done")]
    SummaryDone {
        #[serde(flatten)]
        place: SummaryPosition,
        text: String,
    },
    /// More of the JSON text of a call's arguments.
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta {
        #[serde(flatten)]
        place: ItemPosition,
        delta: String,
    },
    /// Whole arguments of a call.
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        #[serde(flatten)]
        place: ItemPosition,
        name: String,
        arguments: String,
    },
    /// Input of a custom tool, which is sent as a whole.
    #[serde(rename = "response.custom_tool_call_input.delta")]
    InputDelta {
        #[serde(flatten)]
        place: ItemPosition,
        delta: String,
    },
    /// Whole input of a custom tool.
    #[serde(rename = "response.custom_tool_call_input.done")]
    InputDone {
        #[serde(flatten)]
        place: ItemPosition,
        input: String,
    },
}

/// Place of an item in the output.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct ItemPosition {
    item_id: String,
    output_index: usize,
}

/// Place of a part, the only one of its item.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct PartPosition {
    #[serde(flatten)]
    item: ItemPosition,
    content_index: usize,
}

/// Place of a summary, the only one of its item.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct SummaryPosition {
    #[serde(flatten)]
    item: ItemPosition,
    summary_index: usize,
}

impl ItemPosition {
    /// Returns the place of an item.
    pub(super) fn new(item_id: &str, output_index: usize) -> Self {
        Self { item_id: item_id.to_owned(), output_index }
    }
}

impl PartPosition {
    /// Returns the place of the part of an item.
    pub(super) fn new(item_id: &str, output_index: usize) -> Self {
        Self { item: ItemPosition::new(item_id, output_index), content_index: 0 }
    }
}

impl SummaryPosition {
    /// Returns the place of the summary of an item.
    pub(super) fn new(item_id: &str, output_index: usize) -> Self {
        Self { item: ItemPosition::new(item_id, output_index), summary_index: 0 }
    }
}

/// Part of an item.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum ContentPart {
    /// Text of a message.
    Text(OutputPart),
    /// Text of an item of reasoning.
    Reasoning(ReasoningPart),
}
