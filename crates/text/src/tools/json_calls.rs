//! Calls that are JSON objects with a name and arguments, one after another or in a list. A [`JsonSyntax`] describes
//! the text around them.

use std::mem;

use serde_json::Value;

use super::{
    CallLimit, CallSyntax, MAX_CALL, TextEnd, ToolEvent, is_callable,
    json_object::{JsonObject, Progress},
    lark::{Callable, FormatRules, one_of, quoted, repeated},
    overlap, push_text, tool_names,
};
use crate::grammar::{GrammarError, json_rule};

/// Parser of calls in JSON.
#[derive(Debug)]
pub(super) struct JsonCalls {
    syntax: JsonSyntax,
    names: Vec<String>,
    /// Text that was not parsed yet.
    held: String,
    /// Text of the current call, starting with its marker. Once the call is whole, the text after its arguments.
    raw: String,
    state: JsonState,
    object: JsonObject,
    /// Set if a marker opened the call.
    is_marked: bool,
    /// Closing text of the frame around the call, if it has one.
    frame_end: Option<&'static str>,
    is_list: bool,
    /// Set if the name precedes the object of arguments.
    is_headed: bool,
    /// Set while only white space was read.
    at_start: bool,
    calls: usize,
}

/// Text around calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct JsonSyntax {
    /// Markers before calls.
    pub(super) opens: &'static [&'static str],
    /// Markers after calls.
    pub(super) closes: &'static [&'static str],
    /// First characters of an answer that consists of calls without a marker.
    pub(super) bare: &'static [char],
    /// Texts around calls without a marker, at the start of an answer.
    pub(super) frames: &'static [(&'static str, &'static str)],
    /// Markers after a name, if it may precede an object of arguments.
    pub(super) heads: Option<HeadMarkers>,
    /// Key of the arguments in the grammar.
    pub(super) key: &'static str,
    /// End of an object after its arguments in the grammar, as a Lark item.
    pub(super) tail: &'static str,
}

/// Markers between the name of a function and its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeadMarkers {
    /// Marker before the id of the call.
    pub(super) id: &'static str,
    /// Marker before the arguments.
    pub(super) arguments: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonState {
    Text,
    /// Before an object or a list.
    Envelope,
    /// In a name before its object.
    Name(HeadMarkers),
    Object,
    /// After an object.
    Between,
}

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Again,
    Wait,
}

impl JsonSyntax {
    /// Creates the syntax of calls that always have a marker.
    pub(super) const fn marked(opens: &'static [&'static str], closes: &'static [&'static str]) -> Self {
        Self { opens, closes, bare: &[], frames: &[], heads: None, key: "arguments", tail: r#""}""# }
    }

    /// Returns the rules of a format: `calls`, which has those of `calls` and `body`, and the rules of their objects.
    pub(super) fn rules(&self, calls: &str, functions: &[Callable<'_>]) -> Result<FormatRules, GrammarError> {
        let object = one_of("object", functions.len());
        let mut rules = format!("{calls}object: {object}\ntail: {}\n", self.tail);
        for (index, function) in functions.iter().enumerate() {
            let head = format!("{{\"name\": \"{}\", \"{}\": ", function.name, self.key);
            rules.push_str(&format!("object_{index}: {} arguments_{index} tail\n", quoted(&head)));
            rules.push_str(&format!("arguments_{index}: {}\n", json_rule(function.parameters)?));
        }
        let bare = self.bare.first().map(|first| format!("[ \\t\\r\\n]*\\{first}(\\n|.)*"));
        Ok(FormatRules { rules, markers: self.opens, bare, head: None })
    }
}

/// Returns the right side of a rule for a list of objects.
pub(super) fn list_rule(limit: CallLimit) -> String {
    format!(r#""[" {} "]""#, repeated("object", ", ", limit))
}

impl JsonCalls {
    pub(super) fn new(syntax: JsonSyntax, tools: &[Value]) -> Self {
        Self {
            syntax,
            names: tool_names(tools),
            held: String::new(),
            raw: String::new(),
            state: JsonState::Text,
            object: JsonObject::default(),
            is_marked: false,
            frame_end: None,
            is_list: false,
            is_headed: false,
            at_start: true,
            calls: 0,
        }
    }

    fn step(&mut self, events: &mut Vec<ToolEvent>) -> Step {
        match self.state {
            JsonState::Text => self.text(events),
            JsonState::Envelope => self.envelope(events),
            JsonState::Name(markers) => self.name(markers, events),
            JsonState::Object => self.object(events),
            JsonState::Between => self.between(),
        }
    }

    /// Reports text up to a call. White space is withheld, since a call may follow.
    fn text(&mut self, events: &mut Vec<ToolEvent>) -> Step {
        let JsonSyntax { opens, bare, frames, .. } = self.syntax;
        let found = opens.iter().filter_map(|open| Some((self.held.find(open)?, open.len()))).min();
        let first = self.held.trim_start();
        if self.at_start && found.is_none_or(|(at, _)| !self.held[..at].trim().is_empty()) {
            let before = self.held.len() - first.len();
            let frame = frames.iter().find(|(open, _)| first.starts_with(open));
            if frame.is_some() || first.starts_with(bare) {
                let length = before + frame.map_or(0, |(open, _)| open.len());
                self.frame_end = frame.map(|(_, end)| *end);
                self.raw = self.held.drain(..length).collect();
                self.open(false);
                return Step::Again;
            }
            if frames.iter().any(|(open, _)| open.starts_with(first)) {
                return Step::Wait;
            }
        }
        let end = found.map_or(self.held.len() - overlap(&self.held, opens), |(at, _)| at);
        let end = self.held[..end].trim_end().len();
        self.at_start &= end == 0;
        push_text(self.held.drain(..end).collect(), events);
        let Some((at, length)) = found else { return Step::Wait };
        self.raw = self.held.drain(..at - end + length).collect();
        self.frame_end = None;
        self.open(true);
        Step::Again
    }

    fn open(&mut self, is_marked: bool) {
        (self.is_marked, self.is_list, self.state) = (is_marked, false, JsonState::Envelope);
        self.is_headed = false;
    }

    /// Moves the first `length` bytes of the held text to the text of the call.
    fn take(&mut self, length: usize) {
        self.raw.extend(self.held.drain(..length));
    }

    fn envelope(&mut self, events: &mut Vec<ToolEvent>) -> Step {
        self.take(self.held.len() - self.held.trim_start().len());
        match self.held.chars().next() {
            None => return Step::Wait,
            Some('{') => {
                self.take(1);
                self.object = JsonObject::default();
                self.state = JsonState::Object;
            }
            Some('[') if !self.is_list => {
                self.take(1);
                self.is_list = true;
            }
            Some(']') if self.is_list => {
                self.take(1);
                self.is_list = false;
                self.state = JsonState::Between;
            }
            Some(c) => match self.syntax.heads {
                Some(markers) if !self.is_list && is_name_char(c) => self.state = JsonState::Name(markers),
                _ => self.fail(events),
            },
        }
        Step::Again
    }

    /// Parses a name, with or without markers after it, and `{…}`.
    fn name(&mut self, markers: HeadMarkers, events: &mut Vec<ToolEvent>) -> Step {
        let Some(brace) = self.held.find('{') else {
            if self.held.len() > MAX_CALL {
                self.fail(events);
                return Step::Again;
            }
            return Step::Wait;
        };
        let head = &self.held[..brace];
        let name = head.split(markers.id).next().unwrap_or(head);
        let name = name.trim().trim_end_matches(markers.arguments).trim().to_owned();
        if !name.chars().all(is_name_char) {
            self.fail(events);
            return Step::Again;
        }
        self.take(brace);
        self.object = JsonObject::default();
        // The name is fed as the start of a JSON object, whose closing brace is fed after the arguments.
        let head = format!("\"name\":{},\"arguments\":", Value::from(name));
        for c in head.chars() {
            self.object.feed(c, events);
        }
        self.state = JsonState::Object;
        self.is_headed = true;
        Step::Again
    }

    fn object(&mut self, events: &mut Vec<ToolEvent>) -> Step {
        let held = mem::take(&mut self.held);
        for (at, c) in held.char_indices() {
            self.raw.push(c);
            let (first, was_whole) = (events.len(), self.object.is_whole());
            let mut progress = self.object.feed(c, events);
            if self.is_headed && progress == Progress::Open && self.object.has_arguments() {
                progress = self.object.feed('}', events);
            }
            // Without a marker, a JSON object is a call only if it names a tool.
            let is_foreign = !self.is_marked
                && !was_whole
                && (self.object.has_other_keys()
                    || self.object.name().is_some_and(|name| !is_callable(name, &self.names)));
            if is_foreign {
                events.truncate(first);
                self.object = JsonObject::default();
                progress = Progress::Bad;
            } else if !was_whole && self.object.is_whole() {
                // The last character of `null` is known from the character after it.
                let after = if "\"}]".contains(c) { 0 } else { c.len_utf8() };
                self.raw.drain(..self.raw.len() - after);
            }
            match progress {
                Progress::Open if self.raw.len() <= MAX_CALL => continue,
                Progress::Complete => self.end_call(),
                Progress::Unclosed => {
                    let end = self.raw[..self.raw.len() - c.len_utf8()].trim_end().len();
                    self.held = self.raw.split_off(end) + &held[at + c.len_utf8()..];
                    events.push(ToolEvent::End);
                    self.end_call();
                    return Step::Again;
                }
                Progress::Open | Progress::Bad => self.fail(events),
            }
            self.held = held[at + c.len_utf8()..].to_owned();
            return Step::Again;
        }
        Step::Wait
    }

    fn end_call(&mut self) {
        self.calls += 1;
        self.raw.clear();
        self.state = JsonState::Between;
    }

    fn between(&mut self) -> Step {
        let rest = self.held.trim_start();
        let space = self.held.len() - rest.len();
        let closes = self.frame_end.as_ref().map_or(self.syntax.closes, std::slice::from_ref);
        if rest.is_empty() {
            return Step::Wait;
        }
        if let Some(close) = closes.iter().find(|close| rest.starts_with(**close)) {
            self.held.drain(..space + close.len());
            self.state = JsonState::Text;
            return Step::Again;
        }
        match rest.chars().next() {
            Some(',') if self.is_list => self.state = JsonState::Envelope,
            Some(']') if self.is_list => self.is_list = false,
            Some(';') if !self.is_list => self.state = JsonState::Envelope,
            Some('{') if self.frame_end.is_some() && !self.is_list => {
                self.state = JsonState::Envelope;
                return Step::Again;
            }
            _ if closes.iter().any(|close| close.starts_with(rest)) => return Step::Wait,
            // The closing marker is missing.
            _ => {
                self.state = JsonState::Text;
                return Step::Again;
            }
        }
        self.held.drain(..=space);
        Step::Again
    }

    /// Ends a malformed call. Its text is reported as malformed, or as plain text if nothing marked it as a call. A call
    /// that is whole stays one, and the text after its arguments is plain text.
    fn fail(&mut self, events: &mut Vec<ToolEvent>) {
        let raw = mem::take(&mut self.raw);
        let is_whole = self.state == JsonState::Object && self.object.is_whole();
        self.state = JsonState::Text;
        self.at_start = false;
        if is_whole {
            self.calls += 1;
            events.push(ToolEvent::End);
            push_text(raw, events);
        } else if self.is_marked || self.object.has_begun() {
            events.push(ToolEvent::Malformed(raw));
        } else {
            push_text(raw, events);
        }
        self.object = JsonObject::default();
    }
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || "_-.".contains(c)
}

impl CallSyntax for JsonCalls {
    fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        self.held.push_str(text);
        while self.step(events) == Step::Again {}
    }

    // The characters of arguments were reported as they came, so nothing is missing if the answer was cut off.
    fn finish(&mut self, end: TextEnd, events: &mut Vec<ToolEvent>) {
        let rest = self.held.len();
        match self.state {
            // The answer was cut off in the closing marker.
            JsonState::Between if end == TextEnd::Cut => {}
            JsonState::Text | JsonState::Between if self.calls > 0 && self.held.trim().is_empty() => {}
            JsonState::Text | JsonState::Between => push_text(mem::take(&mut self.held), events),
            // Only the end of the object is missing, or the answer was cut off in its other keys.
            JsonState::Object if self.object.is_whole() && (self.object.may_end() || end == TextEnd::Cut) => {
                events.push(ToolEvent::End);
                self.end_call();
            }
            JsonState::Envelope | JsonState::Name(_) | JsonState::Object => {
                self.take(rest);
                self.fail(events);
            }
        }
    }
}
