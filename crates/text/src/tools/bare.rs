//! Calls without a marker, at the start of an answer.
//!
//! Nothing but its form tells such a call from a text that quotes one. It is a call only if the answer consists of calls
//! from there to its end, and each is one of a tool, with arguments that the tool's schema allows. The calls are withheld
//! until the answer ends; an answer that turns out to be a text is released at once.

use serde_json::Value;

use super::{CallSyntax, TextEnd, ToolEvent, arguments::allows};

/// Parser of an answer that may consist of calls without a marker.
pub(super) struct BareCalls {
    syntax: Box<dyn CallSyntax + Send>,
    tools: Vec<Value>,
    /// Text that was not released.
    held: String,
    /// Events of the calls in it.
    events: Vec<ToolEvent>,
    /// Set once text was released that is not white space.
    has_text: bool,
    /// Marker of the format, if it is text. No call without a marker follows it.
    marker: Option<&'static str>,
    /// Last characters that were released, as many as the marker has.
    last: String,
    /// Set once the token of a closing marker was read after a call.
    is_closed: bool,
}

/// Result of a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BareStep {
    /// The text that was released; more of the answer may be calls.
    Released(String),
    /// The rest of the answer, in which no call without a marker follows.
    Over(String),
}

impl BareCalls {
    /// Creates a parser. `marker` is that of the format, if it is text; calls after a text otherwise need the token of a
    /// marker at their end.
    pub(super) fn new(
        syntax: Box<dyn CallSyntax + Send>,
        tools: &[Value],
        marker: Option<&'static str>,
    ) -> Self {
        Self {
            syntax,
            tools: tools.to_vec(),
            held: String::new(),
            events: Vec::new(),
            has_text: false,
            marker,
            last: String::new(),
            is_closed: false,
        }
    }

    /// Takes the next text.
    pub(super) fn push(&mut self, text: &str) -> BareStep {
        self.held.push_str(text);
        let mut events = Vec::new();
        self.syntax.push(text, &mut events);
        self.take(events)
    }

    /// Takes the token of a marker. Only one that ends a call can be part of calls without an opening marker. The text of a
    /// token is no part of the answer's text.
    pub(super) fn push_marker(&mut self, marker: &str) -> BareStep {
        if self.events.is_empty() {
            return self.over();
        }
        self.is_closed = true;
        let mut events = Vec::new();
        self.syntax.push(marker, &mut events);
        self.take(events)
    }

    /// Ends the answer. Returns its calls, or its text.
    pub(super) fn finish(mut self, end: TextEnd) -> Result<Vec<ToolEvent>, String> {
        let mut events = Vec::new();
        self.syntax.finish(end, &mut events);
        match self.take(events) {
            BareStep::Over(text) => return Err(text),
            BareStep::Released(text) if !text.is_empty() => return Err(text + &self.held),
            BareStep::Released(_) => {}
        }
        if self.are_calls() { Ok(self.events) } else { Err(self.held) }
    }

    /// Takes the events of a text: releases text before calls, and everything if text follows a call.
    fn take(&mut self, events: Vec<ToolEvent>) -> BareStep {
        let mut released = String::new();
        for event in events {
            match event {
                ToolEvent::Text(text) if self.events.is_empty() => {
                    self.has_text |= !text.trim().is_empty();
                    released.extend(self.held.drain(..text.len()));
                    if self.has_marker(&text) {
                        return BareStep::Over(released + &self.over_text());
                    }
                }
                ToolEvent::Text(text) if text.trim().is_empty() => {}
                ToolEvent::Text(_) | ToolEvent::Malformed(_) => {
                    return BareStep::Over(released + &self.over_text());
                }
                call => self.events.push(call),
            }
        }
        BareStep::Released(released)
    }

    /// Returns true if the marker ends in a text that is released.
    fn has_marker(&mut self, text: &str) -> bool {
        let Some(marker) = self.marker else { return false };
        self.last.push_str(text);
        let has_marker = self.last.contains(marker);
        let first = self.last.len().saturating_sub(marker.len());
        self.last.drain(..self.last.floor_char_boundary(first));
        has_marker
    }

    fn over(&mut self) -> BareStep {
        BareStep::Over(self.over_text())
    }

    fn over_text(&mut self) -> String {
        self.events.clear();
        std::mem::take(&mut self.held)
    }

    /// Returns true if the events are complete and allowed calls.
    fn are_calls(&self) -> bool {
        if self.has_text && self.marker.is_none() && !self.is_closed {
            return false;
        }
        let mut name = None;
        let mut arguments = String::new();
        for event in &self.events {
            match event {
                ToolEvent::Begin { name: called, .. } if name.is_none() => name = Some(called.as_str()),
                ToolEvent::Arguments(part) => arguments.push_str(part),
                ToolEvent::End => match name.take() {
                    Some(name) if self.is_allowed(name, &arguments) => arguments.clear(),
                    _ => return false,
                },
                _ => return false,
            }
        }
        name.is_none() && !self.events.is_empty()
    }

    /// Returns true if a tool has this name and allows the arguments, and they are not its declaration.
    fn is_allowed(&self, name: &str, arguments: &str) -> bool {
        let Ok(arguments) = serde_json::from_str::<Value>(arguments) else { return false };
        let function =
            self.tools.iter().map(|tool| &tool["function"]).find(|function| function["name"] == name);
        let Some(function) = function else { return false };
        let Some(schema) = function.get("parameters") else { return arguments.is_object() };
        let is_declaration =
            arguments["properties"].is_object() && schema["properties"]["properties"].is_null();
        !is_declaration && arguments != *schema && allows(schema, &arguments)
    }
}
