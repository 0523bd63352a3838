//! Tool calls and reasoning in the text of an answer, found while it streams.
//!
//! [`ToolParser`] divides an answer into text and calls in a [`ToolFormat`]. [`ReasoningParser`] runs before it and
//! separates the reasoning. Their joined results do not depend on the division of the text into pieces. A malformed
//! call stays text and is reported as such. `formats` has one file for each format, with everything that is particular
//! to it: its template, parser, grammar ([`call_grammar`]), written form and example answers. `json_calls` parses the
//! formats with JSON objects, `name_head` a name before an object, `call_list` lists of Python calls, `keywords` the
//! arguments of such calls. `bare` decides whether an answer without a marker consists of calls, `arguments` whether a
//! schema allows them.
//!
//! In the other direction, [`adapted`] writes the calls and results of a conversation as text for templates that do
//! not.

mod adapt;
mod arguments;
mod bare;
mod call_list;
#[cfg(test)]
#[path = "../../tests/tools/examples.rs"]
mod examples;
mod formats;
mod grammar;
#[cfg(test)]
#[path = "../../tests/tools/guarantees.rs"]
mod guarantees;
mod harmony_messages;
#[cfg(test)]
#[path = "../../tests/tools/history.rs"]
mod history;
mod json_calls;
mod json_object;
mod keywords;
mod lark;
mod literal;
mod name_head;
mod reasoning;
mod schema;
mod text_form;
#[cfg(test)]
#[path = "../../tests/tools/transcripts.rs"]
mod transcripts;
mod write;

use narthex_spec::{ReasoningFormat, ToolFormat};
use serde_json::Value;

use bare::{BareCalls, BareStep};

pub use adapt::adapted;
pub use formats::{markers, tool_format, write_calls};
pub use grammar::{ContentRule, call_grammar, content_grammar, with_reasoning_message};
pub use lark::Callable;
pub use reasoning::ReasoningParser;
pub use write::json_text;

/// Maximum number of bytes of a call. A longer one is malformed.
const MAX_CALL: usize = 1 << 20;

/// Maximum number of bytes of a name in a call. What is longer is a text.
const MAX_NAME: usize = 128;

/// Number of calls in one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallLimit {
    /// One.
    One,
    /// Any.
    #[default]
    Any,
}

/// Choice of the texts that are read as calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallReading {
    /// Only those of the format, for answers that follow a grammar.
    Exact,
    /// Also those that models of the format write instead, if the answer consists of calls that the tools allow.
    Lenient,
}

/// Part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolEvent {
    /// Text.
    Text(String),
    /// A call begins.
    Begin {
        /// Name of the function.
        name: String,
        /// Id, if the model wrote one before the arguments.
        id: Option<String>,
    },
    /// Next part of the JSON object of arguments.
    Arguments(String),
    /// The call is complete.
    End,
    /// Text of a malformed call. If its [`Self::Begin`] was reported, no [`Self::End`] follows.
    Malformed(String),
}

/// Part of an answer, before its calls are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReasoningEvent {
    /// Reasoning.
    Reasoning(String),
    /// Text of the answer.
    Text(String),
}

/// Reason why the text of an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextEnd {
    /// The model ended it.
    Complete,
    /// It was cut off. The arguments of a call that is not complete are reported as far as the model wrote them.
    Cut,
}

/// Parser of one format.
trait CallSyntax {
    /// Takes the next text.
    fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>);

    /// Takes the token of a marker. Its text is never part of the answer's text.
    fn push_marker(&mut self, marker: &str, events: &mut Vec<ToolEvent>);

    /// Ends the answer.
    fn finish(&mut self, end: TextEnd, events: &mut Vec<ToolEvent>);
}

/// Context for which a parser is created.
struct ParserContext<'a> {
    /// Tools that the model may call, as objects of OpenAI's `tools`.
    tools: &'a [Value],
    calls: CallKind,
    /// Set if the vocabulary has the marker before a call as a token of its own. Then only this token begins a marked
    /// call, and a text with the same characters is a quotation.
    has_tokens: bool,
}

/// Calls that a parser reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallKind {
    /// Those of the format's grammar.
    OfGrammar,
    /// Those after a marker.
    Marked,
    /// Those without a marker.
    Bare,
}

/// Divides an answer into text and tool calls.
pub struct ToolParser {
    /// Parser of calls without a marker, while the answer may consist of them.
    bare: Option<BareCalls>,
    syntax: Box<dyn CallSyntax + Send>,
}

/// Parser of an answer without calls.
struct PlainText;

impl CallSyntax for PlainText {
    fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        push_text(text.to_owned(), events);
    }

    fn push_marker(&mut self, _: &str, _: &mut Vec<ToolEvent>) {}

    fn finish(&mut self, _: TextEnd, _: &mut Vec<ToolEvent>) {}
}

impl ToolParser {
    /// Creates a parser of an answer. `tools` are the objects of OpenAI's `tools` that the model may call, `tokens` the
    /// markers of the format that the vocabulary has as tokens.
    pub fn new(format: ToolFormat, tools: &[Value], reading: CallReading, tokens: &[&str]) -> Self {
        let definition = formats::definition(format);
        let opening = definition.markers.first().copied();
        let has_tokens = opening.is_some_and(|opening| tokens.contains(&opening));
        let parser = |calls| (definition.parser)(&ParserContext { tools, calls, has_tokens });
        let (bare, syntax) = match reading {
            CallReading::Exact => (None, parser(CallKind::OfGrammar)),
            CallReading::Lenient => (parser(CallKind::Bare), parser(CallKind::Marked)),
        };
        Self {
            bare: bare.map(|syntax| BareCalls::new(syntax, tools, opening.filter(|_| !has_tokens))),
            syntax: syntax.unwrap_or_else(|| Box::new(PlainText)),
        }
    }

    /// Takes the next text of the answer.
    pub fn push(&mut self, text: &str) -> Vec<ToolEvent> {
        let mut events = Vec::new();
        let step = self.bare.as_mut().map(|bare| bare.push(text));
        match step {
            Some(step) => self.release(step, &mut events),
            None => self.syntax.push(text, &mut events),
        }
        events
    }

    /// Takes the token of a marker.
    pub fn push_marker(&mut self, marker: &str) -> Vec<ToolEvent> {
        let mut events = Vec::new();
        if let Some(bare) = &mut self.bare {
            let step = bare.push_marker(marker);
            self.release(step, &mut events);
        }
        if self.bare.is_none() {
            self.syntax.push_marker(marker, &mut events);
        }
        events
    }

    /// Ends the answer and returns the rest.
    pub fn finish(&mut self, end: TextEnd) -> Vec<ToolEvent> {
        let mut events = Vec::new();
        match self.bare.take().map(|bare| bare.finish(end)) {
            Some(Ok(calls)) => events.extend(calls),
            Some(Err(text)) => self.syntax.push(&text, &mut events),
            None => {}
        }
        self.syntax.finish(end, &mut events);
        events
    }

    /// Passes on the text that has no calls without a marker.
    fn release(&mut self, step: BareStep, events: &mut Vec<ToolEvent>) {
        let text = match step {
            BareStep::Released(text) => text,
            BareStep::Over(text) => {
                self.bare = None;
                text
            }
        };
        self.syntax.push(&text, events);
    }
}

/// Returns the format of reasoning in a chat template.
pub fn reasoning_format(template: &str) -> Option<ReasoningFormat> {
    if template.contains("</think>") {
        // Other templates have `<response>` around the results of tools.
        let is_framed = template.contains("<response></response>");
        Some(if is_framed { ReasoningFormat::ThinkResponse } else { ReasoningFormat::Think })
    } else if template.contains("[/THINK]") {
        Some(ReasoningFormat::MistralThink)
    } else if template.contains("<|channel>thought") {
        Some(ReasoningFormat::ThoughtChannel)
    } else if template.contains("<|channel|>analysis<|message|>") {
        Some(ReasoningFormat::Harmony)
    } else {
        None
    }
}

/// Returns the length of the longest suffix of `text` that is a prefix of one of the `patterns`.
fn overlap(text: &str, patterns: &[&str]) -> usize {
    let prefixes = patterns.iter().flat_map(|pattern| {
        let lengths = (1..pattern.len()).filter(|&length| pattern.is_char_boundary(length));
        lengths.map(|length| &pattern[..length])
    });
    prefixes.filter(|prefix| text.ends_with(prefix)).map(str::len).max().unwrap_or(0)
}

/// Appends an event with text.
fn push_text(text: String, events: &mut Vec<ToolEvent>) {
    match events.last_mut() {
        _ if text.is_empty() => {}
        Some(ToolEvent::Text(last)) => last.push_str(&text),
        _ => events.push(ToolEvent::Text(text)),
    }
}

/// Ends a text that may end with the beginning of a marker. A text that was cut off is reported without it.
fn finish_text(mut text: String, markers: &[&str], end: TextEnd, events: &mut Vec<ToolEvent>) {
    if end == TextEnd::Cut {
        text.truncate(text.len() - overlap(&text, markers));
    }
    push_text(text, events);
}

/// Appends an event with a part of the arguments.
fn push_arguments(part: &str, events: &mut Vec<ToolEvent>) {
    match events.last_mut() {
        _ if part.is_empty() => {}
        Some(ToolEvent::Arguments(last)) => last.push_str(part),
        _ => events.push(ToolEvent::Arguments(part.to_owned())),
    }
}

/// Returns the names of the functions that the model can call.
fn tool_names(tools: &[Value]) -> Vec<String> {
    tools.iter().filter_map(|tool| tool["function"]["name"].as_str()).map(str::to_owned).collect()
}

/// Returns true if a name may be that of a function that the model can call.
fn is_callable(name: &str, names: &[String]) -> bool {
    !name.is_empty() && (names.is_empty() || names.iter().any(|known| known == name))
}
