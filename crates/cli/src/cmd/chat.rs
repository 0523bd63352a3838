//! `narthex chat` for one question or a conversation, and `narthex complete` for the continuation of a text.

use std::io::{IsTerminal, stdin};

use narthex_gateway::{
    Error, Gateway,
    models::{ModelKind, Purpose},
    request::{CompletionRequest, Echo, GenerateOptions, Message, Prompt, Role},
};

use super::{
    converse::{self, Attachments, OpenModel, first_messages},
    generation::{RunningAnswer, finish, options, print},
    load, media, question_files,
    tools::{self, ChatTools},
};
use crate::{
    args::{ChatArgs, CompleteArgs},
    bars::Bars,
    output, standard_input,
};

/// Model of `complete` if none is named and no suitable one is installed.
const DEFAULT_TEXT_MODEL: &str = "gemma3:270m-base";

/// Length of a completion if none is given: many base models never end a text.
const DEFAULT_COMPLETION_TOKENS: usize = 128;

/// Maximum number of models that are named in place of the demonstration.
const MAX_CHOICES: usize = 4;

/// Answers one question, or starts a conversation without one.
pub(crate) fn run(gateway: &Gateway, args: &ChatArgs) -> anyhow::Result<()> {
    let prompt = match &args.prompt {
        None if stdin().is_terminal() => None,
        given => Some(prompt(given.as_deref())?),
    };
    // Before a model is loaded.
    options(&args.generate)?;
    if prompt.is_none() && args.generate.json {
        return Err(Error::invalid("json", "expected a question with --json, found none").into());
    }
    let media = media::of_args(gateway, args.model(), &args.media)?;
    let files = question_files::read(&args.files)?;
    let mut tools = ChatTools::open(&args.tools)?;
    let model = OpenModel::open(gateway, args, args.model(), tools.as_ref())?;
    if args.is_demonstration() && !args.generate.quiet {
        advise(gateway)?;
    }

    let Some(prompt) = prompt else {
        return converse::run(gateway, args, model, tools, Attachments { media, files });
    };
    let mut messages = first_messages(args.system.as_deref());
    let documents = model.documents(&files);
    let prompt = if documents.is_empty() { question_files::before(&files, &prompt) } else { prompt };
    messages.push(Message::new(Role::User, media::question(media, prompt)));
    let to_answer = model.to_answer(gateway, &args.generate, documents);
    finish(&args.generate, &model.status, &tools::answer(&to_answer, tools.as_mut(), &mut messages)?)
}

/// Names better models than the demonstration, at its first answer.
fn advise(gateway: &Gateway) -> anyhow::Result<()> {
    if !gateway.is_first_time("demonstration") {
        return Ok(());
    }
    let choices = gateway.first_choices(Purpose::Chat)?;
    let choices = if choices.is_empty() { gateway.first_choices(Purpose::Small)? } else { choices };
    let names: Vec<&str> = choices.iter().take(MAX_CHOICES).map(|name| name.as_str()).collect();
    if !names.is_empty() {
        let names = names.join(", ");
        output::note(format!(
            "smollm2:135m is a demonstration. Better on this machine, with -m NAME: {names}."
        ));
    }
    Ok(())
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
            ..options(&args.generate)?
        },
    };
    let answer =
        print(|sink| Ok(RunningAnswer::Own(gateway.complete(&status.id(), request, sink)?)), &args.generate)?;
    finish(&args.generate, &status, &answer)
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
