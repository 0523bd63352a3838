//! `narthex chat`: one question from the command line or standard input, or a conversation; `narthex complete`: a text that
//! goes on.

use std::{
    io::{IsTerminal, Read, stdin},
    ops::ControlFlow,
    sync::mpsc,
    time::Duration,
};

use anyhow::Context;
use narthex_gateway::{
    Error, Gateway, Generation,
    models::{ModelKind, ModelStatus},
    request::{
        ChatRequest, CompletionRequest, Echo, GenerateOptions, GenerationEvent, GenerationSink, Message,
        Prompt, Role, Summary,
    },
};

use super::converse;
use crate::{
    args::{ChatArgs, CompleteArgs, GenerateArgs},
    bars::Bars,
    interrupt, output, render,
};

/// The longest prompt taken from standard input, in bytes.
const MAX_STDIN: u64 = 16 << 20;

/// Answers one question, or converses when there is none.
pub(crate) fn run(gateway: &Gateway, args: &ChatArgs) -> anyhow::Result<()> {
    let prompt = match &args.prompt {
        Some(prompt) => Some(prompt.clone()),
        None if stdin().is_terminal() => None,
        None => Some(interrupt::input(read_stdin)?),
    };
    let status = gateway.load(&args.model, &Bars::new(), interrupt::cancel())?;
    if status.kind == Some(ModelKind::Text) {
        let message = format!(
            "model: {0} has no chat template; `narthex complete -m {0} TEXT` lets it go on from a text",
            args.model
        );
        return Err(Error::Invalid { param: "model", message }.into());
    }
    let Some(prompt) = prompt else {
        return converse::run(gateway, args, &status);
    };
    let mut messages = opening(args);
    messages.push(Message::new(Role::User, prompt));
    finish(&args.generate, &status, ask(gateway, args, messages)?)
}

/// Lets a model go on from a text.
pub(crate) fn complete(gateway: &Gateway, args: &CompleteArgs) -> anyhow::Result<()> {
    let prompt = match &args.prompt {
        Some(prompt) => prompt.clone(),
        None => interrupt::input(read_stdin)?,
    };
    let status = gateway.load(&args.model, &Bars::new(), interrupt::cancel())?;
    let request = CompletionRequest {
        prompt: Prompt::Text(prompt),
        echo: Echo::Completion,
        options: options(&args.generate),
    };
    let answer = print(|sink| gateway.complete(&args.model, request, sink))?;
    finish(&args.generate, &status, answer)
}

/// The last line of a text that came to its end.
fn finish(args: &GenerateArgs, status: &ModelStatus, answer: Answer) -> anyhow::Result<()> {
    match answer.end {
        End::Done(summary) => report(args, status, &summary),
        End::Interrupted => return Err(Error::Cancelled.into()),
    }
    Ok(())
}

/// The messages that precede the first question.
pub(crate) fn opening(args: &ChatArgs) -> Vec<Message> {
    args.system.iter().map(|text| Message::new(Role::System, text.clone())).collect()
}

fn read_stdin() -> anyhow::Result<String> {
    let mut prompt = String::new();
    stdin()
        .take(MAX_STDIN)
        .read_to_string(&mut prompt)
        .context("cannot read the prompt from standard input")?;
    Ok(prompt.trim_end_matches(['\n', '\r']).to_owned())
}

/// An answer that was printed.
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) end: End,
}

/// How an answer ended.
pub(crate) enum End {
    Done(Summary),
    Interrupted,
}

/// Prints the answer as it comes.
pub(crate) fn ask(gateway: &Gateway, args: &ChatArgs, messages: Vec<Message>) -> anyhow::Result<Answer> {
    let request = ChatRequest { messages, options: options(&args.generate) };
    print(|sink| gateway.chat(&args.model, request, sink))
}

/// Prints what a request gives as it comes.
fn print(start: impl FnOnce(Box<dyn GenerationSink>) -> Result<Generation, Error>) -> anyhow::Result<Answer> {
    let (sender, events) = mpsc::channel();
    let turn = start(Box::new(Channel(sender)))?;
    let mut text = String::new();
    loop {
        match events.recv_timeout(Duration::from_millis(50)) {
            Ok(GenerationEvent::Text { text: piece, .. }) => {
                text.push_str(&piece);
                if let Err(error) = output::text(&piece) {
                    turn.cancel();
                    return Err(error);
                }
            }
            Ok(GenerationEvent::Done(summary)) => {
                output::text("\n")?;
                return Ok(Answer { text, end: End::Done(summary) });
            }
            Ok(GenerationEvent::Failed { message }) => anyhow::bail!("the answer failed: {message}"),
            Ok(GenerationEvent::Started { .. } | GenerationEvent::Finished { .. }) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                anyhow::bail!("the engine stopped in the middle of an answer")
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        if interrupt::pressed() {
            turn.cancel();
            output::text("\n")?;
            return Ok(Answer { text, end: End::Interrupted });
        }
    }
}

fn options(args: &GenerateArgs) -> GenerateOptions {
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

/// The last line: where it ran and how fast.
pub(crate) fn report(args: &GenerateArgs, status: &ModelStatus, summary: &Summary) {
    if !args.quiet {
        output::note(render::answer_line(status, summary));
    }
}

struct Channel(mpsc::Sender<GenerationEvent>);

impl GenerationSink for Channel {
    fn event(&mut self, event: GenerationEvent) -> ControlFlow<()> {
        match self.0.send(event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}
