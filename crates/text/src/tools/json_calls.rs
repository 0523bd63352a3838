//! Formats whose calls are JSON objects with a name and arguments, one after another or in a list.

use std::mem;

use narthex_spec::ToolFormat;

use super::{
    CallLimit, CallReading, CallSyntax, MAX_CALL, TextEnd, ToolEvent, is_callable,
    json_object::{JsonObject, Progress},
    lark::{Callable, FormatRules, Markers, one_of, quoted, repeated},
    overlap, push_text,
};
use crate::grammar::{GrammarError, json_rule};

/// Parser of calls in JSON.
#[derive(Debug)]
pub(super) struct JsonCalls {
    syntax: JsonSyntax,
    names: Vec<String>,
    /// Text that was not parsed yet.
    held: String,
    /// Text of the current call, from its marker on.
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

/// Markers around calls.
#[derive(Debug, Clone, Copy)]
struct JsonSyntax {
    opens: &'static [&'static str],
    closes: &'static [&'static str],
    /// First characters of an answer that consists of calls without a marker.
    bare: &'static [char],
    /// Texts around calls without a marker, at the start of an answer.
    frames: &'static [(&'static str, &'static str)],
    /// Set if a name may precede an object of arguments.
    has_heads: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonState {
    Text,
    /// Before an object or a list.
    Envelope,
    /// In a name before its object, as newer models of Mistral write it.
    Name,
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

/// Frames that Qwen2.5-Coder writes instead of the markers of Hermes.
const HERMES_FRAMES: &[(&str, &str)] = &[("```json", "```"), ("<tools>", "</tools>")];

fn syntax(format: ToolFormat, reading: CallReading) -> JsonSyntax {
    let plain = JsonSyntax {
        opens: &["<tool_call>"],
        closes: &["</tool_call>"],
        bare: &[],
        frames: &[],
        has_heads: false,
    };
    match format {
        ToolFormat::Hermes if reading == CallReading::Lenient => {
            JsonSyntax { bare: &['{'], frames: HERMES_FRAMES, ..plain }
        }
        ToolFormat::LlamaJson => {
            JsonSyntax { opens: &["<|python_tag|>"], closes: &[], bare: &['{'], ..plain }
        }
        ToolFormat::Phi4Mini => JsonSyntax {
            opens: &["<|tool_call|>", "functools"],
            closes: &["<|/tool_call|>"],
            bare: &['['],
            ..plain
        },
        ToolFormat::Mistral => JsonSyntax { opens: &["[TOOL_CALLS]"], closes: &[], has_heads: true, ..plain },
        ToolFormat::Granite => {
            JsonSyntax { opens: &["<|tool_call|>", "<tool_call>"], closes: &["</tool_call>"], ..plain }
        }
        _ => plain,
    }
}

/// Returns the rules of calls.
pub(super) fn rules(
    format: ToolFormat,
    functions: &[Callable<'_>],
    limit: CallLimit,
    markers: &Markers<'_>,
) -> Result<FormatRules, GrammarError> {
    let JsonSyntax { opens, closes, bare, .. } = syntax(format, CallReading::Exact);
    let open = opens.first().map_or_else(String::new, |open| markers.item(open));
    let close = closes.first().map_or_else(String::new, |close| markers.item(close));
    let list = format!(r#""[" {} "]""#, repeated("object", ", ", limit));
    let head_end = markers.token("[ARGS]").filter(|_| format == ToolFormat::Mistral);
    let mut rules = match (format, &head_end) {
        (ToolFormat::LlamaJson, _) => format!("calls: {}\nbody: calls\n", repeated("object", "; ", limit)),
        (ToolFormat::Mistral, Some(_)) => {
            let (calls, heads) = (repeated("call", "", limit), one_of("headed", functions.len()));
            format!("calls: {calls}\ncall: {open} headed\nheaded: {heads}\nbody: headed | {list}\n")
        }
        (ToolFormat::Mistral, None) => format!("calls: {open} body\nbody: \" \"? {list}\n"),
        (ToolFormat::Phi4Mini, _) => format!("calls: {open} body\nbody: {list} {close}\n"),
        // Of the two opening markers, only one has a closing marker.
        (ToolFormat::Granite, _) => format!("calls: {open} body\nbody: {list}\n"),
        _ => {
            let calls = repeated("call", "\n", limit);
            format!("calls: {calls}\ncall: {open} body\nbody: \"\\n\" object \"\\n\" {close}\n")
        }
    };
    let key = if format == ToolFormat::LlamaJson { "parameters" } else { "arguments" };
    let tail = match format {
        ToolFormat::Mistral => r#""}" | ", \"id\": \"" /[a-zA-Z0-9]{9}/ "\"}""#,
        _ => r#""}""#,
    };
    rules.push_str(&format!("object: {}\ntail: {tail}\n", one_of("object", functions.len())));
    for (index, function) in functions.iter().enumerate() {
        let head = format!("{{\"name\": \"{}\", \"{key}\": ", function.name);
        rules.push_str(&format!("object_{index}: {} arguments_{index} tail\n", quoted(&head)));
        rules.push_str(&format!("arguments_{index}: {}\n", json_rule(function.parameters)?));
        if let Some(end) = &head_end {
            rules.push_str(&format!("headed_{index}: {} {end} arguments_{index}\n", quoted(function.name)));
        }
    }
    let first = bare.first().map(|first| format!("[ \\t\\r\\n]*\\{first}(\\n|.)*"));
    let head = Some(open).filter(|_| format == ToolFormat::LlamaJson);
    Ok(FormatRules { rules, markers: opens, bare: first, head })
}

impl JsonCalls {
    pub(super) fn new(format: ToolFormat, names: Vec<String>, reading: CallReading) -> Self {
        Self {
            syntax: syntax(format, reading),
            names,
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
            JsonState::Name => self.name(events),
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
            Some(c) if self.syntax.has_heads && !self.is_list && is_name_char(c) => {
                self.state = JsonState::Name
            }
            Some(_) => self.fail(events),
        }
        Step::Again
    }

    /// Parses `name[ARGS]{…}` or `name{…}`.
    fn name(&mut self, events: &mut Vec<ToolEvent>) -> Step {
        let Some(brace) = self.held.find('{') else {
            if self.held.len() > MAX_CALL {
                self.fail(events);
                return Step::Again;
            }
            return Step::Wait;
        };
        let head = &self.held[..brace];
        let name = head.split("[CALL_ID]").next().unwrap_or(head);
        let name = name.trim().trim_end_matches("[ARGS]").trim().to_owned();
        if !name.chars().all(is_name_char) {
            self.fail(events);
            return Step::Again;
        }
        self.take(brace);
        self.object = JsonObject::default();
        // The name is fed as the start of a JSON object, whose closing brace is fed after the arguments.
        let head = format!("\"name\":{},\"arguments\":", serde_json::Value::from(name));
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
            let mut progress = self.object.feed(c, events);
            if self.is_headed && progress == Progress::Open && self.object.has_arguments() {
                progress = self.object.feed('}', events);
            }
            // Without a marker, a JSON object is a call only if it names a tool.
            let is_foreign = !self.is_marked
                && (self.object.has_other_keys()
                    || self.object.name().is_some_and(|name| !is_callable(name, &self.names)));
            if is_foreign {
                events.truncate(first);
                progress = Progress::Bad;
            }
            match progress {
                Progress::Open if self.raw.len() <= MAX_CALL => continue,
                Progress::Complete => {
                    self.calls += 1;
                    self.raw.clear();
                    self.state = JsonState::Between;
                }
                Progress::Open | Progress::Bad => self.fail(events),
            }
            self.held = held[at + c.len_utf8()..].to_owned();
            return Step::Again;
        }
        Step::Wait
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

    /// Ends a malformed call. Its text is reported as malformed, or as plain text if nothing marked it as a call.
    fn fail(&mut self, events: &mut Vec<ToolEvent>) {
        let raw = mem::take(&mut self.raw);
        self.state = JsonState::Text;
        self.at_start = false;
        if self.is_marked || self.object.has_begun() {
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
    fn finish(&mut self, _: TextEnd, events: &mut Vec<ToolEvent>) {
        let rest = self.held.len();
        match self.state {
            JsonState::Text | JsonState::Between if self.calls > 0 && self.held.trim().is_empty() => {}
            JsonState::Text | JsonState::Between => push_text(mem::take(&mut self.held), events),
            JsonState::Envelope | JsonState::Name | JsonState::Object => {
                self.take(rest);
                self.fail(events);
            }
        }
    }
}
