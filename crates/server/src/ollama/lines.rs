//! Answers to `/api/chat` and `/api/generate`: one object, or one per line in a stream.

use std::sync::Arc;

use axum::response::Response;
use narthex_gateway::{
    AnsweringDevice,
    request::{ExactJson, FinishReason, GenerationEvent, Summary, TokenInfo},
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::nanoseconds;
use crate::{
    protocol::{
        conversation::AnswerForm,
        errors::OllamaErrorBody,
        events::Events,
        reading::ReadingObject,
        reply::{Choice, Reply, WholeToolCall},
        sse, timestamp,
    },
    reports::metrics::Metrics,
};

/// An answer, or a line of one.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AnswerLine<C> {
    model: String,
    /// Time as in RFC 3339.
    created_at: String,
    #[serde(flatten)]
    content: C,
    /// Log-probabilities of the tokens, if they were requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<TokenLogprob>,
    /// True in a whole answer, and in the last line of a streamed one.
    done: bool,
    #[serde(flatten)]
    end: Option<AnswerEnd>,
    /// Only at the end of the answer of a question-answering model.
    #[serde(skip_serializing_if = "Option::is_none")]
    reading: Option<ReadingObject>,
}

/// A token with its log-probability.
#[derive(Debug, Serialize, JsonSchema)]
struct TokenLogprob {
    token: String,
    logprob: Option<f32>,
    bytes: Vec<u8>,
    /// The likeliest tokens at this position.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top_logprobs: Vec<TokenLogprob>,
}

/// Fields of the last line. Times are in nanoseconds.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct AnswerEnd {
    /// `stop`, `length`, `load`, `unload`, or `malformed_tool_call` if the text has a malformed call.
    done_reason: &'static str,
    /// Device that computed the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    /// Nodes and work on it: `qnn 1470/1470 nodes, 100 % of MACs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_duration: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    load_duration: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_eval_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_eval_duration: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eval_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eval_duration: Option<u64>,
}

impl AnswerEnd {
    fn new(reason: Option<FinishReason>, summary: &Summary, ran_on: AnsweringDevice) -> Self {
        let times = summary.times.as_ref();
        Self {
            done_reason: match reason {
                Some(FinishReason::Length | FinishReason::Cancelled) => "length",
                Some(FinishReason::Repetition) => "repetition",
                Some(FinishReason::MalformedCall | FinishReason::MixedCalls) => "malformed_tool_call",
                _ => "stop",
            },
            device: Some(ran_on.device),
            placement: Some(ran_on.placement),
            total_duration: times.map(|times| nanoseconds(times.total)),
            load_duration: times.map(|_| 0),
            prompt_eval_count: Some(summary.prompt_tokens),
            prompt_eval_duration: times.map(|times| nanoseconds(times.first_token)),
            eval_count: Some(summary.completion_tokens),
            eval_duration: times.map(|times| nanoseconds(times.total.saturating_sub(times.first_token))),
        }
    }
}

/// The part of a line that differs between endpoints.
pub(crate) trait LineContent: Serialize + Send + 'static {
    /// Creates the content from a text and calls. Calls without complete arguments are left out.
    fn new(text: String, calls: &[&WholeToolCall]) -> Self;

    /// Returns the content with reasoning.
    fn with_thinking(self, thinking: String) -> Self;
}

/// Content of `/api/generate`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct GeneratedText {
    response: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
}

impl LineContent for GeneratedText {
    fn new(text: String, _calls: &[&WholeToolCall]) -> Self {
        Self { response: text, thinking: String::new() }
    }

    fn with_thinking(self, thinking: String) -> Self {
        Self { thinking, ..self }
    }
}

/// Content of `/api/chat`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatContent {
    message: AssistantMessage,
}

#[derive(Debug, Serialize, JsonSchema)]
struct AssistantMessage {
    #[schemars(extend("const" = "assistant"))]
    role: &'static str,
    content: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<AnswerCall>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct AnswerCall {
    id: String,
    function: CalledFunction,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CalledFunction {
    name: String,
    /// Arguments as an object.
    #[schemars(with = "Value")]
    arguments: ExactJson,
}

impl LineContent for ChatContent {
    fn new(text: String, calls: &[&WholeToolCall]) -> Self {
        let calls = calls.iter().filter_map(|call| {
            let arguments = serde_json::from_str(&call.arguments).ok()?;
            let function = CalledFunction { name: call.name.clone(), arguments };
            Some(AnswerCall { id: call.id.clone(), function })
        });
        let message = AssistantMessage {
            role: "assistant",
            content: text,
            thinking: String::new(),
            tool_calls: calls.collect(),
        };
        Self { message }
    }

    fn with_thinking(mut self, thinking: String) -> Self {
        self.message.thinking = thinking;
        self
    }
}

/// Form of the answers of an endpoint.
pub(super) struct AnswerLines<C> {
    pub(super) model: String,
    /// Calls, which are sent before the last line, and the finish reason.
    choice: Choice,
    device: AnsweringDevice,
    reading: Option<ReadingObject>,
    content: std::marker::PhantomData<C>,
}

impl<C: LineContent> AnswerLines<C> {
    /// Creates the lines of an answer by a model.
    pub(super) fn new(model: String) -> Self {
        Self {
            model,
            choice: Choice::default(),
            device: AnsweringDevice::default(),
            reading: None,
            content: std::marker::PhantomData,
        }
    }

    fn line(&self, content: C, tokens: &[TokenInfo], end: Option<AnswerEnd>) -> AnswerLine<C> {
        AnswerLine {
            model: self.model.clone(),
            created_at: timestamp::now(),
            content,
            logprobs: tokens.iter().map(logprob).collect(),
            done: end.is_some(),
            reading: end.as_ref().and_then(|_| self.reading.clone()),
            end,
        }
    }

    /// Returns an answer without text.
    pub(super) fn without_text(self, done_reason: &'static str) -> AnswerLine<C> {
        let end = AnswerEnd { done_reason, ..AnswerEnd::default() };
        self.line(C::new(String::new(), &[]), &[], Some(end))
    }

    /// Returns the lines for an event as JSON, in order.
    fn lines(&mut self, event: GenerationEvent) -> Vec<String> {
        match event {
            GenerationEvent::Failed { message, .. } => {
                vec![json!(OllamaErrorBody { error: &message }).to_string()]
            }
            event => self.lines_of(event).iter().flat_map(serde_json::to_string).collect(),
        }
    }

    fn lines_of(&mut self, event: GenerationEvent) -> Vec<AnswerLine<C>> {
        match event {
            GenerationEvent::Text { text, tokens, .. } if !text.is_empty() || !tokens.is_empty() => {
                self.choice.add_text(text.clone(), Vec::new());
                vec![self.line(C::new(text, &[]), &tokens, None)]
            }
            GenerationEvent::Reasoning { text, .. } => {
                vec![self.line(C::new(String::new(), &[]).with_thinking(text), &[], None)]
            }
            GenerationEvent::ToolCall { delta, .. } => {
                self.choice.add_call(delta);
                Vec::new()
            }
            GenerationEvent::Finished { reason, .. } => {
                self.choice.end(reason);
                Vec::new()
            }
            GenerationEvent::Done(summary) => {
                let end = AnswerEnd::new(self.choice.finish, &summary, self.device.clone());
                // A client would run a call without its arguments, so a call that was cut off is text.
                let cut = self.choice.cut_call().map(WholeToolCall::cut_text).unwrap_or_default();
                let calls: Vec<&WholeToolCall> = self.choice.calls().collect();

                // Some clients read only the end of the last line.
                let rest = (!calls.is_empty()).then(|| self.line(C::new(cut, &calls), &[], None));
                let end = self.line(C::new(String::new(), &[]), &[], Some(end));
                rest.into_iter().chain([end]).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn logprob(token: &TokenInfo) -> TokenLogprob {
    let top = token.top.iter().map(|top| TokenLogprob {
        token: top.text.clone(),
        logprob: Some(top.logprob),
        bytes: top.bytes.clone(),
        top_logprobs: Vec::new(),
    });
    TokenLogprob {
        token: token.text.clone(),
        logprob: token.logprob,
        bytes: token.bytes.clone(),
        top_logprobs: top.collect(),
    }
}

impl<C: LineContent> AnswerForm for AnswerLines<C> {
    type Whole = AnswerLine<C>;

    fn read(&mut self, reading: ReadingObject) {
        self.reading = Some(reading);
    }

    fn whole(self, mut reply: Reply) -> AnswerLine<C> {
        let choice = reply.choices.pop().unwrap_or_default();
        let cut = choice.cut_call().map(WholeToolCall::cut_text).unwrap_or_default();
        let calls: Vec<&WholeToolCall> = choice.calls().collect();
        let content = C::new(choice.text() + &cut, &calls).with_thinking(choice.reasoning.clone());
        let end = AnswerEnd::new(choice.finish, &reply.summary, reply.device);
        self.line(content, &choice.tokens, Some(end))
    }

    fn streamed(mut self, events: Events, metrics: Arc<Metrics>) -> Response {
        self.device = events.ran_on();
        sse::respond_lines(events, move |event| self.lines(event), metrics)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::reply::samples;

    #[test]
    fn streams_give_the_text_and_the_calls_of_whole_answers() {
        let check = |sample: fn() -> Vec<GenerationEvent>, text: &str, calls: Value| {
            let whole =
                json!(AnswerLines::<ChatContent>::new("m".to_owned()).whole(samples::whole(sample())));
            let message = &whole["message"];
            assert_eq!((&message["content"], &message["tool_calls"]), (&json!(text), &calls));
            let mut form = AnswerLines::<ChatContent>::new("m".to_owned());
            let lines = sample().into_iter().flat_map(|event| form.lines(event));
            let lines: Vec<Value> = lines.map(|line| serde_json::from_str(&line).unwrap()).collect();
            let texts = lines.iter().filter_map(|line| line["message"]["content"].as_str());
            assert_eq!(texts.collect::<String>(), text);
            let (last, others) = lines.split_last().unwrap();
            assert_eq!(
                (&last["message"]["tool_calls"], &last["done_reason"]),
                (&Value::Null, &whole["done_reason"])
            );
            let found =
                others.iter().map(|line| &line["message"]["tool_calls"]).find(|calls| calls.is_array());
            assert_eq!(found.unwrap_or(&Value::Null), &calls);
        };
        check(samples::malformed, samples::MALFORMED, Value::Null);
        let call = json!({"id": "call_f", "function": {"name": "f", "arguments": {}}});
        check(samples::cut, r#"{"name": "g", "arguments": {"a": "#, json!([call]));
    }

    #[test]
    fn arguments_keep_the_digits_of_large_integers() {
        let mut form = AnswerLines::<ChatContent>::new("m".to_owned());
        let lines: Vec<String> = samples::large().into_iter().flat_map(|event| form.lines(event)).collect();
        let form = AnswerLines::<ChatContent>::new("m".to_owned());
        let whole = serde_json::to_string(&form.whole(samples::whole(samples::large()))).unwrap();
        for text in [&whole, &lines[0]] {
            assert!(text.contains(r#""arguments":{"n":18446744073709551617}"#), "{text}");
        }
    }

    #[test]
    fn the_last_line_has_the_reason_and_the_device() {
        let check = |reason, expect: &str| {
            let mut lines = AnswerLines::<GeneratedText>::new("m".to_owned());
            lines.device = samples::device();
            assert!(lines.lines(GenerationEvent::Finished { choice: 0, reason }).is_empty());
            let last = lines.lines(GenerationEvent::Done(Summary::default())).remove(0);
            let last: Value = serde_json::from_str(&last).unwrap();
            assert_eq!((&last["done_reason"], &last["device"]), (&json!(expect), &json!("cpu")));
        };
        check(FinishReason::Stop, "stop");
        check(FinishReason::StopString { index: 0 }, "stop");
        check(FinishReason::Length, "length");
        check(FinishReason::MalformedCall, "malformed_tool_call");
        check(FinishReason::MixedCalls, "malformed_tool_call");
    }
}
