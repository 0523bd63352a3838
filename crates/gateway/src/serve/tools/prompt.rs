//! Tools and calls in the prompt.

use std::{fmt::Write as _, mem};

use narthex_catalog::resolve::excerpt;
use narthex_spec::ToolFormat;
use narthex_text::{
    exact_json::ExactJson,
    template::{Abilities, FunctionCall, Message, Role},
    tools::{self, json_text, write_calls},
};
use serde_json::{Value, json};

use crate::{
    error::Error,
    serve::request::{Tool, ToolChoice, ToolSettings},
};

/// Maximum number of tools.
const MAX_TOOLS: usize = 1024;

/// Checks the tools of a request.
pub(in crate::serve) fn check(settings: &ToolSettings) -> Result<(), Error> {
    let found = settings.tools.len();
    if found > MAX_TOOLS {
        return Err(Error::invalid("tools", format!("expected at most {MAX_TOOLS} tools, found {found}")));
    }
    for tool in &settings.tools {
        if !Tool::is_name(&tool.name) {
            let max = Tool::MAX_NAME;
            let name: String = tool.name.chars().take(max).collect();
            let message =
                format!("expected a name of 1 to {max} letters, digits, _, - and ., found {name:?}");
            return Err(Error::invalid("tools", message));
        }
    }
    match &settings.choice {
        ToolChoice::Function(name) if settings.tools.iter().all(|tool| tool.name != *name) => {
            let message = format!("expected the name of one of the tools, found {:?}", excerpt(name));
            Err(Error::invalid("tool_choice", message))
        }
        ToolChoice::Required if settings.tools.is_empty() => {
            Err(Error::invalid("tool_choice", "a required call needs at least one tool, found none"))
        }
        _ => Ok(()),
    }
}

/// Returns the tools that the model sees, as objects of OpenAI's `tools`.
pub(in crate::serve) fn declarations(settings: &ToolSettings) -> Vec<ExactJson> {
    if settings.choice == ToolChoice::None {
        return Vec::new();
    }
    settings.tools.iter().map(declaration).collect()
}

/// Returns the declaration of a tool, with its fields in the order of OpenAI's and transformers' examples, which templates
/// were trained on.
fn declaration(tool: &Tool) -> ExactJson {
    let text = |text: &str| ExactJson::from(Value::from(text));
    let description = tool.description.as_ref().map(|description| ("description", text(description)));
    let fields = [("name", text(&tool.name))].into_iter().chain(description);
    let function = ExactJson::object(fields.chain([("parameters", tool.parameters.clone())]));
    ExactJson::object([("type", text("function")), ("function", function)])
}

/// Converts the parts of a conversation that its template does not support to text: the tools to a system message,
/// calls and results to the content of messages. The declarations remain only if the template writes them.
pub(in crate::serve) fn conversation(
    messages: Vec<Message>,
    declarations: &mut Vec<ExactJson>,
    choice: &ToolChoice,
    format: ToolFormat,
    abilities: Abilities,
) -> Vec<Message> {
    let mut messages = tools::adapted(messages, format, abilities);
    if declarations.is_empty() || abilities.tools {
        return messages;
    }
    let instructions = instructions(&mem::take(declarations), choice, format);
    match messages.first_mut().filter(|first| matches!(first.role, Role::System | Role::Developer)) {
        Some(first) => first.append_content(&instructions),
        None => messages.insert(0, instructions),
    }
    messages
}

/// Returns a system message that declares the tools and describes the format of calls.
fn instructions(tools: &[ExactJson], choice: &ToolChoice, format: ToolFormat) -> Message {
    let mut text =
        "# Tools\n\nYou may call one or more functions. These are their signatures:\n<tools>\n".to_owned();
    for tool in tools {
        let _ = writeln!(text, "{}", json_text(tool));
    }
    let arguments = json!({"ARGUMENT": "VALUE"}).into();
    let example = FunctionCall { name: "FUNCTION".to_owned(), arguments };
    text.push_str("</tools>\n\nTo call a function, write its name and arguments in this form:\n");
    let mut message = Message::new(Role::System, text);
    write_calls(format, &[example], &mut message);
    match choice {
        ToolChoice::Required => message.content.push_str("\n\nYou must call a function now."),
        ToolChoice::Function(name) => {
            message.content.push_str(&format!("\n\nYou must call the function {name} now."));
        }
        ToolChoice::None | ToolChoice::Auto => {}
    }
    message
}

#[cfg(test)]
mod tests {
    use narthex_text::template::ToolCall;

    use super::*;
    use crate::serve::request::Strictness;

    fn settings(choice: ToolChoice) -> ToolSettings {
        let tool = Tool {
            name: "get_weather".to_owned(),
            description: Some("Weather".to_owned()),
            parameters: json!({"type": "object"}).into(),
            strictness: Strictness::BestEffort,
            text: None,
            field: None,
        };
        ToolSettings { tools: vec![tool], choice, ..ToolSettings::default() }
    }

    fn history() -> Vec<Message> {
        let function =
            FunctionCall { name: "get_weather".to_owned(), arguments: json!({"city": "Paris"}).into() };
        let call = ToolCall { id: Some("c1".to_owned()), function };
        vec![
            Message::new(Role::User, "Weather?".to_owned()),
            Message { tool_calls: vec![call], ..Message::new(Role::Assistant, String::new()) },
            Message { tool_call_id: Some("c1".to_owned()), ..Message::new(Role::Tool, "12 °C".to_owned()) },
        ]
    }

    #[test]
    fn parts_that_a_template_does_not_write_become_text() {
        let settings = settings(ToolChoice::Auto);
        let written = |format, abilities| {
            conversation(history(), &mut declarations(&settings), &settings.choice, format, abilities)
        };
        let told = written(ToolFormat::Hermes, Abilities::default());
        let roles: Vec<Role> = told.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::User]);
        let declared = told[0].content.text();
        assert!(declared.contains(r#""name": "get_weather""#), "{declared}");
        assert!(declared.ends_with("\"arguments\": {\"ARGUMENT\": \"VALUE\"}}\n</tool_call>"));
        let call =
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
        assert_eq!(told[2].content, call);
        assert_eq!(told[3].content, "<tool_response>\n12 °C\n</tool_response>");
        let told = written(ToolFormat::Granite, Abilities { tools: true, calls: false, results: true });
        let roles: Vec<Role> = told.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool]);
        let call = told[1].content.text();
        assert!(call.starts_with("<|tool_call|>[{"), "{call}");
        let all = Abilities { tools: true, calls: true, results: true };
        assert_eq!(written(ToolFormat::Hermes, all), history());
    }

    #[test]
    fn declarations_have_the_order_that_templates_were_trained_on() {
        let mut settings = settings(ToolChoice::Auto);
        let source = r#"{"type":"object","required":["b"],"properties":{"b":{"type":"string"},"a":{"type":"integer"}}}"#;
        settings.tools[0].parameters = serde_json::from_str(source).unwrap();
        let expect = format!(
            r#"{{"type":"function","function":{{"name":"get_weather","description":"Weather","parameters":{source}}}}}"#
        );
        assert_eq!(declarations(&settings)[0].to_string(), expect);
        let large = source.replace(r#""integer""#, r#""integer","maximum":18446744073709551616"#);
        settings.tools[0].parameters = ExactJson::parse(&large).unwrap();
        assert_eq!(declarations(&settings)[0].to_string(), expect.replace(source, &large));
        settings.tools[0].parameters = ExactJson::parse(source).unwrap();
        settings.tools[0].description = None;
        let expect = expect.replace(r#""description":"Weather","#, "");
        assert_eq!(declarations(&settings)[0].to_string(), expect);
    }

    #[test]
    fn ids_become_those_that_mistral_requires() {
        let all = Abilities { tools: true, calls: true, results: true };
        let told = conversation(history(), &mut Vec::new(), &ToolChoice::Auto, ToolFormat::Mistral, all);
        let (call, result) = (told[1].tool_calls[0].id.clone(), told[2].tool_call_id.clone());
        assert_eq!(call, result);
        assert!(call.is_some_and(|id| id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())));
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
