//! Answers of `/v1/chat/completions`, whole and in chunks.

use narthex_gateway::request::{FinishReason, GenerationEvent, ToolCallDelta};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::{
    CompletionHeader, CompletionUsage, WireFinishReason, logprobs::ChatLogprobs, stream::ChunkChoice,
};
use crate::protocol::{
    custom_tools::{self, CUSTOM},
    reading::ReadingObject,
    reply::{Choice, Reply, WholeToolCall, is_cut},
    timings::Timings,
};

/// Type of a whole answer.
const OBJECT: &str = "chat.completion";

/// Role of an answer's author.
const ROLE: &str = "assistant";

/// Type of the call of a function.
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
    /// Only for question-answering models.
    #[serde(skip_serializing_if = "Option::is_none")]
    reading: Option<ReadingObject>,
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
    #[serde(flatten)]
    called: CalledTool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum CalledTool {
    Function { function: ChatFunction },
    Custom { custom: CustomCall },
}

/// Call of a custom tool.
#[derive(Debug, Serialize, JsonSchema)]
struct CustomCall {
    name: String,
    input: String,
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
    #[schemars(extend("enum" = [FUNCTION, CUSTOM]))]
    r#type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<FunctionDelta>,
    #[serde(skip_serializing_if = "Option::is_none")]
    custom: Option<CustomDelta>,
}

/// Part of a custom tool's call. Its input is sent as a whole, after the part with the name.
#[derive(Debug, Serialize, JsonSchema)]
struct CustomDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    input: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// More of the arguments' JSON text.
    arguments: String,
}

/// Form of an answer.
#[derive(Debug, Default)]
pub(super) struct ChatForm {
    pub(super) with_logprobs: bool,
    /// Names of the custom tools.
    pub(super) custom: Vec<String>,
}

impl ChatForm {
    fn call(&self, call: WholeToolCall) -> ChatCall {
        let WholeToolCall { id, name, arguments } = call;
        let called = if self.custom.contains(&name) {
            CalledTool::Custom { custom: CustomCall { name, input: custom_tools::input(&arguments) } }
        } else {
            CalledTool::Function { function: ChatFunction { name, arguments } }
        };
        ChatCall { id, called }
    }
}

impl ChatCompletion {
    /// Returns the answer in this form.
    pub(super) fn new(header: CompletionHeader, reply: Reply, form: &ChatForm) -> Self {
        let usage = CompletionUsage::from(&reply.summary);
        let timings = reply.timings();
        let choices = reply.choices.into_iter().enumerate();
        let choices = choices.map(|(index, choice)| ChatChoice::new(index, choice, form)).collect();
        Self { header, object: OBJECT, choices, usage, timings, reading: None }
    }

    /// Returns the answer that a question-answering model has read.
    pub(super) fn with_reading(self, reading: Option<ReadingObject>) -> Self {
        Self { reading, ..self }
    }
}

impl ChatChoice {
    fn new(index: usize, choice: Choice, form: &ChatForm) -> Self {
        let text = choice.text();
        let tool_calls: Vec<_> = choice.calls().cloned().map(|call| form.call(call)).collect();
        let Choice { reasoning, tokens, finish, .. } = choice;
        let message = ChatMessage {
            role: ROLE,
            content: (tool_calls.is_empty() || !text.is_empty()).then_some(text),
            refusal: None,
            reasoning_content: reasoning,
            tool_calls,
        };
        let logprobs = form.with_logprobs.then(|| ChatLogprobs::new(tokens));
        Self { index, message, logprobs, end: ChoiceEnd::new(finish) }
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
        Self { index, id, r#type, function: Some(FunctionDelta { name, arguments }), custom: None }
    }
}

/// State of a streamed answer.
#[derive(Debug)]
pub(crate) struct ChatStream {
    form: ChatForm,
    /// The custom tool's call that is open in each choice.
    open: Vec<Option<OpenCall>>,
}

/// Call of a custom tool, whose arguments are not its input.
#[derive(Debug)]
struct OpenCall {
    index: usize,
    arguments: String,
}

impl ChatStream {
    /// Creates the state of an answer with `n` choices.
    pub(super) fn new(form: ChatForm, n: usize) -> Self {
        Self { form, open: (0..n).map(|_| None).collect() }
    }

    /// Returns the parts of calls for a part of one.
    fn call(&mut self, choice: usize, delta: ToolCallDelta) -> Vec<CallDelta> {
        let mut parts = Vec::new();
        if let Some(start) = &delta.start {
            parts.extend(self.close(choice, CallEnd::Complete));
            if self.form.custom.contains(&start.name) {
                let custom = CustomDelta { name: Some(start.name.clone()), input: String::new() };
                let index = delta.index;
                parts.push(CallDelta {
                    index,
                    id: Some(start.id.clone()),
                    r#type: Some(CUSTOM),
                    function: None,
                    custom: Some(custom),
                });
                if let Some(open) = self.open.get_mut(choice) {
                    *open = Some(OpenCall { index, arguments: delta.arguments });
                }
                return parts;
            }
        }
        match self.open.get_mut(choice).and_then(Option::as_mut) {
            Some(open) => open.arguments.push_str(&delta.arguments),
            None => parts.push(delta.into()),
        }
        parts
    }

    /// Returns the input of the open call of a custom tool. A malformed call has none; its text is in the answer.
    fn close(&mut self, choice: usize, ending: CallEnd) -> Option<CallDelta> {
        let OpenCall { index, arguments } = self.open.get_mut(choice)?.take()?;
        let is_whole = serde_json::from_str::<Value>(&arguments).is_ok();
        let input = custom_tools::input(&arguments);
        let custom = (is_whole || ending == CallEnd::Cut).then_some(CustomDelta { name: None, input })?;
        Some(CallDelta { index, id: None, r#type: None, function: None, custom: Some(custom) })
    }
}

/// End of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallEnd {
    Complete,
    /// The answer was cut off in it.
    Cut,
}

impl ChatDelta {
    fn new(index: usize, delta: MessageDelta) -> Self {
        Self { index, delta, logprobs: None, end: ChoiceEnd::new(None) }
    }

    /// Returns the parts of calls, if there are any.
    fn of_calls(choice: usize, calls: impl IntoIterator<Item = CallDelta>) -> Option<Self> {
        let tool_calls: Vec<_> = calls.into_iter().collect();
        (!tool_calls.is_empty())
            .then(|| Self::new(choice, MessageDelta { tool_calls, ..MessageDelta::default() }))
    }
}

impl ChunkChoice for ChatDelta {
    const OBJECT: &'static str = "chat.completion.chunk";
    type State = ChatStream;

    fn from_event(event: GenerationEvent, state: &mut ChatStream) -> Vec<Self> {
        match event {
            GenerationEvent::Started { .. } => {
                let starts = (0..state.open.len()).map(|index| {
                    let content = Some(String::new());
                    Self::new(index, MessageDelta { role: Some(ROLE), content, ..MessageDelta::default() })
                });
                starts.collect()
            }
            GenerationEvent::Text { choice, text, tokens } => {
                let is_empty = text.is_empty();
                let delta = MessageDelta { content: Some(text), ..MessageDelta::default() };
                let logprobs = (!tokens.is_empty()).then(|| ChatLogprobs::new(tokens));
                // A part may have only the log-probabilities of a call.
                let closed = if is_empty { None } else { state.close(choice, CallEnd::Complete) };
                let text = Self { logprobs, ..Self::new(choice, delta) };
                Self::of_calls(choice, closed).into_iter().chain([text]).collect()
            }

            GenerationEvent::Reasoning { choice, text } => {
                let delta = MessageDelta { reasoning_content: Some(text), ..MessageDelta::default() };
                vec![Self::new(choice, delta)]
            }
            GenerationEvent::ToolCall { choice, delta } => {
                Self::of_calls(choice, state.call(choice, delta)).into_iter().collect()
            }
            GenerationEvent::Finished { choice, reason } => {
                let ending = if is_cut(reason) { CallEnd::Cut } else { CallEnd::Complete };
                let closed = state.close(choice, ending);
                let end = ChoiceEnd::new(Some(reason));
                let end = Self { end, ..Self::new(choice, MessageDelta::default()) };
                Self::of_calls(choice, closed).into_iter().chain([end]).collect()
            }
            GenerationEvent::Done(_) | GenerationEvent::Failed { .. } => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use narthex_gateway::request::{Summary, ToolCallStart};
    use serde_json::json;

    use super::{super::stream::ChunkEncoder, *};
    use crate::protocol::{options::StreamOptions, reply::samples};

    #[test]
    fn a_stream_with_a_malformed_call_ends_as_a_whole_answer() {
        let header = CompletionHeader::new("chatcmpl-", "m".to_owned());
        let state = ChatStream::new(ChatForm::default(), 1);
        let mut encoder =
            ChunkEncoder::<ChatDelta>::new(header, StreamOptions::default(), 1, state, samples::device());
        let chunks = samples::malformed().into_iter().flat_map(|event| encoder.chunks(event));
        let chunks: Vec<Value> = chunks.map(|chunk| json!(chunk)).collect();
        let deltas = || chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
        let text: String = deltas().filter_map(|delta| delta["content"].as_str()).collect();
        let whole = samples::whole(samples::malformed()).choices.remove(0);
        let whole = json!(ChatChoice::new(0, whole, &ChatForm::default()));
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

    #[test]
    fn the_input_of_a_custom_tool_is_streamed() {
        let form = || ChatForm { custom: vec!["patch".to_owned()], ..ChatForm::default() };
        let part = |start: Option<&str>, index, arguments: &str| {
            let start =
                start.map(|name| ToolCallStart { id: format!("call_{index}"), name: name.to_owned() });
            let delta = ToolCallDelta { index, start, arguments: arguments.to_owned() };
            GenerationEvent::ToolCall { choice: 0, delta }
        };
        let end = |reason| GenerationEvent::Finished { choice: 0, reason };
        let calls = |events: Vec<GenerationEvent>| {
            let mut state = ChatStream::new(form(), 1);
            let deltas = events.into_iter().flat_map(|event| ChatDelta::from_event(event, &mut state));
            let deltas: Vec<Value> = deltas.map(|delta| json!(delta)).collect();
            deltas
                .iter()
                .flat_map(|delta| delta["delta"]["tool_calls"].as_array().cloned().unwrap_or_default())
                .collect::<Vec<_>>()
        };
        let begin =
            json!({"index": 0, "id": "call_0", "type": "custom", "custom": {"name": "patch", "input": ""}});
        let parts = [part(Some("patch"), 0, ""), part(None, 0, "{\"input\": "), part(None, 0, "\"a\\nb\"}")];
        let all = [parts.to_vec(), vec![part(Some("f"), 1, "{}"), end(FinishReason::ToolCalls)]].concat();
        let function = json!({"index": 1, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        assert_eq!(
            calls(all.clone()),
            [begin.clone(), json!({"index": 0, "custom": {"input": "a\nb"}}), function]
        );
        // An input that was cut off is the text of the arguments, and a malformed call has no input.
        let cut = |reason| calls([parts[..2].to_vec(), vec![end(reason)]].concat());
        assert_eq!(cut(FinishReason::Length)[1]["custom"]["input"], "{\"input\": ");
        assert_eq!(cut(FinishReason::MalformedCall), [begin]);
        let done = GenerationEvent::Done(Summary::default());
        let whole = samples::whole([all, vec![done]].concat()).choices.remove(0);
        let whole = json!(ChatChoice::new(0, whole, &form()));
        let custom = json!({"id": "call_0", "type": "custom", "custom": {"name": "patch", "input": "a\nb"}});
        assert_eq!(whole["message"]["tool_calls"][0], custom);
    }
}
