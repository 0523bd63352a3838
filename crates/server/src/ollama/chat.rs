//! `POST /api/chat`.

use axum::{Json, response::Response};
use narthex_gateway::{
    Gateway,
    request::{
        ChatRequest, FinishReason, FunctionCall, GenerateOptions, GenerationEvent, Grammar, Message, Role,
        Summary, ToolCall, ToolSettings,
    },
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{OllamaError, add_counts, done_reason, plain_name, timestamp};
use crate::{
    app::App,
    body::{self, Body, FromBody},
    device_headers::with_device_headers,
    error::ApiError,
    events,
    model_name::refuse_path,
    openai::{self, options::OneOrMany, tools::WireTool},
    reply::{Choice, WholeToolCall, collect},
    sse::{self, LineEncoder},
};

const FIELDS: &[&str] = &["model", "messages", "stream", "tools", "format", "options", "keep_alive"];

#[derive(Debug, Deserialize)]
struct OllamaBody {
    model: String,
    #[serde(default)]
    messages: Vec<OllamaMessage>,
    stream: Option<bool>,
    tools: Option<Vec<WireTool>>,
    format: Option<Value>,
    options: Option<OllamaOptions>,
}

#[derive(Debug, Deserialize)]
struct OllamaMessage {
    role: Role,
    #[serde(default)]
    content: String,
    tool_name: Option<String>,
    tool_calls: Option<Vec<OllamaCall>>,
    images: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct OllamaCall {
    function: FunctionCall,
}

/// Options with an effect here; the context is the server's.
#[derive(Debug, Default, Deserialize)]
struct OllamaOptions {
    num_predict: Option<i64>,
    temperature: Option<f32>,
    top_k: Option<i64>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    seed: Option<i64>,
    stop: Option<OneOrMany>,
    repeat_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
}

/// A body that was read and checked.
pub(crate) struct ParsedOllama {
    model: String,
    request: ChatRequest,
    is_streamed: bool,
}

impl FromBody for ParsedOllama {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let body: OllamaBody = body::read_body(body, &[FIELDS])?;
        refuse_path(&body.model)?;
        let options = body.options.unwrap_or_default().into_options();
        let tools = body.tools.unwrap_or_default().into_iter().enumerate();
        let tools = tools.map(|(index, tool)| tool.into_tool(index)).collect::<Result<_, _>>()?;
        let messages = body.messages.into_iter().enumerate();
        let request = ChatRequest {
            messages: messages
                .map(|(index, message)| message.into_message(index))
                .collect::<Result<_, _>>()?,
            tools: ToolSettings { tools, ..ToolSettings::default() },
            options: GenerateOptions { grammar: grammar(body.format)?, ..options },
        };
        Ok(Self { model: plain_name(&body.model), request, is_streamed: body.stream != Some(false) })
    }
}

fn grammar(format: Option<Value>) -> Result<Option<Grammar>, ApiError> {
    match format {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" => Ok(Some(Grammar::json_object())),
        Some(schema @ Value::Object(_)) => Ok(Some(Grammar::JsonSchema(schema))),
        Some(other) => {
            let message = format!("format: expected \"json\" or a JSON schema, found {other}");
            Err(ApiError::bad_request("format", message))
        }
    }
}

impl OllamaMessage {
    fn into_message(self, index: usize) -> Result<Message, ApiError> {
        if self.images.is_some_and(|images| !images.is_empty()) {
            return Err(ApiError::unsupported(&format!("messages[{index}].images")));
        }
        let calls = self.tool_calls.unwrap_or_default().into_iter();
        let tool_calls = calls.map(|call| ToolCall { id: None, function: call.function }).collect();
        Ok(Message { name: self.tool_name, tool_calls, ..Message::new(self.role, self.content) })
    }
}

impl OllamaOptions {
    fn into_options(self) -> GenerateOptions {
        let standard = GenerateOptions::api_defaults();
        let count = |value: Option<i64>| value.and_then(|value| usize::try_from(value).ok());
        GenerateOptions {
            max_tokens: count(self.num_predict),
            temperature: self.temperature.unwrap_or(standard.temperature),
            top_k: count(self.top_k).unwrap_or(standard.top_k),
            top_p: self.top_p.unwrap_or(standard.top_p),
            min_p: self.min_p.unwrap_or(standard.min_p),
            seed: self.seed.map(|seed| seed as u64),
            stop: match self.stop {
                None => Vec::new(),
                Some(OneOrMany::One(stop)) => vec![stop],
                Some(OneOrMany::Many(stops)) => stops,
            },
            repetition_penalty: self.repeat_penalty.unwrap_or(standard.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(standard.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(standard.frequency_penalty),
            ..standard
        }
    }
}

/// Handles a request.
pub(crate) async fn create(
    app: App,
    body: Result<Body<ParsedOllama>, ApiError>,
) -> Result<Response, OllamaError> {
    let Body(ParsedOllama { model, request, is_streamed }, held) = body?;
    let name = model.clone();
    let call = move |gateway: &Gateway, sink| gateway.chat(&name, request, sink);
    let events = events::start(&app, &model, held, call).await?;
    let mut lines = ChatLines { model, choice: Choice::default() };
    if is_streamed {
        return Ok(sse::respond_lines(events, Box::new(lines), app.meter.metrics));
    }
    let ran_on = events.ran_on();
    let mut reply = collect(events, 1).await?;
    let choice = reply.choices.pop().unwrap_or_default();
    let mut answer = lines.object(message(&choice.text, &choice.calls));
    lines.choice = choice;
    lines.finish(&mut answer, &reply.summary);
    Ok(with_device_headers(&ran_on, Json(answer)))
}

fn message(text: &str, calls: &[WholeToolCall]) -> Value {
    let mut message = json!({"role": "assistant", "content": text});
    if !calls.is_empty() {
        let calls = calls.iter().map(|call| {
            let arguments = serde_json::from_str(&call.arguments).unwrap_or(Value::Object(Map::new()));
            json!({"function": {"name": call.name, "arguments": arguments}})
        });
        message["tool_calls"] = calls.collect();
    }
    message
}

/// Encodes an answer as one JSON object per line.
struct ChatLines {
    model: String,
    /// Calls and the finish reason, which are sent at the end.
    choice: Choice,
}

impl ChatLines {
    fn object(&self, message: Value) -> Value {
        json!({"model": self.model, "created_at": timestamp(openai::now()), "message": message, "done": false})
    }

    fn finish(&self, answer: &mut Value, summary: &Summary) {
        answer["done"] = json!(true);
        answer["done_reason"] = json!(done_reason(self.choice.finish.unwrap_or(FinishReason::Stop)));
        add_counts(answer, summary);
    }
}

impl LineEncoder for ChatLines {
    fn lines(&mut self, event: GenerationEvent) -> Vec<Value> {
        match event {
            GenerationEvent::Text { text, .. } if !text.is_empty() => vec![self.object(message(&text, &[]))],
            GenerationEvent::ToolCall { delta, .. } => {
                self.choice.add_call(delta);
                Vec::new()
            }
            GenerationEvent::Finished { reason, .. } => {
                self.choice.finish = Some(reason);
                Vec::new()
            }
            GenerationEvent::Done(summary) => {
                let mut last = self.object(message("", &self.choice.calls));
                self.finish(&mut last, &summary);
                vec![last]
            }
            GenerationEvent::Failed { message } => vec![json!({"error": message})],
            GenerationEvent::Started { .. } | GenerationEvent::Text { .. } => Vec::new(),
        }
    }
}
