//! `narthex chat` for one question or a conversation, and `narthex complete` for the continuation of a text.

use std::io::{IsTerminal, stdin};

use narthex_gateway::{
    Error, Gateway,
    models::{ModelKind, ModelStatus},
    request::{CompletionRequest, Echo, GenerateOptions, Message, Prompt, Role},
};

use super::{
    converse::{self, first_messages},
    generation::{AnswerEnd, Repetition, options, print, print_speed},
    load,
    tools::{self, ChatModel, ChatTools},
};
use crate::{
    args::{ChatArgs, CompleteArgs, GenerateArgs},
    bars::Bars,
    standard_input,
};

/// Model of `complete` if none is named and no suitable one is installed.
const DEFAULT_TEXT_MODEL: &str = "gemma3:270m-base";

/// Length of a completion if none is given: many base models never end a text.
const DEFAULT_COMPLETION_TOKENS: usize = 128;

/// Answers one question, or starts a conversation without one.
pub(crate) fn run(gateway: &Gateway, args: &ChatArgs) -> anyhow::Result<()> {
    let prompt = match &args.prompt {
        None if stdin().is_terminal() => None,
        given => Some(prompt(given.as_deref())?),
    };
    let mut tools = ChatTools::open(&args.tools)?;
    let no_template = || {
        let message =
            format!("{0} has no chat template; `narthex complete -m {0} TEXT` continues a text", args.model);
        Error::invalid("model", message)
    };
    if let Err(Error::WrongKind { is: ModelKind::Text, .. }) =
        gateway.check_kind(&args.model, &[ModelKind::Chat])
    {
        return Err(no_template().into());
    }
    let status = load(gateway, &args.model, &[ModelKind::Chat], &Bars::unless(args.generate.quiet))?;
    // A model from the hub or a path is known to have a template after it was compiled.
    if status.kind == Some(ModelKind::Text) {
        return Err(no_template().into());
    }
    let Some(prompt) = prompt else {
        return converse::run(gateway, args, &status, tools);
    };
    let mut messages = first_messages(args);
    messages.push(Message::new(Role::User, prompt));
    let model = ChatModel { gateway, args: &args.generate, status: &status };
    finish(&args.generate, &status, tools::answer(&model, tools.as_mut(), &mut messages)?)
}

/// Continues a text.
pub(crate) fn complete(gateway: &Gateway, args: &CompleteArgs) -> anyhow::Result<()> {
    let prompt = prompt(args.prompt.as_deref())?;
    let model = match &args.model {
        Some(model) => model.clone(),
        None => {
            let installed = gateway.newest_installed(&[ModelKind::Text, ModelKind::Chat])?;
            installed.map_or_else(|| DEFAULT_TEXT_MODEL.to_owned(), |name| name.to_string())
        }
    };
    let status =
        load(gateway, &model, &[ModelKind::Text, ModelKind::Chat], &Bars::unless(args.generate.quiet))?;
    let request = CompletionRequest {
        prompt: Prompt::Text(prompt),
        echo: Echo::Completion,
        options: GenerateOptions {
            max_tokens: args.generate.max_tokens.or(Some(DEFAULT_COMPLETION_TOKENS)),
            ..options(&args.generate)
        },
    };
    let answer = print(|sink| gateway.complete(&status.id(), request, sink), Repetition::Allow)?;
    finish(&args.generate, &status, answer.end)
}

/// Prints the speed of a complete answer, or fails if it was interrupted.
fn finish(args: &GenerateArgs, status: &ModelStatus, end: AnswerEnd) -> anyhow::Result<()> {
    match end {
        AnswerEnd::Done(summary) => print_speed(args, status, &summary),
        AnswerEnd::Repeated => {}
        AnswerEnd::Interrupted => return Err(Error::Cancelled.into()),
    }
    Ok(())
}

/// Returns the given prompt, else that of standard input, and refuses an empty one before a model is loaded.
fn prompt(given: Option<&str>) -> anyhow::Result<String> {
    let prompt = match given {
        Some(prompt) => prompt.to_owned(),
        None => standard_input::text("Type the text")?.trim_end_matches(['\n', '\r']).to_owned(),
    };
    super::check_texts("prompt", &[&prompt], "pass it as an argument or on standard input")?;
    Ok(prompt)
}
