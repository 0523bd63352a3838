//! ChatGLM3's calls: the tool's name on the first line, then a block of code that calls `tool_call` with the arguments.

use std::mem;

use serde_json::Value;

use super::{FormatDefinition, FormatOptions};
use crate::{
    grammar::GrammarError,
    tools::{
        CallKind, CallSyntax, MAX_CALL, MAX_NAME, TextEnd, ToolEvent, is_callable,
        keywords::{ArgumentStep, argument, cut_argument, keyword_rules, keyword_text},
        lark::{AllowedCalls, BareRules, FormatRules, SPACE, names, one_of, quoted},
        overlap, push_text, tool_names,
        write::joined,
    },
};

/// Text between the name and the arguments. White space around its parts may vary.
const CODE: &str = "```python";
const CALL: &str = "tool_call(";
const CLOSE: &str = "```";

pub(super) const FORMAT: FormatDefinition = FormatDefinition {
    is_in: |template| template.contains("[gMASK]sop"),
    markers: &[],
    parser: |context| match context.calls {
        CallKind::OfGrammar | CallKind::Bare => Some(Box::new(ChatGlmCalls::new(context.tools))),
        CallKind::Marked => None,
    },
    rules,
    write: |calls, message| {
        message.content.push_str(&joined(calls, "\n", |call| {
            format!("{}\n {CODE}\n{CALL}{})\n{CLOSE}", call.name, keyword_text(&call.arguments))
        }));
    },
    options: FormatOptions::BASE,
    #[cfg(test)]
    examples: tests::examples,
};

/// Parser of an answer that is at most one call.
#[derive(Debug)]
struct ChatGlmCalls {
    names: Vec<String>,
    held: String,
    raw: String,
    state: GlmState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GlmState {
    /// Before the arguments: name and start of the code block.
    Head,
    /// Before an argument.
    Arguments {
        is_first: bool,
    },
    /// After the call.
    Tail,
    Text,
}

/// Result of reading the head.
enum CallHead {
    Call { name: String, length: usize },
    Wait,
    Text,
}

fn rules(allowed: &AllowedCalls<'_>) -> Result<FormatRules, GrammarError> {
    let functions = allowed.functions;
    let mut rules = format!("calls: {}\n", one_of("call", functions.len()));
    for (index, function) in functions.iter().enumerate() {
        let head = quoted(&format!("{}\n {CODE}\n{CALL}", function.name));
        let rule = format!("keywords_{index}");
        let tail = quoted(&format!(")\n{CLOSE}"));
        rules.push_str(&format!("call_{index}: {head} {rule} {tail}\n"));
        rules.push_str(&keyword_rules(&rule, function.parameters)?);
    }
    let begin = format!("{SPACE}{}{SPACE}\\n{SPACE}```python{SPACE}tool_call\\(", names(functions));
    let bare = Some(BareRules { begin, rules: "bare: calls\n".to_owned() });
    Ok(FormatRules { rules, markers: &[], bare, head: None, text: None })
}

impl ChatGlmCalls {
    fn new(tools: &[Value]) -> Self {
        let held = String::new();
        let raw = String::new();
        Self { names: tool_names(tools), held, raw, state: GlmState::Head }
    }

    fn head(&self) -> CallHead {
        let rest = self.held.trim_start();
        let Some((name, after)) = rest.split_once('\n') else {
            let may_be_name =
                self.names.is_empty() || self.names.iter().any(|name| name.starts_with(rest.trim_end()));
            let is_open = rest.len() <= MAX_NAME && may_be_name;
            return if is_open { CallHead::Wait } else { CallHead::Text };
        };
        if !is_callable(name.trim(), &self.names) {
            return CallHead::Text;
        }
        let mut rest = after;
        for part in [CODE, CALL] {
            rest = rest.trim_start();
            let Some(next) = rest.strip_prefix(part) else {
                return if part.starts_with(rest) { CallHead::Wait } else { CallHead::Text };
            };
            rest = next;
        }
        CallHead::Call { name: name.trim().to_owned(), length: self.held.len() - rest.len() }
    }

    /// Reads the next element. Returns false if it needs more text.
    fn step(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        match self.state {
            GlmState::Head => match self.head() {
                CallHead::Call { name, length } => {
                    self.take(length);
                    events.push(ToolEvent::Begin { name, id: None });
                    self.state = GlmState::Arguments { is_first: true };
                }
                CallHead::Text => self.state = GlmState::Text,
                CallHead::Wait => return false,
            },
            GlmState::Arguments { is_first } => match argument(&self.held, is_first, events) {
                ArgumentStep::Argument(length) => {
                    self.take(length);
                    self.state = GlmState::Arguments { is_first: false };
                }
                ArgumentStep::End(length) => {
                    self.take(length);
                    self.raw.clear();
                    self.state = GlmState::Tail;
                }
                ArgumentStep::Wait if self.held.len() <= MAX_CALL => return false,
                ArgumentStep::Wait | ArgumentStep::Bad => {
                    events.push(ToolEvent::Malformed(mem::take(&mut self.raw)));
                    self.state = GlmState::Text;
                }
            },

            GlmState::Tail => {
                let rest = self.held.trim_start();
                let after = rest.strip_prefix(CLOSE);
                if after.is_none() && overlap(rest, &[CLOSE]) == rest.len() {
                    return false;
                }
                self.held = after.unwrap_or(rest).trim_start().to_owned();
                self.state = GlmState::Text;
            }
            GlmState::Text => {
                push_text(mem::take(&mut self.held), events);
                return false;
            }
        }
        true
    }

    fn take(&mut self, length: usize) {
        self.raw.extend(self.held.drain(..length));
    }
}

impl CallSyntax for ChatGlmCalls {
    fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        self.held.push_str(text);
        while self.step(events) {}
    }

    // The format has no markers.
    fn push_marker(&mut self, _: &str, _: &mut Vec<ToolEvent>) {}

    fn finish(&mut self, end: TextEnd, events: &mut Vec<ToolEvent>) {
        if let GlmState::Arguments { is_first } = self.state
            && end == TextEnd::Cut
        {
            cut_argument(&self.held, is_first, events);
        }
        self.take(self.held.len());
        let rest = mem::take(&mut self.raw);
        match self.state {
            GlmState::Arguments { .. } => events.push(ToolEvent::Malformed(rest)),
            GlmState::Tail => {}
            GlmState::Head | GlmState::Text => push_text(rest, events),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        template::Abilities,
        tools::examples::{Examples, TemplateExample, WEATHER, complete, cut},
    };

    /// Returns answers after the description of tools in ChatGLM3's repository.
    pub(super) fn examples() -> Examples {
        let transcripts = vec![
            complete("get_weather\n ```python\ntool_call(city='Brno', days=2)\n```", WEATHER),
            complete("\n Hello there\nYou", r#""\n Hello there\nYou""#),
            complete("get_weather\nis a tool", r#""get_weather\nis a tool""#),
            complete("stop\n```python\ntool_call(x y", r#""stop\n```python\ntool_call(x y""#),
            complete("stop\n```python\ntool_call(\nx y", r#""stop\n```python\ntool_call(\nx y""#),
            cut("stop\n ```python\ntool_call(city='Br", r#"{"city": "Br"#),
        ];
        let templates = vec![TemplateExample {
            abilities: Abilities::default(),
            difference: Some("a line break and a space before the text of every message"),
            ..TemplateExample::new("chatglm3")
        }];
        Examples { has_keywords: true, max_calls: 1, ..Examples::new(templates, transcripts) }
    }
}
