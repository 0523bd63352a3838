//! Tools in a conversation: the model's calls are shown, confirmed by the user, and answered.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    io::{IsTerminal, stderr, stdin},
};

use narthex_gateway::{
    Error,
    request::{CallLimit, Message, Role, Tool, ToolChoice, ToolSettings},
};
use narthex_mcp::{
    rounds::{Approval, Dialogue, ModelAnswer, Rounds, RoundsEnd, WrittenCall},
    toolbox::{ToolFile, ToolOutcome, ToolResult, Toolbox, ToolboxError},
};

use super::generation::{ChatModel, PrintedAnswer, print_chat};
use crate::{args::ToolArgs, input_file, interrupt, output, standard_input};

/// Maximum number of characters of a result that are shown.
const MAX_SHOWN_CHARS: usize = 400;

/// Question about a call.
const QUESTION: &str = "Run this call? [y]es, [n]o, [a]lways for this tool: ";

/// The tools of a conversation.
pub(super) struct ChatTools {
    toolbox: Toolbox,
    definitions: Vec<Tool>,
    rounds: Rounds,
    /// Tools whose calls need no question; `None` for all.
    approved: Option<BTreeSet<String>>,
}

fn invalid(param: &'static str, message: String) -> Error {
    Error::Invalid { param, message }
}

impl ChatTools {
    /// Starts the servers and reads the files of the arguments; `None` without any.
    ///
    /// # Errors
    /// Without a terminal to ask on, tools need `--yes-tools`.
    pub(super) fn open(args: &ToolArgs) -> anyhow::Result<Option<Self>> {
        if args.mcp.is_empty() && args.tools.is_empty() {
            let is_free = matches!(args.tool_choice, ToolChoice::Auto | ToolChoice::None);
            let message = "tool_choice: expected tools from --mcp or --tools, found none".to_owned();
            return if is_free { Ok(None) } else { Err(invalid("tool_choice", message).into()) };
        }
        let can_ask = stdin().is_terminal() && stderr().is_terminal();
        if !args.yes_tools && !can_ask {
            let message = "tools: expected a terminal to confirm calls, found none; --yes-tools runs calls without asking";
            return Err(invalid("yes_tools", message.to_owned()).into());
        }

        let mut files = Vec::new();
        for path in &args.tools {
            let file = ToolFile::read(input_file::text(path)?.as_bytes());
            files.push(file.map_err(|error| invalid("tools", format!("{}: {error}", path.display())))?);
        }
        let toolbox = Toolbox::open(&args.mcp, files, &interrupt::job());
        let toolbox = toolbox.map_err(|error| -> anyhow::Error {
            match error {
                ToolboxError::Cancelled => Error::Cancelled.into(),
                error if error.is_usage() => invalid("mcp", error.to_string()).into(),
                error => error.into(),
            }
        })?;

        let definitions = toolbox.tools();
        if definitions.is_empty() {
            let message = "tools: expected at least one tool from --mcp and --tools, found none".to_owned();
            return Err(invalid("tools", message).into());
        }
        Ok(Some(Self {
            toolbox,
            definitions,
            rounds: Rounds { first: args.tool_choice.clone(), most: args.tool_rounds },
            approved: (!args.yes_tools).then(BTreeSet::new),
        }))
    }

    /// Prints the answer of a model that may call the tools, and adds it to the messages with the calls and their
    /// results.
    fn run(&mut self, model: &ChatModel<'_>, messages: &mut Vec<Message>) -> anyhow::Result<PrintedAnswer> {
        let Self { toolbox, definitions, rounds, approved } = self;
        let mut dialogue = TerminalDialogue { model, definitions, approved, last: None };
        match rounds.run(toolbox, &mut dialogue, messages, &interrupt::job())? {
            RoundsEnd::Answered => dialogue.last.ok_or_else(|| Error::Cancelled.into()),
            RoundsEnd::Interrupted => {
                let last = dialogue.last.map(PrintedAnswer::interrupted);
                last.ok_or_else(|| Error::Cancelled.into())
            }
            RoundsEnd::Limit => {
                let most = rounds.most;
                let message =
                    format!("the model still calls tools after {most} rounds; --tool-rounds allows more");
                Err(Error::invalid("tool_rounds", message).into())
            }
        }
    }
}

/// Prints a model's answer to the messages, and adds it to them.
pub(super) fn answer(
    model: &ChatModel<'_>,
    tools: Option<&mut ChatTools>,
    messages: &mut Vec<Message>,
) -> anyhow::Result<PrintedAnswer> {
    if let Some(tools) = tools {
        return tools.run(model, messages);
    }
    let answer = print_chat(model, messages.clone(), ToolSettings::default())?;
    messages.push(Message::new(Role::Assistant, answer.text.clone()));
    Ok(answer)
}

/// The model, and the user at a terminal.
struct TerminalDialogue<'a> {
    model: &'a ChatModel<'a>,
    definitions: &'a [Tool],
    approved: &'a mut Option<BTreeSet<String>>,
    /// The last answer.
    last: Option<PrintedAnswer>,
}

impl Dialogue for TerminalDialogue<'_> {
    type Failure = anyhow::Error;

    fn answer(&mut self, messages: &[Message], choice: &ToolChoice) -> anyhow::Result<ModelAnswer> {
        let tools = ToolSettings {
            tools: self.definitions.to_vec(),
            choice: choice.clone(),
            calls: CallLimit::default(),
        };
        let printed = print_chat(self.model, messages.to_vec(), tools)?;
        let answer = ModelAnswer {
            text: printed.text.clone(),
            reasoning: printed.reasoning.clone(),
            calls: printed.calls.clone(),
            interrupted: printed.is_interrupted(),
        };
        self.last = Some(printed);
        Ok(answer)
    }

    fn approve(&mut self, call: &WrittenCall) -> anyhow::Result<Approval> {
        let shown = format!("tool call: {} {}", visible(&call.name), visible(&call.arguments));
        let Some(approved) = &mut *self.approved else {
            if !self.model.args.quiet {
                output::note(shown);
            }
            return Ok(Approval::Run);
        };
        output::note(shown);
        if approved.contains(&call.name) {
            return Ok(Approval::Run);
        }
        output::question(QUESTION);
        Ok(match standard_input::answer()?.as_str() {
            "y" | "yes" => Approval::Run,
            "a" | "always" => {
                approved.insert(call.name.clone());
                Approval::Run
            }
            _ => Approval::Refuse,
        })
    }

    fn show(&mut self, call: &WrittenCall, result: &ToolResult) -> anyhow::Result<()> {
        if self.model.args.quiet {
            return Ok(());
        }
        let mark = if result.outcome == ToolOutcome::Done { "result" } else { "failure" };
        let text = result.text.trim_end();
        let mut shown: String = text.chars().take(MAX_SHOWN_CHARS).collect();
        if shown.len() < text.len() {
            shown.push('…');
        }
        output::note(format!("tool {mark}: {} {}", visible(&call.name), visible(&shown)));
        Ok(())
    }
}

/// Escapes characters that could hide a part of a text on a terminal.
fn visible(text: &str) -> Cow<'_, str> {
    output::escaped(text, is_invisible)
}

/// Returns whether a character changes the direction of text or has no width.
fn is_invisible(char: char) -> bool {
    matches!(char, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_call_is_hidden() {
        assert_eq!(visible("rm\u{1b}[2K \u{202e}x\r\n"), "rm\\u{1b}[2K \\u{202e}x\\u{d}\n");
    }
}
