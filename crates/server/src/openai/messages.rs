//! Messages of a conversation in OpenAI's JSON, including tool calls and their results.

use narthex_gateway::request::{FunctionCall, Message, Role, ToolCall};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    error::ApiError,
    protocol::{
        conversation::{join_parts, omission_note, stable_text},
        custom_tools, outline,
        text_or_list::{ListElement, TextOrList},
    },
};

/// A message.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct WireMessage {
    role: WireRole,
    #[serde(default)]
    content: Option<Content>,
    refusal: Option<String>,
    reasoning_content: Option<String>,
    /// The name of `reasoning_content` in other servers.
    reasoning: Option<String>,
    name: Option<String>,
    tool_call_id: Option<String>,
    tool_calls: Option<Vec<WireToolCall>>,
    function_call: Option<WireFunctionCall>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum WireRole {
    System,
    Developer,
    User,
    Assistant,
    Tool,
    /// Result of a tool in the API's older form.
    Function,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct WireToolCall {
    id: Option<String>,
    function: Option<WireFunctionCall>,
    custom: Option<WireCustomCall>,
}

/// Call of a custom tool.
#[derive(Debug, Deserialize, JsonSchema)]
struct WireCustomCall {
    name: String,
    #[serde(default)]
    input: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct WireFunctionCall {
    name: String,
    /// JSON text, or an object as some clients send it.
    #[serde(default)]
    arguments: Value,
}

pub(crate) type Content = TextOrList<Part>;

/// Part of a text.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Part {
    r#type: String,
    text: Option<String>,
    refusal: Option<String>,
    /// Reasoning, as in Anthropic's API.
    thinking: Option<String>,
}

/// Types of the parts of an assistant's message that are reasoning.
const REASONING: &[&str] = &["thinking", "redacted_thinking", "reasoning"];

impl ListElement for Part {
    const EXPECTED: &'static str = r#"a string or a list of parts such as {"type": "text", "text": …}"#;
}

impl Content {
    /// Returns the text of a message of this role. `path` is the path of the content for errors.
    pub(crate) fn into_text(self, role: Role, path: &str) -> Result<String, ApiError> {
        match self {
            Self::Text(text) => Ok(text),
            Self::List(parts) => {
                let texts = parts.into_iter().enumerate().filter_map(|(index, part)| {
                    let text = part.into_text(role, &format!("{path}[{index}]"));
                    text.map(|text| stable_text(role, text)).transpose()
                });
                Ok(join_parts(texts.collect::<Result<Vec<_>, _>>()?))
            }
        }
    }

    /// Removes the parts of reasoning, and returns their text.
    fn take_reasoning(&mut self) -> Option<String> {
        let Self::List(parts) = self else { return None };
        let reasoning = parts.extract_if(.., |part| REASONING.contains(&part.r#type.as_str()));
        let texts: Vec<String> = reasoning.filter_map(|part| part.thinking.or(part.text)).collect();
        (!texts.is_empty()).then(|| texts.join("\n"))
    }

    /// Returns the text of reasoning, whose parts have types of their own.
    pub(crate) fn into_reasoning(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::List(parts) => {
                let texts = parts.into_iter().filter_map(|part| part.text);
                texts.collect::<Vec<_>>().join("\n")
            }
        }
    }
}

impl Part {
    /// Returns the text, or a note in the result of a tool. `path` is the path of the part for errors.
    fn into_text(self, role: Role, path: &str) -> Result<String, ApiError> {
        let text = match self.r#type.as_str() {
            "image_url" | "input_image" | "image" if role == Role::Tool => Some(omission_note("image")),
            "file" | "input_file" if role == Role::Tool => Some(omission_note("file")),
            "input_audio" | "audio" if role == Role::Tool => Some(omission_note("audio")),
            "text" | "input_text" | "output_text" => self.text,
            "refusal" => self.refusal,
            other => {
                let message = format!(
                    "{path}: parts of type {other:?} are not supported by this version of Narthex; send text"
                );
                return Err(ApiError::unsupported_as(path, message));
            }
        };
        text.ok_or_else(|| ApiError::bad_request(path, format!("{path}: text is missing")))
    }
}

impl From<WireRole> for Role {
    fn from(role: WireRole) -> Self {
        match role {
            WireRole::System => Self::System,
            WireRole::Developer => Self::Developer,
            WireRole::User => Self::User,
            WireRole::Assistant => Self::Assistant,
            WireRole::Tool | WireRole::Function => Self::Tool,
        }
    }
}

impl WireFunctionCall {
    fn into_call(self, id: Option<String>) -> ToolCall {
        let arguments = outline::arguments(self.arguments);
        ToolCall { id, function: FunctionCall { name: self.name, arguments } }
    }
}

impl WireToolCall {
    /// Converts the call for the gateway. `path` is its path for errors.
    fn into_call(self, path: &str) -> Result<ToolCall, ApiError> {
        let id = self.id;
        match (self.function, self.custom) {
            (Some(function), _) => Ok(function.into_call(id)),
            (None, Some(WireCustomCall { name, input })) => {
                let arguments = custom_tools::arguments(&input);
                Ok(ToolCall { id, function: FunctionCall { name, arguments } })
            }
            (None, None) => {
                let path = format!("{path}.function");
                Err(ApiError::required(&path))
            }
        }
    }
}

/// Converts messages for the gateway.
pub(crate) fn into_messages(messages: Vec<WireMessage>) -> Result<Vec<Message>, ApiError> {
    messages.into_iter().enumerate().map(|(index, message)| message.into_message(index)).collect()
}

impl WireMessage {
    /// Converts the message for the gateway. `index` is its index for errors.
    fn into_message(mut self, index: usize) -> Result<Message, ApiError> {
        if self.role == WireRole::Assistant {
            let of_content = self.content.as_mut().and_then(Content::take_reasoning);
            self.reasoning_content = self.reasoning_content.or(self.reasoning.take()).or(of_content);
        }
        let content = match self.content {
            None => self.refusal.unwrap_or_default(),
            Some(content) => content.into_text(self.role.into(), &format!("messages[{index}].content"))?,
        };
        let calls = self.tool_calls.unwrap_or_default().into_iter().enumerate();
        let calls = calls.map(|(at, call)| call.into_call(&format!("messages[{index}].tool_calls[{at}]")));
        let mut tool_calls = calls.collect::<Result<Vec<_>, _>>()?;
        tool_calls.extend(self.function_call.map(|call| call.into_call(None)));
        Ok(Message {
            name: self.name,
            tool_call_id: self.tool_call_id,
            tool_calls,
            reasoning_content: self.reasoning_content.filter(|_| self.role == WireRole::Assistant),
            ..Message::new(self.role.into(), content)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(json: Value) -> Result<Message, ApiError> {
        serde_json::from_value::<WireMessage>(json).unwrap().into_message(3)
    }

    #[test]
    fn histories_of_agents_are_read() {
        let call =
            json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
        let read = message(json!({"role": "assistant", "content": null, "tool_calls": [call]})).unwrap();
        assert_eq!((read.content.as_str(), read.tool_calls[0].id.as_deref()), ("", Some("c1")));
        assert_eq!(read.tool_calls[0].function.arguments, json!({"a": 1}));
        let read = message(json!({"role": "function", "name": "f", "content": "7"})).unwrap();
        assert_eq!((read.role, read.name.as_deref()), (Role::Tool, Some("f")));
        let parts = json!([{"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "b"}]);
        assert_eq!(message(json!({"role": "user", "content": parts})).unwrap().content, "a\nb");
        assert_eq!(message(json!({"role": "assistant", "refusal": "no"})).unwrap().content, "no");
        let parts = json!([{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "a"}]);
        assert_eq!(message(json!({"role": "system", "content": parts})).unwrap().content, "a");
        let parts = json!([
            {"type": "thinking", "thinking": "b", "signature": ""},
            {"type": "redacted_thinking", "data": "AA"},
            {"type": "text", "text": "a"},
        ]);
        let read = message(json!({"role": "assistant", "content": parts})).unwrap();
        assert_eq!((read.content.as_str(), read.reasoning_content.as_deref()), ("a", Some("b")));
        assert!(message(json!({"role": "user", "content": parts})).is_err());
        let both = json!({"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": null});
        assert_eq!(message(both).unwrap().reasoning_content.as_deref(), Some("r"));
        let error = message(json!({"role": "user", "content": [{"type": "image_url"}]})).unwrap_err().body();
        assert_eq!(error["error"]["param"], "messages[3].content[0]");
    }

    #[test]
    fn images_in_the_results_of_tools_become_notes() {
        let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}});
        let parts = json!([{"type": "text", "text": "A cat."}, image, {"type": "input_file"}]);
        let read = message(json!({"role": "tool", "tool_call_id": "c1", "content": parts})).unwrap();
        let note = |what: &str| format!("[{what} omitted: this model reads text]");
        assert_eq!(read.content, format!("A cat.\n{}\n{}", note("image"), note("file")));
    }

    #[test]
    fn calls_of_custom_tools_have_their_input_as_an_argument() {
        let call = json!({"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "a\nb"}});
        let read = message(json!({"role": "assistant", "tool_calls": [call]})).unwrap();
        assert_eq!(read.tool_calls[0].function.arguments, json!({"input": "a\nb"}));
        let error = message(json!({"role": "assistant", "tool_calls": [{"id": "c1"}]})).unwrap_err().body();
        assert_eq!(error["error"]["param"], "messages[3].tool_calls[0].function");
    }
}
