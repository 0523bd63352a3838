//! A generation that is printed while it runs, for `chat` and `complete`.

use std::{
    ops::ControlFlow,
    sync::mpsc::{self, Sender},
};

use narthex_gateway::{
    Error, Gateway, Generation,
    models::ModelStatus,
    request::{
        ChatRequest, FinishReason, GenerateOptions, GenerationEvent, GenerationSink, HistoryOverflow,
        Message, ReasoningSettings, Summary, ToolCallDelta, ToolCallStart, ToolSettings,
    },
};

use narthex_mcp::rounds::WrittenCall;

use crate::{args::GenerateArgs, interrupt, output, render};

pub(super) struct PrintedAnswer {
    pub(super) text: String,
    pub(super) reasoning: String,
    pub(super) calls: Vec<WrittenCall>,
    /// True if the text was cut off at the maximum number of tokens.
    is_cut: bool,
    pub(super) end: AnswerEnd,
}

/// End of a printed answer.
pub(super) enum AnswerEnd {
    Done(Summary),
    /// The answer repeated itself and was stopped.
    Repeated,
    Interrupted,
}

/// Treatment of an answer that only repeats itself, as small models do at times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repetition {
    Stop {
        /// Length of the text up to which it was checked.
        checked: usize,
    },
    Allow,
}

impl Repetition {
    /// Returns true if the answer must be stopped. The text is only checked after it has grown by the length of a part.
    fn stops(&mut self, text: &str) -> bool {
        match self {
            Self::Stop { checked } if text.len() - *checked >= MAX_REPEATED_PART => {
                *checked = text.len();
                repeats(text)
            }
            Self::Stop { .. } | Self::Allow => false,
        }
    }
}

/// Length in bytes of the end of an answer that is checked for repetition.
const REPEATED: usize = 2000;

/// Maximum length in bytes of the part that is repeated.
const MAX_REPEATED_PART: usize = 200;

/// Returns true if the end of a text is a short part, repeated many times.
fn repeats(text: &str) -> bool {
    let Some(start) = text.len().checked_sub(REPEATED) else { return false };
    let end = &text.as_bytes()[start..];
    (1..=MAX_REPEATED_PART).any(|period| end[period..] == end[..REPEATED - period])
}

/// Prints the answer to a conversation while it is generated.
pub(super) fn print_chat(
    gateway: &Gateway,
    args: &GenerateArgs,
    status: &ModelStatus,
    messages: Vec<Message>,
    tools: ToolSettings,
) -> anyhow::Result<PrintedAnswer> {
    let request = ChatRequest {
        messages,
        tools,
        reasoning: ReasoningSettings::default(),
        overflow: HistoryOverflow::OmitOldest,
        options: options(args),
    };
    // A user who states a length wants that length.
    let repetition =
        if args.max_tokens.is_some() { Repetition::Allow } else { Repetition::Stop { checked: 0 } };
    let answer = print(|sink| gateway.chat(&status.id(), request, sink), repetition)?;
    if answer.is_cut && !args.quiet {
        output::note("The answer was cut off at --max-tokens or at the end of the model's context.");
    }
    Ok(answer)
}

/// Event for the thread that prints an answer.
enum PrintEvent {
    Generation(GenerationEvent),
    /// The generation has no more events.
    End,
    /// Ctrl-C was pressed.
    Interrupt,
}

/// Sink that sends the events of a generation to the thread that prints it.
struct PrintSink(Sender<PrintEvent>);

impl GenerationSink for PrintSink {
    fn event(&mut self, event: GenerationEvent) -> ControlFlow<()> {
        match self.0.send(PrintEvent::Generation(event)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}

impl Drop for PrintSink {
    fn drop(&mut self) {
        // The printing may have ended.
        let _ = self.0.send(PrintEvent::End);
    }
}

/// Prints a generation while it runs.
pub(super) fn print(
    start: impl FnOnce(Box<dyn GenerationSink>) -> Result<Generation, Error>,
    mut repetition: Repetition,
) -> anyhow::Result<PrintedAnswer> {
    let (sender, events) = mpsc::channel();
    let (job, interrupts) = (interrupt::job(), sender.clone());
    let _callback = job.on_cancel(move || drop(interrupts.send(PrintEvent::Interrupt)));
    let turn = start(Box::new(PrintSink(sender)))?;
    if turn.omitted_messages > 0 {
        let omitted = turn.omitted_messages;
        output::note(format!(
            "The conversation is too long for the model, so the oldest {omitted} messages are omitted."
        ));
    }
    let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    let mut is_cut = false;
    loop {
        let event = match events.recv() {
            Ok(PrintEvent::Generation(event)) if !job.is_cancelled() => event,
            Ok(PrintEvent::End) | Err(_) => {
                anyhow::bail!("the engine stopped before the answer was complete")
            }
            Ok(PrintEvent::Interrupt | PrintEvent::Generation(_)) => {
                turn.cancel();
                output::text("\n")?;
                return Ok(PrintedAnswer { text, reasoning, calls, is_cut, end: AnswerEnd::Interrupted });
            }
        };
        match event {
            GenerationEvent::Reasoning { text: piece, .. } => {
                output::text(&piece)?;
                reasoning.push_str(&piece);
            }
            GenerationEvent::Text { text: piece, .. } => {
                if !reasoning.is_empty() && text.is_empty() {
                    output::text("\n\n")?;
                }
                text.push_str(&piece);
                if let Err(error) = output::text(&piece) {
                    turn.cancel();
                    return Err(error);
                }
                if repetition.stops(&text) {
                    turn.cancel();
                    output::text("\n")?;
                    output::note(
                        "The answer repeats itself and was stopped; --max-tokens states a length instead.",
                    );
                    return Ok(PrintedAnswer { text, reasoning, calls, is_cut, end: AnswerEnd::Repeated });
                }
            }
            GenerationEvent::Done(summary) => {
                if calls.is_empty() || !text.is_empty() || !reasoning.is_empty() {
                    output::text("\n")?;
                }
                return Ok(PrintedAnswer { text, reasoning, calls, is_cut, end: AnswerEnd::Done(summary) });
            }
            GenerationEvent::Failed { message, .. } => anyhow::bail!("the answer failed: {message}"),
            GenerationEvent::ToolCall { delta, .. } => add_call(&mut calls, delta),
            GenerationEvent::Finished { reason, .. } => {
                is_cut = reason == FinishReason::Length && calls.is_empty();
                if reason == FinishReason::Length && !calls.is_empty() {
                    if !text.is_empty() {
                        output::text("\n")?;
                    }
                    output::note("The tool calls were cut off at the token limit; increase --max-tokens.");
                }
                // The text has a call that is malformed.
                if !matches!(reason, FinishReason::ToolCalls | FinishReason::MixedCalls) {
                    calls.clear();
                }
            }
            GenerationEvent::Started { .. } => {}
        }
    }
}

/// Adds a part of a call.
fn add_call(calls: &mut Vec<WrittenCall>, delta: ToolCallDelta) {
    if let Some(ToolCallStart { id, name }) = delta.start {
        calls.push(WrittenCall { id, name, arguments: String::new() });
    }
    if let Some(call) = calls.last_mut() {
        call.arguments.push_str(&delta.arguments);
    }
}

/// Returns the gateway's options.
pub(super) fn options(args: &GenerateArgs) -> GenerateOptions {
    GenerateOptions {
        max_tokens: args.max_tokens,
        temperature: args.temperature,
        top_p: args.top_p,
        top_k: args.top_k,
        min_p: args.min_p,
        seed: args.seed,
        stop: args.stop.clone(),
        ..GenerateOptions::api_defaults()
    }
}

/// Prints the device and the speed of an answer.
pub(super) fn print_speed(args: &GenerateArgs, status: &ModelStatus, summary: &Summary) {
    if !args.quiet {
        output::note(render::answer_line(status, summary));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_many_repetitions_of_a_short_part_count() {
        let check = |text: String, expect: bool| assert_eq!(repeats(&text), expect, "{text}");
        check("Hello!".repeat(400), true);
        check(format!("Hello. {}", "The same sentence, again. ".repeat(100)), true);
        check("Hello!".repeat(300), false);
        check(format!("{} but then", "Hello!".repeat(400)), false);
        check((0..1000).map(|number| format!("{number}, ")).collect(), false);
        check("a part of an answer with more than two hundred characters, ".repeat(4).repeat(20), true);
        let long: String = (0..100).map(|number| format!("{number}, ")).collect();
        check(long.repeat(10), false);
    }
}
