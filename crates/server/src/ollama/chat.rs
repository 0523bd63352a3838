//! `POST /api/chat`.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use narthex_gateway::request::{
    ChatRequest, FunctionCall, Message, ReasoningSettings, Role, ToolCall, ToolSettings,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    lines::{AnswerLines, ChatContent},
    options::{AnswerFields, Think},
};
use crate::{
    app::App,
    body::{self, Body, FromBody},
    conversation::{self, Conversation},
    error::ApiError,
    ignored::IgnoredParameters,
    loading,
    openai::tools::WireTool,
};

/// Names of the fields.
const FIELDS: &[&str] = &[
    "model",
    "messages",
    "stream",
    "tools",
    "format",
    "options",
    "keep_alive",
    "logprobs",
    "top_logprobs",
    "think",
];

/// Body of the request.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct OllamaBody {
    model: String,
    #[serde(default)]
    messages: Vec<OllamaMessage>,
    stream: Option<bool>,
    tools: Option<Vec<WireTool>>,
    format: Option<Value>,
    options: Option<Map<String, Value>>,
    keep_alive: Option<Value>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    think: Option<Think>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct OllamaMessage {
    #[schemars(with = "String")]
    role: Role,
    #[serde(default)]
    content: String,
    thinking: Option<String>,
    tool_name: Option<String>,
    tool_calls: Option<Vec<OllamaCall>>,
    images: Option<Vec<String>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct OllamaCall {
    #[schemars(with = "Map<String, Value>")]
    function: FunctionCall,
}

/// A body that was read and checked.
pub(crate) struct ParsedOllamaChat(Conversation);

impl FromBody for ParsedOllamaChat {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let body: OllamaBody = body::read_body(body, &[FIELDS])?;
        let mut ignored = IgnoredParameters::default();
        let OllamaBody { options, format, keep_alive, logprobs, top_logprobs, .. } = body;
        let fields = AnswerFields { options, format, keep_alive, logprobs, top_logprobs };
        let options = fields.read(&mut ignored)?;
        let tools = body.tools.unwrap_or_default().into_iter().enumerate();
        let tools = tools.map(|(index, tool)| tool.into_tool(index)).collect::<Result<_, _>>()?;
        let messages = body.messages.into_iter().enumerate();
        let messages =
            messages.map(|(index, message)| message.into_message(index)).collect::<Result<_, _>>()?;
        let tools = ToolSettings { tools, ..ToolSettings::default() };
        let of_reasoning = Think::name(body.think);
        let reasoning = body.think.map_or_else(ReasoningSettings::default, Think::settings);
        let request = ChatRequest { messages, tools, reasoning, options };
        let (model, is_streamed) = (body.model, body.stream != Some(false));
        Ok(Self(Conversation { model, request, is_streamed, ignored, of_reasoning }))
    }

    fn ignored(&self) -> Option<&IgnoredParameters> {
        Some(&self.0.ignored)
    }
}

impl OllamaMessage {
    fn into_message(self, index: usize) -> Result<Message, ApiError> {
        if self.images.is_some_and(|images| !images.is_empty()) {
            return Err(ApiError::unsupported(&format!("messages[{index}].images")));
        }
        let calls = self.tool_calls.unwrap_or_default().into_iter();
        let tool_calls = calls.map(|call| ToolCall { id: None, function: call.function }).collect();
        let (name, reasoning_content) = (self.tool_name, self.thinking);
        Ok(Message { name, reasoning_content, tool_calls, ..Message::new(self.role, self.content) })
    }
}

/// Handles a request. Without messages it loads the model.
pub(crate) async fn create(app: App, body: Body<ParsedOllamaChat>) -> Result<Response, ApiError> {
    let Body(ParsedOllamaChat(conversation), held) = body;
    let form = AnswerLines::<ChatContent>::new(conversation.model.clone());
    if conversation.request.messages.is_empty() {
        loading::wait(&app, &conversation.model).await?;
        return Ok(conversation.ignored.name_in(Json(form.loaded()).into_response()));
    }
    conversation::answer(&app, conversation, held, form).await
}
