//! The first pass over a body: checks its syntax, its number of values, and its unknown fields. It stores nothing of
//! the body, so that a hostile body costs time in proportion to its bytes and no memory.

use std::fmt;

use axum::http::StatusCode;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::error::ApiError;

/// Fields that may be long lists of tokens.
const TOKEN_FIELDS: [&str; 2] = ["prompt", "input"];

/// Maximum number of values in such a field.
const MAX_TOKENS: usize = 1 << 21;

/// Maximum number of values in any other field: messages, parts, documents, tools, stop strings.
const MAX_VALUES: usize = 1 << 16;

/// Facts about a body that is a JSON object with a limited number of values.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outline {
    /// The first unknown field with a value other than null, false or empty.
    pub(crate) unknown: Option<String>,
}

/// Reads the outline of a body with these known fields. Values may nest as deeply as `serde_json` allows.
pub(crate) fn outline(body: &[u8], known: &[&[&str]]) -> Result<Outline, ApiError> {
    let mut reader = Reader { known, outline: Outline::default(), overfull: None };
    let mut json = serde_json::Deserializer::from_slice(body);
    match json.deserialize_any(&mut reader).and_then(|()| json.end()) {
        Ok(()) => Ok(reader.outline),
        Err(_) if let Some(field) = reader.overfull => {
            let limit = limit(&field);
            let message =
                format!("{field}: expected at most {limit} values, nested ones included, found more");
            Err(ApiError::bad_request(field, message))
        }
        Err(error) => {
            let is = if error.is_data() { "the expected JSON" } else { "JSON" };
            Err(ApiError::plain(StatusCode::BAD_REQUEST, format!("the body is not {is}: {error}")))
        }
    }
}

fn limit(field: &str) -> usize {
    if TOKEN_FIELDS.contains(&field) { MAX_TOKENS } else { MAX_VALUES }
}

struct Reader<'a> {
    known: &'a [&'a [&'a str]],
    outline: Outline,
    /// Field with too many values, at which the pass stops.
    overfull: Option<String>,
}

impl<'de> Visitor<'de> for &mut Reader<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(name) = fields.next_key::<String>()? {
            let mut left = limit(&name);
            let asks = match fields.next_value_seed(SkipSeed { left: &mut left }) {
                Ok(asks) => asks,
                Err(error) => {
                    self.overfull = (left == 0).then_some(name);
                    return Err(error);
                }
            };
            let is_known = self.known.iter().any(|fields| fields.contains(&name.as_str()));
            if asks && !is_known {
                self.outline.unknown.get_or_insert(name);
            }
        }
        Ok(())
    }
}

/// Skips a value. Returns true if it is not null, false or empty.
struct SkipSeed<'a> {
    /// Number of further values that are allowed.
    left: &'a mut usize,
}

impl<'de> DeserializeSeed<'de> for SkipSeed<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<bool, D::Error> {
        if *self.left == 0 {
            return Err(de::Error::custom("too many values"));
        }
        *self.left -= 1;
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for SkipSeed<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<bool, E> {
        Ok(value)
    }

    fn visit_i64<E>(self, _: i64) -> Result<bool, E> {
        Ok(true)
    }

    fn visit_u64<E>(self, _: u64) -> Result<bool, E> {
        Ok(true)
    }

    fn visit_f64<E>(self, _: f64) -> Result<bool, E> {
        Ok(true)
    }

    fn visit_str<E>(self, text: &str) -> Result<bool, E> {
        Ok(!text.is_empty())
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<bool, A::Error> {
        let mut asks = false;
        while items.next_element_seed(SkipSeed { left: self.left })?.is_some() {
            asks = true;
        }
        Ok(asks)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<bool, A::Error> {
        let mut asks = false;
        while fields.next_key::<IgnoredAny>()?.is_some() {
            fields.next_value_seed(SkipSeed { left: self.left })?;
            asks = true;
        }
        Ok(asks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(body: &str) -> (Option<String>, String) {
        let body = outline(body.as_bytes(), &[]).unwrap_err().body();
        let error = &body["error"];
        (error["param"].as_str().map(str::to_owned), error["message"].as_str().unwrap().to_owned())
    }

    #[test]
    fn unknown_fields_that_ask_for_something_are_found() {
        let check = |body: &str, expect: Option<&str>| {
            let found = outline(body.as_bytes(), &[&["seed"], &["model", "metadata"]]).unwrap();
            assert_eq!(found.unknown.as_deref(), expect, "{body}");
        };
        check(r#"{"model": "m", "seed": 1, "metadata": {"a": "b"}}"#, None);
        check(r#"{"tools": [], "suffix": null, "store": false, "logit_bias": {}, "user": ""}"#, None);
        check(r#"{"tools": [null]}"#, Some("tools"));
        check(r#"{"a": 0, "b": 1}"#, Some("a"));
        check(r#"{"effort": "low"}"#, Some("effort"));
        check(r#"{"audio": {"voice": null}}"#, Some("audio"));
    }

    #[test]
    fn a_body_is_one_whole_object_of_limited_depth() {
        let check = |body: &str, text: &str| {
            let (param, message) = refusal(body);
            assert!(param.is_none() && message.contains(text), "{message}");
        };
        check("[]", "the expected JSON: invalid type: sequence, expected an object");
        check(r#"{"a": 1"#, "not JSON: EOF");
        check(r#"{"a": 1} x"#, "not JSON: trailing");
        check(&format!(r#"{{"a": {}"#, "[".repeat(1000)), "not JSON: recursion");
        check(&format!(r#"{{"a": {}"#, r#"{"a":"#.repeat(1000)), "not JSON: recursion");
    }

    #[test]
    fn the_values_of_a_field_are_limited() {
        let list = |items: usize| format!("[{}0]", "0,".repeat(items - 1));
        let nested = |items: usize| format!("[{}[0]]", "[0],".repeat(items - 1));
        let body = |field: &str, value: String| format!(r#"{{"{field}": {value}}}"#);
        let check = |body: String, field: &str, limit: usize| {
            let (param, message) = refusal(&body);
            assert_eq!(param.as_deref(), Some(field), "{message}");
            assert!(message.contains(&format!("expected at most {limit} values")), "{message}");
        };
        // The list itself is a value.
        outline(body("messages", list(MAX_VALUES - 1)).as_bytes(), &[&["messages"]]).unwrap();
        check(body("messages", list(MAX_VALUES)), "messages", MAX_VALUES);
        check(body("unknown", nested(MAX_VALUES / 2)), "unknown", MAX_VALUES);
        outline(body("prompt", list(MAX_TOKENS - 1)).as_bytes(), &[&["prompt"]]).unwrap();
        check(body("input", nested(MAX_TOKENS / 2)), "input", MAX_TOKENS);
    }
}
