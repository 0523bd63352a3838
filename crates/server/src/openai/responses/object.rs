//! The response object: its state, its output and its usage.

use narthex_gateway::request::{FinishReason, Message, Summary};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    history::to_messages,
    item::{OutputItem, OutputPart, ResponseStatus},
    settings::ResponseSettings,
};
use crate::{
    openai::logprobs::ChatToken,
    protocol::{
        id::new_id,
        reading::ReadingObject,
        reply::{AnswerPart, Choice, is_cut},
        timings::Timings,
    },
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
    /// Only for question-answering models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reading: Option<ReadingObject>,
    #[serde(flatten)]
    pub(super) settings: ResponseSettings,
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
    /// Tokens written to a cache that is charged for. Always 0, because this server has no such cache.
    cache_write_tokens: usize,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
struct OutputTokens {
    reasoning_tokens: usize,
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
    let reasoning =
        (!choice.reasoning.is_empty()).then(|| settings.reasoning(&new_id("rs_"), &choice.reasoning));
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
            reading: None,
            settings,
        }
    }

    /// Completes the response with its output, its status and its usage.
    pub(super) fn complete(self, output: Vec<OutputItem>, end: ResponseEnd<'_>) -> Self {
        let ResponseEnd { reason, summary, timings } = end;
        let is_cut = reason.is_some_and(is_cut);
        let incomplete = match reason {
            Some(FinishReason::MalformedCall | FinishReason::MixedCalls) => Some("malformed_tool_call"),
            _ => is_cut.then_some("max_output_tokens"),
        };
        let usage = ResponseUsage {
            input_tokens: summary.prompt_tokens,
            input_tokens_details: InputTokens { cached_tokens: summary.cached_tokens, cache_write_tokens: 0 },
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
    use serde_json::{Value, json};

    use super::*;
    use crate::protocol::reply::samples;

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
            let timings = Timings::new(&summary, &samples::device());
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
