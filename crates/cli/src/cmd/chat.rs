//! `narthex chat` for one question or a conversation, and `narthex complete` for the continuation of a text.

use std::io::{IsTerminal, Read, stdin};

use anyhow::Context;
use narthex_gateway::{
    Error, Gateway,
    models::{ModelKind, ModelStatus},
    request::{CompletionRequest, Echo, Message, Prompt, Role},
};

use super::{
    converse::{self, first_messages},
    generation::{AnswerEnd, PrintedAnswer, options, print, print_chat, print_speed},
};
use crate::{
    args::{ChatArgs, CompleteArgs, GenerateArgs},
    bars::Bars,
    interrupt,
};

/// Maximum size of a prompt from standard input.
const MAX_STDIN_BYTES: u64 = 16 << 20;

/// Answers one question, or starts a conversation without one.
pub(crate) fn run(gateway: &Gateway, args: &ChatArgs) -> anyhow::Result<()> {
    let prompt = match &args.prompt {
        Some(prompt) => Some(prompt.clone()),
        None if stdin().is_terminal() => None,
        None => Some(interrupt::input(read_stdin)?),
    };
    let status = gateway.load(&args.model, &Bars::unless(args.generate.quiet), interrupt::cancel())?;
    if status.kind == Some(ModelKind::Text) {
        let message = format!(
            "model: {0} has no chat template; `narthex complete -m {0} TEXT` continues a text",
            args.model
        );
        return Err(Error::Invalid { param: "model", message }.into());
    }
    let Some(prompt) = prompt else {
        return converse::run(gateway, args, &status);
    };
    let mut messages = first_messages(args);
    messages.push(Message::new(Role::User, prompt));
    finish(&args.generate, &status, print_chat(gateway, &args.generate, &status, messages)?)
}

/// Continues a text.
pub(crate) fn complete(gateway: &Gateway, args: &CompleteArgs) -> anyhow::Result<()> {
    let prompt = match &args.prompt {
        Some(prompt) => prompt.clone(),
        None => interrupt::input(read_stdin)?,
    };
    let status = gateway.load(&args.model, &Bars::unless(args.generate.quiet), interrupt::cancel())?;
    let request = CompletionRequest {
        prompt: Prompt::Text(prompt),
        echo: Echo::Completion,
        options: options(&args.generate),
    };
    let answer = print(|sink| gateway.complete(&status.id(), request, sink))?;
    finish(&args.generate, &status, answer)
}

/// Prints the speed of a complete answer, or fails if it was interrupted.
fn finish(args: &GenerateArgs, status: &ModelStatus, answer: PrintedAnswer) -> anyhow::Result<()> {
    match answer.end {
        AnswerEnd::Done(summary) => print_speed(args, status, &summary),
        AnswerEnd::Interrupted => return Err(Error::Cancelled.into()),
    }
    Ok(())
}

fn read_stdin() -> anyhow::Result<String> {
    let mut prompt = String::new();
    stdin()
        .take(MAX_STDIN_BYTES)
        .read_to_string(&mut prompt)
        .context("cannot read the prompt from standard input")?;
    Ok(prompt.trim_end_matches(['\n', '\r']).to_owned())
}
