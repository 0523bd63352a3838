//! `narthex chat` without a question: a conversation with history and commands.

use narthex_gateway::{
    Gateway,
    models::ModelStatus,
    request::{Message, Role},
};
use rustyline::{DefaultEditor, error::ReadlineError};

use super::{
    generation::{AnswerEnd, print_speed},
    tools::{self, ChatModel, ChatTools},
};
use crate::{args::ChatArgs, interrupt, output};

const HELP: &str = "/system TEXT  start a new conversation with these instructions
/clear        start a new conversation
/exit         leave (or Ctrl-D)
Ctrl-C stops an answer.";

/// Meaning of a typed line.
#[derive(Debug, PartialEq, Eq)]
enum ChatInput<'a> {
    Empty,
    Help,
    Clear,
    System(&'a str),
    Exit,
    Unknown(&'a str),
    Message(&'a str),
}

fn parse(line: &str) -> ChatInput<'_> {
    let line = line.trim();
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match word {
        "" => ChatInput::Empty,
        "/help" | "/?" => ChatInput::Help,
        "/clear" => ChatInput::Clear,
        "/system" => ChatInput::System(rest.trim()),
        "/exit" | "/quit" | "/bye" => ChatInput::Exit,
        _ if word.starts_with('/') && !word[1..].contains('/') => ChatInput::Unknown(word),
        _ => ChatInput::Message(line),
    }
}

/// Messages that precede the first question.
pub(super) fn first_messages(args: &ChatArgs) -> Vec<Message> {
    args.system.iter().map(|text| Message::new(Role::System, text.clone())).collect()
}

/// Runs a conversation until the user leaves.
pub(crate) fn run(
    gateway: &Gateway,
    args: &ChatArgs,
    status: &ModelStatus,
    mut tools: Option<ChatTools>,
) -> anyhow::Result<()> {
    let model = ChatModel { gateway, args: &args.generate, status };
    let mut history = Vec::new();
    let mut messages = first_messages(args);
    output::note(format!("{} is ready; /help lists the commands.", status.name));
    loop {
        let line = match read_line(&history) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        history.push(line.clone());
        match parse(&line) {
            ChatInput::Empty => {}
            ChatInput::Help => output::note(HELP),
            ChatInput::Exit => return Ok(()),
            ChatInput::Clear => messages = first_messages(args),
            ChatInput::System(text) => messages = vec![Message::new(Role::System, text.to_owned())],
            ChatInput::Unknown(word) => output::note(format!("unknown command {word}\n{HELP}")),
            ChatInput::Message(text) => answer(&model, tools.as_mut(), &mut messages, text)?,
        }
    }
}

/// Reads a line with a new editor, because an editor handles Ctrl-C as long as it exists, even during an answer.
fn read_line(history: &[String]) -> Result<String, ReadlineError> {
    let mut editor = DefaultEditor::new()?;
    for line in history {
        // History is a convenience, so a failure is ignored.
        let _ = editor.add_history_entry(line.as_str());
    }
    editor.readline("> ")
}

fn answer(
    model: &ChatModel<'_>,
    tools: Option<&mut ChatTools>,
    messages: &mut Vec<Message>,
    text: &str,
) -> anyhow::Result<()> {
    interrupt::take();
    let before = messages.len();
    messages.push(Message::new(Role::User, text.to_owned()));
    match tools::answer(model, tools, messages) {
        Ok(AnswerEnd::Done(summary)) => print_speed(model.args, model.status, &summary),
        Ok(AnswerEnd::Repeated) => {}
        Ok(AnswerEnd::Interrupted) => drop(interrupt::take()),
        // The conversation continues, because the user can shorten the message, or start again with /clear.
        Err(error) if error.downcast_ref::<narthex_gateway::Error>().is_some() => {
            messages.truncate(before);
            output::note(format!("error: {error}"));
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_messages() {
        let check = |line, expected| assert_eq!(parse(line), expected);
        check("  ", ChatInput::Empty);
        check("/help", ChatInput::Help);
        check("/system be brief ", ChatInput::System("be brief"));
        check("/exit", ChatInput::Exit);
        check("/nope x", ChatInput::Unknown("/nope"));
        check("/usr/bin is a folder", ChatInput::Message("/usr/bin is a folder"));
        check(" hello there ", ChatInput::Message("hello there"));
    }
}
