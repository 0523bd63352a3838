//! `POST /v1/chat/completions`.

use axum::{Json, response::Response};
use narthex_gateway::{
    ReadyModel,
    request::{ChatRequest, GenerateOptions, Grammar},
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    CompletionHeader,
    chat_answer::{ChatCompletion, ChatDelta},
    messages::WireMessage,
    options::{ChoiceOptions, StreamOptions},
    response_format::ResponseFormat,
    shared_fields::{ConversationBody, SharedFields},
    stream::ChunkEncoder,
    tools::ToolOptions,
};
use crate::{
    app::App,
    body::{self, Body, FromBody},
    conversation,
    device_headers::with_device_headers,
    error::ApiError,
    events,
    ignored::IgnoredParameters,
    reply::collect,
    sse,
};

/// Fields of [`ChatBody`].
const FIELDS: &[&str] =
    &["model", "messages", "logprobs", "top_logprobs", "response_format", "grammar", "regex", "modalities"];

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ChatBody {
    model: String,
    messages: Vec<WireMessage>,
    logprobs: Option<bool>,
    #[schemars(range(max = 20))]
    top_logprobs: Option<usize>,
    #[serde(default, deserialize_with = "body::filled")]
    response_format: Option<ResponseFormat>,
    grammar: Option<String>,
    regex: Option<String>,
    modalities: Option<Vec<String>>,
}

impl ChatBody {
    fn check(&self) -> Result<(), ApiError> {
        match &self.modalities {
            Some(modalities) if *modalities != ["text"] => Err(ApiError::unsupported("modalities")),
            _ => Ok(()),
        }
    }

    fn grammar(&mut self) -> Result<Option<Grammar>, ApiError> {
        let format = self.response_format.take().and_then(ResponseFormat::into_grammar);
        let lark = self.grammar.take().map(Grammar::Lark);
        let regex = self.regex.take().map(Grammar::Regex);
        let mut given = [format, lark, regex].into_iter().flatten();
        match (given.next(), given.next()) {
            (_, Some(_)) => Err(ApiError::bad_request(
                "response_format",
                "expected one of response_format, grammar and regex, found more",
            )),
            (grammar, None) => Ok(grammar),
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
    with_logprobs: bool,
    ignored: IgnoredParameters,
    /// Parameters of reasoning, which have no effect on a model that does not reason.
    of_reasoning: Vec<&'static str>,
}

impl FromBody for ParsedChat {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let fields = [FIELDS, ChoiceOptions::FIELDS, ToolOptions::FIELDS];
        let ConversationBody { own: mut chat, shared, ignored } =
            ConversationBody::<ChatBody>::read(body, &fields, &[])?;
        let choices: ChoiceOptions = body::read_fields(body)?;
        let tools = body::read_fields::<ToolOptions>(body)?.settings()?;
        let SharedFields { sampling, reasoning } = shared;
        let of_reasoning = reasoning.given();
        chat.check()?;
        let (grammar, logprobs) = (chat.grammar()?, chat.top_logprobs()?);
        let options = GenerateOptions { n: choices.n(), grammar, logprobs, ..sampling.options()? };
        let messages = chat.messages.into_iter().enumerate();
        let messages =
            messages.map(|(index, message)| message.into_message(index)).collect::<Result<_, _>>()?;
        Ok(Self {
            request: ChatRequest { messages, tools, reasoning: reasoning.settings(), options },
            streaming: choices.streaming(),
            with_logprobs: chat.logprobs.unwrap_or(false),
            model: chat.model,
            ignored,
            of_reasoning,
        })
    }

    fn ignored(&self) -> Option<&IgnoredParameters> {
        Some(&self.ignored)
    }
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedChat>) -> Result<Response, ApiError> {
    let Body(ParsedChat { model, request, streaming, with_logprobs, mut ignored, of_reasoning }, held) = body;
    let n = request.options.n;
    let header = CompletionHeader::new("chatcmpl", model.clone());
    let call = move |model: &ReadyModel, sink| model.chat(conversation::stable(request), sink);
    let events = events::start(&app, &model, held, call).await?;
    conversation::ignore_reasoning(&app, &events, of_reasoning, &mut ignored)?;
    if let Some(options) = streaming {
        let encoder = ChunkEncoder::<ChatDelta>::new(header, options, n, events.ran_on().device);
        return Ok(ignored.name_in(sse::respond(events, Box::new(encoder), app.meter.metrics)));
    }
    let ran_on = events.ran_on();
    let answer = ChatCompletion::new(header, collect(events, n).await?, with_logprobs);
    Ok(ignored.name_in(with_device_headers(&ran_on, Json(answer))))
}
