//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use narthex_gateway::request::{
    ChatPrompt, ChatRequest, GenerateOptions, HistoryOverflow, ReadingSettings, ReasoningSettings,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    CompletionHeader,
    chat_answer::{ChatCompletion, ChatDelta, ChatForm, ChatStream},
    messages::{WireMessage, into_messages},
    render::WirePrompt,
    rerank::Document,
    stream::ChunkEncoder,
    upstream::{self, RequestRoute, UpstreamEndpoint, UpstreamRequest},
};
use crate::{
    app::App,
    error::ApiError,
    protocol::{
        body::{self, Body, FromBody},
        conversation::{self, AnswerForm, Conversation},
        events::Events,
        fields::BodyFields,
        hints,
        ignored::IgnoredParameters,
        options::{ChoiceOptions, StreamOptions},
        reading::ReadingObject,
        reasoning::{ReasoningObject, ThinkingSettings},
        reply::Reply,
        shared_fields::SharedFields,
        sse,
        tools::ToolOptions,
    },
    reports::metrics::Metrics,
};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ChatBody {
    model: String,
    messages: Vec<WireMessage>,
    logprobs: Option<bool>,
    #[schemars(range(max = 20))]
    top_logprobs: Option<usize>,
    modalities: Option<Vec<String>>,
    #[serde(default, deserialize_with = "body::filled")]
    thinking: Option<ThinkingSettings>,
    #[serde(default, deserialize_with = "body::filled")]
    reasoning: Option<ReasoningObject>,
    /// Texts that may contain the answer, for question-answering models.
    documents: Option<Vec<Document>>,
    /// Minimum score of an answer, for question-answering models.
    #[schemars(range(min = 0.0, max = 1.0))]
    min_answer_score: Option<f64>,
}

impl ChatBody {
    /// Returns the names of the given objects with settings of reasoning.
    fn reasoning_parameters(&self) -> impl Iterator<Item = &'static str> {
        let given = [("thinking", self.thinking.is_some()), ("reasoning", self.reasoning.is_some())];
        given.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name)
    }

    /// Returns the settings of these objects.
    fn reasoning(&self) -> ReasoningSettings {
        let thinking = self.thinking.map(ThinkingSettings::settings);
        thinking.or_else(|| self.reasoning.map(ReasoningObject::settings)).unwrap_or_default()
    }

    fn check(&self) -> Result<(), ApiError> {
        match &self.modalities {
            Some(modalities) if modalities.iter().any(|modality| modality != "text") => {
                Err(ApiError::unsupported("modalities"))
            }
            _ => Ok(()),
        }
    }

    fn top_logprobs(&self) -> Result<Option<usize>, ApiError> {
        match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (true, top) => Ok(Some(top.unwrap_or(0))),
            (false, None | Some(0)) => Ok(None),
            (false, Some(_)) => {
                Err(ApiError::bad_request("top_logprobs", "top_logprobs needs logprobs: true"))
            }
        }
    }
}

/// A body that was read and checked.
pub(crate) struct ParsedChat {
    conversation: Conversation,
    streaming: Option<StreamOptions>,
    form: ChatForm,
}

impl UpstreamRequest for ParsedChat {
    const ENDPOINT: UpstreamEndpoint = UpstreamEndpoint::Chat;
}

impl FromBody for ParsedChat {
    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let chat: ChatBody = fields.read()?;
        let SharedFields { sampling, reasoning, grammar } = SharedFields::read(fields)?;
        let choices: ChoiceOptions = fields.read()?;
        let tools: ToolOptions = fields.read()?;
        hints::ignore(fields, &[], ignored)?;

        let form = ChatForm { with_logprobs: chat.logprobs.unwrap_or(false), custom: tools.custom_names() };
        let tools = tools.settings(ignored)?;
        let reasoning_parameters = chat.reasoning_parameters().chain(reasoning.given()).collect();
        let reasoning = reasoning.settings_after(chat.reasoning());
        chat.check()?;

        let grammar = grammar.grammar(None)?;
        let logprobs = chat.top_logprobs()?;
        let options = GenerateOptions { n: choices.n(), grammar, logprobs, ..sampling.options()? };
        let messages = into_messages(chat.messages)?;
        let documents = chat.documents.into_iter().flatten().map(Document::into_read).collect();
        let reading = ReadingSettings { documents, min_score: chat.min_answer_score };
        let overflow = HistoryOverflow::Refuse;
        let request = ChatRequest { messages, tools, reasoning, overflow, reading, options };
        let streaming = choices.streaming();
        let is_streamed = streaming.is_some();
        let conversation = Conversation { model: chat.model, request, is_streamed, reasoning_parameters };
        Ok(Self { conversation, streaming, form })
    }
}

/// Form of an answer to `/v1/chat/completions`.
struct CompletionForm {
    header: CompletionHeader,
    /// Number of choices.
    n: usize,
    /// Present if the answer is streamed.
    streaming: Option<StreamOptions>,
    reading: Option<ReadingObject>,
    form: ChatForm,
}

impl AnswerForm for CompletionForm {
    type Whole = ChatCompletion;

    fn read(&mut self, reading: ReadingObject) {
        self.reading = Some(reading);
    }

    fn whole(self, reply: Reply) -> ChatCompletion {
        ChatCompletion::new(self.header, reply, &self.form).with_reading(self.reading)
    }

    fn streamed(self, events: Events, metrics: Arc<Metrics>) -> Response {
        let options = self.streaming.unwrap_or_default();
        let state = ChatStream::new(self.form, self.n);
        let device = events.ran_on();
        let encoder = ChunkEncoder::<ChatDelta>::new(self.header, options, self.n, state, device);
        let encoder = encoder.with_reading(self.reading);
        sse::respond(events, Box::new(encoder), metrics)
    }
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<RequestRoute<ParsedChat>>) -> Result<Response, ApiError> {
    upstream::answer(&app, body, |body| answer(&app, body)).await
}

/// Answers a request with a model of this machine.
async fn answer(app: &App, body: Body<ParsedChat>) -> Result<Response, ApiError> {
    let Body { request: ParsedChat { conversation, streaming, form }, ignored, reservation } = body;
    let header = CompletionHeader::new("chatcmpl-", conversation.model.clone());
    let form = CompletionForm { header, n: conversation.request.options.n, streaming, reading: None, form };
    conversation::answer(app, Body { request: conversation, ignored, reservation }, form).await
}

/// Returns the prompt of a request.
pub(crate) async fn render(app: App, body: Body<ParsedChat>) -> Result<Response, ApiError> {
    let Body { request: ParsedChat { conversation, .. }, ignored, reservation } = body;
    let model = conversation.model.clone();
    let body = Body { request: conversation, ignored, reservation };
    let (ChatPrompt { text, tokens }, ignored) = conversation::render(&app, body).await?;
    Ok(ignored.name_in(Json(WirePrompt::new("chatcmpl-", model, tokens, Some(text))).into_response()))
}
