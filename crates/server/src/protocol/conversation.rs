//! Conversations of every protocol: the request in a body, and its answer in the form of the protocol.

use std::{mem, sync::Arc};

use axum::{Json, http::HeaderName, response::Response};
use narthex_gateway::request::{
    ChatPrompt, ChatRequest, Part, ReasoningSettings, RenderedChat, Role, UsedSampling,
};
use serde::Serialize;

use super::{
    blocking::{WholeText, run_cancellable},
    body::Body,
    device_headers::with_device_headers,
    events::{self, Events},
    ignored::IgnoredParameters,
    reading::ReadingObject,
    reply::{Reply, collect},
};
use crate::{app::App, error::ApiError, http::budget::Reservation, reports::metrics::Metrics};

/// Prefix of a line that Claude Code adds before its instructions, also through proxies that speak other protocols. The
/// line differs in each request, so that prompts would share no prefix in the KV cache.
const BILLING_LINE: &str = "x-anthropic-billing-header:";

/// Response header with the number of messages that were omitted because the conversation was too long.
const OMITTED: HeaderName = HeaderName::from_static("x-narthex-omitted-messages");

/// Returns the request with instructions that do not differ in each request. Every request for a prompt passes through
/// this function.
pub(crate) fn stable(mut request: ChatRequest) -> ChatRequest {
    for message in &mut request.messages {
        let parts = mem::take(&mut message.content).into_parts().into_iter();
        message.content.extend(parts.filter_map(|part| match part {
            Part::Text { text, origin } => {
                stable_text(message.role, text).map(|text| Part::Text { text, origin })
            }
            media @ (Part::Media(_) | Part::Remote(_)) => Some(media),
        }));
    }
    request
}

/// Returns the text of a message, or of one of its parts, without the lines that differ in each request; `None` if
/// nothing else is in it. Joined parts may have no line break between them, so each part passes through this function.
pub(crate) fn stable_text(role: Role, text: String) -> Option<String> {
    if !matches!(role, Role::System | Role::Developer) || !text.contains(BILLING_LINE) {
        return Some(text);
    }
    let lines = text.split_inclusive('\n').filter(|line| !line.trim_start().starts_with(BILLING_LINE));
    Some(lines.collect()).filter(|text: &String| !text.is_empty())
}

/// Lets the answer continue the last message if it is a text of the assistant, as in the protocols of Anthropic and Ollama.
pub(crate) fn continue_last(request: &mut ChatRequest) {
    if let [.., _, last] = request.messages.as_slice()
        && last.role == Role::Assistant
        && last.tool_calls.is_empty()
        && !last.content.is_empty()
        && !last.content.has_media()
    {
        let variables = &mut request.reasoning.variables;
        variables.entry(ReasoningSettings::CONTINUE).or_insert(true.into());
    }
}

/// A request for the next answer of a conversation.
pub(crate) struct Conversation {
    pub(crate) model: String,
    pub(crate) request: ChatRequest,
    pub(crate) is_streamed: bool,
    /// Parameters of reasoning, which have no effect on a model that does not reason.
    pub(crate) reasoning_parameters: Vec<&'static str>,
}

/// Form of the answers in a protocol.
pub(crate) trait AnswerForm {
    /// The JSON of a whole answer.
    type Whole: Serialize;

    /// Takes the sampling of an answer that has started.
    fn started(&mut self, _sampling: UsedSampling) {}

    /// Takes the part of a text that is the answer of a question-answering model.
    fn read(&mut self, _reading: ReadingObject) {}

    /// Returns the whole answer.
    fn whole(self, reply: Reply) -> Self::Whole;

    /// Returns the response that streams the answer.
    fn streamed(self, events: Events, metrics: Arc<Metrics>) -> Response;
}

/// Answers a conversation.
pub(crate) async fn answer(
    app: &App,
    body: Body<Conversation>,
    mut form: impl AnswerForm,
) -> Result<Response, ApiError> {
    let Body { request: conversation, mut ignored, reservation } = body;
    let Conversation { model, request, is_streamed, reasoning_parameters } = conversation;
    let n = request.options.n;
    let more_answers = app.meter.caller.add_answers(n.saturating_sub(1))?;
    let text = WholeText { body: reservation, length: text_length(&request) };
    let events =
        events::start(app, &model, text, more_answers, move |model, sink| model.chat(stable(request), sink));
    let events = events.await?;

    ignore_reasoning(app, events.reasons(), reasoning_parameters, &mut ignored)?;
    let omitted = events.omitted_messages();
    form.started(events.sampling());
    if let Some(reading) = events.reading() {
        form.read(reading);
    }
    let mut response = whole_or_streamed(app, events, form, ResponseMode { n, is_streamed }).await?;
    if omitted > 0 {
        response.headers_mut().insert(OMITTED, omitted.into());
    }
    Ok(ignored.name_in(response))
}

/// Returns the prompt of a conversation, and the parameters that an answer would ignore.
pub(crate) async fn render(
    app: &App,
    body: Body<Conversation>,
) -> Result<(ChatPrompt, IgnoredParameters), ApiError> {
    let Body { request: conversation, mut ignored, reservation } = body;
    let Conversation { model, request, reasoning_parameters, .. } = conversation;
    let rendered = run_cancellable(app, &model, reservation, move |model, cancel| {
        model.render_chat(stable(request), cancel)
    });
    let RenderedChat { prompt, reasons } = rendered.await?;
    ignore_reasoning(app, reasons, reasoning_parameters, &mut ignored)?;
    Ok((prompt, ignored))
}

/// Returns the bytes of the texts in a conversation.
fn text_length(request: &ChatRequest) -> usize {
    let messages = request.messages.iter().map(|message| message.content.text().len());
    let documents = request.reading.documents.iter().map(|document| document.text.len());
    messages.chain(documents).sum()
}

/// Counts the tokens in the prompt of a conversation.
pub(crate) async fn count_tokens(
    app: &App,
    model: &str,
    request: ChatRequest,
    body: Reservation,
) -> Result<usize, ApiError> {
    let count = run_cancellable(app, model, body, move |model, cancel| {
        model.count_chat_tokens(stable(request), cancel)
    });
    count.await
}

/// Adds the parameters of reasoning to the ignored ones if the model does not reason. Refuses them on a strict server,
/// which cancels the answer. `reasons` is true if it does.
fn ignore_reasoning(
    app: &App,
    reasons: bool,
    reasoning_parameters: Vec<&'static str>,
    ignored: &mut IgnoredParameters,
) -> Result<(), ApiError> {
    if reasons {
        return Ok(());
    }
    if let Some(name) = reasoning_parameters.first().filter(|_| app.shared.options.strict_parameters) {
        return Err(ApiError::unsupported(name));
    }
    ignored.extend(reasoning_parameters);
    Ok(())
}

/// Number of choices of an answer, and whether it is streamed.
pub(crate) struct ResponseMode {
    pub(crate) n: usize,
    pub(crate) is_streamed: bool,
}

/// Responds with an answer that has started.
pub(crate) async fn whole_or_streamed(
    app: &App,
    events: Events,
    form: impl AnswerForm,
    mode: ResponseMode,
) -> Result<Response, ApiError> {
    if mode.is_streamed {
        return Ok(form.streamed(events, app.meter.metrics.clone()));
    }
    let ran_on = events.ran_on();
    let reply = collect(events, mode.n).await?;
    Ok(with_device_headers(&ran_on, Json(form.whole(reply))))
}

#[cfg(test)]
mod tests {
    use narthex_gateway::request::{
        GenerateOptions, HistoryOverflow, Message, ReadingSettings, ToolSettings,
    };

    use super::*;

    #[test]
    fn a_line_that_changes_with_each_request_is_left_out() {
        let check = |role: Role, text: &str, expect: &str| {
            let request = ChatRequest {
                messages: vec![Message::new(role, text.to_owned())],
                tools: ToolSettings::default(),
                reasoning: ReasoningSettings::default(),
                overflow: HistoryOverflow::Refuse,
                reading: ReadingSettings::default(),
                options: GenerateOptions::api_defaults(),
            };
            assert_eq!(stable(request).messages[0].content, expect, "{role:?}");
        };
        let text = "x-anthropic-billing-header: cc_version=2.1; cch=0a1b2;\nYou are an agent.";
        check(Role::System, text, "You are an agent.");
        check(Role::Developer, text, "You are an agent.");
        check(Role::System, "A\n x-anthropic-billing-header: cch=0a1b2;\nB\n", "A\nB\n");
        check(Role::System, "x-anthropic-billing-header: cch=0a1b2;", "");
        check(Role::System, "See x-anthropic-billing-header: x", "See x-anthropic-billing-header: x");
        // What a user writes about the line stays.
        check(Role::User, text, text);
    }
}
