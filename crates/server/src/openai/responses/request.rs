//! The body of a request, and its translation to the gateway's.

use narthex_gateway::request::{
    CallLimit, FunctionCall, GenerateOptions, Grammar, Message, ReasoningSettings, Role, Strictness, Tool,
    ToolCall, ToolChoice, ToolSettings,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{
    super::{
        messages::Content,
        reasoning::Effort,
        tools::{ChoiceMode, no_parameters},
    },
    object::arguments_value,
};
use crate::{error::ApiError, ignored::Ignored};

/// Names of the fields. Some have no effect in Narthex.
pub(super) const FIELDS: &[&str] = &[
    "model",
    "input",
    "instructions",
    "max_output_tokens",
    "temperature",
    "top_p",
    "stream",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "text",
    "store",
    "previous_response_id",
    "reasoning",
    "thinking_budget",
    "include",
    "metadata",
    "user",
    "truncation",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "stream_options",
    "client_metadata",
];

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ResponsesBody {
    pub(super) model: String,
    input: Input,
    instructions: Option<String>,
    max_output_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    pub(super) stream: Option<bool>,
    tools: Option<Vec<ResponseTool>>,
    tool_choice: Option<ResponseChoice>,
    parallel_tool_calls: Option<bool>,
    text: Option<TextSettings>,
    reasoning: Option<ReasoningEffort>,
    /// Maximum number of tokens of reasoning.
    thinking_budget: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct ReasoningEffort {
    effort: Option<Effort>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a string or a list of items")]
enum Input {
    Text(String),
    Items(Vec<Item>),
}

/// An item of the conversation; without a type it is a message.
#[derive(Debug, Deserialize, JsonSchema)]
struct Item {
    #[serde(default = "message_type")]
    r#type: String,
    #[schemars(with = "Option<String>")]
    role: Option<Role>,
    content: Option<Content>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    output: Option<Content>,
}

fn message_type() -> String {
    "message".to_owned()
}

#[derive(Debug, Deserialize, JsonSchema)]
struct ResponseTool {
    r#type: String,
    name: Option<String>,
    description: Option<String>,
    parameters: Option<Value>,
    strict: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected \"none\", \"auto\", \"required\" or a function")]
enum ResponseChoice {
    Mode(ChoiceMode),
    Function { name: String },
}

#[derive(Debug, Deserialize, JsonSchema)]
struct TextSettings {
    format: Option<TextFormat>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum TextFormat {
    Text,
    JsonObject,
    JsonSchema { schema: Value },
}

impl Item {
    fn into_message(self, index: usize) -> Result<Option<Message>, ApiError> {
        let path = format!("input[{index}]");
        let missing = |field: &str| {
            let path = format!("{path}.{field}");
            ApiError::bad_request(path.clone(), format!("{path} is required"))
        };
        let text =
            |content: Option<Content>| content.map_or(Ok(String::new()), |content| content.into_text(&path));
        match self.r#type.as_str() {
            "message" => {
                let role = self.role.ok_or_else(|| missing("role"))?;
                Ok(Some(Message::new(role, text(self.content)?)))
            }
            "function_call" => {
                let arguments = arguments_value(self.arguments.unwrap_or_default());
                let function = FunctionCall { name: self.name.ok_or_else(|| missing("name"))?, arguments };
                let tool_calls = vec![ToolCall { id: self.call_id, function }];
                Ok(Some(Message { tool_calls, ..Message::new(Role::Assistant, String::new()) }))
            }
            "function_call_output" => {
                let result = Message::new(Role::Tool, text(self.output)?);
                Ok(Some(Message { tool_call_id: self.call_id, ..result }))
            }
            // The model's own templates drop earlier reasoning.
            "reasoning" => Ok(None),
            other => {
                let message =
                    format!("{path}: items of type {other:?} are not supported by this version of Narthex");
                Err(ApiError::unsupported_as(&path, message))
            }
        }
    }
}

/// Tools that run on OpenAI's servers. They are ignored, as if the model did not call them.
const HOSTED_TOOLS: [&str; 2] = ["web_search", "web_search_preview"];

/// Conversation in a body, without earlier turns, and its options.
pub(super) struct InputRequest {
    /// Instructions, which are not part of the conversation.
    pub(super) instructions: Option<Message>,
    pub(super) input: Vec<Message>,
    pub(super) tools: ToolSettings,
    pub(super) reasoning: ReasoningSettings,
    pub(super) options: GenerateOptions,
}

impl ResponseTool {
    fn into_tool(self, index: usize) -> Result<Tool, ApiError> {
        let path = format!("tools[{index}]");
        let (Some(name), "function") = (self.name, self.r#type.as_str()) else {
            let message =
                format!("{path}: expected a tool of type \"function\" with a name, found {:?}", self.r#type);
            return Err(ApiError::unsupported_as(&path, message));
        };
        Ok(Tool {
            name,
            description: self.description,
            parameters: self.parameters.filter(|schema| !schema.is_null()).unwrap_or_else(no_parameters),
            strictness: if self.strict == Some(true) { Strictness::Strict } else { Strictness::BestEffort },
        })
    }
}

impl ResponsesBody {
    /// Returns the gateway's request, and adds the parts that it omits to `ignored`.
    pub(super) fn into_request(self, ignored: &mut Ignored) -> Result<InputRequest, ApiError> {
        let mut input = Vec::new();
        match self.input {
            Input::Text(text) => input.push(Message::new(Role::User, text)),
            Input::Items(items) => {
                for (index, item) in items.into_iter().enumerate() {
                    input.extend(item.into_message(index)?);
                }
            }
        }
        let mut tools = Vec::new();
        for (index, tool) in self.tools.unwrap_or_default().into_iter().enumerate() {
            match HOSTED_TOOLS.iter().find(|hosted| **hosted == tool.r#type) {
                Some(hosted) => ignored.push(hosted),
                None => tools.push(tool.into_tool(index)?),
            }
        }
        let choice = match self.tool_choice {
            None => ToolChoice::Auto,
            Some(ResponseChoice::Mode(mode)) => mode.into(),
            Some(ResponseChoice::Function { name }) => ToolChoice::Function(name),
        };
        let calls = if self.parallel_tool_calls == Some(false) { CallLimit::One } else { CallLimit::Any };
        let grammar = match self.text.and_then(|text| text.format) {
            None | Some(TextFormat::Text) => None,
            Some(TextFormat::JsonObject) => Some(Grammar::json_object()),
            Some(TextFormat::JsonSchema { schema }) => Some(Grammar::JsonSchema(schema)),
        };
        let standard = GenerateOptions::api_defaults();
        let options = GenerateOptions {
            max_tokens: self.max_output_tokens,
            temperature: self.temperature.unwrap_or(standard.temperature),
            top_p: self.top_p.unwrap_or(standard.top_p),
            grammar,
            ..standard
        };
        let instructions = self.instructions.map(|text| Message::new(Role::System, text));
        let effort = self.reasoning.and_then(|reasoning| reasoning.effort);
        let mut reasoning = effort.map_or_else(ReasoningSettings::default, Effort::settings);
        reasoning.budget = self.thinking_budget.or(reasoning.budget);
        let tools = ToolSettings { tools, choice, calls };
        Ok(InputRequest { instructions, input, tools, reasoning, options })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn items_become_messages() {
        let body = json!({
            "model": "m",
            "instructions": "Be brief.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
                {"type": "reasoning", "summary": []},
                {"type": "function_call", "call_id": "c1", "name": "w", "arguments": "{\"city\": \"Rome\"}"},
                {"type": "function_call_output", "call_id": "c1", "output": "12"},
            ],
            "tools": [{"type": "web_search"}, {"type": "function", "name": "w", "parameters": {"type": "object"}, "strict": true}],
            "tool_choice": {"type": "function", "name": "w"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        });
        let mut ignored = Ignored::default();
        let body = serde_json::from_value::<ResponsesBody>(body).unwrap();
        let request = body.into_request(&mut ignored).unwrap();
        let roles: Vec<Role> = request.input.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool]);
        assert_eq!(request.instructions.unwrap().content, "Be brief.");
        assert_eq!(ignored.names(), ["web_search"]);
        assert_eq!(request.input[1].tool_calls[0].function.arguments, json!({"city": "Rome"}));
        assert_eq!(request.tools.choice, ToolChoice::Function("w".to_owned()));
        assert_eq!(request.tools.tools[0].strictness, Strictness::Strict);
        assert_eq!(request.options.grammar, Some(Grammar::json_object()));
    }
}
