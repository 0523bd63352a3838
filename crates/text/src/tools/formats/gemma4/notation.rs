//! Notation of Gemma 4's arguments: JSON without quotes around keys, and with markers around strings in place of quotes and
//! escapes, as its chat template writes it: `{city:<|"|>Brno<|"|>,days:[1,2]}`.

use serde_json::Value;

use super::QUOTE;
use crate::{
    exact_json::{ExactContent, ExactPart},
    template::Content,
    tools::{literal::open_string, overlap},
};

/// Maximum depth of containers.
const MAX_DEPTH: usize = 64;

/// Maximum number of bytes of a key or a value without markers.
const MAX_WORD: usize = 256;

/// Result of reading a part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reading {
    /// The part as JSON, and its length.
    Part(String, usize),
    /// More text is needed.
    Wait,
    /// The text is not in the notation.
    Bad,
}

/// Reads a value, which ends before a comma or a closing bracket.
pub(super) fn value(text: &str) -> Reading {
    value_in(text, 0)
}

fn value_in(text: &str, depth: usize) -> Reading {
    let rest = text.trim_start();
    let space = text.len() - rest.len();
    let read = match rest.chars().next() {
        None => Reading::Wait,
        Some('[' | '{') if depth == MAX_DEPTH => Reading::Bad,
        Some('[') => list(rest, depth + 1),
        Some('{') => object(rest, depth + 1),
        Some(_) if rest.starts_with(QUOTE) => string(rest),
        Some(_) if QUOTE.starts_with(rest) => Reading::Wait,
        Some(_) => word(rest),
    };
    match read {
        Reading::Part(json, length) => Reading::Part(json, space + length),
        other => other,
    }
}

/// Reads a string between two markers.
fn string(text: &str) -> Reading {
    let inside = &text[QUOTE.len()..];
    match inside.find(QUOTE) {
        Some(end) => Reading::Part(Value::from(&inside[..end]).to_string(), end + 2 * QUOTE.len()),
        None => Reading::Wait,
    }
}

/// Reads a number, a truth value, null, or a string without markers.
fn word(text: &str) -> Reading {
    let end = text.find([',', '}', ']']);
    let Some(end) = end.filter(|&end| end <= MAX_WORD) else {
        return if end.is_none() && text.len() <= MAX_WORD { Reading::Wait } else { Reading::Bad };
    };
    let json = match text[..end].trim_end() {
        "" => return Reading::Bad,
        "None" | "none" => "null".to_owned(),
        "True" => "true".to_owned(),
        "False" => "false".to_owned(),
        word => match serde_json::from_str(word) {
            Ok(Value::Null | Value::Bool(_) | Value::Number(_)) => word.to_owned(),
            _ => Value::from(word).to_string(),
        },
    };
    Reading::Part(json, end)
}

fn list(text: &str, depth: usize) -> Reading {
    let mut json = "[".to_owned();
    let mut at = 1;
    loop {
        at += text[at..].len() - text[at..].trim_start().len();
        match text[at..].chars().next() {
            None => return Reading::Wait,
            Some(']') => return Reading::Part(json + "]", at + 1),
            Some(',') if json.len() > 1 => at += 1,
            Some(_) if json.len() > 1 => return Reading::Bad,
            Some(_) => {}
        }
        match value_in(&text[at..], depth) {
            Reading::Part(value, length) => {
                json.push_str(if json.len() > 1 { ", " } else { "" });
                json.push_str(&value);
                at += length;
            }
            other => return other,
        }
    }
}

fn object(text: &str, depth: usize) -> Reading {
    let mut json = "{".to_owned();
    let mut at = 1;
    loop {
        match text[at..].chars().next() {
            None => return Reading::Wait,
            Some('}') => return Reading::Part(json + "}", at + 1),
            Some(',') if json.len() > 1 => at += 1,
            Some(_) if json.len() > 1 => return Reading::Bad,
            Some(_) => {}
        }
        let (name, length) = match key(&text[at..]) {
            Reading::Part(name, length) => (name, length),
            other => return other,
        };
        at += length;
        match value_in(&text[at..], depth) {
            Reading::Part(value, length) => {
                json.push_str(if json.len() > 1 { ", " } else { "" });
                json.push_str(&format!("{name}: {value}"));
                at += length;
            }
            other => return other,
        }
        // White space before a comma or the end.
        if text[at..].trim_start().starts_with([',', '}']) {
            at += text[at..].len() - text[at..].trim_start().len();
        }
    }
}

/// Reads the key of an argument, and the colon after it.
pub(super) fn key(text: &str) -> Reading {
    if QUOTE.starts_with(text) {
        return Reading::Wait;
    }
    if text.starts_with(QUOTE) {
        return match string(text) {
            Reading::Part(json, length) => match text[length..].chars().next() {
                Some(':') => Reading::Part(json, length + 1),
                Some(_) => Reading::Bad,
                None => Reading::Wait,
            },
            other => other,
        };
    }
    match text.find([':', ',', '{', '}', '[', ']']) {
        Some(end @ 1..=MAX_WORD) if text[end..].starts_with(':') => {
            Reading::Part(Value::from(&text[..end]).to_string(), end + 1)
        }
        None if text.len() <= MAX_WORD => Reading::Wait,
        Some(_) | None => Reading::Bad,
    }
}

/// Returns the JSON of a value that was cut off: an open string if it is a string, otherwise its text.
pub(super) fn beginning(text: &str) -> String {
    let text = text.trim_start();
    match text.strip_prefix(QUOTE) {
        Some(inside) => open_string(&inside[..inside.len() - overlap(inside, &[QUOTE])]),
        None => text[..text.len() - overlap(text, &[QUOTE])].trim_end().to_owned(),
    }
}

/// Returns true if a text ends in a string.
pub(super) fn ends_in_string(text: &str) -> bool {
    text.matches(QUOTE).count() % 2 == 1
}

/// Appends the fields of an object, without the brackets around them. They are sorted, as in the template.
pub(super) fn write_fields(mut fields: Vec<(&str, ExactPart<'_>)>, content: &mut Content) {
    fields.sort_by_key(|(key, _)| key.to_lowercase());
    for (index, (key, value)) in fields.into_iter().enumerate() {
        content.push_str(if index > 0 { "," } else { "" });
        content.push_str(&format!("{key}:"));
        write(value, content);
    }
}

/// Appends a value. The recursion is limited by the depth that `serde_json` reads.
pub(super) fn write(part: ExactPart<'_>, content: &mut Content) {
    match part.content() {
        ExactContent::Text(text) => {
            content.push_marker(QUOTE);
            content.push_str(text);
            content.push_marker(QUOTE);
        }
        ExactContent::List(items) => {
            content.push_str("[");
            for (index, item) in items.into_iter().enumerate() {
                content.push_str(if index > 0 { "," } else { "" });
                write(item, content);
            }
            content.push_str("]");
        }
        ExactContent::Object(fields) => {
            content.push_str("{");
            write_fields(fields, content);
            content.push_str("}");
        }
        ExactContent::Integer(digits) => content.push_str(digits),
        ExactContent::Other(other) => content.push_str(&other.to_string()),
    }
}
