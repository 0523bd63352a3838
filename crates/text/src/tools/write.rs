//! Values and calls as text, for templates that cannot render them. `formats` arranges them in the format of a model.

use std::fmt::Write as _;

use serde_json::Value;

use crate::{
    exact_json::{ExactContent, ExactJson, ExactPart},
    template::{FunctionCall, Message},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notation {
    /// JSON with a space after `:` and `,`, as templates and models write it.
    Json,
    /// A literal of Python.
    Python,
}

/// Returns calls as text, with a separator between them.
pub(super) fn joined(
    calls: &[FunctionCall],
    separator: &str,
    write: impl Fn(&FunctionCall) -> String,
) -> String {
    calls.iter().map(write).collect::<Vec<_>>().join(separator)
}

/// Returns a call as a JSON object. `key` is that of the arguments.
pub(super) fn object(call: &FunctionCall, key: &str) -> String {
    format!("{{\"name\": {}, \"{key}\": {}}}", Value::from(&*call.name), json_text(&call.arguments))
}

/// Returns calls as a list of JSON objects.
pub(super) fn list(calls: &[FunctionCall]) -> String {
    format!("[{}]", joined(calls, ", ", |call| object(call, "arguments")))
}

/// Appends calls to a message, each between two markers.
pub(super) fn write_marked(
    calls: &[FunctionCall],
    message: &mut Message,
    [open, close]: [&str; 2],
    write: impl Fn(&FunctionCall) -> String,
) {
    for (index, call) in calls.iter().enumerate() {
        if index > 0 {
            message.content.push_str("\n");
        }
        message.content.push_marker(open);
        message.content.push_str(&write(call));
        message.content.push_marker(close);
    }
}

/// Returns a value as JSON with a space after `:` and `,`.
pub fn json_text(value: &ExactJson) -> String {
    part_text(value.tree().root())
}

/// Returns a part of a value as JSON with a space after `:` and `,`.
pub(super) fn part_text(part: ExactPart<'_>) -> String {
    let mut text = String::new();
    write(part, Notation::Json, &mut text);
    text
}

/// Returns a part of a value as a literal of Python.
pub(super) fn python_text(part: ExactPart<'_>) -> String {
    let mut text = String::new();
    write(part, Notation::Python, &mut text);
    text
}

/// Writes a value. The recursion is limited by the depth that `serde_json` reads.
fn write(part: ExactPart<'_>, notation: Notation, text: &mut String) {
    let is_python = notation == Notation::Python;
    match part.content() {
        ExactContent::Other(Value::Null) if is_python => text.push_str("None"),
        ExactContent::Other(Value::Bool(true)) if is_python => text.push_str("True"),
        ExactContent::Other(Value::Bool(false)) if is_python => text.push_str("False"),
        ExactContent::List(items) => {
            text.push('[');
            for (index, item) in items.into_iter().enumerate() {
                text.push_str(if index > 0 { ", " } else { "" });
                write(item, notation, text);
            }
            text.push(']');
        }

        ExactContent::Object(fields) => {
            text.push('{');
            for (index, (key, value)) in fields.into_iter().enumerate() {
                let separator = if index > 0 { ", " } else { "" };
                let _ = write!(text, "{separator}{}: ", Value::from(key));
                write(value, notation, text);
            }
            text.push('}');
        }
        ExactContent::Integer(digits) => text.push_str(digits),
        ExactContent::Text(string) => {
            let _ = write!(text, "{}", Value::from(string));
        }
        ExactContent::Other(other) => {
            let _ = write!(text, "{other}");
        }
    }
}
