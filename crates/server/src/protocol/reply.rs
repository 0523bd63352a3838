//! Complete answers, collected from the events of a generation.

use std::ops::Range;

use axum::http::StatusCode;
use narthex_gateway::{
    AnsweringDevice, ErrorKind,
    request::{FinishReason, GenerationEvent, Summary, TokenInfo, ToolCallDelta, ToolCallStart},
};
use serde_json::Value;

use super::{events::Events, timings::Timings};
use crate::error::ApiError;

/// One choice of a complete answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Choice {
    pub(crate) reasoning: String,
    /// Text and calls, in the order in which the model wrote them.
    pub(crate) parts: Vec<AnswerPart>,
    /// All tokens, with those of the reasoning and of the calls.
    pub(crate) tokens: Vec<TokenInfo>,
    pub(crate) finish: Option<FinishReason>,
}

/// Part of an answer after its reasoning.
#[derive(Debug, Clone)]
pub(crate) enum AnswerPart {
    /// Text, with the positions of its tokens in [`Choice::tokens`].
    Text {
        text: String,
        tokens: Range<usize>,
    },
    Call(WholeToolCall),
}

/// A complete tool call.
#[derive(Debug, Clone)]
pub(crate) struct WholeToolCall {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

impl WholeToolCall {
    /// Returns true if the arguments are complete: they are JSON, as the parser of calls requires.
    pub(crate) fn is_complete(&self) -> bool {
        serde_json::from_str::<Value>(&self.arguments).is_ok()
    }

    /// Returns the text of a call that was cut off, for protocols whose calls hold their arguments as an object.
    pub(crate) fn cut_text(&self) -> String {
        format!(r#"{{"name": {}, "arguments": {}"#, Value::from(self.name.as_str()), self.arguments)
    }
}

/// Returns true if an answer that ends for this reason was cut off.
pub(crate) fn is_cut(reason: FinishReason) -> bool {
    matches!(reason, FinishReason::Length | FinishReason::Repetition | FinishReason::Cancelled)
}

impl Choice {
    /// Adds text of the answer and its tokens. Tokens without text are those of reasoning or of a call.
    pub(crate) fn add_text(&mut self, delta: String, delta_tokens: Vec<TokenInfo>) {
        let first = self.tokens.len();
        self.tokens.extend(delta_tokens);
        let end = self.tokens.len();
        match self.parts.last_mut() {
            Some(AnswerPart::Text { text, tokens }) => {
                text.push_str(&delta);
                tokens.end = end;
            }
            _ if delta.is_empty() => {}
            _ => self.parts.push(AnswerPart::Text { text: delta, tokens: first..end }),
        }
    }

    /// Adds a part of a call.
    pub(crate) fn add_call(&mut self, delta: ToolCallDelta) {
        if let Some(ToolCallStart { id, name }) = delta.start {
            self.parts.push(AnswerPart::Call(WholeToolCall { id, name, arguments: String::new() }));
        }
        if let Some(AnswerPart::Call(call)) = self.parts.last_mut() {
            call.arguments.push_str(&delta.arguments);
        }
    }

    /// Ends the choice. Malformed calls, which are in the text, are removed; a call that was cut off remains.
    pub(crate) fn end(&mut self, reason: FinishReason) {
        self.finish = Some(reason);
        let cut = if is_cut(reason) { self.parts.pop() } else { None };
        self.parts.retain(|part| !matches!(part, AnswerPart::Call(call) if !call.is_complete()));
        self.parts.extend(cut);
    }

    /// Returns the text without the calls.
    pub(crate) fn text(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            AnswerPart::Text { text, .. } => Some(text.as_str()),
            AnswerPart::Call(_) => None,
        });
        texts.collect()
    }

    /// Returns the calls.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &WholeToolCall> {
        self.parts.iter().filter_map(|part| match part {
            AnswerPart::Text { .. } => None,
            AnswerPart::Call(call) => Some(call),
        })
    }

    /// Returns true if the answer was cut off.
    pub(crate) fn is_cut(&self) -> bool {
        self.finish.is_some_and(is_cut)
    }

    /// Returns the call that was cut off.
    pub(crate) fn cut_call(&self) -> Option<&WholeToolCall> {
        self.calls().find(|call| !call.is_complete())
    }
}

/// A complete answer.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) choices: Vec<Choice>,
    pub(crate) summary: Summary,
    /// Device that computed the answer.
    pub(crate) device: AnsweringDevice,
}

impl Reply {
    /// Returns the timings of the answer.
    pub(crate) fn timings(&self) -> Timings {
        Timings::new(&self.summary, &self.device)
    }
}

/// Adds an event to its choice.
fn add(choices: &mut [Choice], event: GenerationEvent) {
    use GenerationEvent::{Done, Failed, Finished, Reasoning, Started, Text, ToolCall};

    let index = match &event {
        Text { choice, .. }
        | Reasoning { choice, .. }
        | ToolCall { choice, .. }
        | Finished { choice, .. } => *choice,
        Started { .. } | Done(_) | Failed { .. } => return,
    };
    let Some(choice) = choices.get_mut(index) else { return };
    match event {
        Text { text, tokens, .. } => choice.add_text(text, tokens),
        Reasoning { text, .. } => choice.reasoning.push_str(&text),
        ToolCall { delta, .. } => choice.add_call(delta),
        Finished { reason, .. } => choice.end(reason),
        Started { .. } | Done(_) | Failed { .. } => {}
    }
}

/// Waits for an answer with `n` choices.
pub(crate) async fn collect(mut events: Events, n: usize) -> Result<Reply, ApiError> {
    let mut choices = vec![Choice::default(); n];
    while let Some(event) = events.next().await {
        match event {
            GenerationEvent::Done(summary) => {
                return Ok(Reply { choices, summary, device: events.ran_on() });
            }
            GenerationEvent::Failed { kind, message } => {
                let is_of_request = kind == ErrorKind::BadRequest;
                let status =
                    if is_of_request { StatusCode::BAD_REQUEST } else { StatusCode::SERVICE_UNAVAILABLE };
                return Err(ApiError::plain(status, message));
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
        let parts = vec![part_of_call(Some("f"), ""), part_of_call(None, r#"{"a": "#), text(MALFORMED)];
        answer(parts, FinishReason::MalformedCall)
    }

    fn text(text: &str) -> GenerationEvent {
        GenerationEvent::Text { choice: 0, text: text.to_owned(), tokens: Vec::new() }
    }

    /// Returns the events of an answer with text before, between and after calls.
    pub(crate) fn mixed() -> Vec<GenerationEvent> {
        let calls = |name| [part_of_call(Some(name), ""), part_of_call(None, "{}")];
        let parts =
            [[text("a"), text("b")], calls("f"), [text("c"), text("")], calls("g"), [text("d"), text("e")]];
        answer(parts.concat(), FinishReason::ToolCalls)
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

    /// Returns an answer with a call whose argument is beyond 64 bits.
    pub(crate) fn large() -> Vec<GenerationEvent> {
        answer(vec![part_of_call(Some("f"), r#"{"n": 18446744073709551617}"#)], FinishReason::ToolCalls)
    }

    /// Returns the device of the answers.
    pub(crate) fn device() -> AnsweringDevice {
        let placement = "cpu 9/9 nodes, 100 % of MACs".to_owned();
        AnsweringDevice { device: "cpu".to_owned(), placement, fallback: None }
    }

    /// Returns the whole answer.
    pub(crate) fn whole(events: Vec<GenerationEvent>) -> Reply {
        let mut choices = vec![Choice::default()];
        events.into_iter().for_each(|event| add(&mut choices, event));
        Reply { choices, summary: Summary::default(), device: device() }
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
            assert_eq!(choice.calls().count(), expect, "{reason:?}");
        };
        check(FinishReason::ToolCalls, 1);
        check(FinishReason::MalformedCall, 1);
        check(FinishReason::Length, 2);
    }

    #[test]
    fn arguments_that_the_parser_refuses_are_incomplete() {
        let check = |arguments: &str, expect: bool| {
            let (id, name) = (String::new(), "f".to_owned());
            let call = WholeToolCall { id, name, arguments: arguments.to_owned() };
            assert_eq!(call.is_complete(), expect, "{arguments}");
        };
        check(r#"{"a": 1}"#, true);
        check(r#"{"a": 1e999}"#, false);
        check(r#"{"a": "\ud800"}"#, false);
        check(&format!("{{\"a\": {}{}}}", "[".repeat(200), "]".repeat(200)), false);
    }

    #[test]
    fn only_the_call_that_was_cut_off_remains_incomplete() {
        let choice = samples::whole(samples::cut()).choices.remove(0);
        let cut = choice.cut_call().unwrap().cut_text();
        assert_eq!(cut, r#"{"name": "g", "arguments": {"a": "#);
        let choice = samples::whole(samples::malformed()).choices.remove(0);
        assert_eq!(choice.calls().count(), 0);
        assert_eq!(choice.text(), samples::MALFORMED);
        // The text of a malformed call before the cut is in the answer.
        let mut events = samples::malformed();
        let end = events.len() - 2;
        events[end] = GenerationEvent::Finished { choice: 0, reason: FinishReason::Length };
        assert_eq!(samples::whole(events).choices[0].calls().count(), 0);
    }

    #[test]
    fn text_and_calls_keep_their_order_and_their_tokens() {
        let token = |text: &str| TokenInfo {
            text: text.to_owned(),
            bytes: Vec::new(),
            logprob: None,
            top: Vec::new(),
        };
        let mut choice = Choice::default();
        let start = Some(ToolCallStart { id: "c".to_owned(), name: "f".to_owned() });
        // Tokens of the reasoning and of the call have no text.
        choice.add_text(String::new(), vec![token("r")]);
        choice.add_text("a".to_owned(), vec![token("a")]);
        choice.add_text("b".to_owned(), vec![token("b")]);
        choice.add_call(ToolCallDelta { index: 0, start, arguments: "{}".to_owned() });
        choice.add_text(String::new(), vec![token("{}")]);
        choice.add_text("c".to_owned(), vec![token("c")]);
        choice.end(FinishReason::ToolCalls);
        let shown = |part: &AnswerPart| match part {
            AnswerPart::Text { text, tokens } => {
                format!(
                    "{text} {}",
                    choice.tokens[tokens.clone()].iter().map(|token| &*token.text).collect::<String>()
                )
            }
            AnswerPart::Call(call) => call.name.clone(),
        };
        assert_eq!(choice.parts.iter().map(shown).collect::<Vec<_>>(), ["ab ab", "f", "c c"]);
        assert_eq!((choice.text().as_str(), choice.tokens.len()), ("abc", 5));
    }
}
