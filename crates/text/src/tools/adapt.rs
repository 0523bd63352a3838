//! Calls and results in a conversation, adapted to the abilities of a template.

use std::mem;

use narthex_spec::ToolFormat;

use super::write::write_calls;
use crate::template::{Abilities, FunctionCall, Message, Role};

/// Returns a conversation in which the calls and results that its template does not write are text.
pub fn adapted(messages: Vec<Message>, format: ToolFormat, abilities: Abilities) -> Vec<Message> {
    messages.into_iter().map(|message| adapted_message(message, format, abilities)).collect()
}

fn adapted_message(mut message: Message, format: ToolFormat, abilities: Abilities) -> Message {
    if !abilities.calls && !message.tool_calls.is_empty() {
        let calls: Vec<FunctionCall> =
            mem::take(&mut message.tool_calls).into_iter().map(|call| call.function).collect();
        if !message.content.is_empty() {
            message.content.push('\n');
        }
        write_calls(format, &calls, &mut message);
    }
    if !abilities.results && message.role == Role::Tool {
        let mut result = Message::new(Role::User, String::new());
        result.push_marker("<tool_response>");
        result.content.push_str(&format!("\n{}\n", message.content));
        result.push_marker("</tool_response>");
        message = result;
    }
    if format == ToolFormat::Mistral {
        let ids = message.tool_calls.iter_mut().map(|call| &mut call.id).chain([&mut message.tool_call_id]);
        ids.for_each(|id| *id = id.as_deref().map(short_id));
        // A call without an id belongs to the result that follows it.
        message.tool_calls.iter_mut().for_each(|call| _ = call.id.get_or_insert_with(|| short_id("")));
        if message.role == Role::Tool {
            message.tool_call_id.get_or_insert_with(|| short_id(""));
        }
    }
    message
}

/// Returns the id in the form that Mistral's templates require: nine letters and digits.
fn short_id(id: &str) -> String {
    const LENGTH: usize = 9;
    if id.len() == LENGTH && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    // FNV-1a: equal ids must stay equal between requests.
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")[..LENGTH].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_nine_letters_and_digits_stay() {
        assert_eq!(short_id("abcdefgh9"), "abcdefgh9");
        assert_ne!(short_id("abcdefgh-"), short_id("abcdefgh_"));
    }
}
