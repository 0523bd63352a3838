//! A generation that is printed while it runs, for `chat` and `complete`.

use std::{ops::ControlFlow, sync::mpsc, time::Duration};

use narthex_gateway::{
    Error, Gateway, Generation,
    models::ModelStatus,
    request::{
        ChatRequest, GenerateOptions, GenerationEvent, GenerationSink, Message, ReasoningSettings, Summary,
        ToolSettings,
    },
};

use crate::{args::GenerateArgs, interrupt, output, render};

/// A printed answer.
pub(super) struct PrintedAnswer {
    pub(super) text: String,
    pub(super) end: AnswerEnd,
}

/// End of a printed answer.
pub(super) enum AnswerEnd {
    Done(Summary),
    Interrupted,
}

/// Prints the answer to a conversation while it is generated.
pub(super) fn print_chat(
    gateway: &Gateway,
    args: &GenerateArgs,
    status: &ModelStatus,
    messages: Vec<Message>,
) -> anyhow::Result<PrintedAnswer> {
    let request = ChatRequest {
        messages,
        tools: ToolSettings::default(),
        reasoning: ReasoningSettings::default(),
        options: options(args),
    };
    print(|sink| gateway.chat(&status.id(), request, sink))
}

/// Prints a generation while it runs.
pub(super) fn print(
    start: impl FnOnce(Box<dyn GenerationSink>) -> Result<Generation, Error>,
) -> anyhow::Result<PrintedAnswer> {
    let (sender, events) = mpsc::channel();
    let turn = start(Box::new(ChannelSink(sender)))?;
    let (mut text, mut is_reasoning) = (String::new(), false);
    loop {
        match events.recv_timeout(Duration::from_millis(50)) {
            Ok(GenerationEvent::Reasoning { text: piece, .. }) => {
                is_reasoning = true;
                output::text(&piece)?;
            }
            Ok(GenerationEvent::Text { text: piece, .. }) => {
                if is_reasoning && text.is_empty() {
                    output::text("\n\n")?;
                }
                text.push_str(&piece);
                if let Err(error) = output::text(&piece) {
                    turn.cancel();
                    return Err(error);
                }
            }
            Ok(GenerationEvent::Done(summary)) => {
                output::text("\n")?;
                return Ok(PrintedAnswer { text, end: AnswerEnd::Done(summary) });
            }
            Ok(GenerationEvent::Failed { message }) => anyhow::bail!("the answer failed: {message}"),
            Ok(
                GenerationEvent::Started { .. }
                | GenerationEvent::ToolCall { .. }
                | GenerationEvent::Finished { .. },
            ) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                anyhow::bail!("the engine stopped before the answer was complete")
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        if interrupt::pressed() {
            turn.cancel();
            output::text("\n")?;
            return Ok(PrintedAnswer { text, end: AnswerEnd::Interrupted });
        }
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

struct ChannelSink(mpsc::Sender<GenerationEvent>);

impl GenerationSink for ChannelSink {
    fn event(&mut self, event: GenerationEvent) -> ControlFlow<()> {
        match self.0.send(event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}
