//! Answers of `/v1/chat/completions`, whole and in chunks.

use narthex_gateway::request::{FinishReason, GenerationEvent, ToolCallDelta};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    CompletionHeader, CompletionUsage, WireFinishReason, logprobs::ChatLogprobs, stream::ChunkChoice,
};
use crate::{
    reply::{Choice, Reply, WholeToolCall},
    timings::Timings,
};

/// Type of a whole answer.
const OBJECT: &str = "chat.completion";

/// Role of an answer's author.
const ROLE: &str = "assistant";

/// Type of every call.
const FUNCTION: &str = "function";

/// `stop_reason` of an answer with a malformed call.
const MALFORMED: &str = "malformed_tool_call";

/// Whole answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatCompletion {
    #[serde(flatten)]
    header: CompletionHeader,
    #[schemars(extend("const" = OBJECT))]
    object: &'static str,
    choices: Vec<ChatChoice>,
    usage: CompletionUsage,
    timings: Timings,
}

/// Choice of a whole answer.
#[derive(Debug, Serialize, JsonSchema)]
struct ChatChoice {
    index: usize,
    message: ChatMessage,
    /// Null unless the request asks for log-probabilities.
    logprobs: Option<ChatLogprobs>,
    #[serde(flatten)]
    end: ChoiceEnd,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ChatMessage {
    #[schemars(extend("const" = ROLE))]
    role: &'static str,
    /// Null if the answer has only calls.
    content: Option<String>,
    /// Null, because there are no refusals.
    refusal: Option<String>,
    /// Reasoning, in the field of DeepSeek's API that other local servers use too.
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning_content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ChatCall>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ChatCall {
    id: String,
    #[schemars(extend("const" = FUNCTION))]
    r#type: &'static str,
    function: ChatFunction,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ChatFunction {
    name: String,
    /// Arguments as JSON text.
    arguments: String,
}

/// End of a choice.
#[derive(Debug, Serialize, JsonSchema)]
struct ChoiceEnd {
    /// Null until the choice ends.
    finish_reason: Option<WireFinishReason>,
    /// Extension of the API by vLLM, because `finish_reason` has no value for an answer with a malformed call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("const" = MALFORMED))]
    stop_reason: Option<&'static str>,
}

/// Choice of a chunk.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatDelta {
    index: usize,
    delta: MessageDelta,
    /// Null for a part without log-probabilities.
    logprobs: Option<ChatLogprobs>,
    #[serde(flatten)]
    end: ChoiceEnd,
}

/// Part of a message; empty at the end of a choice.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct MessageDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("const" = ROLE))]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallDelta>,
}

/// Part of a call. Only its first part has an id, a type and a name.
#[derive(Debug, Serialize, JsonSchema)]
struct CallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("const" = FUNCTION))]
    r#type: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(Debug, Serialize, JsonSchema)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// More of the arguments' JSON text.
    arguments: String,
}

impl ChatCompletion {
    /// Returns the answer with its log-probabilities if they were requested.
    pub(super) fn new(header: CompletionHeader, reply: Reply, with_logprobs: bool) -> Self {
        let (usage, timings) = (CompletionUsage::from(&reply.summary), reply.timings());
        let choices = reply.choices.into_iter().enumerate();
        let choices = choices.map(|(index, choice)| ChatChoice::new(index, choice, with_logprobs)).collect();
        Self { header, object: OBJECT, choices, usage, timings }
    }
}

impl ChatChoice {
    fn new(index: usize, choice: Choice, with_logprobs: bool) -> Self {
        let Choice { text, reasoning, tokens, calls, finish, .. } = choice;
        let message = ChatMessage {
            role: ROLE,
            content: (calls.is_empty() || !text.is_empty()).then_some(text),
            refusal: None,
            reasoning_content: reasoning,
            tool_calls: calls.into_iter().map(ChatCall::from).collect(),
        };
        let logprobs = with_logprobs.then(|| ChatLogprobs::new(tokens));
        Self { index, message, logprobs, end: ChoiceEnd::new(finish) }
    }
}

impl From<WholeToolCall> for ChatCall {
    fn from(call: WholeToolCall) -> Self {
        let function = ChatFunction { name: call.name, arguments: call.arguments };
        Self { id: call.id, r#type: FUNCTION, function }
    }
}

impl ChoiceEnd {
    fn new(finish: Option<FinishReason>) -> Self {
        let is_malformed = matches!(finish, Some(FinishReason::MalformedCall | FinishReason::MixedCalls));
        Self {
            finish_reason: finish.map(WireFinishReason::from),
            stop_reason: is_malformed.then_some(MALFORMED),
        }
    }
}

impl From<ToolCallDelta> for CallDelta {
    fn from(ToolCallDelta { index, start, arguments }: ToolCallDelta) -> Self {
        let (id, name) = start.map(|start| (start.id, start.name)).unzip();
        let r#type = id.is_some().then_some(FUNCTION);
        Self { index, id, r#type, function: FunctionDelta { name, arguments } }
    }
}

impl ChatDelta {
    fn new(index: usize, delta: MessageDelta) -> Self {
        Self { index, delta, logprobs: None, end: ChoiceEnd::new(None) }
    }
}

impl ChunkChoice for ChatDelta {
    const OBJECT: &'static str = "chat.completion.chunk";

    fn from_event(event: GenerationEvent, lengths: &mut [usize]) -> Vec<Self> {
        match event {
            GenerationEvent::Started { .. } => {
                let start = |index| {
                    let (role, content) = (Some(ROLE), Some(String::new()));
                    Self::new(index, MessageDelta { role, content, ..MessageDelta::default() })
                };
                (0..lengths.len()).map(start).collect()
            }
            GenerationEvent::Text { choice, text, tokens } => {
                let delta = MessageDelta { content: Some(text), ..MessageDelta::default() };
                let logprobs = (!tokens.is_empty()).then(|| ChatLogprobs::new(tokens));
                vec![Self { logprobs, ..Self::new(choice, delta) }]
            }
            GenerationEvent::Reasoning { choice, text } => {
                let delta = MessageDelta { reasoning_content: Some(text), ..MessageDelta::default() };
                vec![Self::new(choice, delta)]
            }
            GenerationEvent::ToolCall { choice, delta } => {
                let delta = MessageDelta { tool_calls: vec![delta.into()], ..MessageDelta::default() };
                vec![Self::new(choice, delta)]
            }
            GenerationEvent::Finished { choice, reason } => {
                let end = ChoiceEnd::new(Some(reason));
                vec![Self { end, ..Self::new(choice, MessageDelta::default()) }]
            }
            GenerationEvent::Done(_) | GenerationEvent::Failed { .. } => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{
        super::{options::StreamOptions, stream::ChunkEncoder},
        *,
    };
    use crate::reply::samples;

    #[test]
    fn a_stream_with_a_malformed_call_ends_as_a_whole_answer() {
        let header = CompletionHeader::new("chatcmpl", "m".to_owned());
        let mut encoder =
            ChunkEncoder::<ChatDelta>::new(header, StreamOptions::default(), 1, "cpu".to_owned());
        let chunks = samples::malformed().into_iter().flat_map(|event| encoder.chunks(event));
        let chunks: Vec<Value> = chunks.map(|chunk| json!(chunk)).collect();
        let deltas = || chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
        let text: String = deltas().filter_map(|delta| delta["content"].as_str()).collect();
        let whole = samples::whole(samples::malformed()).choices.remove(0);
        let whole = json!(ChatChoice::new(0, whole, false));
        assert_eq!(whole["message"]["content"], text);
        // What was sent of the call cannot be taken back. Its arguments never become complete, and the end names it.
        let calls = deltas().filter_map(|delta| delta["tool_calls"][0]["function"]["arguments"].as_str());
        assert!(serde_json::from_str::<Value>(&calls.collect::<String>()).is_err());
        assert_eq!(whole["message"]["tool_calls"], Value::Null);
        let last = &chunks.last().unwrap()["choices"][0];
        assert_eq!(last["stop_reason"], MALFORMED);
        for name in ["finish_reason", "stop_reason"] {
            assert_eq!(last[name], whole[name]);
        }
    }
}
