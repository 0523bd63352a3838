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
    /// Rules of the calls without a marker, if an answer may consist of them.
    pub(super) bare: Option<BareRules>,
    /// Grammar item before `calls` that distinguishes them from JSON, if they start like JSON.
    pub(super) head: Option<String>,
    /// Definition of `start` for a text in which every call is valid, if it is not that of [`Self::text`].
    pub(super) text: Option<String>,
}

/// Lark rules of an answer that consists of calls without a marker.
pub(super) struct BareRules {
    /// Regular expression of the beginning of such an answer. No other answer begins so.
    pub(super) begin: String,
    /// Definitions of `bare`, and of the rules that it uses besides those of the format.
    pub(super) rules: String,
}

/// Regular expression of white space.
pub(super) const SPACE: &str = "[ \\t\\r\\n]*";

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
    /// Returns the rules of a text in which every call is valid. A marker that is a token is never a part of text;
    /// otherwise the text ends where it begins.
    pub(super) fn text(&self, allowed: &AllowedCalls<'_>) -> String {
        if let Some(text) = &self.text {
            return text.clone();
        }
        let (plain, bare) = match &self.bare {
            Some(BareRules { begin, rules }) => {
                (format!("PLAIN: /(\\n|.)*/ & ~/{begin}(\\n|.)*/\n"), format!("start: bare | text\n{rules}"))
            }
            None => ("PLAIN: /(\\n|.)*/\n".to_owned(), "start: text\n".to_owned()),
        };
        let count = match allowed.limit {
            CallLimit::One => "?",
            CallLimit::Any => "*",
        };

        let text = match self.markers {
            [] => "text: PLAIN\n".to_owned(),
            markers => match markers.iter().filter_map(|marker| allowed.markers.token(marker)).next() {
                Some(token) => format!("text: PLAIN ({token} body TEXT){count}\nTEXT: /(\\n|.)*/\n"),
                None => {
                    let spellings: Vec<String> = markers.iter().map(|marker| regex(marker)).collect();
                    let spellings = spellings.join("|");
                    let more = if allowed.limit == CallLimit::One { "" } else { "called*" };
                    format!(
                        "text: PLAIN | begun body {more} TEXT\nbegun[lazy]: PLAIN /({spellings})/\n\
                         called: opening body\nopening[lazy]: TEXT /({spellings})/\nTEXT: /(\\n|.)*/\n"
                    )
                }
            },
        };
        bare + &text + &plain
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
