//! Qwen3 Coder's calls: tags for the function and for each parameter, whose values are plain text.

use std::{collections::HashMap, mem};

use serde_json::Value;

use super::{CallSyntax, MAX_CALL, ToolEvent, literal, overlap, push_arguments, push_text};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const END_FUNCTION: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "\n</parameter>";

/// Reads calls in tags.
#[derive(Debug)]
pub(super) struct QwenCoderCalls {
    /// Declared types of parameters, by function and parameter.
    types: HashMap<(String, String), String>,
    held: String,
    raw: String,
    state: TagState,
    function: String,
    is_first: bool,
    calls: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TagState {
    Text,
    /// Before `<function=NAME>`.
    Function,
    /// Before a parameter or the end.
    Parameter,
    /// Before `</tool_call>`.
    End,
}

impl QwenCoderCalls {
    pub(super) fn new(tools: &[Value]) -> Self {
        let mut types = HashMap::new();
        for function in tools.iter().map(|tool| &tool["function"]) {
            let Some(name) = function["name"].as_str() else { continue };
            for (key, field) in function["parameters"]["properties"].as_object().into_iter().flatten() {
                if let Some(kind) = field["type"].as_str() {
                    types.insert((name.to_owned(), key.clone()), kind.to_owned());
                }
            }
        }
        let (held, raw, function) = (String::new(), String::new(), String::new());
        Self { types, held, raw, state: TagState::Text, function, is_first: true, calls: 0 }
    }

    fn take(&mut self, length: usize) {
        self.raw.extend(self.held.drain(..length));
    }

    /// Reads the next element. Returns false if it needs more text.
    fn step(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        if self.state == TagState::Text {
            return self.text(events);
        }
        self.take(self.held.len() - self.held.trim_start().len());
        if self.raw.len() + self.held.len() > MAX_CALL {
            return self.fail(events);
        }
        match self.state {
            TagState::Text => false,
            TagState::Function => match tag(&self.held, FUNCTION) {
                Tag::Named(name, length) => {
                    self.take(length);
                    events.push(ToolEvent::Begin { name: name.clone(), id: None });
                    (self.function, self.is_first, self.state) = (name, true, TagState::Parameter);
                    true
                }
                Tag::Wait => false,
                Tag::Other => self.fail(events),
            },
            TagState::Parameter => self.parameter(events),
            TagState::End => {
                if let Some(rest) = self.held.strip_prefix(CLOSE) {
                    self.held = rest.to_owned();
                } else if overlap(&self.held, &[CLOSE]) == self.held.len() {
                    return false;
                }
                self.raw.clear();
                self.state = TagState::Text;
                true
            }
        }
    }

    fn text(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        let found = self.held.find(OPEN);
        let end = found.unwrap_or(self.held.len() - overlap(&self.held, &[OPEN]));
        let end = self.held[..end].trim_end().len();
        push_text(self.held.drain(..end).collect(), events);
        let Some(at) = found else { return false };
        self.raw = self.held.drain(..at - end + OPEN.len()).collect();
        self.state = TagState::Function;
        true
    }

    fn parameter(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        if self.held.starts_with(END_FUNCTION) {
            self.take(END_FUNCTION.len());
            push_arguments(if self.is_first { "{}" } else { "}" }, events);
            events.push(ToolEvent::End);
            self.calls += 1;
            self.state = TagState::End;
            return true;
        }
        match tag(&self.held, PARAMETER) {
            Tag::Named(key, length) => {
                let after = &self.held[length..];
                let Some(end) = after.find(END_PARAMETER) else { return false };
                let text = after[..end].strip_prefix('\n').unwrap_or(&after[..end]);
                let value = self.value(&key, text);
                let open = if self.is_first { "{" } else { ", " };
                push_arguments(&format!("{open}{}: {value}", Value::from(key)), events);
                self.is_first = false;
                self.take(length + end + END_PARAMETER.len());
                true
            }
            Tag::Wait => false,
            Tag::Other if overlap(&self.held, &[END_FUNCTION]) == self.held.len() => false,
            Tag::Other => self.fail(events),
        }
    }

    /// Returns a parameter's value, of the declared type where the text has it.
    fn value(&self, key: &str, text: &str) -> Value {
        let kind = self.types.get(&(self.function.clone(), key.to_owned())).map(String::as_str);
        if kind == Some("string") {
            return Value::from(text);
        }
        let json = serde_json::from_str(text).ok();
        json.or_else(|| literal::parse(text))
            .filter(|value| kind.is_some() || !value.is_string())
            .unwrap_or_else(|| text.into())
    }

    fn fail(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        events.push(ToolEvent::Malformed(mem::take(&mut self.raw)));
        self.state = TagState::Text;
        true
    }
}

/// A tag such as `<function=NAME>` at the beginning of a text.
enum Tag {
    /// Name and length.
    Named(String, usize),
    Wait,
    Other,
}

fn tag(text: &str, open: &str) -> Tag {
    let Some(rest) = text.strip_prefix(open) else {
        return if open.starts_with(text) { Tag::Wait } else { Tag::Other };
    };
    match rest.find(['>', '\n']) {
        Some(end) if rest[end..].starts_with('>') && end > 0 => {
            Tag::Named(rest[..end].to_owned(), open.len() + end + 1)
        }
        Some(_) => Tag::Other,
        None => Tag::Wait,
    }
}

impl CallSyntax for QwenCoderCalls {
    fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        self.held.push_str(text);
        while self.step(events) {}
    }

    fn finish(&mut self, events: &mut Vec<ToolEvent>) {
        self.take(self.held.len());
        let rest = mem::take(&mut self.raw);
        match self.state {
            TagState::Text | TagState::End if self.calls > 0 && rest.trim().is_empty() => {}
            TagState::Text => push_text(rest, events),
            TagState::End => {}
            TagState::Function | TagState::Parameter => events.push(ToolEvent::Malformed(rest)),
        }
    }
}
