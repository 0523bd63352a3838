//! Calls that are JSON objects with a name and arguments, one after another or in a list. A [`JsonSyntax`] describes
//! the text around them.

use std::mem;

use serde_json::Value;

use super::{
    CallKind, CallLimit, CallSyntax, MAX_CALL, ParserContext, TextEnd, ToolEvent, finish_text, is_callable,
    json_object::{JsonObject, Progress},
    lark::{BareRules, Callable, FormatRules, SPACE, names, one_of, quoted, regex, repeated},
    name_head::{Head, HeadMarkers, is_name_char},
    overlap, push_text, tool_names,
};
use crate::grammar::{GrammarError, json_rule};

/// Parser of calls in JSON.
#[derive(Debug)]
pub(super) struct JsonCalls {
    syntax: JsonSyntax,
    names: Vec<String>,
    /// Set if only tokens of markers begin marked calls.
    has_tokens: bool,
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
    /// Set if an answer may consist of calls without a marker: an object or a list.
    pub(super) is_bare: bool,
    /// Set if more than one object without a marker may follow another, outside of a list and without a separator.
    pub(super) repeats: bool,
    /// Texts around calls without a marker, at the start of an answer. The second may be empty.
    pub(super) frames: &'static [(&'static str, &'static str)],
    /// Markers after a name, if it may precede an object of arguments.
    pub(super) heads: Option<HeadMarkers>,
    /// Text between objects without a marker, outside of a list.
    pub(super) separator: Option<char>,
    /// Key of the arguments in the grammar.
    pub(super) key: &'static str,
    /// End of an object after its arguments in the grammar, as a Lark item.
    pub(super) tail: &'static str,
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
        Self {
            opens,
            closes,
            is_bare: false,
            repeats: false,
            frames: &[],
            heads: None,
            separator: None,
            key: "arguments",
            tail: r#""}""#,
        }
    }

    /// Creates the parser of an answer; `None` if the syntax has no calls of the kind.
    pub(super) fn parser(self, context: &ParserContext<'_>) -> Option<Box<dyn CallSyntax + Send>> {
        let syntax = match context.calls {
            CallKind::OfGrammar => self,
            CallKind::Marked => Self { is_bare: false, frames: &[], ..self },
            CallKind::Bare if self.is_bare || !self.frames.is_empty() => Self { opens: &[], ..self },
            CallKind::Bare => return None,
        };
        Some(Box::new(JsonCalls::new(syntax, context)))
    }

    /// Returns the rules of a format: `calls`, which has those of `calls` and `body`, and the rules of their objects.
    pub(super) fn rules(
        &self,
        calls: &str,
        functions: &[Callable<'_>],
        limit: CallLimit,
    ) -> Result<FormatRules, GrammarError> {
        let count = functions.len();
        let mut rules = format!("{calls}object: opened tail\nopened: {}\n", one_of("opened", count));
        rules.push_str(&format!("tail: {}\n", self.tail));
        for (index, function) in functions.iter().enumerate() {
            let head = format!("{{\"name\": \"{}\", \"{}\": ", function.name, self.key);
            rules.push_str(&format!("opened_{index}: {} arguments_{index}\n", quoted(&head)));
            rules.push_str(&format!("arguments_{index}: {}\n", json_rule(function.parameters)?));
        }
        let bare = (self.is_bare || !self.frames.is_empty()).then(|| self.bare_rules(functions, limit));
        Ok(FormatRules { rules, markers: self.opens, bare, head: None, text: None })
    }

    /// Returns the rules of calls without a marker, with any spacing. The text up to the arguments is one lexeme, so that
    /// the lexer can distinguish a call from text.
    fn bare_rules(&self, functions: &[Callable<'_>], limit: CallLimit) -> BareRules {
        let frames: Vec<String> = self.frames.iter().map(|(open, _)| regex(open) + SPACE).collect();
        let frame = match (frames.is_empty(), self.is_bare) {
            (true, _) => String::new(),
            (false, true) => format!("({})?", frames.join("|")),
            (false, false) => format!("({})", frames.join("|")),
        };
        let head = |list: &str, name: &str| {
            let key = format!("{SPACE}\"name\"{SPACE}:{SPACE}\"{name}\"{SPACE},");
            format!("{SPACE}{frame}{list}\\{{{key}{SPACE}\"(arguments|parameters)\"{SPACE}:")
        };
        let ends = self.frames.iter().map(|(_, end)| end).chain(self.closes).filter(|end| !end.is_empty());
        let ends: Vec<String> = ends.map(|end| regex(end)).collect();
        let end = if ends.is_empty() { String::new() } else { format!("({})?{SPACE}", ends.join("|")) };
        let brace = format!("{SPACE}\\}}{SPACE}");

        let count = functions.len();
        let more = |separator: Option<char>| {
            let separator = separator.map_or_else(String::new, |c| regex(&c.to_string()) + SPACE);
            format!("(/{brace}{separator}/ opened)*")
        };
        let (more_objects, more_items) = match limit {
            CallLimit::One => (String::new(), String::new()),
            CallLimit::Any if self.repeats || self.separator.is_some() => {
                (more(self.separator), more(Some(',')))
            }
            CallLimit::Any => (String::new(), more(Some(','))),
        };
        let mut rules = format!(
            "bare: bare_object {more_objects} /{brace}{end}/ | bare_list {more_items} /{brace}\\]{SPACE}{end}/\n\
             bare_object: {}\nbare_list: {}\n",
            one_of("bare_object", count),
            one_of("bare_list", count),
        );
        let list = format!("\\[{SPACE}");
        for (index, function) in functions.iter().enumerate() {
            let name = regex(function.name);
            for (rule, list) in [("bare_object", ""), ("bare_list", list.as_str())] {
                let head = head(list, &name);
                rules.push_str(&format!("{rule}_{index}: /{head}{SPACE}/ arguments_{index}\n"));
            }
        }
        BareRules { begin: head(&format!("({list})?"), &names(functions)), rules }
    }
}

/// Returns the right side of a rule for a list of objects.
pub(super) fn list_rule(limit: CallLimit) -> String {
    format!(r#""[" {} "]""#, repeated("object", ", ", limit))
}

impl JsonCalls {
    fn new(syntax: JsonSyntax, context: &ParserContext<'_>) -> Self {
        Self {
            syntax,
            names: tool_names(context.tools),
            has_tokens: context.has_tokens,
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

    /// Returns the markers that begin a call as text.
    fn opens(&self) -> &'static [&'static str] {
        if self.has_tokens { &[] } else { self.syntax.opens }
    }

    /// Reports text up to a call. White space is withheld, since a call may follow.
    fn text(&mut self, events: &mut Vec<ToolEvent>) -> Step {
        let JsonSyntax { is_bare, repeats, frames, .. } = self.syntax;
        let is_bare = is_bare && (repeats || self.calls == 0);
        let opens = self.opens();
        let marker = opens.iter().filter_map(|open| Some((self.held.find(open)?, open.len()))).min();
        let first = self.held.trim_start();
        if self.at_start && marker.is_none_or(|(at, _)| !self.held[..at].trim().is_empty()) {
            let before = self.held.len() - first.len();
            let frame = frames.iter().find(|(open, _)| first.starts_with(open));
            if frame.is_some() || is_bare && first.starts_with(['{', '[']) {
                let length = before + frame.map_or(0, |(open, _)| open.len());
                self.frame_end = frame.map(|(_, end)| *end).filter(|end| !end.is_empty());
                self.raw = self.held.drain(..length).collect();
                self.open(false);
                return Step::Again;
            }
            if frames.iter().any(|(open, _)| open.starts_with(first)) {
                return Step::Wait;
            }
        }

        let end = marker.map_or(self.held.len() - overlap(&self.held, opens), |(at, _)| at);
        let end = self.held[..end].trim_end().len();
        self.at_start &= end == 0;
        push_text(self.held.drain(..end).collect(), events);
        let Some((at, length)) = marker else { return Step::Wait };
        self.raw = self.held.drain(..at - end + length).collect();
        self.open(true);
        Step::Again
    }

    fn open(&mut self, is_marked: bool) {
        if is_marked {
            self.frame_end = None;
        }
        self.is_marked = is_marked;
        self.is_list = false;
        self.is_headed = false;
        self.state = JsonState::Envelope;
    }

    /// Opens a call after the token of a marker. A call that is open ends.
    fn open_after_token(&mut self, events: &mut Vec<ToolEvent>) {
        match self.state {
            JsonState::Text => {}
            JsonState::Between => self.state = JsonState::Text,
            JsonState::Object if self.object.is_whole() => {
                events.push(ToolEvent::End);
                self.end_call();
                self.state = JsonState::Text;
            }
            JsonState::Envelope | JsonState::Name(_) | JsonState::Object => self.fail(events),
        }
        self.text(events);
        self.raw = mem::take(&mut self.held);
        self.open(true);
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

    /// Parses a name, with or without markers after it, up to `{`.
    fn name(&mut self, markers: HeadMarkers, events: &mut Vec<ToolEvent>) -> Step {
        let (name, length) = match markers.head(&self.held) {
            Head::Name { name, length } => (name.to_owned(), length),
            Head::Wait => return Step::Wait,
            Head::Other => {
                self.fail(events);
                return Step::Again;
            }
        };
        self.take(length);
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
            let first = events.len();
            let was_whole = self.object.is_whole();
            let mut progress = self.object.feed(c, events);
            if self.is_headed && progress == Progress::Open && self.object.has_arguments() {
                progress = self.object.feed('}', events);
            }
            // Without a marker, a JSON object is a call only if it names a tool; also after a marker that is only text, which a
            // model may quote.
            let is_other = self.object.name().is_some_and(|name| !is_callable(name, &self.names));
            let is_foreign = !was_whole
                && (!self.is_marked && self.object.has_other_keys()
                    || !(self.is_marked && self.has_tokens) && is_other);
            if is_foreign {
                events.truncate(first);
                self.object = JsonObject::default();
                self.is_marked = false;
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
        if rest.is_empty() {
            return Step::Wait;
        }
        let closes: Vec<&str> = match self.frame_end {
            Some(end) => vec![end],
            None if self.is_marked => self.syntax.closes.to_vec(),
            // The closing text of a frame may come without the opening one.
            None => {
                let ends = self.syntax.frames.iter().map(|(_, end)| *end).filter(|end| !end.is_empty());
                self.syntax.closes.iter().copied().chain(ends).collect()
            }
        };
        if let Some(close) = closes.iter().find(|close| rest.starts_with(**close)) {
            self.held.drain(..space + close.len());
            self.state = JsonState::Text;
            return Step::Again;
        }

        match rest.chars().next() {
            Some(',') if self.is_list => self.state = JsonState::Envelope,
            Some(']') if self.is_list => self.is_list = false,
            Some(c) if !self.is_list && self.syntax.separator == Some(c) => self.state = JsonState::Envelope,
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

impl CallSyntax for JsonCalls {
    fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        self.held.push_str(text);
        while self.step(events) == Step::Again {}
    }

    fn push_marker(&mut self, marker: &str, events: &mut Vec<ToolEvent>) {
        let in_call = match self.state {
            JsonState::Text => false,
            JsonState::Envelope => self.is_list,
            JsonState::Object => self.object.in_string() || self.object.is_whole(),
            JsonState::Name(_) | JsonState::Between => true,
        };
        if self.syntax.opens.contains(&marker) && !self.object.in_string() {
            self.open_after_token(events);
        } else if in_call {
            self.push(marker, events);
        } else if self.state != JsonState::Text {
            self.fail(events);
        }
    }

    // The characters of arguments were reported as they came, so nothing is missing if the answer was cut off.
    fn finish(&mut self, end: TextEnd, events: &mut Vec<ToolEvent>) {
        let rest = self.held.len();
        match self.state {
            // The answer was cut off in the closing marker.
            JsonState::Between if end == TextEnd::Cut => {}
            JsonState::Text | JsonState::Between if self.calls > 0 && self.held.trim().is_empty() => {}
            JsonState::Text | JsonState::Between => {
                finish_text(mem::take(&mut self.held), self.opens(), end, events);
            }
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
