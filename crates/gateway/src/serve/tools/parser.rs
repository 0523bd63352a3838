//! Tool calls in the text of an answer, found while it streams.

use std::{
    hash::{BuildHasher, RandomState},
    mem,
    sync::atomic::{AtomicU64, Ordering},
};

use serde_json::Value;

use super::{CLOSE, OPEN};
use crate::serve::request::{ToolCallDelta, ToolCallStart};

/// Part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::serve) enum Piece {
    /// Text.
    Text(String),
    /// Part of a call.
    Call(ToolCallDelta),
}

/// Divides an answer into text and calls. The pieces do not depend on how the text is cut. A malformed call stays text.
#[derive(Debug, Default)]
pub(in crate::serve) struct CallParser {
    /// Text that was not handed out yet.
    held: String,
    state: State,
    calls: usize,
    malformed: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// Outside calls.
    #[default]
    Text,
    /// After [`OPEN`], which is not held.
    Head,
    /// In the arguments' object.
    Arguments(Depth),
    /// After the arguments, up to [`CLOSE`].
    Tail,
}

/// Place in a JSON object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Depth {
    braces: usize,
    in_string: bool,
    escaped: bool,
}

/// Result of a step.
enum Step {
    /// Another step may follow.
    Again,
    /// More text is needed.
    Wait,
}

impl CallParser {
    /// Number of calls that have begun.
    pub(in crate::serve) fn calls(&self) -> usize {
        self.calls
    }

    /// Number of malformed calls, which are in the text.
    pub(in crate::serve) fn malformed(&self) -> usize {
        self.malformed
    }

    /// Takes the next text.
    pub(in crate::serve) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while let Step::Again = self.step(&mut pieces) {}
        pieces
    }

    /// Ends the answer and returns the rest.
    pub(in crate::serve) fn finish(&mut self) -> Vec<Piece> {
        let rest = mem::take(&mut self.held);
        let mut pieces = Vec::new();
        match self.state {
            State::Text if self.calls > 0 && rest.trim().is_empty() => {}
            State::Text => pieces.extend((!rest.is_empty()).then_some(Piece::Text(rest))),
            State::Head => self.whole(&rest, "", &mut pieces),
            State::Arguments(_) | State::Tail => {}
        }
        self.state = State::Text;
        pieces
    }

    fn step(&mut self, pieces: &mut Vec<Piece>) -> Step {
        match self.state {
            State::Text => self.text(pieces),
            State::Head => self.head(pieces),
            State::Arguments(depth) => self.arguments(depth, pieces),
            State::Tail => self.tail(),
        }
    }

    /// Hands out text up to a call. White space that may stand before one is held.
    fn text(&mut self, pieces: &mut Vec<Piece>) -> Step {
        let found = self.held.find(OPEN);
        let end = found.unwrap_or(self.held.len() - overlap(&self.held, OPEN));
        let end = self.held[..end].trim_end().len();
        let text: String = self.held.drain(..end).collect();
        if !text.is_empty() {
            pieces.push(Piece::Text(text));
        }
        match self.held.find(OPEN) {
            Some(at) => {
                self.held.drain(..at + OPEN.len());
                self.state = State::Head;
                Step::Again
            }
            None => Step::Wait,
        }
    }

    /// Reads up to the arguments, or the whole call if it is not written in the usual order.
    fn head(&mut self, pieces: &mut Vec<Piece>) -> Step {
        if let Some((name, length)) = head(&self.held) {
            self.held.drain(..length);
            let delta = self.start(name, String::new());
            pieces.push(Piece::Call(delta));
            self.state = State::Arguments(Depth::default());
            return Step::Again;
        }
        let Some(at) = self.held.find(CLOSE) else { return Step::Wait };
        let rest = self.held.split_off(at + CLOSE.len());
        let call = mem::replace(&mut self.held, rest);
        self.state = State::Text;
        self.whole(&call[..at], CLOSE, pieces);
        Step::Again
    }

    /// Hands out a call of which all is known.
    fn whole(&mut self, call: &str, close: &str, pieces: &mut Vec<Piece>) {
        let value: Value = serde_json::from_str(call).unwrap_or_default();
        let arguments = value.get("arguments").or_else(|| value.get("parameters"));
        match (value["name"].as_str(), arguments) {
            (Some(name), Some(arguments)) => {
                let arguments = match arguments {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                let delta = self.start(name.to_owned(), arguments);
                pieces.push(Piece::Call(delta));
            }
            _ => {
                self.malformed += 1;
                pieces.push(Piece::Text(format!("{OPEN}{call}{close}")));
            }
        }
    }

    fn arguments(&mut self, mut depth: Depth, pieces: &mut Vec<Piece>) -> Step {
        let end = self.held.bytes().position(|byte| depth.ends_with(byte));
        let text = match end {
            Some(at) => self.held.drain(..=at).collect(),
            None => mem::take(&mut self.held),
        };
        self.state = if end.is_some() { State::Tail } else { State::Arguments(depth) };
        if !text.is_empty() {
            let index = self.calls - 1;
            pieces.push(Piece::Call(ToolCallDelta { index, start: None, arguments: text }));
        }
        if end.is_some() { Step::Again } else { Step::Wait }
    }

    /// Drops the end of a call. Anything else is text.
    fn tail(&mut self) -> Step {
        let rest = self.held.trim_start_matches(|char: char| char.is_whitespace() || char == '}');
        let dropped = self.held.len() - rest.len();
        if rest.starts_with(CLOSE) {
            self.held.drain(..dropped + CLOSE.len());
        } else if CLOSE.starts_with(rest) {
            return Step::Wait;
        } else {
            self.held.drain(..dropped);
        }
        self.state = State::Text;
        Step::Again
    }

    fn start(&mut self, name: String, arguments: String) -> ToolCallDelta {
        let index = self.calls;
        self.calls += 1;
        ToolCallDelta { index, start: Some(ToolCallStart { id: call_id(), name }), arguments }
    }
}

impl Depth {
    /// Takes a byte; returns whether it ends the object.
    fn ends_with(&mut self, byte: u8) -> bool {
        if self.in_string {
            (self.in_string, self.escaped) = (byte != b'"' || self.escaped, byte == b'\\' && !self.escaped);
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.braces += 1,
            b'}' | b']' => self.braces = self.braces.saturating_sub(1),
            _ => return false,
        }
        self.braces == 0
    }
}

/// Reads `{"name": …, "arguments":` up to the `{` of the arguments. Returns the name and the length.
fn head(text: &str) -> Option<(String, usize)> {
    let rest = expect(text, "{")?;
    let rest = expect(expect(rest, "\"name\"")?, ":")?;
    let rest = rest.trim_start();
    let mut names = serde_json::Deserializer::from_str(rest).into_iter::<String>();
    let name = names.next()?.ok()?;
    let rest = expect(&rest[names.byte_offset()..], ",")?;
    let rest = expect(rest, "\"arguments\"").or_else(|| expect(rest, "\"parameters\""))?;
    let rest = expect(rest, ":")?.trim_start();
    rest.starts_with('{').then(|| (name, text.len() - rest.len()))
}

fn expect<'a>(text: &'a str, token: &str) -> Option<&'a str> {
    text.trim_start().strip_prefix(token)
}

/// Returns the length of the longest end of `text` that begins `pattern`.
fn overlap(text: &str, pattern: &str) -> usize {
    (1..pattern.len()).rev().find(|&length| text.ends_with(&pattern[..length])).unwrap_or(0)
}

fn call_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let hash = RandomState::new().hash_one(COUNT.fetch_add(1, Ordering::Relaxed));
    format!("call_{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text, and each call's name and arguments.
    fn parse(parts: &[&str]) -> (String, Vec<(String, String)>, usize) {
        let mut parser = CallParser::default();
        let mut pieces: Vec<Piece> = parts.iter().flat_map(|part| parser.push(part)).collect();
        pieces.extend(parser.finish());
        let (mut text, mut calls) = (String::new(), Vec::new());
        for piece in pieces {
            match piece {
                Piece::Text(more) => text.push_str(&more),
                Piece::Call(delta) => {
                    if let Some(start) = delta.start {
                        calls.push((start.name, String::new()));
                    }
                    assert_eq!(delta.index, calls.len() - 1);
                    calls.last_mut().unwrap().1.push_str(&delta.arguments);
                }
            }
        }
        (text, calls, parser.malformed())
    }

    fn check(answer: &str, text: &str, calls: &[(&str, &str)], malformed: usize) {
        let calls = calls.iter().map(|(name, arguments)| ((*name).to_owned(), (*arguments).to_owned()));
        let expected = (text.to_owned(), calls.collect::<Vec<_>>(), malformed);
        assert_eq!(parse(&[answer]), expected, "{answer}");
        for split in (0..=answer.len()).filter(|&at| answer.is_char_boundary(at)) {
            assert_eq!(parse(&[&answer[..split], &answer[split..]]), expected, "{answer} at {split}");
        }
        let single: Vec<String> = answer.chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(String::as_str).collect();
        assert_eq!(parse(&single), expected, "{answer} by characters");
    }

    #[test]
    fn calls_are_found_at_every_split_point() {
        check("Plain <b> text, 1 < 2. \n", "Plain <b> text, 1 < 2. \n", &[], 0);
        check(
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"<\", \"b\": [{}]}}\n</tool_call>",
            "",
            &[("f", r#"{"a": "}\"<", "b": [{}]}"#)],
            0,
        );
        check(
            "Sure.\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"name\": \"g\", \"parameters\": {\"é\": \"日本\"}}\n</tool_call>",
            "Sure.",
            &[("f", "{}"), ("g", r#"{"é": "日本"}"#)],
            0,
        );
        // Another order, and arguments as text.
        check(
            "<tool_call>{\"arguments\": {\"x\": 1}, \"name\": \"f\"}</tool_call> Done.",
            " Done.",
            &[("f", r#"{"x":1}"#)],
            0,
        );
        check(r#"<tool_call>{"name": "f", "arguments": "{\"x\": 1}"}"#, "", &[("f", r#"{"x": 1}"#)], 0);
        // A cut answer keeps what is known.
        check(r#"<tool_call>{"name": "f", "arguments": {"x": "a"#, "", &[("f", r#"{"x": "a"#)], 0);
    }

    #[test]
    fn malformed_calls_stay_text() {
        check("<tool_call>not json</tool_call>", "<tool_call>not json</tool_call>", &[], 1);
        check("a <tool_call>{\"name\": 3}</tool_call> b", "a<tool_call>{\"name\": 3}</tool_call> b", &[], 1);
        check("<tool_call>{\"name\": \"f\"", "<tool_call>{\"name\": \"f\"", &[], 1);
    }
}
