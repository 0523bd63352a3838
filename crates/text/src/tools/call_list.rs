//! Lists of calls in Python, such as `[f(a=1), g()]`: parser, grammar and written form. `keywords` has those of the
//! arguments.

use std::mem;

use super::{
    CallLimit, MAX_CALL, MAX_NAME, TextEnd, ToolEvent, is_callable,
    keywords::{ArgumentStep, argument, cut_argument, keyword_rules, keyword_text},
    lark::{Callable, one_of, quoted},
    literal,
    name_head::is_name_char,
    push_text,
    write::joined,
};
use crate::{grammar::GrammarError, template::FunctionCall};

/// Parser of a list. Its brackets may be missing.
#[derive(Debug)]
pub(super) struct CallList {
    /// Names that calls may have; any if empty.
    names: Vec<String>,
    /// Set if only calls may follow, so that a text is malformed.
    is_marked: bool,
    /// Text that belongs to no complete call: that before the list, and that since the last call.
    raw: String,
    state: ListState,
    is_list: bool,
    calls: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListState {
    /// Before the opening bracket.
    Open,
    /// Before the name of a function.
    Name,
    /// In the arguments of a function.
    Arguments,
    /// After a call.
    Between,
}

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListStep {
    Again,
    /// More text is needed.
    Wait,
    /// The list ended before the held text.
    End,
    /// The text before the held text was reported: it is malformed, or no list.
    Failed,
}

impl CallList {
    /// Creates the parser of a text that may be a list. `raw` is the text before it, which is reported if it is not a list.
    pub(super) fn new(names: Vec<String>, raw: String) -> Self {
        Self { names, is_marked: false, raw, state: ListState::Open, is_list: false, calls: 0 }
    }

    /// Creates the parser of a list after a marker. Another text is malformed.
    pub(super) fn marked(names: Vec<String>, raw: String) -> Self {
        Self { is_marked: true, ..Self::new(names, raw) }
    }

    /// Returns true if a call was complete.
    pub(super) fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// Returns true if the list may end here.
    pub(super) fn may_end(&self) -> bool {
        self.state == ListState::Between
    }

    /// Returns true if the held text ends inside a string of an argument.
    pub(super) fn in_string(&self, held: &str) -> bool {
        self.state == ListState::Arguments && literal::ends_in_string(held)
    }

    /// Parses the next element and removes it from the held text.
    pub(super) fn step(&mut self, held: &mut String, events: &mut Vec<ToolEvent>) -> ListStep {
        if self.state != ListState::Between {
            self.take(held.len() - held.trim_start().len(), held);
        }
        match self.state {
            ListState::Open => self.open(held),
            ListState::Name => self.name(held, events),
            ListState::Arguments => self.arguments(held, events),
            ListState::Between => self.between(held),
        }
    }

    /// Ends the list with the held text, in which no step is left.
    pub(super) fn finish(&mut self, held: &mut String, end: TextEnd, events: &mut Vec<ToolEvent>) {
        if self.state == ListState::Arguments && end == TextEnd::Cut {
            cut_argument(held, self.is_first(), events);
        }
        self.take(held.len(), held);
        let may_end = match self.state {
            ListState::Open | ListState::Name => self.has_calls(),
            ListState::Arguments => false,
            ListState::Between => true,
        };
        if !may_end || !self.raw.trim().is_empty() {
            self.fail(events);
        }
    }

    fn take(&mut self, length: usize, held: &mut String) {
        self.raw.extend(held.drain(..length));
    }

    fn open(&mut self, held: &mut String) -> ListStep {
        if held.is_empty() {
            return ListStep::Wait;
        }
        self.is_list = held.starts_with('[');
        self.take(usize::from(self.is_list), held);
        self.state = ListState::Name;
        ListStep::Again
    }

    fn name(&mut self, held: &mut String, events: &mut Vec<ToolEvent>) -> ListStep {
        if self.is_list && held.starts_with(']') && (self.is_marked || self.has_calls()) {
            self.state = ListState::Between;
            return ListStep::Again;
        }
        match held.find(|c| !is_name_char(c)) {
            Some(end) if held[end..].starts_with('(') && is_callable(&held[..end], &self.names) => {
                let name = held[..end].to_owned();
                self.take(end + 1, held);
                events.push(ToolEvent::Begin { name, id: None });
                self.state = ListState::Arguments;
                ListStep::Again
            }
            None if self.may_be_name(held) => ListStep::Wait,
            Some(_) | None => self.fail(events),
        }
    }

    /// Returns true if the held text may be the beginning of a function's name.
    fn may_be_name(&self, held: &str) -> bool {
        let may_be_listed = self.names.is_empty() || self.names.iter().any(|name| name.starts_with(held));
        held.len() <= MAX_NAME && may_be_listed
    }

    /// Returns true if no argument of the call was parsed yet.
    fn is_first(&self) -> bool {
        self.raw.trim_end().ends_with('(')
    }

    fn arguments(&mut self, held: &mut String, events: &mut Vec<ToolEvent>) -> ListStep {
        match argument(held, self.is_first(), events) {
            ArgumentStep::Argument(length) => self.take(length, held),
            ArgumentStep::End(length) => {
                held.drain(..length);
                self.raw.clear();
                self.calls += 1;
                self.state = ListState::Between;
            }
            ArgumentStep::Wait if held.len() <= MAX_CALL => return ListStep::Wait,
            ArgumentStep::Wait | ArgumentStep::Bad => return self.fail(events),
        }
        ListStep::Again
    }

    fn between(&mut self, held: &mut String) -> ListStep {
        let rest = held.trim_start();
        match rest.chars().next() {
            None => return ListStep::Wait,
            Some(',' | ';') => self.state = ListState::Name,
            Some(']') if self.is_list => self.is_list = false,
            Some(_) => return ListStep::End,
        }
        held.drain(..=held.len() - rest.len());
        self.raw.clear();
        ListStep::Again
    }

    fn fail(&mut self, events: &mut Vec<ToolEvent>) -> ListStep {
        let raw = mem::take(&mut self.raw);
        if self.is_marked || self.state == ListState::Arguments {
            events.push(ToolEvent::Malformed(raw));
        } else {
            push_text(raw, events);
        }
        ListStep::Failed
    }
}

/// Returns the rule `list` and those that it uses.
pub(super) fn list_rules(functions: &[Callable<'_>], limit: CallLimit) -> Result<String, GrammarError> {
    let count = functions.len();
    let more = match limit {
        CallLimit::One => "",
        CallLimit::Any => "(\", \" call)*",
    };
    let mut rules = format!(
        "list: first {more} \"]\"\nfirst: {}\ncall: {}\n",
        one_of("first", count),
        one_of("call", count)
    );
    for (index, Callable { name, parameters }) in functions.iter().enumerate() {
        let rule = format!("keywords_{index}");
        // The bracket and the name are one lexeme, so that the lexer can distinguish a call from text.
        let first = quoted(&format!("[{name}("));
        let head = quoted(&format!("{name}("));
        rules.push_str(&format!("first_{index}: {first} {rule} \")\"\ncall_{index}: {head} {rule} \")\"\n"));
        rules.push_str(&keyword_rules(&rule, parameters)?);
    }
    Ok(rules)
}

/// Returns calls as a list.
pub(super) fn list_text(calls: &[FunctionCall]) -> String {
    let calls = joined(calls, ", ", |call| format!("{}({})", call.name, keyword_text(&call.arguments)));
    format!("[{calls}]")
}
