//! Complete answers, collected from the events of a generation.

use axum::http::StatusCode;
use narthex_gateway::request::{
    FinishReason, GenerationEvent, Summary, TokenInfo, ToolCallDelta, ToolCallStart,
};
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::{error::ApiError, events::Events, timings::Timings};

/// One choice of a complete answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Choice {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) tokens: Vec<TokenInfo>,
    pub(crate) calls: Vec<WholeToolCall>,
    pub(crate) finish: Option<FinishReason>,
    /// Set while the last part is of a call.
    in_call: bool,
}

/// A complete tool call.
#[derive(Debug, Clone)]
pub(crate) struct WholeToolCall {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

impl WholeToolCall {
    /// Returns true if the arguments are complete: they are JSON.
    pub(crate) fn is_complete(&self) -> bool {
        serde_json::from_str::<IgnoredAny>(&self.arguments).is_ok()
    }
}

/// Returns true if an answer that ends for this reason was cut off.
pub(crate) fn is_cut(reason: FinishReason) -> bool {
    matches!(reason, FinishReason::Length | FinishReason::Cancelled)
}

impl Choice {
    /// Adds text of the answer.
    pub(crate) fn add_text(&mut self, text: &str) {
        self.text.push_str(text);
        self.in_call &= text.is_empty();
    }

    /// Adds a part of a call.
    pub(crate) fn add_call(&mut self, delta: ToolCallDelta) {
        self.in_call = true;
        if let Some(ToolCallStart { id, name }) = delta.start {
            self.calls.push(WholeToolCall { id, name, arguments: String::new() });
        }
        if let Some(call) = self.calls.last_mut() {
            call.arguments.push_str(&delta.arguments);
        }
    }

    /// Ends the choice. Malformed calls, which are in the text, are removed; a call that was cut off remains.
    pub(crate) fn end(&mut self, reason: FinishReason) {
        self.finish = Some(reason);
        let cut = if is_cut(reason) && self.in_call { self.calls.pop() } else { None };
        self.calls.retain(WholeToolCall::is_complete);
        self.calls.extend(cut);
    }

    /// Returns true if the answer was cut off.
    pub(crate) fn is_cut(&self) -> bool {
        self.finish.is_some_and(is_cut)
    }

    /// Returns true if the answer ends with a call.
    pub(crate) fn ends_with_call(&self) -> bool {
        self.in_call
    }

    /// Returns the text of a call that was cut off, for protocols whose calls hold their arguments as an object.
    pub(crate) fn cut_call(&self) -> Option<String> {
        let WholeToolCall { name, arguments, .. } = self.calls.iter().find(|call| !call.is_complete())?;
        Some(format!(r#"{{"name": {}, "arguments": {arguments}"#, Value::from(name.as_str())))
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

/// Adds an event to its choice.
fn add(choices: &mut [Choice], event: GenerationEvent) {
    match event {
        GenerationEvent::Text { choice, text, tokens } => {
            if let Some(choice) = choices.get_mut(choice) {
                choice.add_text(&text);
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
        GenerationEvent::Started { .. } | GenerationEvent::Done(_) | GenerationEvent::Failed { .. } => {}
    }
}

/// Waits for an answer with `n` choices.
pub(crate) async fn collect(mut events: Events, n: usize) -> Result<Reply, ApiError> {
    let mut choices = vec![Choice::default(); n];
    while let Some(event) = events.next().await {
        match event {
            GenerationEvent::Done(summary) => {
                return Ok(Reply { choices, summary, device: events.ran_on().device });
            }
            GenerationEvent::Failed { message } => {
                return Err(ApiError::plain(StatusCode::SERVICE_UNAVAILABLE, message));
            }
            event => add(&mut choices, event),
        }
    }
    Err(ApiError::plain(StatusCode::SERVICE_UNAVAILABLE, "the engine stopped before the answer was complete"))
}

/// Answers for tests of every protocol, whose streams must give the same as a whole answer.
#[cfg(test)]
pub(crate) mod samples {
    use super::*;

    fn part_of_call(start: Option<&str>, arguments: &str) -> GenerationEvent {
        let start = start.map(|name| ToolCallStart { id: format!("call_{name}"), name: name.to_owned() });
        let delta = ToolCallDelta { index: 0, start, arguments: arguments.to_owned() };
        GenerationEvent::ToolCall { choice: 0, delta }
    }

    fn answer(parts: Vec<GenerationEvent>, reason: FinishReason) -> Vec<GenerationEvent> {
        let end =
            [GenerationEvent::Finished { choice: 0, reason }, GenerationEvent::Done(Summary::default())];
        [GenerationEvent::Started { prompt_tokens: 9 }].into_iter().chain(parts).chain(end).collect()
    }

    /// Text of the call in [`malformed`].
    pub(crate) const MALFORMED: &str = r#"<tool_call>{"name": "f", "arguments": {"a": oops"#;

    /// Returns the events of an answer with a call that turns out to be malformed after its start.
    pub(crate) fn malformed() -> Vec<GenerationEvent> {
        let text = GenerationEvent::Text { choice: 0, text: MALFORMED.to_owned(), tokens: Vec::new() };
        let parts = vec![part_of_call(Some("f"), ""), part_of_call(None, r#"{"a": "#), text];
        answer(parts, FinishReason::MalformedCall)
    }

    /// Returns the events of an answer without text.
    pub(crate) fn empty() -> Vec<GenerationEvent> {
        answer(Vec::new(), FinishReason::Stop)
    }

    /// Returns the events of an answer that is cut off in its second call.
    pub(crate) fn cut() -> Vec<GenerationEvent> {
        let first = part_of_call(Some("f"), "{}");
        let parts = vec![first, part_of_call(Some("g"), ""), part_of_call(None, r#"{"a": "#)];
        answer(parts, FinishReason::Length)
    }

    /// Returns the whole answer.
    pub(crate) fn whole(events: Vec<GenerationEvent>) -> Reply {
        let mut choices = vec![Choice::default()];
        events.into_iter().for_each(|event| add(&mut choices, event));
        Reply { choices, summary: Summary::default(), device: "cpu".to_owned() }
    }
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

    #[test]
    fn only_the_call_that_was_cut_off_remains_incomplete() {
        let choice = samples::whole(samples::cut()).choices.remove(0);
        assert_eq!(choice.cut_call().as_deref(), Some(r#"{"name": "g", "arguments": {"a": "#));
        let choice = samples::whole(samples::malformed()).choices.remove(0);
        assert_eq!((choice.calls.len(), choice.cut_call()), (0, None));
        assert_eq!(choice.text, samples::MALFORMED);
        // The text of a malformed call before the cut is in the answer.
        let mut events = samples::malformed();
        let end = events.len() - 2;
        events[end] = GenerationEvent::Finished { choice: 0, reason: FinishReason::Length };
        assert_eq!(samples::whole(events).choices[0].calls.len(), 0);
    }
}
