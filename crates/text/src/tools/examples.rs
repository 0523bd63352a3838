//! Test data of the formats of tool calls: their answers and templates, and the tools that the answers call.

use serde_json::{Value, json};

use super::TextEnd;

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

/// Test data of a format.
pub(super) struct Examples {
    /// Names of chat templates of the format, in `tests/fixtures/templates`.
    pub(super) templates: &'static [&'static str],
    /// Answers of models of the format.
    pub(super) transcripts: Vec<Transcript>,
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
