//! Complete answers, collected from the events of a generation.

use axum::http::StatusCode;
use narthex_gateway::request::{
    FinishReason, GenerationEvent, Summary, TokenInfo, ToolCallDelta, ToolCallStart,
};
use serde::de::IgnoredAny;

use crate::{error::ApiError, events::Events, timings::Timings};

/// One choice of a complete answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Choice {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) tokens: Vec<TokenInfo>,
    pub(crate) calls: Vec<WholeToolCall>,
    pub(crate) finish: Option<FinishReason>,
}

/// A complete tool call.
#[derive(Debug, Clone)]
pub(crate) struct WholeToolCall {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

impl Choice {
    /// Adds a part of a call.
    pub(crate) fn add_call(&mut self, delta: ToolCallDelta) {
        if let Some(ToolCallStart { id, name }) = delta.start {
            self.calls.push(WholeToolCall { id, name, arguments: String::new() });
        }
        if let Some(call) = self.calls.last_mut() {
            call.arguments.push_str(&delta.arguments);
        }
    }

    /// Ends the choice. Malformed calls, which are in the text, are removed, unless the answer was cut off.
    pub(crate) fn end(&mut self, reason: FinishReason) {
        self.finish = Some(reason);
        if !matches!(reason, FinishReason::Length | FinishReason::Cancelled) {
            self.calls.retain(|call| serde_json::from_str::<IgnoredAny>(&call.arguments).is_ok());
        }
    }
}

/// A complete answer.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) choices: Vec<Choice>,
    pub(crate) summary: Summary,
    /// Device that computed the answer.
    pub(crate) device: String,
}

impl Reply {
    /// Returns the timings of the answer.
    pub(crate) fn timings(&self) -> Timings {
        Timings::new(&self.summary, &self.device)
    }
}

/// Waits for an answer with `n` choices.
pub(crate) async fn collect(mut events: Events, n: usize) -> Result<Reply, ApiError> {
    let mut choices = vec![Choice::default(); n];
    while let Some(event) = events.next().await {
        match event {
            GenerationEvent::Started { .. } => {}
            GenerationEvent::Text { choice, text, tokens } => {
                if let Some(choice) = choices.get_mut(choice) {
                    choice.text.push_str(&text);
                    choice.tokens.extend(tokens);
                }
            }
            GenerationEvent::Reasoning { choice, text } => {
                if let Some(choice) = choices.get_mut(choice) {
                    choice.reasoning.push_str(&text);
                }
            }
            GenerationEvent::ToolCall { choice, delta } => {
                if let Some(choice) = choices.get_mut(choice) {
                    choice.add_call(delta);
                }
            }
            GenerationEvent::Finished { choice, reason } => {
                if let Some(choice) = choices.get_mut(choice) {
                    choice.end(reason);
                }
            }
            GenerationEvent::Done(summary) => {
                return Ok(Reply { choices, summary, device: events.ran_on().device });
            }
            GenerationEvent::Failed { message } => {
                return Err(ApiError::plain(StatusCode::SERVICE_UNAVAILABLE, message));
            }
        }
    }
    Err(ApiError::plain(StatusCode::SERVICE_UNAVAILABLE, "the engine stopped before the answer was complete"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_calls_are_left_to_the_text() {
        let check = |reason, expect: usize| {
            let mut choice = Choice::default();
            for (index, arguments) in ["{}", "{\"a\": "].into_iter().enumerate() {
                let start = Some(ToolCallStart { id: index.to_string(), name: "f".to_owned() });
                choice.add_call(ToolCallDelta { index, start, arguments: arguments.to_owned() });
            }
            choice.end(reason);
            assert_eq!(choice.calls.len(), expect, "{reason:?}");
        };
        check(FinishReason::ToolCalls, 1);
        check(FinishReason::MalformedCall, 1);
        check(FinishReason::Length, 2);
    }
}
