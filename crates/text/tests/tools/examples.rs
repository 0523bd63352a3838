//! Test data of the formats of tool calls: their answers and templates, and the tools that the answers call.

use serde_json::{Value, json};

use super::TextEnd;
use crate::template::{Abilities, FunctionCall};

/// Returns the tools that the answers call.
pub(super) fn tools() -> Vec<Value> {
    let tool = |name: &str, properties: Value| {
        json!({"type": "function", "function": {"name": name, "description": name,
            "parameters": {"type": "object", "properties": properties}}})
    };
    vec![
        tool("get_weather", json!({"city": {"type": "string"}, "days": {"type": "integer"}})),
        tool("stop", json!({})),
    ]
}

/// Test data of a format, and what tests need to know of it.
pub(super) struct Examples {
    /// Chat templates of the format.
    pub(super) templates: Vec<TemplateExample>,
    /// Answers of models of the format.
    pub(super) transcripts: Vec<Transcript>,
    /// Markers that a vocabulary has as tokens whose models write calls as the format does; `None` for all.
    pub(super) tokens: Option<&'static [&'static str]>,
    /// Maximum number of calls in an answer.
    pub(super) max_calls: usize,
    /// Set if text may precede and follow calls.
    pub(super) has_text: bool,
    /// Text before calls that distinguishes them from other content, if a schema allows that.
    pub(super) content_head: &'static str,
    /// Set if arguments are keywords, so that other names need a dictionary.
    pub(super) has_keywords: bool,
    /// Set if values are read by the types in their schema.
    pub(super) needs_types: bool,
}

impl Examples {
    pub(super) fn new(templates: Vec<TemplateExample>, transcripts: Vec<Transcript>) -> Self {
        Self {
            templates,
            transcripts,
            tokens: None,
            max_calls: 2,
            has_text: false,
            content_head: "",
            has_keywords: false,
            needs_types: false,
        }
    }
}

/// A chat template, and what tests need to know of it.
pub(super) struct TemplateExample {
    /// Name of the file in `tests/fixtures/templates`.
    pub(super) name: &'static str,
    pub(super) abilities: Abilities,
    /// What the template writes in another way than the model, if it does.
    pub(super) difference: Option<&'static str>,
    /// Returns a call as the model writes it, if not as the format does.
    pub(super) answer: Option<fn(&FunctionCall) -> String>,
    /// Text at the end of a message, if it is none of the usual ones.
    pub(super) end: &'static str,
}

/// Abilities of a template that does not write calls.
pub(super) const NO_CALLS: Abilities = Abilities { tools: true, calls: false, results: true };

impl TemplateExample {
    pub(super) const fn new(name: &'static str) -> Self {
        let abilities = Abilities { tools: true, calls: true, results: true };
        Self { name, abilities, difference: None, answer: None, end: "" }
    }
}

/// An answer and the result of its parser.
pub(super) struct Transcript {
    pub(super) answer: String,
    pub(super) end: TextEnd,
    /// Events in one line; of an answer that was cut off, the arguments of its first call.
    pub(super) expect: String,
}

/// Creates the transcript of a complete answer to [`tools`].
pub(super) fn complete(answer: impl Into<String>, events: impl Into<String>) -> Transcript {
    Transcript { answer: answer.into(), end: TextEnd::Complete, expect: events.into() }
}

/// Creates the transcript of an answer that was cut off.
pub(super) fn cut(answer: impl Into<String>, arguments: impl Into<String>) -> Transcript {
    Transcript { answer: answer.into(), end: TextEnd::Cut, expect: arguments.into() }
}

/// Events of a call of the first tool.
pub(super) const WEATHER: &str = r#"get_weather( {"city":"Brno","days":2} )"#;

/// A list of calls of both tools, and its events.
pub(super) const LIST: &str = concat!(
    r#"[{"name": "get_weather", "arguments": {"city": "Brno", "days": 2}}, "#,
    r#"{"name": "stop", "arguments": {}}]"#
);
pub(super) const LISTED: &str = r#"get_weather( {"city":"Brno","days":2} ) stop( {} )"#;

/// Returns the source of a chat template.
pub(super) fn source(name: &str) -> String {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/templates");
    std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap()
}
