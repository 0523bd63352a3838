//! Tool calls of one answer, as parts for the client.

use std::mem;

use narthex_spec::{TokenId, ToolFormat};
use narthex_text::{
    stop::StopStrings,
    tokenizer::Tokenizer,
    tools::{self, CallReading, TextEnd, ToolEvent, ToolParser},
};
use serde_json::Value;

use crate::serve::{
    options::unique_number,
    request::{CallLimit, ToolCallDelta, ToolCallStart},
};

/// Rules for the calls of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::serve) struct CallRules {
    /// Format of the calls.
    pub(in crate::serve) format: ToolFormat,
    /// Tools that the model sees, as objects of OpenAI's `tools`.
    pub(in crate::serve) tools: Vec<Value>,
    pub(in crate::serve) limit: CallLimit,
    /// An answer ends where a call repeats an earlier one. Small models whose grammar requires calls would otherwise repeat
    /// a call until their context is full.
    pub(in crate::serve) ends_at_repetition: bool,
    /// Texts that are read as calls.
    pub(in crate::serve) reading: CallReading,
}

impl CallRules {
    /// Returns the markers of the format that the vocabulary has as special tokens.
    pub(in crate::serve) fn marker_tokens(&self, tokenizer: &Tokenizer) -> Vec<(TokenId, &'static str)> {
        special_tokens(tokenizer, tools::markers(self.format))
    }
}

/// Returns the markers that the vocabulary has as special tokens.
pub(in crate::serve) fn special_tokens(
    tokenizer: &Tokenizer,
    markers: &[&'static str],
) -> Vec<(TokenId, &'static str)> {
    let tokens = tokenizer.special_tokens().iter();
    tokens
        .filter_map(|token| {
            let marker = markers.iter().copied().find(|marker| *marker == token.text)?;
            Some((token.id, marker))
        })
        .collect()
}

/// Part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::serve) enum Piece {
    /// Text.
    Text(String),
    /// Part of a call.
    Call(ToolCallDelta),
}

/// Divides an answer into text, which ends at a stop string, and calls. The text of a malformed call stays in the
/// answer.
pub(in crate::serve) struct AnswerCalls {
    parser: ToolParser,
    limit: CallLimit,
    ends_at_repetition: bool,
    /// Number of calls that the client has received, as a whole or in part.
    begun: usize,
    /// Names and arguments of the complete calls.
    complete: Vec<(String, String)>,
    malformed: usize,
    /// The call between its beginning and its end.
    open: Option<OpenCall>,
    /// A call repeated an earlier one and ended the answer.
    is_repeated: bool,
}

/// A call whose end has not come yet.
struct OpenCall {
    name: String,
    arguments: String,
    /// The client has received nothing of it, because it begins like an earlier call.
    is_held: bool,
}

impl AnswerCalls {
    /// Creates the parser of one answer.
    pub(in crate::serve) fn new(rules: &CallRules, tokenizer: &Tokenizer) -> Self {
        let tokens: Vec<&str> =
            rules.marker_tokens(tokenizer).into_iter().map(|(_, marker)| marker).collect();
        Self {
            parser: ToolParser::new(rules.format, &rules.tools, rules.reading, &tokens),
            limit: rules.limit,
            ends_at_repetition: rules.ends_at_repetition,
            begun: 0,
            complete: Vec::new(),
            malformed: 0,
            open: None,
            is_repeated: false,
        }
    }

    /// Number of complete calls.
    pub(in crate::serve) fn complete(&self) -> usize {
        self.complete.len()
    }

    /// Number of malformed calls, which are in the text.
    pub(in crate::serve) fn malformed(&self) -> usize {
        self.malformed
    }

    /// Returns true if no call may follow.
    pub(in crate::serve) fn is_exhausted(&self) -> bool {
        self.is_repeated || self.limit == CallLimit::One && !self.complete.is_empty()
    }

    /// Takes the next text. If its last token is that of a marker, it ends with the marker.
    pub(in crate::serve) fn push(
        &mut self,
        text: &str,
        marker: Option<&str>,
        stop: &mut StopStrings,
    ) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let marker = marker.filter(|marker| text.ends_with(marker));
        let text = &text[..text.len() - marker.map_or(0, str::len)];
        if !self.is_over(stop) {
            let events = self.parser.push(text);
            self.add(events, stop, &mut pieces);
        }
        if let Some(marker) = marker.filter(|_| !self.is_over(stop)) {
            let events = self.parser.push_marker(marker);
            self.add(events, stop, &mut pieces);
        }
        pieces
    }

    /// Ends the answer and returns the rest. If a call was cut off, the client receives everything that the model wrote
    /// of it.
    pub(in crate::serve) fn finish(&mut self, end: TextEnd, stop: &mut StopStrings) -> Vec<Piece> {
        if self.is_over(stop) {
            return Vec::new();
        }
        let is_open = self.open.is_some();
        let mut pieces = Vec::new();
        let mut events = self.parser.finish(end);
        if end == TextEnd::Cut {
            if self.repeats() {
                self.open = None;
            } else {
                self.send(&mut pieces);
            }
            // A call that was cut off is not malformed. Its text is needed only if the client has none of the call.
            events.retain(|event| !(is_open && matches!(event, ToolEvent::Malformed(_))));
            for event in &mut events {
                if let ToolEvent::Malformed(text) = event {
                    *event = ToolEvent::Text(mem::take(text));
                }
            }
        }
        self.add(events, stop, &mut pieces);
        pieces
    }

    /// Returns true if the answer ended at a stop string or at the last call that it may have.
    fn is_over(&self, stop: &StopStrings) -> bool {
        self.is_exhausted() || stop.stopped().is_some()
    }

    /// Adds the pieces of events.
    fn add(&mut self, events: Vec<ToolEvent>, stop: &mut StopStrings, pieces: &mut Vec<Piece>) {
        for event in events {
            match event {
                ToolEvent::Text(text) => {
                    let text = stop.push(&text).text;
                    push_text(text, pieces);
                }
                ToolEvent::Malformed(text) => {
                    self.malformed += 1;
                    self.open = None;
                    let text = stop.push(&text).text;
                    push_text(text, pieces);
                }
                ToolEvent::Begin { name, .. } => {
                    // A stop string does not extend over a call.
                    push_text(stop.finish(), pieces);
                    self.open = Some(OpenCall { name, arguments: String::new(), is_held: true });
                    self.release(pieces);
                }
                ToolEvent::Arguments(arguments) => self.push_arguments(&arguments, pieces),
                ToolEvent::End => self.end_call(pieces),
            }

            if self.is_over(stop) {
                break;
            }
        }
    }

    /// Sends the beginning of the open call, unless the call may still repeat an earlier one.
    fn release(&mut self, pieces: &mut Vec<Piece>) {
        let Some(call) = &self.open else { return };
        let may_repeat = self.ends_at_repetition
            && self
                .complete
                .iter()
                .any(|(name, arguments)| *name == call.name && arguments.starts_with(&call.arguments));
        if !may_repeat {
            self.send(pieces);
        }
    }

    /// Sends the open call so far, if the client has received nothing of it.
    fn send(&mut self, pieces: &mut Vec<Piece>) {
        let Some(call) = self.open.as_mut().filter(|call| call.is_held) else { return };
        call.is_held = false;
        let start = Some(ToolCallStart { id: call_id(), name: call.name.clone() });
        let delta = ToolCallDelta { index: self.begun, start, arguments: call.arguments.clone() };
        pieces.push(Piece::Call(delta));
        self.begun += 1;
    }

    fn push_arguments(&mut self, arguments: &str, pieces: &mut Vec<Piece>) {
        let Some(call) = &mut self.open else { return };
        call.arguments.push_str(arguments);
        if call.is_held {
            return self.release(pieces);
        }
        match pieces.last_mut() {
            Some(Piece::Call(last)) => last.arguments.push_str(arguments),
            _ => {
                let index = self.begun.saturating_sub(1);
                let arguments = arguments.to_owned();
                pieces.push(Piece::Call(ToolCallDelta { index, start: None, arguments }));
            }
        }
    }

    /// Returns true if the open call is the same as an earlier one so far.
    fn repeats(&self) -> bool {
        self.open.as_ref().is_some_and(|open| {
            open.is_held && self.complete.iter().any(|call| call.0 == open.name && call.1 == open.arguments)
        })
    }

    fn end_call(&mut self, pieces: &mut Vec<Piece>) {
        self.is_repeated = self.repeats();
        if !self.is_repeated {
            self.send(pieces);
        }
        if let Some(call) = self.open.take().filter(|_| !self.is_repeated) {
            self.complete.push((call.name, call.arguments));
        }
    }
}

fn push_text(text: String, pieces: &mut Vec<Piece>) {
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
}

fn call_id() -> String {
    format!("call_{:016x}", unique_number())
}

#[cfg(test)]
mod tests {
    use narthex_text::tokenizer::GgufVocab;
    use serde_json::json;

    use super::*;

    /// Returns a tokenizer in which these tokens are special.
    fn tokenizer(special: &[&str]) -> Tokenizer {
        let mut tokens = vec!["a".to_owned()];
        tokens.extend(special.iter().map(|token| (*token).to_owned()));
        let types = (0..tokens.len()).map(|id| if id == 0 { 1 } else { 3 }).collect();
        let (model, pre) = ("gpt2".to_owned(), Some("smollm".to_owned()));
        let vocab = GgufVocab { model, pre, types: Some(types), tokens, ..GgufVocab::default() };
        Tokenizer::from_gguf(&vocab).unwrap()
    }

    fn calls(format: ToolFormat, limit: CallLimit) -> AnswerCalls {
        let tools = vec![json!({"type": "function", "function": {"name": "f"}})];
        let (tokenizer, reading) = (tokenizer(&["[TOOL_CALLS]"]), CallReading::Exact);
        AnswerCalls::new(&CallRules { format, tools, limit, ends_at_repetition: false, reading }, &tokenizer)
    }

    /// Returns the text and each call's name and arguments.
    fn read(calls: &mut AnswerCalls, answer: &str, end: TextEnd) -> (String, Vec<(String, String)>) {
        let mut stop = StopStrings::new(Vec::new());
        assemble([push(calls, answer, &mut stop), calls.finish(end, &mut stop)].concat())
    }

    /// Pushes a text in which `[TOOL_CALLS]` is a token.
    fn push(calls: &mut AnswerCalls, text: &str, stop: &mut StopStrings) -> Vec<Piece> {
        const MARKER: &str = "[TOOL_CALLS]";
        let parts = text.split_inclusive(MARKER).map(|part| {
            let marker = part.ends_with(MARKER).then_some(MARKER);
            calls.push(part, marker, stop)
        });
        parts.collect::<Vec<_>>().concat()
    }

    fn assemble(pieces: Vec<Piece>) -> (String, Vec<(String, String)>) {
        let (mut text, mut found) = (String::new(), Vec::new());
        for piece in pieces {
            match piece {
                Piece::Text(more) => text.push_str(&more),
                Piece::Call(delta) => {
                    if let Some(start) = delta.start {
                        found.push((start.name, String::new()));
                    }
                    assert_eq!(delta.index + 1, found.len());
                    found[delta.index].1.push_str(&delta.arguments);
                }
            }
        }
        (text, found)
    }

    const TWICE: &str = r#"[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}]"#;

    #[test]
    fn a_repeated_call_ends_an_answer_that_requires_calls() {
        let check = |answer: &str, end, expect: &[(&str, &str)], is_over| {
            for step in [1, answer.len()] {
                let mut calls =
                    AnswerCalls { ends_at_repetition: true, ..calls(ToolFormat::Mistral, CallLimit::Any) };
                let (mut stop, mut pieces) = (StopStrings::new(Vec::new()), Vec::new());
                let (marker, text) = answer.split_at("[TOOL_CALLS]".len());
                pieces.extend(push(&mut calls, marker, &mut stop));
                for start in (0..text.len()).step_by(step) {
                    pieces.extend(push(&mut calls, &text[start..text.len().min(start + step)], &mut stop));
                }
                pieces.extend(calls.finish(end, &mut stop));
                let (text, found) = assemble(pieces);
                let found: Vec<(&str, &str)> =
                    found.iter().map(|(name, arguments)| (name.as_str(), arguments.as_str())).collect();
                assert_eq!((text.trim(), found.as_slice()), ("", expect), "{answer}");
                assert_eq!(calls.is_exhausted(), is_over, "{answer}");
            }
        };
        use TextEnd::{Complete, Cut};
        check(TWICE, Complete, &[("f", "{}")], true);
        let three =
            r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": 12}}, {"name": "f", "arguments": {"a": 13}}, "#;
        let both = [("f", r#"{"a": 12}"#), ("f", r#"{"a": 13}"#)];
        check(three, Cut, &both, false);
        check(&format!(r#"{three}{{"name": "f", "arguments": {{"a": 12}}}}, "#), Cut, &both, true);
        check(&format!(r#"{three}{{"name": "f", "arguments": {{"a": 12}}"#), Cut, &both, false);
        let cut = [both[0], both[1], ("f", r#"{"a": 1"#)];
        check(&format!(r#"{three}{{"name": "f", "arguments": {{"a": 1"#), Cut, &cut, false);
    }

    #[test]
    fn events_become_calls_with_indices() {
        let check = |format, limit, answer: &str, end, expect: (&str, &[(&str, &str)], [usize; 2])| {
            let mut calls = calls(format, limit);
            let (text, found) = read(&mut calls, answer, end);
            let found: Vec<(&str, &str)> =
                found.iter().map(|(name, arguments)| (name.as_str(), arguments.as_str())).collect();
            let counts = [calls.complete(), calls.malformed()];
            assert_eq!((text.as_str(), found.as_slice(), counts), expect, "{answer}");
        };
        use CallLimit::{Any, One};
        use TextEnd::{Complete, Cut};
        let two = r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {}}]"#;
        let both: &[(&str, &str)] = &[("f", r#"{"a": 1}"#), ("f", "{}")];
        check(ToolFormat::Mistral, Any, two, Complete, ("", both, [2, 0]));
        check(ToolFormat::Mistral, One, two, Complete, ("", &both[..1], [1, 0]));
        // The tokens of markers are always hidden from clients.
        check(ToolFormat::Mistral, Any, "a [TOOL_CALLS]?", Complete, ("a ?", &[], [0, 1]));
        // A call whose arguments are complete is whole, and its text is not sent.
        let whole = r#"<tool_call>{"name": "f", "arguments": {"a": 1}"#;
        let one = &both[..1];
        for end in [Complete, Cut] {
            check(ToolFormat::Hermes, Any, whole, end, ("", one, [1, 0]));
            check(ToolFormat::Hermes, Any, &format!("{whole}\n</tool_call>"), end, ("", one, [1, 0]));
            check(ToolFormat::Hermes, Any, &format!("{whole}, x"), end, (", x", one, [1, 0]));
        }
        let open = r#"<tool_call>{"name": "f", "arguments": {"x": "a"#;
        let begun: &[(&str, &str)] = &[("f", r#"{"x": "a"#)];
        check(ToolFormat::Hermes, Any, open, Cut, ("", begun, [0, 0]));
        check(ToolFormat::Hermes, Any, open, Complete, (open, begun, [0, 1]));
        check(ToolFormat::Pythonic, Any, "[f(x='a", Cut, ("", begun, [0, 0]));
        check(ToolFormat::Lfm2, Any, "<|tool_call_start|>[f(x='a", Cut, ("", begun, [0, 0]));
        check(ToolFormat::ChatGlm3, Any, "f\n```python\ntool_call(x='a", Cut, ("", begun, [0, 0]));
        let tagged = "<tool_call>\n<function=f>\n<parameter=x>\na\n</par";
        check(ToolFormat::QwenCoder, Any, tagged, Cut, ("", begun, [0, 0]));
        check(ToolFormat::Mistral, Any, TWICE, Complete, ("", &[("f", "{}"), ("f", "{}")], [2, 0]));
        // Nothing of a call whose name is incomplete is reported as one.
        let nameless = "<tool_call>{\"name\": \"";
        check(ToolFormat::Hermes, Any, nameless, Cut, (nameless, &[], [0, 0]));
    }
}
