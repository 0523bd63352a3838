//! `POST /v1/chat/completions`.

use std::fmt;

use axum::{Json, response::Response};
use narthex_gateway::{
    Gateway,
    request::{ChatRequest, GenerationEvent, Message, Role, Summary, TokenInfo},
};
use serde::{
    Deserialize, Deserializer,
    de::{SeqAccess, Visitor, value::SeqAccessDeserializer},
};
use serde_json::{Value, json};

use super::{
    CompletionHeader, finish_reason,
    options::{Sampling, StreamOptions},
    read_body,
    stream::{ChunkEncoder, Chunks},
    usage,
};
use crate::{
    app::App,
    body::{self, Body, FromBody},
    device_headers::with_device_headers,
    error::ApiError,
    events,
    model_name::refuse_path,
    reply::collect,
    sse,
};

/// Fields of a body beside [`Sampling::FIELDS`].
const FIELDS: &[&str] =
    &["model", "messages", "logprobs", "top_logprobs", "tool_choice", "response_format", "modalities"];

#[derive(Debug, Deserialize)]
struct ChatBody {
    model: String,
    messages: Vec<WireMessage>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    tool_choice: Option<Value>,
    response_format: Option<Value>,
    modalities: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct WireMessage {
    role: Role,
    content: Option<Content>,
    name: Option<String>,
    tool_call_id: Option<String>,
    tool_calls: Option<Vec<Value>>,
}

#[derive(Debug)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_any(ContentVisitor)
    }
}

/// Reads a text without a copy, as serde's untagged enums would make.
struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#"a string or a list of parts such as {"type": "text", "text": …}"#)
    }

    fn visit_str<E>(self, text: &str) -> Result<Content, E> {
        Ok(Content::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, parts: A) -> Result<Content, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(parts)).map(Content::Parts)
    }
}

#[derive(Debug, Deserialize)]
struct Part {
    r#type: String,
    text: Option<String>,
}

impl ChatBody {
    fn check(&self) -> Result<(), ApiError> {
        if self.tool_choice.as_ref().is_some_and(|choice| !choice.is_null() && choice != "none") {
            return Err(ApiError::unsupported("tool_choice"));
        }
        let format = self.response_format.as_ref().filter(|format| !format.is_null());
        if format.is_some_and(|format| format["type"] != "text") {
            return Err(ApiError::unsupported("response_format"));
        }
        let modalities = self.modalities.as_ref().filter(|modalities| !modalities.is_null());
        if modalities.is_some_and(|modalities| *modalities != json!(["text"])) {
            return Err(ApiError::unsupported("modalities"));
        }
        Ok(())
    }

    fn top_logprobs(&self) -> Result<Option<usize>, ApiError> {
        match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (true, top) => Ok(Some(top.unwrap_or(0))),
            (false, None) => Ok(None),
            (false, Some(_)) => {
                Err(ApiError::bad_request("top_logprobs", "top_logprobs needs logprobs: true"))
            }
        }
    }
}

impl Part {
    /// Returns the text; `path` names the part in errors.
    fn into_text(self, path: &str) -> Result<String, ApiError> {
        match (self.r#type.as_str(), self.text) {
            ("text", Some(text)) => Ok(text),
            ("text", None) => Err(ApiError::bad_request(path, format!("{path}: text is missing"))),
            (other, _) => {
                let message = format!(
                    "{path}: parts of type {other:?} are not supported by this version of Narthex; send text"
                );
                Err(ApiError::unsupported_as(path, message))
            }
        }
    }
}

impl WireMessage {
    fn into_message(self, index: usize) -> Result<Message, ApiError> {
        if self.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty()) {
            return Err(ApiError::unsupported(&format!("messages[{index}].tool_calls")));
        }
        let content = match self.content {
            None => String::new(),
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => parts
                .into_iter()
                .enumerate()
                .map(|(part, content)| content.into_text(&format!("messages[{index}].content[{part}]")))
                .collect::<Result<_, _>>()?,
        };
        let (name, tool_call_id) = (self.name, self.tool_call_id);
        Ok(Message { name, tool_call_id, ..Message::new(self.role, content) })
    }
}

/// A body that was read and checked.
pub(crate) struct ParsedChat {
    model: String,
    request: ChatRequest,
    streaming: Option<StreamOptions>,
    with_logprobs: bool,
}

impl FromBody for ParsedChat {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let chat: ChatBody = read_body(body, &[FIELDS, Sampling::FIELDS])?;
        let sampling: Sampling = body::read_fields(body)?;
        refuse_path(&chat.model)?;
        chat.check()?;
        let options = sampling.options(chat.top_logprobs()?)?;
        let messages = chat.messages.into_iter().enumerate();
        let messages =
            messages.map(|(index, message)| message.into_message(index)).collect::<Result<_, _>>()?;
        Ok(Self {
            request: ChatRequest { messages, options },
            streaming: sampling.streaming(),
            with_logprobs: chat.logprobs.unwrap_or(false),
            model: chat.model,
        })
    }
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedChat>) -> Result<Response, ApiError> {
    let Body(ParsedChat { model, request, streaming, with_logprobs }, held) = body;
    let n = request.options.n;
    let header = CompletionHeader::new("chatcmpl", model.clone());
    let name = model.clone();
    let call = move |gateway: &Gateway, sink| gateway.chat(&name, request, sink);
    let events = events::start(&app, &model, held, call).await?;
    if let Some(options) = streaming {
        let chunks = ChatChunks { header, options, n };
        return Ok(sse::respond(events, Box::new(ChunkEncoder(chunks)), app.meter.metrics));
    }
    let ran_on = events.ran_on();
    let reply = collect(events, n).await?;
    let choices: Vec<Value> = reply
        .choices
        .iter()
        .enumerate()
        .map(|(index, choice)| {
            json!({
                "index": index,
                "message": {"role": "assistant", "content": choice.text, "refusal": null},
                "logprobs": with_logprobs.then(|| logprobs(&choice.tokens)),
                "finish_reason": choice.finish.map(finish_reason),
            })
        })
        .collect();
    let mut answer = header.object("chat.completion");
    answer["choices"] = choices.into();
    answer["usage"] = usage(&reply.summary);
    Ok(with_device_headers(&ran_on, Json(answer)))
}

fn logprobs(tokens: &[TokenInfo]) -> Value {
    let content: Vec<Value> = tokens
        .iter()
        .map(|token| {
            let top: Vec<Value> = token
                .top
                .iter()
                .map(|top| json!({"token": top.text, "logprob": top.logprob, "bytes": top.bytes}))
                .collect();
            json!({"token": token.text, "logprob": token.logprob, "bytes": token.bytes, "top_logprobs": top})
        })
        .collect();
    json!({"content": content, "refusal": null})
}

struct ChatChunks {
    header: CompletionHeader,
    options: StreamOptions,
    n: usize,
}

impl ChatChunks {
    fn chunk(&self, choices: Value, summary: Option<&Summary>) -> Value {
        let mut chunk = self.header.object("chat.completion.chunk");
        chunk["choices"] = choices;
        if self.options.include_usage {
            chunk["usage"] = summary.map_or(Value::Null, usage);
        }
        chunk
    }

    fn choice(&self, index: usize, delta: Value, tokens: &[TokenInfo], finish: Option<&str>) -> Value {
        let logprobs = if tokens.is_empty() { Value::Null } else { logprobs(tokens) };
        let choice = json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish});
        self.chunk(json!([choice]), None)
    }
}

impl Chunks for ChatChunks {
    fn chunks(&mut self, event: GenerationEvent) -> Vec<Value> {
        match event {
            GenerationEvent::Started { .. } => (0..self.n)
                .map(|index| self.choice(index, json!({"role": "assistant", "content": ""}), &[], None))
                .collect(),
            GenerationEvent::Text { choice, text, tokens } => {
                vec![self.choice(choice, json!({"content": text}), &tokens, None)]
            }
            GenerationEvent::Finished { choice, reason } => {
                vec![self.choice(choice, json!({}), &[], Some(finish_reason(reason)))]
            }
            GenerationEvent::Done(summary) if self.options.include_usage => {
                vec![self.chunk(json!([]), Some(&summary))]
            }
            GenerationEvent::Done(_) | GenerationEvent::Failed { .. } => Vec::new(),
        }
    }
}
