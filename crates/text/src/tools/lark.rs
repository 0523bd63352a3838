//! Lark rules of calls that are the same in every format.

use serde_json::Value;

use super::CallLimit;
pub(super) use crate::grammar::text_expression as regex;
use crate::tokenizer::Tokenizer;

/// A function that a model may call.
#[derive(Debug, Clone, Copy)]
pub struct Callable<'a> {
    /// Name: letters, digits, `_`, `-` and `.`.
    pub name: &'a str,
    /// JSON schema of the arguments, an object.
    pub parameters: &'a Value,
}

/// Calls that a grammar allows.
pub(super) struct AllowedCalls<'a> {
    pub(super) functions: &'a [Callable<'a>],
    pub(super) limit: CallLimit,
    pub(super) markers: Markers<'a>,
}

/// Lark rules of one format.
pub(super) struct FormatRules {
    /// Definitions of `calls` (an answer that consists of calls), of `body` (the text after a marker), and of the rules
    /// that they use.
    pub(super) rules: String,
    /// Markers after which the parser expects a call anywhere in the text.
    pub(super) markers: &'static [&'static str],
    /// Regular expression of the texts that the parser reads as calls without a marker.
    pub(super) bare: Option<String>,
    /// Grammar item before `calls` that distinguishes them from JSON, if they start like JSON.
    pub(super) head: Option<String>,
}

/// Grammar items of markers.
pub(super) struct Markers<'a>(pub(super) &'a Tokenizer);

impl Markers<'_> {
    /// Returns the item for a marker: its token if it is a special token, otherwise its text.
    pub(super) fn item(&self, marker: &str) -> String {
        self.token(marker).unwrap_or_else(|| quoted(marker))
    }

    /// Returns the item for a special token; `None` if the marker is not a special token.
    pub(super) fn token(&self, marker: &str) -> Option<String> {
        let token = self.0.special_tokens().iter().find(|token| token.text == marker)?;
        Some(format!("<[{}]>", token.id))
    }
}

impl FormatRules {
    /// Returns the rules of a text in which every call is valid.
    pub(super) fn text(&self, allowed: &AllowedCalls<'_>) -> String {
        let spellings: Vec<String> = self.markers.iter().map(|marker| regex(marker)).collect();
        let spellings = spellings.join("|");
        if let Some(bare) = &self.bare {
            let mut plain = format!("/(\\n|.)*/ & ~/{bare}/");
            if !spellings.is_empty() {
                plain.push_str(&format!(" & ~/(\\n|.)*({spellings})(\\n|.)*/"));
            }
            return format!("start: calls | PLAIN\nPLAIN: {plain}\n");
        }
        let count = match allowed.limit {
            CallLimit::One => "?",
            CallLimit::Any => "*",
        };
        let tokens = self.markers.iter().filter_map(|marker| allowed.markers.token(marker));
        let tokens: String = tokens.map(|token| format!(" | TEXT {token} body")).collect();
        format!(
            "start: called{count} TEXT\ncalled: opening body{tokens}\nopening[lazy]: TEXT /({spellings})/\n\
             TEXT: /(\\n|.)*/\n"
        )
    }
}

/// Returns the right side of a rule that repeats an item, up to the limit.
pub(super) fn repeated(item: &str, separator: &str, limit: CallLimit) -> String {
    match limit {
        CallLimit::One => item.to_owned(),
        CallLimit::Any if separator.is_empty() => format!("{item}+"),
        CallLimit::Any => format!("{item} ({} {item})*", quoted(separator)),
    }
}

/// Returns the right side of a rule that is one of several: `NAME_0 | NAME_1 | …`.
pub(super) fn one_of(name: &str, count: usize) -> String {
    (0..count).map(|index| format!("{name}_{index}")).collect::<Vec<_>>().join(" | ")
}

/// Returns a text as a string literal of a Lark grammar; the escapes are those of JSON.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Returns a regular expression that matches the functions' names.
pub(super) fn names(functions: &[Callable<'_>]) -> String {
    let names: Vec<String> = functions.iter().map(|function| regex(function.name)).collect();
    format!("({})", names.join("|"))
}
