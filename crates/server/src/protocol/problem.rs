//! Problems of a field in the words of JSON: serde's messages name Rust's types.

/// Maximum number of characters of a value in a message.
const MAX_SHOWN: usize = 80;

/// Returns serde's message without the position in the text.
pub(crate) fn without_position(error: &serde_json::Error) -> String {
    let mut message = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    message.truncate(message.strip_suffix(&position).map_or(message.len(), str::len));
    message
}

/// Returns serde's message in the words of JSON: `expected a number, found "hot"`. `path` names the field.
pub(crate) fn in_words_of_json(path: &str, message: &str) -> String {
    if let Some(rest) = message.strip_prefix("unknown variant `") {
        let Some((found, expected)) = rest.split_once("`, expected ") else { return message.to_owned() };
        return format!("expected {}, found \"{}\"", expected.replace('`', "\""), shortened(found));
    }
    let kinds = ["invalid type: ", "invalid value: ", "invalid length "];
    let rest = kinds.iter().find_map(|kind| message.strip_prefix(kind));
    let Some((found, expected)) = rest.and_then(|rest| rest.rsplit_once(", expected ")) else {
        return message.to_owned();
    };
    format!("expected {}, found {}{}", expectation(path, expected), value(found), advice(path, found))
}

/// Fields with counts that are at least 1; other counts may be 0.
const AT_LEAST_ONE: &[&str] = &["max_tokens", "max_completion_tokens", "max_output_tokens", "n"];

/// Returns what serde expects.
fn expectation(path: &str, expected: &str) -> String {
    let word = match expected {
        "f32" | "f64" => "a number",
        "i8" | "i16" | "i32" | "i64" => "an integer",
        "u8" | "u16" | "u32" | "u64" | "usize" => {
            let least = u8::from(AT_LEAST_ONE.contains(&path));
            return format!("an integer of at least {least}");
        }
        "a sequence" => "a list",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other if other.starts_with("tuple ") => "a list",
        other => other,
    };
    word.to_owned()
}

/// Returns the value that serde found.
fn value(found: &str) -> String {
    match found {
        "map" => "an object".to_owned(),
        "sequence" => "a list".to_owned(),
        "unit value" => "null".to_owned(),
        _ => {
            let number = ["integer `", "floating point `", "boolean `"];
            let bare = number.iter().find_map(|kind| found.strip_prefix(kind)?.strip_suffix('`'));
            shortened(bare.unwrap_or_else(|| found.strip_prefix("string ").unwrap_or(found)))
        }
    }
}

/// Returns the next step for a number without a limit, which other servers write as -1.
fn advice(path: &str, found: &str) -> &'static str {
    if path.starts_with("max_") && found.starts_with("integer `-") { "; omit it for no limit" } else { "" }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::{Deserialize, de::DeserializeOwned};

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Level {
        Low,
        High,
    }

    fn check<T: DeserializeOwned + std::fmt::Debug>(path: &str, json: &str, expect: &str) {
        let error = serde_json::from_str::<T>(json).unwrap_err().to_string();
        let message = error.split(" at line").next().unwrap();
        assert_eq!(in_words_of_json(path, message), expect, "{message}");
    }

    #[test]
    fn types_have_their_names_in_json() {
        check::<f32>("temperature", "\"hot\"", "expected a number, found \"hot\"");
        check::<usize>("top_k", "-1", "expected an integer of at least 0, found -1");
        check::<usize>(
            "max_tokens",
            "-1",
            "expected an integer of at least 1, found -1; omit it for no limit",
        );
        check::<usize>("top_k", "1.5", "expected an integer of at least 0, found 1.5");
        check::<i64>("seed", "true", "expected an integer, found true");
        check::<String>("model", "[1]", "expected a string, found a list");
        check::<String>("model", "null", "expected a string, found null");
        check::<Vec<u8>>("stop", "{}", "expected a list, found an object");
        check::<BTreeMap<String, u8>>("options", "3", "expected an object, found 3");
        check::<Level>("effort", "\"big\"", "expected \"low\" or \"high\", found \"big\"");
        let long = format!("\"{}\"", "é".repeat(500));
        let expect = format!("expected a number, found \"{}…", "é".repeat(MAX_SHOWN - 1));
        check::<f32>("temperature", &long, &expect);
    }
}
