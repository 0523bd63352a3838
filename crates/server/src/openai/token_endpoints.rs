//! `POST /tokenize`, `/detokenize` and `/apply-template`, as in llama.cpp and vLLM.

use std::mem;

use axum::{
    Json,
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};
use narthex_gateway::request::{
    ChatRequest, GenerateOptions, HistoryOverflow, ReadingSettings, TokenizeOptions, ToolSettings,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::messages::{WireMessage, into_messages};
use crate::{
    app::App,
    error::ApiError,
    protocol::{
        blocking::{WholeText, run_cancellable, run_tokenizing},
        body::{Body, FromBody},
        conversation,
        fields::BodyFields,
        ignored::{CALLER_FIELDS, IgnoredParameters},
        reasoning::ReasoningOptions,
        tools::{WireTool, into_tools},
    },
};

/// Body of `/tokenize`: a text, or a conversation.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct TokenizeBody {
    model: String,
    content: Option<String>,
    /// The name of `content` in vLLM.
    prompt: Option<String>,
    /// Add the special tokens that surround a text of the model; by default for encoders.
    add_special: Option<bool>,
    /// The name of `add_special` in vLLM.
    add_special_tokens: Option<bool>,
    /// Recognise special tokens in the text; true by default.
    parse_special: Option<bool>,
    messages: Option<Vec<WireMessage>>,
    tools: Option<Vec<WireTool>>,
    #[serde(skip)]
    reasoning: ReasoningOptions,
}

/// Body of `/detokenize`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct DetokenizeBody {
    model: String,
    tokens: Vec<u32>,
}

/// Answer of `/tokenize`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TokenList {
    tokens: Vec<u32>,
    count: usize,
}

/// Answer of `/detokenize`: the text, in the fields of both llama.cpp and vLLM.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TokenText<'a> {
    content: &'a str,
    prompt: &'a str,
}

/// Answer of `/apply-template`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TemplateText {
    prompt: String,
}

/// A request for the tokens of a text or of a conversation.
pub(crate) struct ParsedTokenize {
    model: String,
    input: TokenizeInput,
}

enum TokenizeInput {
    Text { text: String, options: TokenizeOptions },
    Conversation(Box<ChatRequest>),
}

/// A request for the prompt of a conversation.
pub(crate) struct ParsedTemplate {
    model: String,
    request: ChatRequest,
}

impl FromBody for ParsedTokenize {
    fn read(fields: &BodyFields<'_>, _: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let mut body = TokenizeBody::read(fields)?;
        let input = match body.conversation()? {
            Some(request) => TokenizeInput::Conversation(Box::new(request)),
            None => {
                let text = body.content.or(body.prompt).ok_or_else(|| ApiError::required("content"))?;
                let options = TokenizeOptions {
                    add_special: body.add_special.or(body.add_special_tokens),
                    parse_special: body.parse_special.unwrap_or(true),
                };
                TokenizeInput::Text { text, options }
            }
        };
        Ok(Self { model: body.model, input })
    }
}

impl FromBody for ParsedTemplate {
    fn read(fields: &BodyFields<'_>, _: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let mut body = TokenizeBody::read(fields)?;
        let request = body.conversation()?.ok_or_else(|| ApiError::required("messages"))?;
        Ok(Self { model: body.model, request })
    }
}

impl FromBody for DetokenizeBody {
    const TOKENS: Option<&'static str> = Some("tokens");

    fn read(fields: &BodyFields<'_>, _: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let body = fields.read()?;
        fields.skip(CALLER_FIELDS);
        fields.refuse_unread()?;
        Ok(body)
    }
}

impl TokenizeBody {
    fn read(fields: &BodyFields<'_>) -> Result<Self, ApiError> {
        let mut body: Self = fields.read()?;
        body.reasoning = fields.read()?;
        fields.skip(CALLER_FIELDS);
        fields.refuse_unread()?;
        Ok(body)
    }

    /// Returns the conversation, if there is one.
    fn conversation(&mut self) -> Result<Option<ChatRequest>, ApiError> {
        let Some(messages) = self.messages.take() else { return Ok(None) };
        let tools = into_tools(self.tools.take().unwrap_or_default(), &mut IgnoredParameters::default())?;
        Ok(Some(ChatRequest {
            messages: into_messages(messages)?,
            tools: ToolSettings { tools, ..ToolSettings::default() },
            reasoning: mem::take(&mut self.reasoning).settings(),
            overflow: HistoryOverflow::Refuse,
            reading: ReadingSettings::default(),
            options: GenerateOptions::api_defaults(),
        }))
    }
}

/// Memory of the tokens in an answer for each byte of a text. Texts of ordinary length have at most one token for two
/// bytes; the list and its JSON have 18 bytes for a token.
const TOKEN_BYTES: usize = 9;

/// Returns the tokens of a text or of a conversation.
pub(crate) async fn tokenize(app: App, body: Body<ParsedTokenize>) -> Result<Json<TokenList>, ApiError> {
    let Body { request: ParsedTokenize { model, input }, reservation, .. } = body;
    let length = match &input {
        TokenizeInput::Text { text, .. } => text.len(),
        // The tokens of a conversation have the limit of the model's context.
        TokenizeInput::Conversation(_) => 0,
    };
    let text = WholeText { body: reservation, length };
    let answer_bytes = length.saturating_mul(TOKEN_BYTES);
    let tokens = run_tokenizing(
        &app,
        &model,
        text,
        |_| answer_bytes,
        move |model, cancel| match input {
            TokenizeInput::Text { text, options } => model.tokenize(&text, options, cancel),
            TokenizeInput::Conversation(request) => {
                Ok(model.chat_prompt(conversation::stable(*request), cancel)?.tokens)
            }
        },
    );
    let tokens = tokens.await?;
    Ok(Json(TokenList { count: tokens.len(), tokens }))
}

/// Memory of an answer for each byte of its tokens: the text, and a buffer with its JSON twice. A control character takes
/// six bytes in JSON, and the buffer doubles when it is full.
const TEXT_COPIES: usize = 26;

/// Returns the text of tokens. Its length is known, and its memory reserved, before it is created.
pub(crate) async fn detokenize(app: App, body: Body<DetokenizeBody>) -> Result<Response, ApiError> {
    let Body { request: DetokenizeBody { model, tokens }, reservation, .. } = body;
    let measured = run_cancellable(&app, &model, reservation.clone(), move |model, _| {
        Ok((model.text_bytes(&tokens)?, tokens))
    });
    let (bytes, tokens) = measured.await?;
    app.answer.reserve(bytes.saturating_mul(TEXT_COPIES)).await?;

    let json = run_cancellable(&app, &model, reservation, move |model, _| {
        let text = model.detokenize(&tokens)?;
        // Serialising strings to JSON cannot fail.
        Ok(serde_json::to_vec(&TokenText { content: &text, prompt: &text }).unwrap_or_default())
    });
    Ok(([(CONTENT_TYPE, "application/json")], json.await?).into_response())
}

/// Returns the prompt of a conversation.
pub(crate) async fn apply_template(
    app: App,
    body: Body<ParsedTemplate>,
) -> Result<Json<TemplateText>, ApiError> {
    let Body { request: ParsedTemplate { model, request }, reservation, .. } = body;
    let prompt = run_cancellable(&app, &model, reservation, move |model, cancel| {
        model.chat_prompt(conversation::stable(request), cancel)
    });
    Ok(Json(TemplateText { prompt: prompt.await?.text }))
}
