//! `POST /v1/chat/completions`.

use axum::{Json, extract::State, response::Response};
use narthex_gateway::request::{ChatRequest, GenerationEvent, Message, Role, Summary, TokenInfo};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    body::{Body, read, read_whole},
    finish_reason, fresh_id, now,
    options::{Sampling, StreamOptions},
    refuse_path,
    stream::{self, Chunks},
    usage,
};
use crate::{error::ApiError, ran_on::marked, reply::gather, routes::App, sink};

/// Fields that are read beside [`Sampling::FIELDS`].
const FIELDS: &[&str] =
    &["model", "messages", "logprobs", "top_logprobs", "tool_choice", "response_format", "modalities"];

#[derive(Debug, Deserialize)]
pub(crate) struct Request {
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
    #[serde(default)]
    content: Option<Content>,
    name: Option<String>,
    tool_call_id: Option<String>,
    tool_calls: Option<Vec<Value>>,
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string or a list of parts such as {\"type\": \"text\", \"text\": …}"
)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    r#type: String,
    text: Option<String>,
}

impl Request {
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

    fn messages(&self) -> Result<Vec<Message>, ApiError> {
        self.messages.iter().enumerate().map(|(index, message)| message.read(index)).collect()
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
    /// Its text; `place` names it in errors.
    fn read(&self, place: &str) -> Result<&str, ApiError> {
        match (self.r#type.as_str(), &self.text) {
            ("text", Some(text)) => Ok(text),
            ("text", None) => {
                Err(ApiError::bad_request(place, format!("{place}: expected a text, found none")))
            }
            (other, _) => {
                let message = format!(
                    "{place}: parts of type {other:?} are not supported yet by this version of Narthex; send text"
                );
                Err(ApiError::unsupported_as(place, message))
            }
        }
    }
}

impl WireMessage {
    fn read(&self, index: usize) -> Result<Message, ApiError> {
        if self.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty()) {
            return Err(ApiError::unsupported(&format!("messages[{index}].tool_calls")));
        }
        let content = match &self.content {
            None => String::new(),
            Some(Content::Text(text)) => text.clone(),
            Some(Content::Parts(parts)) => parts
                .iter()
                .enumerate()
                .map(|(part, content)| content.read(&format!("messages[{index}].content[{part}]")))
                .collect::<Result<_, _>>()?,
        };
        let (name, tool_call_id) = (self.name.clone(), self.tool_call_id.clone());
        Ok(Message { name, tool_call_id, ..Message::new(self.role, content) })
    }
}

/// Reads a body: the request, what the gateway makes of it, and how it is streamed, if it is.
pub(crate) fn interpret(body: &Value) -> Result<(Request, ChatRequest, Option<StreamOptions>), ApiError> {
    let request: Request = read_whole(body, &[FIELDS, Sampling::FIELDS])?;
    let sampling: Sampling = read(body)?;
    refuse_path(&request.model)?;
    request.check()?;
    let options = sampling.options(request.top_logprobs()?)?;
    let chat = ChatRequest { messages: request.messages()?, options };
    Ok((request, chat, sampling.streaming()))
}

/// Answers a conversation.
pub(crate) async fn create(State(app): State<App>, Body(body): Body) -> Result<Response, ApiError> {
    let (request, chat, streaming) = interpret(&body)?;
    let n = chat.options.n;
    let (gateway, model) = (app.gateway.clone(), request.model.clone());
    let events = sink::start(move |sink| gateway.chat(&model, chat, sink)).await?;
    let head = Head { id: fresh_id("chatcmpl"), created: now(), model: request.model };
    if let Some(options) = streaming {
        return Ok(stream::respond(events, Box::new(ChatChunks { head, options, n }), app.metrics));
    }
    let ran_on = events.ran_on();
    let reply = gather(events, n).await?;
    app.metrics.generation(&reply.summary);
    let with_logprobs = request.logprobs.unwrap_or(false);
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
    let mut answer = head.object("chat.completion");
    answer["choices"] = choices.into();
    answer["usage"] = usage(&reply.summary);
    Ok(marked(&ran_on, Json(answer)))
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

struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn object(&self, object: &str) -> Value {
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model})
    }
}

struct ChatChunks {
    head: Head,
    options: StreamOptions,
    n: usize,
}

impl ChatChunks {
    fn chunk(&self, choices: Value, summary: Option<&Summary>) -> Value {
        let mut chunk = self.head.object("chat.completion.chunk");
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
