//! Calls in Python: the answer is a list of calls, `[f(a=1), g()]`. A call without a list is accepted too.

use std::mem;

use serde_json::Value;

use super::{
    CallLimit, CallSyntax, MAX_CALL, TextEnd, ToolEvent, is_callable,
    lark::{Callable, FormatRules, names, one_of, quoted, regex},
    literal, overlap, push_arguments, push_text,
    schema::{Parameter, parameters},
};
use crate::grammar::{GrammarError, json_rule};

/// Marker that may precede the list.
const OPEN: &str = "<|python_tag|>";

/// Parser of calls in Python.
#[derive(Debug)]
pub(super) struct PythonCalls {
    names: Vec<String>,
    held: String,
    raw: String,
    state: PythonState,
    is_list: bool,
    calls: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PythonState {
    /// At the beginning of the answer.
    Start,
    /// Before the name of a function.
    Name,
    /// In the arguments of a function.
    Arguments,
    /// After a call.
    Between,
    Text,
}

/// Result of parsing the arguments of a call, after its opening parenthesis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgumentStep {
    /// An argument was parsed; it took this many bytes.
    Argument(usize),
    /// The call ended after this many bytes.
    End(usize),
    /// More text is needed.
    Wait,
    /// The text is not an argument.
    Bad,
}

/// Parses the next argument or the end of a call, and reports it as JSON. `is_first` is true before the first argument.
pub(super) fn argument(text: &str, is_first: bool, events: &mut Vec<ToolEvent>) -> ArgumentStep {
    let rest = text.trim_start();
    let space = text.len() - rest.len();
    if rest.is_empty() {
        return ArgumentStep::Wait;
    }
    if rest.starts_with(')') {
        push_arguments(if is_first { "{}" } else { "}" }, events);
        events.push(ToolEvent::End);
        return ArgumentStep::End(space + 1);
    }
    if is_first && b"**".starts_with(&rest.as_bytes()[..rest.len().min(2)]) {
        return dictionary(rest.get(2..).unwrap_or_default(), space + 2, events);
    }
    let Some(equals) = rest.find('=') else {
        let is_key = rest.trim_end().chars().all(|c| c.is_alphanumeric() || c == '_');
        return if is_key { ArgumentStep::Wait } else { ArgumentStep::Bad };
    };
    let key = rest[..equals].trim();
    if !is_keyword(key) {
        return ArgumentStep::Bad;
    }
    let after = &rest[equals + 1..];
    let Some(length) = literal::length(after) else { return ArgumentStep::Wait };
    let Some(value) = value(&after[..length]) else { return ArgumentStep::Bad };
    let open = if is_first { "{" } else { ", " };
    push_arguments(&format!("{open}{}: {value}", Value::from(key)), events);
    let comma = usize::from(after[length..].starts_with(','));
    ArgumentStep::Argument(space + equals + 1 + length + comma)
}

/// Reports the beginning of an argument that was cut off. `is_first` is true before the first argument.
pub(super) fn cut_argument(text: &str, is_first: bool, events: &mut Vec<ToolEvent>) {
    let text = text.trim_start();
    if is_first && let Some(dictionary) = text.strip_prefix("**") {
        push_arguments(dictionary.trim_start(), events);
        return;
    }
    let (key, value) = text.split_once('=').map_or((text, None), |(key, value)| (key, Some(value)));
    if !is_keyword(key.trim_end()) {
        return;
    }
    let open = if is_first { "{" } else { ", " };
    let key = literal::open_string(key.trim_end());
    let value = value.map_or_else(String::new, |value| format!("\": {}", literal::beginning(value)));
    push_arguments(&format!("{open}{key}{value}"), events);
}

/// Parses all arguments of a call as one dictionary, `**{…})`. `text` starts after the stars, which end at byte
/// `before`.
fn dictionary(text: &str, before: usize, events: &mut Vec<ToolEvent>) -> ArgumentStep {
    match literal::length(text) {
        None => ArgumentStep::Wait,
        Some(length) => match value(&text[..length]) {
            Some(arguments @ Value::Object(_)) if text[length..].starts_with(')') => {
                push_arguments(&arguments.to_string(), events);
                events.push(ToolEvent::End);
                ArgumentStep::End(before + length + 1)
            }
            _ => ArgumentStep::Bad,
        },
    }
}

/// Returns the value of a text that is JSON or a literal of Python.
fn value(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok().or_else(|| literal::parse(text))
}

fn is_keyword(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// Returns the rules of calls.
pub(super) fn rules(functions: &[Callable<'_>], limit: CallLimit) -> Result<FormatRules, GrammarError> {
    let count = functions.len();
    let more = match limit {
        CallLimit::One => "",
        CallLimit::Any => "(\", \" call)*",
    };
    let mut rules = format!(
        "calls: first {more} \"]\"\nfirst: {}\ncall: {}\n",
        one_of("first", count),
        one_of("call", count)
    );
    for (index, Callable { name, parameters }) in functions.iter().enumerate() {
        let rule = format!("keywords_{index}");
        // The bracket and the name are one lexeme, so that the lexer can distinguish a call from text.
        let (first, head) = (quoted(&format!("[{name}(")), quoted(&format!("{name}(")));
        rules.push_str(&format!("first_{index}: {first} {rule} \")\"\ncall_{index}: {head} {rule} \")\"\n"));
        rules.push_str(&keyword_rules(&rule, parameters)?);
    }
    let begin = format!("(\\[|{}[ \\t\\r\\n]*\\[?)", regex(OPEN));
    let bare = format!("[ \\t\\r\\n]*{begin}[ \\t\\r\\n]*{}\\((\\n|.)*", names(functions));
    Ok(FormatRules { rules, markers: &[], bare: Some(bare), head: None })
}

/// Returns a rule for keyword arguments that are valid under a schema. Values are JSON. Arguments that cannot be
/// keywords are a dictionary.
pub(super) fn keyword_rules(rule: &str, schema: &Value) -> Result<String, GrammarError> {
    let can_be_left_out = |one: &Parameter<'_>| is_keyword(one.name) || !one.is_required;
    let Some(mut named) = parameters(schema).ok().filter(|named| named.iter().all(can_be_left_out)) else {
        return Ok(format!("{rule}: \"**\" {rule}_all\n{rule}_all: {}\n", json_rule(schema)?));
    };
    named.retain(|one| is_keyword(one.name));
    // `first` rules are used before the first argument, `next` rules after one.
    let mut rules = format!("{rule}: {rule}_first_0\n");
    for (at, parameter) in named.iter().enumerate() {
        let item = format!("{rule}_{at}");
        rules.push_str(&format!("{item}: {} {item}_value\n", quoted(&format!("{}=", parameter.name))));
        rules.push_str(&format!("{item}_value: {}\n", json_rule(&parameter.schema)?));
        let after = at + 1;
        for (place, separator) in [("first", ""), ("next", "\", \" ")] {
            let left_out =
                if parameter.is_required { String::new() } else { format!(" | {rule}_{place}_{after}") };
            let rest = format!("{separator}{item} {rule}_next_{after}{left_out}");
            rules.push_str(&format!("{rule}_{place}_{at}: {rest}\n"));
        }
    }
    let end = named.len();
    Ok(rules + &format!("{rule}_first_{end}: \"\"\n{rule}_next_{end}: \"\"\n"))
}

impl PythonCalls {
    pub(super) fn new(names: Vec<String>) -> Self {
        let state = PythonState::Start;
        Self { names, held: String::new(), raw: String::new(), state, is_list: false, calls: 0 }
    }

    fn take(&mut self, length: usize) {
        self.raw.extend(self.held.drain(..length));
    }

    /// Parses the next element. Returns false if it needs more text.
    fn step(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        self.take_space();
        match self.state {
            PythonState::Start => self.start(),
            PythonState::Name => self.name(events),
            PythonState::Arguments => self.arguments(events),
            PythonState::Between => self.between(),
            PythonState::Text => {
                push_text(mem::take(&mut self.raw) + &mem::take(&mut self.held), events);
                false
            }
        }
    }

    fn take_space(&mut self) {
        if self.state != PythonState::Text {
            self.take(self.held.len() - self.held.trim_start().len());
        }
    }

    fn start(&mut self) -> bool {
        if self.held.is_empty() {
            return false;
        }
        if self.held.starts_with(OPEN) {
            self.take(OPEN.len());
        } else if overlap(&self.held, &[OPEN]) == self.held.len() {
            return false;
        } else if self.held.starts_with('[') {
            self.take(1);
            (self.is_list, self.state) = (true, PythonState::Name);
        } else if self.held.starts_with(|c: char| c.is_alphabetic() || c == '_') && self.raw.contains(OPEN) {
            self.state = PythonState::Name;
        } else {
            self.state = PythonState::Text;
        }
        true
    }

    fn name(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        let is_name = |c: char| c.is_alphanumeric() || "_.-".contains(c);
        match self.held.find(|c| !is_name(c)) {
            Some(end) if self.held[end..].starts_with('(') && is_callable(&self.held[..end], &self.names) => {
                let name = self.held[..end].to_owned();
                self.take(end + 1);
                events.push(ToolEvent::Begin { name, id: None });
                self.state = PythonState::Arguments;
            }
            Some(_) => self.state = PythonState::Text,
            None => return false,
        }
        true
    }

    /// Returns true if no argument of the call was parsed yet.
    fn is_first(&self) -> bool {
        self.raw.trim_end().ends_with('(')
    }

    fn arguments(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        match argument(&self.held, self.is_first(), events) {
            ArgumentStep::Argument(length) => self.take(length),
            ArgumentStep::End(length) => {
                self.take(length);
                self.raw.clear();
                self.calls += 1;
                self.state = PythonState::Between;
            }
            ArgumentStep::Wait if self.held.len() <= MAX_CALL => return false,
            ArgumentStep::Wait | ArgumentStep::Bad => self.fail(events),
        }
        true
    }

    fn between(&mut self) -> bool {
        let Some(next) = self.held.chars().next() else { return false };
        match next {
            ',' | ';' => self.state = PythonState::Name,
            ']' if self.is_list => self.is_list = false,
            _ => {
                self.state = PythonState::Text;
                return true;
            }
        }
        self.take(1);
        self.raw.clear();
        true
    }

    fn fail(&mut self, events: &mut Vec<ToolEvent>) {
        events.push(ToolEvent::Malformed(mem::take(&mut self.raw)));
        self.state = PythonState::Text;
    }
}

impl CallSyntax for PythonCalls {
    fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        self.held.push_str(text);
        while self.step(events) {}
    }

    fn finish(&mut self, end: TextEnd, events: &mut Vec<ToolEvent>) {
        if self.state == PythonState::Arguments && end == TextEnd::Cut {
            cut_argument(&self.held, self.is_first(), events);
        }
        self.take(self.held.len());
        let rest = mem::take(&mut self.raw);
        match self.state {
            PythonState::Arguments => events.push(ToolEvent::Malformed(rest)),
            _ if self.calls > 0 && rest.trim().is_empty() => {}
            _ => push_text(rest, events),
        }
    }
}
