//! The message object. Anthropic's clients expect every field; those for Anthropic's own servers are null.

use narthex_gateway::request::{ExactJson, FinishReason, Summary};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::protocol::{
    reading::ReadingObject,
    reply::{AnswerPart, Choice, WholeToolCall},
    timings::Timings,
};

/// A message of the model.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AnthropicMessage {
    pub(super) id: String,
    #[schemars(extend("const" = "message"))]
    r#type: &'static str,
    #[schemars(extend("const" = "assistant"))]
    role: &'static str,
    model: String,
    content: Vec<ContentBlock>,
    #[serde(flatten)]
    end: MessageEnd,
    container: Option<Value>,
    usage: MessageUsage,
    /// Absent until the message ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
    /// Only for question-answering models.
    #[serde(skip_serializing_if = "Option::is_none")]
    reading: Option<Box<ReadingObject>>,
}

/// Reason why a message ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct MessageEnd {
    stop_reason: Option<StopReason>,
    /// The stop sequence that ended the message.
    stop_sequence: Option<String>,
    stop_details: Option<StopDetails>,
}

/// Details of an end that Anthropic's reasons do not cover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum StopDetails {
    /// The text has a malformed call of a tool.
    MalformedToolCall,
}

impl MessageEnd {
    /// Returns the end for this reason, in an answer with these stop sequences.
    pub(super) fn new(reason: Option<FinishReason>, stops: &[String]) -> Self {
        let stop_sequence = match reason {
            Some(FinishReason::StopString { index }) => stops.get(index).cloned(),
            _ => None,
        };
        let is_malformed = matches!(reason, Some(FinishReason::MalformedCall | FinishReason::MixedCalls));
        Self {
            stop_reason: reason.map(StopReason::from),
            stop_sequence,
            stop_details: is_malformed.then_some(StopDetails::MalformedToolCall),
        }
    }
}

impl AnthropicMessage {
    /// Creates a message without content.
    pub(super) fn new(id: String, model: String, usage: MessageUsage) -> Self {
        Self {
            id,
            r#type: "message",
            role: "assistant",
            model,
            content: Vec::new(),
            end: MessageEnd::default(),
            container: None,
            usage,
            timings: None,
            reading: None,
        }
    }

    /// Returns the message of a question-answering model.
    pub(super) fn with_reading(self, reading: Option<ReadingObject>) -> Self {
        Self { reading: reading.map(Box::new), ..self }
    }

    /// Returns the message with the content, the end and the timings of an answer.
    pub(super) fn complete(self, choice: &Choice, end: MessageEnd, timings: Timings) -> Self {
        let thinking = (!choice.reasoning.is_empty()).then(|| ContentBlock::thinking(&choice.reasoning));
        let blocks = choice.parts.iter().map(|part| match part {
            AnswerPart::Text { text, .. } => ContentBlock::text(text),
            AnswerPart::Call(call) => match serde_json::from_str(&call.arguments) {
                Ok(input) => ContentBlock::call(call, input),
                // A client would run a call without its arguments, so a call that was cut off is text.
                Err(_) => ContentBlock::text(&call.cut_text()),
            },
        });
        Self { content: thinking.into_iter().chain(blocks).collect(), end, timings: Some(timings), ..self }
    }
}

/// Part of a message.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ContentBlock {
    /// Reasoning. The signature is empty, because the reasoning is the model's own text.
    Thinking { thinking: String, signature: String },
    /// Text.
    Text {
        text: String,
        /// Always empty. Some clients reject null.
        citations: Vec<Value>,
    },
    /// A call of a tool.
    ToolUse {
        id: String,
        name: String,
        /// Arguments.
        #[schemars(with = "Value")]
        input: ExactJson,
        caller: CallOrigin,
    },
}

/// Origin of a call.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum CallOrigin {
    /// The model.
    Direct,
}

impl ContentBlock {
    /// Creates a block of reasoning.
    pub(super) fn thinking(thinking: &str) -> Self {
        Self::Thinking { thinking: thinking.to_owned(), signature: String::new() }
    }

    /// Creates a block of text.
    pub(super) fn text(text: &str) -> Self {
        Self::Text { text: text.to_owned(), citations: Vec::new() }
    }

    /// Creates the block of a call with these arguments.
    pub(super) fn call(call: &WholeToolCall, input: ExactJson) -> Self {
        Self::ToolUse { id: call.id.clone(), name: call.name.clone(), input, caller: CallOrigin::Direct }
    }
}

/// Reason why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum StopReason {
    EndTurn,
    StopSequence,
    ToolUse,
    MaxTokens,
}

impl From<FinishReason> for StopReason {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop | FinishReason::MalformedCall => Self::EndTurn,
            FinishReason::StopString { .. } => Self::StopSequence,
            FinishReason::ToolCalls | FinishReason::MixedCalls => Self::ToolUse,
            FinishReason::Length | FinishReason::Repetition | FinishReason::Cancelled => Self::MaxTokens,
        }
    }
}

/// Tokens of an answer. Input tokens do not include cached tokens.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct MessageUsage {
    input_tokens: usize,
    cache_read_input_tokens: usize,
    cache_creation_input_tokens: usize,
    cache_creation: Option<Value>,
    output_tokens: usize,
    /// Null until the answer is complete.
    output_tokens_details: Option<OutputTokensDetails>,
    server_tool_use: Option<Value>,
    inference_geo: Option<String>,
    service_tier: Option<String>,
}

/// Tokens of an answer by kind.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct OutputTokensDetails {
    thinking_tokens: usize,
}

impl MessageUsage {
    /// Returns the tokens of an answer before its first token.
    pub(super) fn of_prompt(prompt_tokens: usize) -> Self {
        Self {
            input_tokens: prompt_tokens,
            cache_read_input_tokens: 0,
            cache_creation_input_tokens: 0,
            cache_creation: None,
            output_tokens: 0,
            output_tokens_details: None,
            server_tool_use: None,
            inference_geo: None,
            service_tier: None,
        }
    }

    /// Returns the tokens of a complete answer.
    pub(super) fn new(summary: &Summary) -> Self {
        let cached = summary.cached_tokens.min(summary.prompt_tokens);
        Self {
            cache_read_input_tokens: cached,
            output_tokens: summary.completion_tokens,
            output_tokens_details: Some(OutputTokensDetails { thinking_tokens: summary.reasoning_tokens }),
            ..Self::of_prompt(summary.prompt_tokens - cached)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protocol::reply::samples;

    #[test]
    fn a_call_that_was_cut_off_is_text() {
        let reply = samples::whole(samples::cut());
        let (usage, end) = (MessageUsage::new(&reply.summary), MessageEnd::new(reply.choices[0].finish, &[]));
        let message = AnthropicMessage::new("msg".to_owned(), "m".to_owned(), usage);
        let found = json!(message.complete(&reply.choices[0], end, reply.timings()));
        assert_eq!(found["stop_reason"], "max_tokens");
        let content = found["content"].as_array().unwrap();
        assert_eq!((content.len(), &content[0]["input"]), (2, &json!({})));
        assert_eq!(content[1]["text"], r#"{"name": "g", "arguments": {"a": "#);
    }

    #[test]
    fn the_input_of_a_call_keeps_the_digits_of_large_integers() {
        let reply = samples::whole(samples::large());
        let message =
            AnthropicMessage::new("msg".to_owned(), "m".to_owned(), MessageUsage::new(&reply.summary));
        let message = message.complete(&reply.choices[0], MessageEnd::default(), reply.timings());
        let text = serde_json::to_string(&message).unwrap();
        assert!(text.contains(r#""input":{"n":18446744073709551617}"#), "{text}");
    }

    #[test]
    fn the_end_names_stop_sequences_and_malformed_calls() {
        let check = |reason, expect: Value| {
            let end = MessageEnd::new(Some(reason), &["a".to_owned(), "b".to_owned()]);
            assert_eq!(serde_json::to_value(end).unwrap(), expect);
        };
        let end = |reason: &str| json!({"stop_reason": reason, "stop_sequence": null, "stop_details": null});
        check(FinishReason::Stop, end("end_turn"));
        check(FinishReason::Length, end("max_tokens"));
        check(FinishReason::ToolCalls, end("tool_use"));
        let stopped = json!({"stop_reason": "stop_sequence", "stop_sequence": "b", "stop_details": null});
        check(FinishReason::StopString { index: 1 }, stopped);
        let details = json!({"type": "malformed_tool_call"});
        let malformed = json!({"stop_reason": "end_turn", "stop_sequence": null, "stop_details": details});
        check(FinishReason::MalformedCall, malformed);
        let mixed = json!({"stop_reason": "tool_use", "stop_sequence": null, "stop_details": details});
        check(FinishReason::MixedCalls, mixed);
    }
}
