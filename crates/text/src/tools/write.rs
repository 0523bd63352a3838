//! Calls as text in the format of a model, for templates that cannot render them.

use std::fmt::Write as _;

use narthex_spec::ToolFormat;
use serde_json::Value;

use crate::template::FunctionCall;

/// Notation of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notation {
    /// JSON with a space after `:` and `,`, as templates and models write it.
    Json,
    /// A literal of Python.
    Python,
}

/// Returns calls in the format of a model. ChatGLM3's format has one call; others follow it as text.
pub fn write_calls(format: ToolFormat, calls: &[FunctionCall]) -> String {
    let joined = |separator: &str, write: &dyn Fn(&FunctionCall) -> String| {
        calls.iter().map(write).collect::<Vec<_>>().join(separator)
    };
    let object = |key: &'static str| {
        move |call: &FunctionCall| {
            format!("{{\"name\": {}, \"{key}\": {}}}", Value::from(&*call.name), json_text(&call.arguments))
        }
    };
    let list = || joined(", ", &object("arguments"));
    match format {
        ToolFormat::Hermes => {
            joined("\n", &|call| format!("<tool_call>\n{}\n</tool_call>", object("arguments")(call)))
        }
        ToolFormat::LlamaJson => joined("; ", &object("parameters")),
        ToolFormat::Phi4Mini => format!("<|tool_call|>[{}]<|/tool_call|>", list()),
        ToolFormat::Mistral => format!("[TOOL_CALLS][{}]", list()),
        ToolFormat::Granite => format!("<|tool_call|>[{}]", list()),
        ToolFormat::Pythonic => {
            format!("[{}]", joined(", ", &|call| format!("{}({})", call.name, keywords(&call.arguments))))
        }
        ToolFormat::ChatGlm3 => joined("\n", &|call| {
            format!("{}\n ```python\ntool_call({})\n```", call.name, keywords(&call.arguments))
        }),
        ToolFormat::QwenCoder => joined("\n", &tagged),
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

fn tagged(call: &FunctionCall) -> String {
    let mut text = format!("<tool_call>\n<function={}>\n", call.name);
    for (name, value) in call.arguments.as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| json_text(value), str::to_owned);
        let _ = write!(text, "<parameter={name}>\n{value}\n</parameter>\n");
    }
    text + "</function>\n</tool_call>"
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
