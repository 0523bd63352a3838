//! `POST /v1/chat/completions`.

use axum::{Json, response::Response};
use narthex_gateway::{
    ReadyModel,
    request::{
        CallLimit, ChatRequest, FinishReason, GenerateOptions, GenerationEvent, Grammar, Summary, TokenInfo,
        ToolCallDelta, ToolCallStart, ToolChoice, ToolSettings,
    },
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    CompletionHeader, finish_reason,
    messages::WireMessage,
    options::{Sampling, StreamOptions},
    read_body,
    reasoning::ReasoningOptions,
    response_format::ResponseFormat,
    stream::{ChunkEncoder, Chunks, StreamEnd},
    tools::{WireTool, WireToolChoice},
    usage,
};
use crate::{
    app::App,
    body::{self, Body, FromBody},
    conversation,
    device_headers::with_device_headers,
    error::ApiError,
    events,
    hints::{self, Hints},
    ignored::{CALLER_FIELDS, IgnoredParameters},
    reply::{Choice, collect},
    sse,
};

/// Fields of a body in addition to [`Sampling::FIELDS`].
const FIELDS: &[&str] = &[
    "model",
    "messages",
    "logprobs",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "grammar",
    "regex",
    "modalities",
];

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ChatBody {
    model: String,
    messages: Vec<WireMessage>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    tools: Option<Vec<WireTool>>,
    tool_choice: Option<WireToolChoice>,
    parallel_tool_calls: Option<bool>,
    #[serde(default, deserialize_with = "ResponseFormat::read")]
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

    fn tools(&mut self) -> Result<ToolSettings, ApiError> {
        let tools = self.tools.take().unwrap_or_default().into_iter().enumerate();
        let calls = if self.parallel_tool_calls == Some(false) { CallLimit::One } else { CallLimit::Any };
        Ok(ToolSettings {
            tools: tools.map(|(index, tool)| tool.into_tool(index)).collect::<Result<_, _>>()?,
            choice: self.tool_choice.take().map_or(ToolChoice::Auto, WireToolChoice::into_choice),
            calls,
        })
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
        let mut chat: ChatBody =
            read_body(body, &[FIELDS, Sampling::FIELDS, ReasoningOptions::FIELDS, hints::OF_GENERATION])?;
        let sampling: Sampling = body::read_fields(body)?;
        let ignored = Hints::read(body, &[CALLER_FIELDS, hints::OF_GENERATION])?;
        let reasoning: ReasoningOptions = body::read_fields(body)?;
        let of_reasoning = reasoning.given();
        chat.check()?;
        let options = sampling.options(chat.top_logprobs()?)?;
        let options = GenerateOptions { grammar: chat.grammar()?, ..options };
        let tools = chat.tools()?;
        let messages = chat.messages.into_iter().enumerate();
        let messages =
            messages.map(|(index, message)| message.into_message(index)).collect::<Result<_, _>>()?;
        Ok(Self {
            request: ChatRequest { messages, tools, reasoning: reasoning.settings(), options },
            streaming: sampling.streaming(),
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
    if !events.reasons() {
        ignored.extend(of_reasoning);
    }
    if let Some(options) = streaming {
        let end = StreamEnd::new(n, events.ran_on().device);
        let chunks = ChatChunks { header, options, n, end };
        let response = sse::respond(events, Box::new(ChunkEncoder(chunks)), app.meter.metrics);
        return Ok(ignored.name_in(response));
    }
    let ran_on = events.ran_on();
    let reply = collect(events, n).await?;
    let choices: Vec<Value> = reply
        .choices
        .iter()
        .enumerate()
        .map(|(index, choice)| {
            let mut object = json!({
                "index": index,
                "message": message(choice),
                "logprobs": with_logprobs.then(|| logprobs(&choice.tokens)),
            });
            add_finish(&mut object, choice.finish);
            object
        })
        .collect();
    let mut answer = header.object("chat.completion");
    answer["choices"] = choices.into();
    answer["usage"] = usage(&reply.summary);
    answer["timings"] = json!(reply.timings());
    Ok(ignored.name_in(with_device_headers(&ran_on, Json(answer))))
}

/// Returns the message of a complete answer. `content` is null if the answer has only tool calls. The reasoning is in
/// `reasoning_content`, the field of DeepSeek's API that other local servers use too.
fn message(choice: &Choice) -> Value {
    let mut message = json!({"role": "assistant", "content": choice.text, "refusal": null});
    if !choice.reasoning.is_empty() {
        message["reasoning_content"] = choice.reasoning.as_str().into();
    }
    if !choice.calls.is_empty() {
        if choice.text.is_empty() {
            message["content"] = Value::Null;
        }
        let calls = choice.calls.iter().map(|call| {
            json!({
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            })
        });
        message["tool_calls"] = calls.collect();
    }
    message
}

/// Adds the finish reason. An answer with a malformed call also gets `stop_reason`, an extension of the API by vLLM,
/// because `finish_reason` has no value for this case.
fn add_finish(choice: &mut Value, finish: Option<FinishReason>) {
    choice["finish_reason"] = finish.map(finish_reason).into();
    if matches!(finish, Some(FinishReason::MalformedCall | FinishReason::MixedCalls)) {
        choice["stop_reason"] = "malformed_tool_call".into();
    }
}

/// Returns the delta for a part of a call.
fn call_delta(delta: ToolCallDelta) -> Value {
    let mut call = json!({"index": delta.index, "function": {"arguments": delta.arguments}});
    if let Some(ToolCallStart { id, name }) = delta.start {
        call["id"] = id.into();
        call["type"] = "function".into();
        call["function"]["name"] = name.into();
    }
    json!({"tool_calls": [call]})
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
    end: StreamEnd,
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

    fn choice(
        &self,
        index: usize,
        delta: Value,
        tokens: &[TokenInfo],
        finish: Option<FinishReason>,
    ) -> Value {
        let logprobs = if tokens.is_empty() { Value::Null } else { logprobs(tokens) };
        let mut choice = json!({"index": index, "delta": delta, "logprobs": logprobs});
        add_finish(&mut choice, finish);
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
            GenerationEvent::Reasoning { choice, text } => {
                vec![self.choice(choice, json!({"reasoning_content": text}), &[], None)]
            }
            GenerationEvent::ToolCall { choice, delta } => {
                vec![self.choice(choice, call_delta(delta), &[], None)]
            }
            GenerationEvent::Finished { choice, reason } => {
                let chunk = self.choice(choice, json!({}), &[], Some(reason));
                self.end.finish(chunk)
            }
            GenerationEvent::Done(summary) => {
                let usage = self.options.include_usage.then(|| self.chunk(json!([]), Some(&summary)));
                self.end.done(&summary, usage)
            }
            GenerationEvent::Failed { .. } => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::samples;

    #[test]
    fn a_stream_with_a_malformed_call_ends_as_a_whole_answer() {
        let header = CompletionHeader::new("chatcmpl", "m".to_owned());
        let (options, end) = (StreamOptions::default(), StreamEnd::new(1, "cpu".to_owned()));
        let mut chunks = ChatChunks { header, options, n: 1, end };
        let chunks: Vec<Value> =
            samples::malformed().into_iter().flat_map(|event| chunks.chunks(event)).collect();
        let deltas = || chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
        let text: String = deltas().filter_map(|delta| delta["content"].as_str()).collect();
        let whole = samples::whole(samples::malformed()).choices.remove(0);
        assert_eq!(message(&whole)["content"], text);
        // What was sent of the call cannot be taken back. Its arguments never become complete, and the end names it.
        let calls = deltas().filter_map(|delta| delta["tool_calls"][0]["function"]["arguments"].as_str());
        assert!(serde_json::from_str::<Value>(&calls.collect::<String>()).is_err());
        assert_eq!(message(&whole)["tool_calls"], Value::Null);
        let mut expect = json!({});
        add_finish(&mut expect, whole.finish);
        let last = &chunks.last().unwrap()["choices"][0];
        for name in ["finish_reason", "stop_reason"] {
            assert_eq!(last[name], expect[name]);
        }
    }
}
