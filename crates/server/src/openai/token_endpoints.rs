//! `POST /tokenize`, `/detokenize` and `/apply-template`, as llama.cpp and vLLM have them.

use axum::Json;
use narthex_gateway::request::{ChatRequest, GenerateOptions, ToolSettings};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{messages::WireMessage, read_body, tools::WireTool};
use crate::{
    app::App,
    blocking::run_cancellable,
    body::{Body, FromBody},
    error::ApiError,
    model_name::refuse_path,
};

/// Body of `/tokenize`: a text, or a conversation.
#[derive(Debug, Deserialize)]
pub(crate) struct TokenizeBody {
    model: String,
    #[serde(alias = "prompt")]
    content: Option<String>,
    messages: Option<Vec<WireMessage>>,
    tools: Option<Vec<WireTool>>,
}

/// Body of `/detokenize`.
#[derive(Debug, Deserialize)]
pub(crate) struct DetokenizeBody {
    model: String,
    tokens: Vec<u32>,
}

impl FromBody for TokenizeBody {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let fields = ["model", "content", "prompt", "messages", "tools", "add_special", "parse_special"];
        let read: Self = read_body(body, &[&fields])?;
        refuse_path(&read.model)?;
        Ok(read)
    }
}

impl FromBody for DetokenizeBody {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let read: Self = read_body(body, &[&["model", "tokens"]])?;
        refuse_path(&read.model)?;
        Ok(read)
    }
}

impl TokenizeBody {
    /// Returns the conversation, if there is one.
    fn conversation(&mut self) -> Result<Option<ChatRequest>, ApiError> {
        let Some(messages) = self.messages.take() else { return Ok(None) };
        let messages = messages.into_iter().enumerate();
        let tools = self.tools.take().unwrap_or_default().into_iter().enumerate();
        let tools = tools.map(|(index, tool)| tool.into_tool(index)).collect::<Result<_, _>>()?;
        Ok(Some(ChatRequest {
            messages: messages
                .map(|(index, message)| message.into_message(index))
                .collect::<Result<_, _>>()?,
            tools: ToolSettings { tools, ..ToolSettings::default() },
            options: GenerateOptions::api_defaults(),
        }))
    }
}

/// Returns the tokens of a text or of a conversation.
pub(crate) async fn tokenize(app: App, body: Body<TokenizeBody>) -> Result<Json<Value>, ApiError> {
    let Body(mut body, held) = body;
    let (conversation, content, model) = (body.conversation()?, body.content.take(), body.model.clone());
    if conversation.is_none() && content.is_none() {
        return Err(ApiError::bad_request("content", "content is required"));
    }
    let call = move |gateway: &narthex_gateway::Gateway, _: &narthex_gateway::Cancel| match conversation {
        Some(request) => Ok(gateway.chat_prompt(&body.model, request)?.tokens),
        None => gateway.tokenize(&body.model, &content.unwrap_or_default()),
    };
    let tokens = run_cancellable(&app, &model, held, call).await?;
    Ok(Json(json!({"tokens": tokens, "count": tokens.len()})))
}

/// Returns the text of tokens.
pub(crate) async fn detokenize(app: App, body: Body<DetokenizeBody>) -> Result<Json<Value>, ApiError> {
    let Body(DetokenizeBody { model, tokens }, held) = body;
    let name = model.clone();
    let text =
        run_cancellable(&app, &model, held, move |gateway, _| gateway.detokenize(&name, &tokens)).await?;
    Ok(Json(json!({"content": text, "prompt": text})))
}

/// Returns the prompt that a conversation becomes.
pub(crate) async fn apply_template(app: App, body: Body<TokenizeBody>) -> Result<Json<Value>, ApiError> {
    let Body(mut body, held) = body;
    let request = body.conversation()?;
    let request = request.ok_or_else(|| ApiError::bad_request("messages", "messages is required"))?;
    let (model, name) = (body.model.clone(), body.model);
    let prompt =
        run_cancellable(&app, &model, held, move |gateway, _| gateway.chat_prompt(&name, request)).await?;
    Ok(Json(json!({"prompt": prompt.text})))
}
