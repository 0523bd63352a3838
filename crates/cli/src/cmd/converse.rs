//! `narthex chat` without a question: a conversation with history and a few commands.

use narthex_gateway::{
    Gateway,
    models::ModelStatus,
    request::{Message, Role},
};
use rustyline::{DefaultEditor, error::ReadlineError};

use super::chat::{Answer, End, ask, opening, report};
use crate::{args::ChatArgs, interrupt, output};

const HELP: &str = "/system TEXT  new instructions, and a new conversation
/clear        a new conversation
/exit         leave (or Ctrl-D)
Ctrl-C stops an answer.";

/// What a typed line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Empty,
    Help,
    Clear,
    System(&'a str),
    Exit,
    Unknown(&'a str),
    Say(&'a str),
}

fn parse(line: &str) -> Line<'_> {
    let line = line.trim();
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match word {
        "" => Line::Empty,
        "/help" | "/?" => Line::Help,
        "/clear" => Line::Clear,
        "/system" => Line::System(rest.trim()),
        "/exit" | "/quit" | "/bye" => Line::Exit,
        _ if word.starts_with('/') && !word[1..].contains('/') => Line::Unknown(word),
        _ => Line::Say(line),
    }
}

/// Converses until the user leaves.
pub(crate) fn run(gateway: &Gateway, args: &ChatArgs, status: &ModelStatus) -> anyhow::Result<()> {
    let mut editor = DefaultEditor::new()?;
    let mut messages = opening(args);
    output::note(format!("{} is ready; /help shows the commands.", status.name));
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        // History is a convenience; a full one is no reason to stop.
        let _ = editor.add_history_entry(line.as_str());
        match parse(&line) {
            Line::Empty => {}
            Line::Help => output::note(HELP),
            Line::Exit => return Ok(()),
            Line::Clear => messages = opening(args),
            Line::System(text) => messages = vec![Message::new(Role::System, text.to_owned())],
            Line::Unknown(word) => output::note(format!("{word} is no command.\n{HELP}")),
            Line::Say(text) => say(gateway, args, status, &mut messages, text)?,
        }
    }
}

fn say(
    gateway: &Gateway,
    args: &ChatArgs,
    status: &ModelStatus,
    messages: &mut Vec<Message>,
    text: &str,
) -> anyhow::Result<()> {
    interrupt::take();
    messages.push(Message::new(Role::User, text.to_owned()));
    match ask(gateway, args, messages.clone()) {
        Ok(Answer { text, end }) => {
            messages.push(Message::new(Role::Assistant, text));
            match end {
                End::Done(summary) => report(&args.generate, status, &summary),
                End::Interrupted => drop(interrupt::take()),
            }
        }
        // A conversation that has outgrown the context can be cleared and go on.
        Err(error) if error.downcast_ref::<narthex_gateway::Error>().is_some() => {
            messages.pop();
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
    fn lines() {
        let check = |line, expected| assert_eq!(parse(line), expected);
        check("  ", Line::Empty);
        check("/help", Line::Help);
        check("/system be brief ", Line::System("be brief"));
        check("/exit", Line::Exit);
        check("/nope x", Line::Unknown("/nope"));
        check("/usr/bin is a folder", Line::Say("/usr/bin is a folder"));
        check(" hello there ", Line::Say("hello there"));
    }
}
