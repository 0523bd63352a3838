//! Tool calls of one answer, as parts for the client.

use std::{
    hash::{BuildHasher, RandomState},
    mem,
    sync::atomic::{AtomicU64, Ordering},
};

use narthex_spec::ToolFormat;
use narthex_text::{
    stop::StopStrings,
    tokenizer::Tokenizer,
    tools::{self, CallReading, TextEnd, ToolEvent, ToolParser},
};
use serde_json::Value;

use crate::serve::request::{CallLimit, ToolCallDelta, ToolCallStart};

/// Rules for the calls of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::serve) struct CallRules {
    /// Format of the calls.
    pub(in crate::serve) format: ToolFormat,
    /// Tools that the model sees, as objects of OpenAI's `tools`.
    pub(in crate::serve) tools: Vec<Value>,
    pub(in crate::serve) limit: CallLimit,
    /// Texts that are read as calls.
    pub(in crate::serve) reading: CallReading,
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
    /// Texts of special tokens around calls, which are hidden from clients.
    hidden: Vec<String>,
    begun: usize,
    complete: usize,
    malformed: usize,
    /// Set between the beginning of a call and its end.
    is_open: bool,
}

impl AnswerCalls {
    /// Creates the parser of one answer.
    pub(in crate::serve) fn new(rules: &CallRules, tokenizer: &Tokenizer) -> Self {
        let markers = tools::markers(rules.format);
        let specials = tokenizer.special_tokens().iter().map(|token| token.text.clone());
        Self {
            parser: ToolParser::new(rules.format, &rules.tools, rules.reading),
            limit: rules.limit,
            hidden: specials.filter(|text| markers.contains(&text.as_str())).collect(),
            begun: 0,
            complete: 0,
            malformed: 0,
            is_open: false,
        }
    }

    /// Number of complete calls.
    pub(in crate::serve) fn complete(&self) -> usize {
        self.complete
    }

    /// Number of malformed calls, which are in the text.
    pub(in crate::serve) fn malformed(&self) -> usize {
        self.malformed
    }

    /// Returns true if no call may follow.
    pub(in crate::serve) fn is_exhausted(&self) -> bool {
        self.limit == CallLimit::One && self.complete > 0
    }

    /// Takes the next text.
    pub(in crate::serve) fn push(&mut self, text: &str, stop: &mut StopStrings) -> Vec<Piece> {
        if self.is_over(stop) {
            return Vec::new();
        }
        let events = self.parser.push(text);
        self.pieces(events, stop)
    }

    /// Ends the answer and returns the rest. If a call was cut off, the client receives everything that the model wrote
    /// of it.
    pub(in crate::serve) fn finish(&mut self, end: TextEnd, stop: &mut StopStrings) -> Vec<Piece> {
        if self.is_over(stop) {
            return Vec::new();
        }
        let is_open = self.is_open;
        let mut events = self.parser.finish(end);
        if end == TextEnd::Cut {
            // A call that was cut off is not malformed. Its text is needed only if the client has none of the call.
            events.retain(|event| !(is_open && matches!(event, ToolEvent::Malformed(_))));
            for event in &mut events {
                if let ToolEvent::Malformed(text) = event {
                    *event = ToolEvent::Text(mem::take(text));
                }
            }
        }
        self.pieces(events, stop)
    }

    /// Returns true if the answer ended at a stop string or at the last call that it may have.
    fn is_over(&self, stop: &StopStrings) -> bool {
        self.is_exhausted() || stop.stopped().is_some()
    }

    fn pieces(&mut self, events: Vec<ToolEvent>, stop: &mut StopStrings) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for event in events {
            match event {
                ToolEvent::Text(text) => {
                    let text = stop.push(&self.without_hidden(text)).text;
                    push_text(text, &mut pieces);
                }
                ToolEvent::Malformed(text) => {
                    self.malformed += 1;
                    self.is_open = false;
                    let text = stop.push(&self.without_hidden(text)).text;
                    push_text(text, &mut pieces);
                }
                ToolEvent::Begin { name, .. } => {
                    // A stop string does not extend over a call.
                    push_text(stop.finish(), &mut pieces);
                    let start = Some(ToolCallStart { id: call_id(), name });
                    let delta = ToolCallDelta { index: self.begun, start, arguments: String::new() };
                    pieces.push(Piece::Call(delta));
                    self.begun += 1;
                    self.is_open = true;
                }
                ToolEvent::Arguments(arguments) => match pieces.last_mut() {
                    Some(Piece::Call(last)) => last.arguments.push_str(&arguments),
                    _ => {
                        let index = self.begun.saturating_sub(1);
                        pieces.push(Piece::Call(ToolCallDelta { index, start: None, arguments }));
                    }
                },
                ToolEvent::End => {
                    self.complete += 1;
                    self.is_open = false;
                }
            }
            if self.is_over(stop) {
                break;
            }
        }
        pieces
    }

    fn without_hidden(&self, mut text: String) -> String {
        for hidden in &self.hidden {
            if text.contains(hidden.as_str()) {
                text = text.replace(hidden.as_str(), "");
            }
        }
        text
    }
}

fn push_text(text: String, pieces: &mut Vec<Piece>) {
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
}

fn call_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let hash = RandomState::new().hash_one(COUNT.fetch_add(1, Ordering::Relaxed));
    format!("call_{hash:016x}")
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
        let tokenizer = tokenizer(&["[TOOL_CALLS]"]);
        AnswerCalls::new(&CallRules { format, tools, limit, reading: CallReading::Lenient }, &tokenizer)
    }

    /// Returns the text and each call's name and arguments.
    fn read(calls: &mut AnswerCalls, answer: &str, end: TextEnd) -> (String, Vec<(String, String)>) {
        let mut stop = StopStrings::new(Vec::new());
        let pieces = [calls.push(answer, &mut stop), calls.finish(end, &mut stop)].concat();
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
        // Special tokens are always hidden from clients.
        check(ToolFormat::Mistral, Any, "a [TOOL_CALLS]?", Complete, ("a ?", &[], [0, 1]));
        let open = r#"<tool_call>{"name": "f", "arguments": {"x": "a"#;
        let begun: &[(&str, &str)] = &[("f", r#"{"x": "a"#)];
        check(ToolFormat::Hermes, Any, open, Cut, ("", begun, [0, 0]));
        check(ToolFormat::Hermes, Any, open, Complete, (open, begun, [0, 1]));
        check(ToolFormat::Pythonic, Any, "[f(x='a", Cut, ("", begun, [0, 0]));
        check(ToolFormat::ChatGlm3, Any, "f\n```python\ntool_call(x='a", Cut, ("", begun, [0, 0]));
        let tagged = "<tool_call>\n<function=f>\n<parameter=x>\na\n</par";
        check(ToolFormat::QwenCoder, Any, tagged, Cut, ("", begun, [0, 0]));
        // Nothing of a call whose name is incomplete is reported as one.
        let nameless = "<tool_call>{\"name\": \"";
        check(ToolFormat::Hermes, Any, nameless, Cut, (nameless, &[], [0, 0]));
    }
}
