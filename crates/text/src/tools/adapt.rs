//! Calls and results in a conversation, adapted to the abilities of a template.

use std::mem;

use narthex_spec::ToolFormat;

use super::formats::{definition, write_calls};
use crate::template::{Abilities, Content, FunctionCall, Message, Role};

/// Returns a conversation in which the calls and results that its template does not write are text.
pub fn adapted(messages: Vec<Message>, format: ToolFormat, abilities: Abilities) -> Vec<Message> {
    messages.into_iter().map(|message| adapted_message(message, format, abilities)).collect()
}

fn adapted_message(mut message: Message, format: ToolFormat, abilities: Abilities) -> Message {
    let options = &definition(format).options;
    if !abilities.calls && !message.tool_calls.is_empty() {
        let calls: Vec<FunctionCall> =
            mem::take(&mut message.tool_calls).into_iter().map(|call| call.function).collect();
        if !message.content.is_empty() {
            message.content.push_str("\n");
        }
        write_calls(format, &calls, &mut message);
    }
    if !abilities.results && message.role == Role::Tool {
        let mut result = Message::new(Role::User, Content::default());
        let [open, close] = options.results;
        result.content.push_marker(open);
        result.content.push_str("\n");
        result.content.append("", message.content);
        result.content.push_str("\n");
        result.content.push_marker(close);
        message = result;
    }
    (options.adapt_ids)(&mut message);
    message
}
