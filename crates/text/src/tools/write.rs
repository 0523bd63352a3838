//! Calls as text in the format of a model, for templates that cannot render them.

use std::fmt::Write as _;

use narthex_spec::ToolFormat;
use serde_json::Value;

use crate::template::{FunctionCall, Message};

/// Notation of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notation {
    /// JSON with a space after `:` and `,`, as templates and models write it.
    Json,
    /// A literal of Python.
    Python,
}

/// Appends calls in the format of a model to a message's text. The markers around them count as written by the template,
/// since its own calls would have them. ChatGLM3's format has one call; others follow it as text.
pub fn write_calls(format: ToolFormat, calls: &[FunctionCall], message: &mut Message) {
    let object = |key: &str, call: &FunctionCall| {
        format!("{{\"name\": {}, \"{key}\": {}}}", Value::from(&*call.name), json_text(&call.arguments))
    };
    let joined = |separator: &str, write: &dyn Fn(&FunctionCall) -> String| {
        calls.iter().map(write).collect::<Vec<_>>().join(separator)
    };
    let list = || format!("[{}]", joined(", ", &|call| object("arguments", call)));
    match format {
        ToolFormat::Hermes => {
            write_tagged(calls, message, &|call| format!("\n{}\n", object("arguments", call)));
        }
        ToolFormat::QwenCoder => write_tagged(calls, message, &parameters),
        ToolFormat::LlamaJson => {
            message.content.push_str(&joined("; ", &|call| object("parameters", call)));
        }
        ToolFormat::Phi4Mini => {
            message.push_marker("<|tool_call|>");
            message.content.push_str(&list());
            message.push_marker("<|/tool_call|>");
        }
        ToolFormat::Mistral => {
            message.push_marker("[TOOL_CALLS]");
            message.content.push_str(&list());
        }
        ToolFormat::Granite => {
            message.push_marker("<|tool_call|>");
            message.content.push_str(&list());
        }
        ToolFormat::Pythonic => {
            let call = |call: &FunctionCall| format!("{}({})", call.name, keywords(&call.arguments));
            message.content.push_str(&format!("[{}]", joined(", ", &call)));
        }
        ToolFormat::ChatGlm3 => message.content.push_str(&joined("\n", &|call| {
            format!("{}\n ```python\ntool_call({})\n```", call.name, keywords(&call.arguments))
        })),
    }
}

/// Appends calls, each between tags.
fn write_tagged(calls: &[FunctionCall], message: &mut Message, write: &dyn Fn(&FunctionCall) -> String) {
    for (index, call) in calls.iter().enumerate() {
        if index > 0 {
            message.content.push('\n');
        }
        message.push_marker("<tool_call>");
        message.content.push_str(&write(call));
        message.push_marker("</tool_call>");
    }
}

/// Returns a value as JSON with a space after `:` and `,`.
pub fn json_text(value: &Value) -> String {
    let mut text = String::new();
    write(value, Notation::Json, &mut text);
    text
}

/// Returns keyword arguments, or one dictionary if a name is not an identifier of Python.
fn keywords(arguments: &Value) -> String {
    let mut text = String::new();
    let is_name = |name: &String| {
        name.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    match arguments.as_object() {
        Some(fields) if fields.keys().all(is_name) => {
            for (index, (name, value)) in fields.iter().enumerate() {
                let separator = if index > 0 { ", " } else { "" };
                let _ = write!(text, "{separator}{name}=");
                write(value, Notation::Python, &mut text);
            }
        }
        _ => {
            text.push_str("**");
            write(arguments, Notation::Python, &mut text);
        }
    }
    text
}

/// Returns a call with a tag for each parameter.
fn parameters(call: &FunctionCall) -> String {
    let mut text = format!("\n<function={}>\n", call.name);
    for (name, value) in call.arguments.as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| json_text(value), str::to_owned);
        let _ = write!(text, "<parameter={name}>\n{value}\n</parameter>\n");
    }
    text + "</function>\n"
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
