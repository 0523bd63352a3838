//! A tool call as a JSON object, parsed character by character.

use serde::de::IgnoredAny;
use serde_json::Value;

use super::{MAX_CALL, MAX_NAME, ToolEvent, push_arguments};

/// Maximum number of bytes of a name as a JSON string, whose characters may be escapes.
const MAX_NAME_VALUE: usize = 2 + 6 * MAX_NAME;

/// Parser of one object with the name and the arguments of a call.
#[derive(Debug, Default)]
pub(super) struct JsonObject {
    place: ObjectPosition,
    /// Number of open objects and arrays in the value.
    depth: usize,
    in_string: bool,
    escaped: bool,
    key: String,
    value: String,
    name: Option<String>,
    id: Option<String>,
    /// Arguments that came before the name.
    early: Option<String>,
    has_begun: bool,
    /// Set once the arguments are complete and valid.
    has_arguments: bool,
    has_other_keys: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ObjectPosition {
    /// Before a key or the end.
    #[default]
    Key,
    InKey,
    Colon,
    Value,
    InValue,
    /// Before a comma or the end.
    Comma,
}

/// State after a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// More of the object follows.
    Open,
    /// The object is complete.
    Complete,
    /// The call is whole, but the object's closing brace is missing before the character.
    Unclosed,
    /// The text is not a call.
    Bad,
}

impl JsonObject {
    /// Returns true if the call was reported.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Returns true if the arguments are complete.
    pub(super) fn has_arguments(&self) -> bool {
        self.has_arguments
    }

    /// Returns true if the call was reported with all of its arguments.
    pub(super) fn is_whole(&self) -> bool {
        self.has_begun && self.has_arguments
    }

    /// Returns true in a key or in a string of a value.
    pub(super) fn in_string(&self) -> bool {
        match self.place {
            ObjectPosition::InKey => true,
            ObjectPosition::InValue => self.in_string,
            _ => false,
        }
    }

    /// Returns true if only the closing brace is missing.
    pub(super) fn may_end(&self) -> bool {
        self.place == ObjectPosition::Comma
    }

    /// Returns true if the object has keys that do not belong to a call.
    pub(super) fn has_other_keys(&self) -> bool {
        self.has_other_keys
    }

    /// Takes a character after the opening brace.
    pub(super) fn feed(&mut self, c: char, events: &mut Vec<ToolEvent>) -> Progress {
        match (self.place, c) {
            (
                ObjectPosition::Key | ObjectPosition::Colon | ObjectPosition::Value | ObjectPosition::Comma,
                _,
            ) if c.is_whitespace() => {}
            (ObjectPosition::Key, '"') => {
                self.key.clear();
                self.place = ObjectPosition::InKey;
            }
            (ObjectPosition::Key | ObjectPosition::Comma, '}') => return self.end(events),
            (ObjectPosition::InKey, '"') if !self.escaped => self.place = ObjectPosition::Colon,
            (ObjectPosition::InKey, _) => {
                self.escaped = c == '\\' && !self.escaped;
                self.key.push(c);
                return if self.key.len() > MAX_NAME { Progress::Bad } else { Progress::Open };
            }

            (ObjectPosition::Colon, ':') => {
                self.has_other_keys |= !matches!(
                    self.key.as_str(),
                    "name" | "function" | "id" | "type" | "arguments" | "parameters"
                );
                self.place = ObjectPosition::Value;
            }
            (ObjectPosition::Comma, ',') => self.place = ObjectPosition::Key,
            (ObjectPosition::Value, _) => {
                self.value.clear();
                (self.depth, self.in_string, self.escaped) = (0, false, false);
                self.place = ObjectPosition::InValue;
                return self.value_char(c, events);
            }
            (ObjectPosition::InValue, _) => return self.value_char(c, events),
            (ObjectPosition::Comma, _) if self.is_whole() => return Progress::Unclosed,
            _ => return Progress::Bad,
        }
        Progress::Open
    }

    fn is_arguments(&self) -> bool {
        matches!(self.key.as_str(), "arguments" | "parameters")
    }

    /// Returns true if the value is reported while it is parsed.
    fn streams(&self) -> bool {
        self.is_arguments() && !self.has_arguments && self.name.is_some() && self.value.starts_with('{')
    }

    fn value_char(&mut self, c: char, events: &mut Vec<ToolEvent>) -> Progress {
        if !self.in_string
            && self.depth == 0
            && !self.value.is_empty()
            && (c.is_whitespace() || ",}".contains(c))
        {
            if self.end_value(events) == Progress::Bad {
                return Progress::Bad;
            }
            return self.feed(c, events);
        }
        self.value.push(c);
        if !self.may_continue() {
            return Progress::Bad;
        }

        if self.in_string {
            self.in_string = c != '"' || self.escaped;
            self.escaped = c == '\\' && !self.escaped;
        } else {
            match c {
                '"' => self.in_string = true,
                '{' | '[' => self.depth += 1,
                '}' | ']' if self.depth == 0 => return Progress::Bad,
                '}' | ']' => self.depth -= 1,
                _ => {}
            }
        }
        if self.streams() {
            self.begin(events);
            push_arguments(c.encode_utf8(&mut [0; 4]), events);
        }
        let ends = !self.in_string && self.depth == 0 && matches!(c, '"' | '}' | ']');
        if ends { self.end_value(events) } else { Progress::Open }
    }

    /// Returns true if the value so far may be one of its key.
    fn may_continue(&self) -> bool {
        match self.key.as_str() {
            "name" | "function" => self.value.starts_with('"') && self.value.len() <= MAX_NAME_VALUE,
            // A string may have the text of an object.
            "arguments" | "parameters" => {
                let text = self.value.strip_prefix('"').unwrap_or_default();
                let may_be_object =
                    text.chars().next().is_none_or(|c| c.is_whitespace() || "{\\\"".contains(c));
                self.value.len() <= MAX_CALL && may_be_object
            }
            _ => self.value.len() <= MAX_CALL,
        }
    }

    fn begin(&mut self, events: &mut Vec<ToolEvent>) {
        if !self.has_begun {
            self.has_begun = true;
            let name = self.name.clone().unwrap_or_default();
            events.push(ToolEvent::Begin { name, id: self.id.take() });
        }
    }

    /// Returns the value if it is a string.
    fn value_text(&self) -> Option<String> {
        serde_json::from_str(&self.value).ok()
    }

    fn end_value(&mut self, events: &mut Vec<ToolEvent>) -> Progress {
        self.place = ObjectPosition::Comma;
        match self.key.as_str() {
            "name" | "function" if self.name.is_none() => match self.value_text() {
                Some(name) if (1..=MAX_NAME).contains(&name.len()) => self.name = Some(name),
                _ => return Progress::Bad,
            },
            "id" => self.id = self.value_text(),
            "arguments" | "parameters" if !self.has_arguments => {
                let Some(arguments) = object_text(&self.value) else { return Progress::Bad };
                if !self.streams() {
                    self.early = Some(arguments);
                }
                self.has_arguments = true;
            }
            _ if serde_json::from_str::<IgnoredAny>(&self.value).is_err() => return Progress::Bad,
            _ => {}
        }
        if self.name.is_some()
            && let Some(early) = self.early.take()
        {
            self.begin(events);
            push_arguments(&early, events);
        }
        Progress::Open
    }

    fn end(&mut self, events: &mut Vec<ToolEvent>) -> Progress {
        if self.name.is_none() {
            return Progress::Bad;
        }
        self.begin(events);
        if !self.has_arguments {
            push_arguments("{}", events);
        }
        events.push(ToolEvent::End);
        Progress::Complete
    }

    /// Returns the name, once it is known.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// Returns the arguments as the text of an object: an empty one for `null`, the parsed content for a string.
fn object_text(value: &str) -> Option<String> {
    match serde_json::from_str(value).ok()? {
        Value::Null => Some("{}".to_owned()),
        Value::Object(_) => Some(value.to_owned()),
        Value::String(text) => matches!(serde_json::from_str(&text), Ok(Value::Object(_))).then_some(text),
        _ => None,
    }
}
