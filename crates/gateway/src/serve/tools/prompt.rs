//! Tools and calls in the prompt.

use std::fmt::Write as _;

use narthex_text::template::{Message, Role, ToolCall};
use serde_json::{Value, json};

use super::{CLOSE, OPEN};
use crate::{
    error::Error,
    serve::request::{Tool, ToolChoice, ToolSettings},
};

/// Maximum length of a function's name.
const MAX_NAME: usize = 128;

/// Maximum number of tools.
const MAX_TOOLS: usize = 1024;

/// Checks the tools of a request.
pub(in crate::serve) fn check(settings: &ToolSettings) -> Result<(), Error> {
    let found = settings.tools.len();
    if found > MAX_TOOLS {
        return Err(Error::invalid("tools", format!("expected at most {MAX_TOOLS} tools, found {found}")));
    }
    for tool in &settings.tools {
        let is_plain = |char: char| char.is_ascii_alphanumeric() || "_-.".contains(char);
        if tool.name.is_empty() || tool.name.len() > MAX_NAME || !tool.name.chars().all(is_plain) {
            let name: String = tool.name.chars().take(MAX_NAME).collect();
            let message =
                format!("expected a name of 1 to {MAX_NAME} letters, digits, _, - and ., found {name:?}");
            return Err(Error::invalid("tools", message));
        }
    }
    match &settings.choice {
        ToolChoice::Function(name) if settings.tools.iter().all(|tool| tool.name != *name) => Err(
            Error::invalid("tool_choice", format!("expected the name of one of the tools, found {name:?}")),
        ),
        ToolChoice::Required if settings.tools.is_empty() => {
            Err(Error::invalid("tool_choice", "a required call needs at least one tool, found none"))
        }
        _ => Ok(()),
    }
}

/// Returns the tools that the model sees, as objects of OpenAI's `tools`.
pub(in crate::serve) fn declarations(settings: &ToolSettings) -> Vec<Value> {
    if settings.choice == ToolChoice::None {
        return Vec::new();
    }
    let declaration = |tool: &Tool| {
        let mut function = json!({"name": tool.name, "parameters": tool.parameters});
        if let Some(description) = &tool.description {
            function["description"] = json!(description);
        }
        json!({"type": "function", "function": function})
    };
    settings.tools.iter().map(declaration).collect()
}

/// Returns the conversation for a template without tools: the tools in a system message, calls and results as text.
pub(in crate::serve) fn as_text(
    messages: Vec<Message>,
    tools: &[Value],
    choice: &ToolChoice,
) -> Vec<Message> {
    let mut messages: Vec<Message> = messages.into_iter().map(without_calls).collect();
    if tools.is_empty() {
        return messages;
    }
    let instructions = instructions(tools, choice);
    match messages.first_mut().filter(|first| matches!(first.role, Role::System | Role::Developer)) {
        Some(first) => {
            first.content.push_str("\n\n");
            first.content.push_str(&instructions);
        }
        None => messages.insert(0, Message::new(Role::System, instructions)),
    }
    messages
}

fn instructions(tools: &[Value], choice: &ToolChoice) -> String {
    let mut text =
        "# Tools\n\nYou may call one or more functions. These are their signatures:\n<tools>\n".to_owned();
    for tool in tools {
        let _ = writeln!(text, "{tool}");
    }
    let _ = write!(
        text,
        "</tools>\n\nFor each call, return a JSON object with the name and the arguments of the function:\n{OPEN}\n\
         {{\"name\": \"FUNCTION\", \"arguments\": {{…}}}}\n{CLOSE}"
    );
    match choice {
        ToolChoice::Required => text.push_str("\n\nYou must call a function now."),
        ToolChoice::Function(name) => {
            let _ = write!(text, "\n\nYou must call the function {name} now.");
        }
        ToolChoice::None | ToolChoice::Auto => {}
    }
    text
}

fn without_calls(mut message: Message) -> Message {
    for call in std::mem::take(&mut message.tool_calls) {
        if !message.content.is_empty() {
            message.content.push('\n');
        }
        message.content.push_str(&call_text(&call));
    }
    if message.role == Role::Tool {
        let content = format!("<tool_response>\n{}\n</tool_response>", message.content);
        message = Message::new(Role::User, content);
    }
    message
}

fn call_text(call: &ToolCall) -> String {
    let call = json!({"name": call.function.name, "arguments": call.function.arguments});
    format!("{OPEN}\n{call}\n{CLOSE}")
}

#[cfg(test)]
mod tests {
    use narthex_text::template::FunctionCall;

    use super::*;
    use crate::serve::request::Strictness;

    fn settings(choice: ToolChoice) -> ToolSettings {
        let tool = Tool {
            name: "get_weather".to_owned(),
            description: Some("Weather".to_owned()),
            parameters: json!({"type": "object"}),
            strictness: Strictness::BestEffort,
        };
        ToolSettings { tools: vec![tool], choice, ..ToolSettings::default() }
    }

    #[test]
    fn templates_without_tools_get_them_as_text() {
        let function = FunctionCall { name: "get_weather".to_owned(), arguments: json!({"city": "Paris"}) };
        let call = ToolCall { id: Some("c1".to_owned()), function };
        let messages = vec![
            Message::new(Role::User, "Weather?".to_owned()),
            Message { tool_calls: vec![call], ..Message::new(Role::Assistant, String::new()) },
            Message { tool_call_id: Some("c1".to_owned()), ..Message::new(Role::Tool, "12 °C".to_owned()) },
        ];
        let settings = settings(ToolChoice::Auto);
        let told = as_text(messages, &declarations(&settings), &settings.choice);
        let roles: Vec<Role> = told.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::User]);
        assert!(told[0].content.contains(r#""name":"get_weather""#), "{}", told[0].content);
        assert_eq!(
            told[2].content,
            "<tool_call>\n{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Paris\"}}\n</tool_call>"
        );
        assert_eq!(told[3].content, "<tool_response>\n12 °C\n</tool_response>");
    }

    #[test]
    fn wrong_tools_and_choices_are_refused() {
        let check = |change: fn(&mut ToolSettings), expect: Option<&str>| {
            let mut settings = settings(ToolChoice::Auto);
            change(&mut settings);
            let found = super::check(&settings).err().map(|error| error.to_string());
            assert_eq!(found.is_some(), expect.is_some(), "{found:?}");
            assert!(found.unwrap_or_default().contains(expect.unwrap_or_default()));
        };
        check(|_| (), None);
        check(|s| s.choice = ToolChoice::Function("get_weather".to_owned()), None);
        check(|s| s.choice = ToolChoice::Function("other".to_owned()), Some("other"));
        check(|s| s.tools[0].name = "a b".to_owned(), Some("a b"));
        check(|s| (s.tools.clear(), s.choice = ToolChoice::Required).1, Some("at least one tool"));
    }
}
