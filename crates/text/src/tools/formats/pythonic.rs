//! Python calls of Llama 3.2 and 4: the answer is a list, such as `[f(a=1), g()]`. A call without a list is also
//! accepted.

use std::mem;

use super::{FormatDefinition, FormatOptions};
use crate::{
    grammar::GrammarError,
    tools::{
        CallKind, CallSyntax, ParserContext, TextEnd, ToolEvent,
        call_list::{CallList, ListStep, list_rules, list_text},
        finish_text,
        lark::{AllowedCalls, BareRules, FormatRules, SPACE, names, regex},
        overlap, push_text, tool_names,
    },
};

/// Marker that may precede the list.
const OPEN: &str = "<|python_tag|>";

pub(super) const FORMAT: FormatDefinition = FormatDefinition {
    is_in: |template| template.contains("[func_name1("),
    markers: &[OPEN],
    parser: |context| Some(Box::new(PythonCalls::new(context))),
    rules,
    write: |calls, message| message.content.push_str(&list_text(calls)),
    options: FormatOptions::BASE,
    #[cfg(test)]
    examples: tests::examples,
};

/// Parser of calls in Python.
#[derive(Debug)]
struct PythonCalls {
    names: Vec<String>,
    held: String,
    /// White space and the marker at the beginning of the answer.
    before: String,
    state: PythonState,
    /// Set if the marker is not a token, so that its text may precede the calls.
    has_text_marker: bool,
    /// Set after the marker.
    is_marked: bool,
    /// Set once a call was parsed, or text was reported that is not white space.
    has_content: bool,
}

#[derive(Debug)]
enum PythonState {
    /// At the beginning of the answer.
    Start,
    Calls(CallList),
    Text,
}

fn rules(allowed: &AllowedCalls<'_>) -> Result<FormatRules, GrammarError> {
    let functions = allowed.functions;
    let rules = format!("calls: list\n{}", list_rules(functions, allowed.limit)?);
    let open = format!("(\\[|{}{SPACE}\\[?)", regex(OPEN));
    let begin = format!("{SPACE}{open}{SPACE}{}\\(", names(functions));
    let bare = Some(BareRules { begin, rules: "bare: calls\n".to_owned() });
    Ok(FormatRules { rules, markers: &[], bare, head: None, text: None })
}

impl PythonCalls {
    /// Creates the parser. Calls after the token of the marker are not withheld, other calls that the grammar does not
    /// guarantee are.
    fn new(context: &ParserContext<'_>) -> Self {
        let is_marked_only = context.calls == CallKind::Marked;
        Self {
            names: tool_names(context.tools),
            held: String::new(),
            before: String::new(),
            state: if is_marked_only { PythonState::Text } else { PythonState::Start },
            has_text_marker: !context.has_tokens,
            is_marked: false,
            has_content: false,
        }
    }

    /// Parses the next element. Returns false if it needs more text.
    fn step(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        match &mut self.state {
            PythonState::Start => self.start(),
            PythonState::Calls(list) => match list.step(&mut self.held, events) {
                ListStep::Again => true,
                ListStep::Wait => false,
                ListStep::End | ListStep::Failed => {
                    self.has_content = true;
                    self.state = PythonState::Text;
                    true
                }
            },
            PythonState::Text => {
                let text = mem::take(&mut self.before) + &mem::take(&mut self.held);
                self.has_content |= !text.trim().is_empty();
                push_text(text, events);
                false
            }
        }
    }

    fn start(&mut self) -> bool {
        self.take(self.held.len() - self.held.trim_start().len());
        if self.held.is_empty() {
            return false;
        }
        if self.has_text_marker && self.held.starts_with(OPEN) {
            self.take(OPEN.len());
            self.is_marked = true;
        } else if self.has_text_marker && overlap(&self.held, &[OPEN]) == self.held.len() {
            return false;
        } else if self.held.starts_with('[')
            || self.is_marked && self.held.starts_with(|c: char| c.is_alphabetic() || c == '_')
        {
            let list = CallList::new(self.names.clone(), mem::take(&mut self.before));
            self.state = PythonState::Calls(list);
        } else {
            self.state = PythonState::Text;
        }
        true
    }

    fn take(&mut self, length: usize) {
        self.before.extend(self.held.drain(..length));
    }
}

impl CallSyntax for PythonCalls {
    fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        self.held.push_str(text);
        while self.step(events) {}
    }

    fn push_marker(&mut self, _: &str, _: &mut Vec<ToolEvent>) {
        let is_start = matches!(self.state, PythonState::Start | PythonState::Text);
        if is_start && !self.has_content && self.before.trim().is_empty() {
            self.is_marked = true;
            self.state = PythonState::Start;
        }
    }

    fn finish(&mut self, end: TextEnd, events: &mut Vec<ToolEvent>) {
        if let PythonState::Calls(list) = &mut self.state {
            list.finish(&mut self.held, end, events);
            return;
        }
        let rest = mem::take(&mut self.before) + &mem::take(&mut self.held);
        if self.has_text_marker && !self.is_marked {
            finish_text(rest, &[OPEN], end, events);
        } else {
            push_text(rest, events);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::tools::examples::{Examples, WEATHER, complete, cut};

    /// Returns answers after Meta's prompt format of Llama 3.2 and 4 for calls in Python.
    pub(super) fn examples() -> Examples {
        let transcripts = vec![
            complete("[get_weather(city='Brno', days=2), stop()]", format!("{WEATHER} stop( {{}} )")),
            complete("<|python_tag|>get_weather(city=\"Brno\", days=2)", WEATHER),
            complete("[1, 2]", r#""[1, 2]""#),
            complete("[get_weather(city='a]),(\\'')]", r#"get_weather( {"city":"a]),('"} )"#),
            complete("[get_weather(5)]", r#""[get_weather(5)]""#),
            complete("[get_weather(city='x", r#""[get_weather(city='x""#),
            complete("[get_weather(city=5)]", r#""[get_weather(city=5)]""#),
            complete("[stop()] stops it.", r#""[stop()] stops it.""#),
            complete("Sunny [today].", r#""Sunny [today].""#),
            cut("[get_weather(", ""),
            cut("[get_weather(ci", r#"{"ci"#),
            cut("[get_weather(city=", r#"{"city": "#),
            cut(r"[get_weather(city='Br\'n\", r#"{"city": "Br'n"#),
            cut("[get_weather(city='Brno', days=1", r#"{"city": "Brno", "days": 1"#),
            cut("[get_weather(city='Brno', ", r#"{"city": "Brno""#),
            cut(r#"[get_weather(**{"a-b": "x"#, r#"{"a-b": "x"#),
        ];
        let templates = vec![];
        Examples { has_keywords: true, ..Examples::new(templates, transcripts) }
    }
}
