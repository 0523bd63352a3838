//! Tools in the system message, where templates such as that of Phi-4 mini read them.

use minijinja::Error;

use super::{
    message::{Message, Role},
    python,
};
use crate::exact_json::{ExactContent, ExactJson, ExactPart, ExactTree};

/// Returns true if a template reads the tools from a message.
pub(super) fn are_read_by(source: &str) -> bool {
    ["message['tools']", "message[\"tools\"]", "message.tools"]
        .iter()
        .any(|spelling| source.contains(spelling))
}

/// Returns the messages with the tools' functions, as a JSON list, in the first system message, which is created if
/// missing.
pub(super) fn added(messages: &[Message], tools: &[ExactJson]) -> Result<Vec<Message>, Error> {
    let trees: Vec<ExactTree<'_>> = tools.iter().map(ExactJson::tree).collect();
    let functions: Vec<ExactPart<'_>> = trees.iter().map(|tree| function(tree.root())).collect();
    let json = python::json_text(&functions)?;
    let mut messages = messages.to_vec();
    let found = messages.iter().position(|message| message.role == Role::System);
    let at = found.unwrap_or_else(|| {
        messages.insert(0, Message::new(Role::System, String::new()));
        0
    });
    messages[at].tools = Some(json);
    Ok(messages)
}

/// Returns the function of a declared tool.
fn function(tool: ExactPart<'_>) -> ExactPart<'_> {
    match tool.content() {
        ExactContent::Object(fields) => {
            fields.into_iter().find(|(name, _)| *name == "function").map_or(tool, |(_, function)| function)
        }
        _ => tool,
    }
}
