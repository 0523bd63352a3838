//! Tools in the system message, where templates such as that of Phi-4 mini read them.

use minijinja::{
    Error, Value,
    value::{Kwargs, Serde},
};

use super::{
    message::{Message, Role},
    python,
};

/// Returns true if a template reads the tools from a message.
pub(super) fn are_read_by(source: &str) -> bool {
    ["message['tools']", "message[\"tools\"]", "message.tools"]
        .iter()
        .any(|spelling| source.contains(spelling))
}

/// Returns the messages with the tools' functions, as a JSON list, in the first system message, which is created if
/// missing.
pub(super) fn added(messages: &[Message], tools: &[serde_json::Value]) -> Result<Vec<Message>, Error> {
    let functions: Vec<_> = tools.iter().map(|tool| tool.get("function").unwrap_or(tool)).collect();
    let options = Kwargs::from_iter([] as [(&str, Value); 0]);
    let json = python::to_json(Value::from(Serde(functions)), options)?.to_string();
    let mut messages = messages.to_vec();
    let found = messages.iter().position(|message| message.role == Role::System);
    let at = found.unwrap_or_else(|| {
        messages.insert(0, Message::new(Role::System, String::new()));
        0
    });
    messages[at].tools = Some(json);
    Ok(messages)
}
