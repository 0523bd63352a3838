//! Calls in Python: the answer is a list of them, `[f(a=1), g()]`. A call without a list is read too.

use std::mem;

use serde_json::Value;

use super::{CallSyntax, MAX_CALL, ToolEvent, is_callable, literal, overlap, push_arguments, push_text};

/// Marker that may stand before the list.
const OPEN: &str = "<|python_tag|>";

/// Reads calls in Python.
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

/// Reads the arguments of a call after its opening parenthesis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgumentStep {
    /// An argument was read and this many bytes.
    Argument(usize),
    /// The call ended after this many bytes.
    End(usize),
    /// More text is needed.
    Wait,
    /// This is no argument.
    Bad,
}

/// Reads the next argument or the end of a call, and hands out its JSON. `is_first` holds before the first argument.
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
    let Some(equals) = rest.find('=') else {
        let is_key = rest.trim_end().chars().all(|c| c.is_alphanumeric() || c == '_');
        return if is_key { ArgumentStep::Wait } else { ArgumentStep::Bad };
    };
    let key = rest[..equals].trim();
    if key.is_empty() || !key.chars().all(|c| c.is_alphanumeric() || c == '_') {
        return ArgumentStep::Bad;
    }
    let after = &rest[equals + 1..];
    let Some(length) = literal::length(after) else { return ArgumentStep::Wait };
    let Some(value) = literal::parse(&after[..length]) else { return ArgumentStep::Bad };
    let open = if is_first { "{" } else { ", " };
    push_arguments(&format!("{open}{}: {value}", Value::from(key)), events);
    let comma = usize::from(after[length..].starts_with(','));
    ArgumentStep::Argument(space + equals + 1 + length + comma)
}

impl PythonCalls {
    pub(super) fn new(names: Vec<String>) -> Self {
        let state = PythonState::Start;
        Self { names, held: String::new(), raw: String::new(), state, is_list: false, calls: 0 }
    }

    fn take(&mut self, length: usize) {
        self.raw.extend(self.held.drain(..length));
    }

    /// Returns whether another step may follow.
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

    fn arguments(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        let is_first = self.raw.trim_end().ends_with('(');
        match argument(&self.held, is_first, events) {
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

    fn finish(&mut self, events: &mut Vec<ToolEvent>) {
        self.take(self.held.len());
        let rest = mem::take(&mut self.raw);
        match self.state {
            PythonState::Arguments => events.push(ToolEvent::Malformed(rest)),
            _ if self.calls > 0 && rest.trim().is_empty() => {}
            _ => push_text(rest, events),
        }
    }
}
