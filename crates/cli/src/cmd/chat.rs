//! `narthex chat`: one question from the command line or standard input, or a conversation.

use std::{
    io::{IsTerminal, Read, stdin},
    ops::ControlFlow,
    sync::mpsc,
    time::Duration,
};

use anyhow::Context;
use narthex_gateway::{
    Error, Gateway,
    listing::ModelStatus,
    request::{ChatRequest, GenerateOptions, Message, Role, Summary, TurnEvent, TurnSink},
};

use super::converse;
use crate::{args::ChatArgs, bars::Bars, interrupt, output, render};

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
    let Some(prompt) = prompt else {
        return converse::run(gateway, args, &status);
    };
    let mut messages = opening(args);
    messages.push(Message::new(Role::User, prompt));
    let answer = ask(gateway, args, messages)?;
    match answer.end {
        End::Done(summary) => report(args, &status, &summary),
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
    let (sender, events) = mpsc::channel();
    let request = ChatRequest { messages, options: options(args) };
    let turn = gateway.chat(&args.model, request, Box::new(Channel(sender)))?;
    let mut text = String::new();
    loop {
        match events.recv_timeout(Duration::from_millis(50)) {
            Ok(TurnEvent::Text { text: piece, .. }) => {
                text.push_str(&piece);
                if let Err(error) = output::text(&piece) {
                    turn.cancel();
                    return Err(error);
                }
            }
            Ok(TurnEvent::Done(summary)) => {
                output::text("\n")?;
                return Ok(Answer { text, end: End::Done(summary) });
            }
            Ok(TurnEvent::Failed { message }) => anyhow::bail!("the answer failed: {message}"),
            Ok(TurnEvent::Started { .. } | TurnEvent::Finished { .. }) => {}
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

fn options(args: &ChatArgs) -> GenerateOptions {
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
pub(crate) fn report(args: &ChatArgs, status: &ModelStatus, summary: &Summary) {
    if !args.quiet {
        output::note(render::answer_line(status, summary));
    }
}

struct Channel(mpsc::Sender<TurnEvent>);

impl TurnSink for Channel {
    fn event(&mut self, event: TurnEvent) -> ControlFlow<()> {
        match self.0.send(event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}
