//! Values and calls as text, for templates that cannot render them. `formats` arranges them in the format of a model.

use std::fmt::Write as _;

use serde_json::Value;

use crate::template::{FunctionCall, Message};

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
pub fn json_text(value: &Value) -> String {
    let mut text = String::new();
    write(value, Notation::Json, &mut text);
    text
}

/// Returns a value as a literal of Python.
pub(super) fn python_text(value: &Value) -> String {
    let mut text = String::new();
    write(value, Notation::Python, &mut text);
    text
}

/// Writes a value. The recursion is limited by the depth that `serde_json` reads.
fn write(value: &Value, notation: Notation, text: &mut String) {
    let is_python = notation == Notation::Python;
    match value {
        Value::Null if is_python => text.push_str("None"),
        Value::Bool(true) if is_python => text.push_str("True"),
        Value::Bool(false) if is_python => text.push_str("False"),
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                text.push_str(if index > 0 { ", " } else { "" });
                write(item, notation, text);
            }
            text.push(']');
        }

        Value::Object(fields) => {
            text.push('{');
            for (index, (key, value)) in fields.iter().enumerate() {
                let separator = if index > 0 { ", " } else { "" };
                let _ = write!(text, "{separator}{}: ", Value::from(&**key));
                write(value, notation, text);
            }
            text.push('}');
        }
        other => {
            let _ = write!(text, "{other}");
        }
    }
}
