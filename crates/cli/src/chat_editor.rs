//! The line editor of a conversation: its history is kept in a file, and a message may have several lines.

use std::{borrow::Cow, path::PathBuf};

use rustyline::{
    Cmd, Config, Context, Editor, Helper, KeyCode, KeyEvent, Modifiers,
    completion::Completer,
    error::ReadlineError,
    highlight::Highlighter,
    hint::Hinter,
    history::{DefaultHistory, History},
    validate::{ValidationContext, ValidationResult, Validator},
};

/// Quotes around a message of several lines.
const QUOTES: &str = "\"\"\"";

/// Maximum number of lines in the history.
const MAX_LINES: usize = 1000;

/// The editor's settings between two lines. Each line has a new editor, because an editor handles Ctrl-C as long as it
/// exists, even during an answer.
pub(crate) struct ChatEditor {
    /// File of the history.
    file: PathBuf,
    /// The lines of this conversation, for a file that cannot be written.
    lines: Vec<String>,
    commands: &'static [&'static str],
}

impl ChatEditor {
    /// Returns an editor whose history is in this file. It completes the commands.
    pub(crate) fn new(file: PathBuf, commands: &'static [&'static str]) -> Self {
        Self { file, lines: Vec::new(), commands }
    }

    /// Reads a line, or several in quotes.
    pub(crate) fn read(&mut self) -> Result<String, ReadlineError> {
        let config = Config::builder().max_history_size(MAX_LINES)?.history_ignore_dups(true)?.build();
        let mut editor: Editor<CommandCompleter, DefaultHistory> = Editor::with_config(config)?;
        editor.set_helper(Some(CommandCompleter { commands: self.commands }));
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
        // History is a convenience, so the failures to read and to write it are ignored.
        if editor.load_history(&self.file).is_err() || editor.history().is_empty() {
            for line in &self.lines {
                let _ = editor.add_history_entry(line.as_str());
            }
        }
        let line = editor.readline("> ")?;
        if !line.trim().is_empty() {
            let _ = editor.add_history_entry(line.as_str());
            let _ = editor.append_history(&self.file);
            self.lines.push(line.clone());
        }
        Ok(unquoted(&line).into_owned())
    }
}

/// Returns whether a message of several lines lacks its closing quotes.
fn is_open(text: &str) -> bool {
    let text = text.trim();
    text.strip_prefix(QUOTES).is_some_and(|rest| !rest.ends_with(QUOTES))
}

/// Returns a message without the quotes around it.
fn unquoted(text: &str) -> Cow<'_, str> {
    let inner = text.trim().strip_prefix(QUOTES).and_then(|rest| rest.strip_suffix(QUOTES));
    inner.map_or(Cow::Borrowed(text), |inner| Cow::Owned(inner.trim_matches('\n').to_owned()))
}

struct CommandCompleter {
    commands: &'static [&'static str],
}

impl Helper for CommandCompleter {}

impl Highlighter for CommandCompleter {}

impl Hinter for CommandCompleter {
    type Hint = String;
}

impl Completer for CommandCompleter {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = line.get(..at).unwrap_or_default();
        let is_command = typed.starts_with('/') && !typed.contains(char::is_whitespace);
        let fitting = self.commands.iter().filter(|command| is_command && command.starts_with(typed));
        Ok((0, fitting.map(|command| format!("{command} ")).collect()))
    }
}

impl Validator for CommandCompleter {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let is_open = is_open(context.input());
        Ok(if is_open { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_enclose_several_lines() {
        let check = |text: &str, open: bool, message: &str| {
            assert_eq!((is_open(text), unquoted(text).as_ref()), (open, message), "{text:?}");
        };
        check("hello", false, "hello");
        check("\"\"\"one\ntwo", true, "\"\"\"one\ntwo");
        check("\"\"\"\none\ntwo\n\"\"\"", false, "one\ntwo");
        check("\"\"\"one\"\"\" ", false, "one");
        check("\"\"\"", true, "\"\"\"");
        check("\"\"\"\"\"\"", false, "");
        check("say \"\"\"", false, "say \"\"\"");
    }
}
