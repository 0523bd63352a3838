//! `POST /v1/chat/completions`.

use axum::{Json, response::Response};
use narthex_gateway::{
    ReadyModel,
    request::{ChatRequest, GenerateOptions, HistoryOverflow, ReasoningSettings},
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    CompletionHeader,
    chat_answer::{ChatCompletion, ChatDelta, ChatForm, ChatStream},
    messages::{WireMessage, into_messages},
    stream::ChunkEncoder,
};
use crate::{
    app::App,
    error::ApiError,
    protocol::{
        body::{self, Body, FromBody},
        conversation,
        device_headers::with_device_headers,
        events,
        ignored::IgnoredParameters,
        options::{ChoiceOptions, StreamOptions},
        reasoning::{ReasoningObject, ThinkingSettings},
        reply::collect,
        shared_fields::{ConversationBody, SharedFields},
        sse,
        tools::ToolOptions,
    },
};

/// Fields of [`ChatBody`].
const FIELDS: &[&str] =
    &["model", "messages", "logprobs", "top_logprobs", "modalities", "thinking", "reasoning"];

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
    model: String,
    request: ChatRequest,
    streaming: Option<StreamOptions>,
    form: ChatForm,
    /// Parameters of reasoning, which have no effect on a model that does not reason.
    reasoning_parameters: Vec<&'static str>,
}

impl FromBody for ParsedChat {
    fn read(body: &[u8], ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let fields = [FIELDS, ChoiceOptions::FIELDS, ToolOptions::FIELDS];
        let ConversationBody { own: chat, shared } =
            ConversationBody::<ChatBody>::read(body, &fields, &[], ignored)?;
        let choices: ChoiceOptions = body::read_fields(body)?;
        let tools: ToolOptions = body::read_fields(body)?;
        let form = ChatForm { with_logprobs: chat.logprobs.unwrap_or(false), custom: tools.custom_names() };
        let tools = tools.settings()?;
        let SharedFields { sampling, reasoning, grammar } = shared;
        let reasoning_parameters = chat.reasoning_parameters().chain(reasoning.given()).collect();
        let reasoning = reasoning.settings_after(chat.reasoning());
        chat.check()?;
        let (grammar, logprobs) = (grammar.grammar(None)?, chat.top_logprobs()?);
        let options = GenerateOptions { n: choices.n(), grammar, logprobs, ..sampling.options()? };
        let messages = into_messages(chat.messages)?;
        Ok(Self {
            request: ChatRequest { messages, tools, reasoning, overflow: HistoryOverflow::Refuse, options },
            streaming: choices.streaming(),
            form,
            model: chat.model,
            reasoning_parameters,
        })
    }
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedChat>) -> Result<Response, ApiError> {
    let Body { request, mut ignored, reservation } = body;
    let ParsedChat { model, request, streaming, form, reasoning_parameters } = request;
    let n = request.options.n;
    let header = CompletionHeader::new("chatcmpl-", model.clone());
    let call = move |model: &ReadyModel, sink| model.chat(conversation::stable(request), sink);
    let more_answers = app.meter.caller.add_answers(n.saturating_sub(1))?;
    let events = events::start(&app, &model, reservation, more_answers, call).await?;
    conversation::ignore_reasoning(&app, &events, reasoning_parameters, &mut ignored)?;
    if let Some(options) = streaming {
        let (state, device) = (ChatStream::new(form, n), events.ran_on().device);
        let encoder = ChunkEncoder::<ChatDelta>::new(header, options, n, state, device);
        return Ok(ignored.name_in(sse::respond(events, Box::new(encoder), app.meter.metrics)));
    }
    let ran_on = events.ran_on();
    let answer = ChatCompletion::new(header, collect(events, n).await?, &form);
    Ok(ignored.name_in(with_device_headers(&ran_on, Json(answer))))
}
