//! The first pass over a body: checks its syntax and counts its values. It stores nothing of the body, so that a hostile
//! body costs time in proportion to its bytes and no memory.
//!
//! The arguments of function calls are JSON in a string, which is parsed later. Their values count as those of the body.

use std::fmt;

use axum::http::StatusCode;
use narthex_gateway::request::ExactJson;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::problem::{in_words_of_json, without_position};
use crate::error::ApiError;

/// Maximum number of values in a field that may be a list of tokens.
const MAX_TOKENS: usize = 1 << 21;

/// Maximum number of values in any other field: messages, parts, documents, tools, stop strings.
pub(crate) const MAX_VALUES: usize = 1 << 16;

/// Maximum memory of a parsed value in bytes: an object with one field that is a generic value.
pub(crate) const VALUE_BYTES: usize = 640;

/// Maximum memory of a token in a list that grows, in bytes.
const TOKEN_BYTES: usize = 16;

/// Field whose strings are JSON.
const JSON_FIELD: &str = "arguments";

/// Number of values of a body, nested ones included.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BodyValues {
    /// Values other than tokens.
    pub(crate) values: usize,
    /// Numbers in a field that may be a list of tokens.
    pub(crate) tokens: usize,
}

impl BodyValues {
    /// Returns an upper bound on the memory of the parsed values in bytes, without the text of strings.
    pub(crate) fn bytes(self) -> usize {
        self.values * VALUE_BYTES + self.tokens * TOKEN_BYTES
    }
}

/// Counts the values of a body. `tokens` is the field that may be a list of tokens. Values may nest as deeply as
/// `serde_json` allows.
///
/// # Errors
/// 400 for a body that is not a JSON object, and for a field with too many values, which the error names.
pub(crate) fn count_values(body: &[u8], tokens: Option<&str>) -> Result<BodyValues, ApiError> {
    let mut counter = FieldCounter { tokens, total: BodyValues::default(), overfull: None };
    let mut json = serde_json::Deserializer::from_slice(body);
    match json.deserialize_any(&mut counter).and_then(|()| json.end()) {
        Ok(()) => Ok(counter.total),
        Err(error) => Err(counter.overfull.unwrap_or_else(|| {
            let message = match error.is_data() {
                true => {
                    let problem = in_words_of_json("", &without_position(&error));
                    format!("the body is not the expected JSON: {problem}")
                }
                false => format!("the body is not JSON: {error}"),
            };
            ApiError::plain(StatusCode::BAD_REQUEST, message)
        })),
    }
}

/// Reads JSON in a string. Returns the string itself if it is not JSON, or has more than [`MAX_VALUES`] values.
fn json_or_text(text: &str) -> ExactJson {
    let mut count = Count::new(MAX_VALUES);
    let parsed = count.add_json(text).ok().and_then(|()| ExactJson::parse(text).ok());
    parsed.unwrap_or_else(|| Value::from(text).into())
}

/// Reads the arguments of a call, which clients send as JSON in a string. Absent and empty ones are those of a function
/// without parameters.
pub(crate) fn arguments(arguments: ExactJson) -> ExactJson {
    match &*arguments {
        Value::Null => Value::Object(Map::new()).into(),
        Value::String(text) => text_arguments(text.as_str()),
        _ => arguments,
    }
}

/// Reads the arguments of a call from JSON in a string. An empty one is that of a function without parameters.
pub(crate) fn text_arguments(text: &str) -> ExactJson {
    if text.trim().is_empty() { Value::Object(Map::new()).into() } else { json_or_text(text) }
}

/// Returns the number of values in a parsed value, nested ones included.
pub(crate) fn values_in(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(values_in).sum(),
        Value::Object(fields) => fields.values().map(values_in).sum(),
        _ => 0,
    }
}

/// Counts the values of each field of a body.
struct FieldCounter<'a> {
    /// Field that may be a list of tokens.
    tokens: Option<&'a str>,
    total: BodyValues,
    /// Error of a field with too many values, which ends the count.
    overfull: Option<ApiError>,
}

impl<'de> Visitor<'de> for &mut FieldCounter<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(name) = fields.next_key::<String>()? {
            let may_have_tokens = self.tokens == Some(name.as_str());
            let limit = if may_have_tokens { MAX_TOKENS } else { MAX_VALUES };
            let mut count = Count::new(limit);
            let skipped = fields.next_value_seed(SkipSeed { count: &mut count, is_json: false });
            if count.is_over {
                let message =
                    format!("{name}: expected at most {limit} values, nested ones included, found more");
                self.overfull = Some(ApiError::bad_request(name, message));
            }
            skipped?;
            let numbers = if may_have_tokens { count.numbers } else { 0 };
            self.total.tokens += numbers;
            self.total.values += count.values - numbers;
        }
        Ok(())
    }
}

/// Number of values so far.
struct Count {
    values: usize,
    /// Those that are integers.
    numbers: usize,
    limit: usize,
    /// Set once there were more values than the limit.
    is_over: bool,
    /// Set inside JSON in a string. Strings in it are not read again.
    is_inside: bool,
}

/// There are more values than the limit.
struct TooMany;

impl Count {
    fn new(limit: usize) -> Self {
        Self { values: 0, numbers: 0, limit, is_over: false, is_inside: false }
    }

    /// Adds the values of JSON in a string. A text that is not JSON is counted as far as a parser reads it.
    fn add_json(&mut self, text: &str) -> Result<(), TooMany> {
        if self.is_inside {
            return Ok(());
        }
        self.is_inside = true;
        let mut json = serde_json::Deserializer::from_str(text);
        let _ = SkipSeed { count: self, is_json: false }.deserialize(&mut json);
        self.is_inside = false;
        if self.is_over { Err(TooMany) } else { Ok(()) }
    }
}

/// Counts a value and those in it.
struct SkipSeed<'a> {
    count: &'a mut Count,
    /// Set if a string is JSON.
    is_json: bool,
}

fn too_many<E: de::Error>() -> E {
    E::custom("too many values")
}

impl<'de> DeserializeSeed<'de> for SkipSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        if self.count.values >= self.count.limit {
            self.count.is_over = true;
            return Err(too_many());
        }
        self.count.values += 1;
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for SkipSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        self.count.numbers += 1;
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        self.count.numbers += 1;
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        if self.is_json {
            self.count.add_json(text).map_err(|TooMany| too_many())?;
        }
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(SkipSeed { count: self.count, is_json: false })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(is_json) = fields.next_key_seed(IsJsonField)? {
            fields.next_value_seed(SkipSeed { count: self.count, is_json })?;
        }
        Ok(())
    }
}

/// Reads the name of a field. Returns true for [`JSON_FIELD`].
struct IsJsonField;

impl<'de> DeserializeSeed<'de> for IsJsonField {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, name: D) -> Result<bool, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for IsJsonField {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<bool, E> {
        Ok(name == JSON_FIELD)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(body: &str) -> (Option<String>, String) {
        let body = count_values(body.as_bytes(), None).unwrap_err().body();
        let error = &body["error"];
        (error["param"].as_str().map(str::to_owned), error["message"].as_str().unwrap().to_owned())
    }

    #[test]
    fn a_body_is_one_whole_object_of_limited_depth() {
        let check = |body: &str, text: &str| {
            let (param, message) = refusal(body);
            assert!(param.is_none() && message.contains(text), "{message}");
        };
        check("[]", "the expected JSON: expected an object, found a list");
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
        let check = |body: String, tokens: Option<&str>, field: &str, limit: usize| {
            let error = count_values(body.as_bytes(), tokens).unwrap_err().body()["error"].clone();
            assert_eq!(error["param"], field, "{error}");
            let expect = format!("expected at most {limit} values");
            assert!(error["message"].as_str().unwrap().contains(&expect), "{error}");
        };
        // The list itself is a value.
        count_values(body("messages", list(MAX_VALUES - 1)).as_bytes(), None).unwrap();
        check(body("messages", list(MAX_VALUES)), None, "messages", MAX_VALUES);
        check(body("unknown", nested(MAX_VALUES / 2)), None, "unknown", MAX_VALUES);
        check(body("input", list(MAX_VALUES)), Some("prompt"), "input", MAX_VALUES);
        let found = count_values(body("prompt", list(MAX_TOKENS - 1)).as_bytes(), Some("prompt")).unwrap();
        assert_eq!(found, BodyValues { values: 1, tokens: MAX_TOKENS - 1 });
        check(body("input", nested(MAX_TOKENS / 2)), Some("input"), "input", MAX_TOKENS);
    }

    #[test]
    fn json_in_the_arguments_of_calls_counts() {
        let body = |name: &str, text: &str| {
            json!({"messages": [{"tool_calls": [{"function": {name: text}}]}]}).to_string()
        };
        let values =
            |name: &str, text: &str| count_values(body(name, text).as_bytes(), None).unwrap().values - 6;
        assert_eq!(values("arguments", r#"{"a": [1, {"b": "c"}]}"#), 5);
        assert_eq!(values("text", r#"{"a": [1, {"b": "c"}]}"#), 0);
        // A parser creates the values before the error.
        assert_eq!(values("arguments", "[1, 2, x"), 4);
        assert_eq!(values("arguments", "not JSON"), 1);
        let inside = json!({"arguments": "[1, 2]"}).to_string();
        assert_eq!(values("arguments", &inside), 2);
        let hostile = format!("[{}0]", "0,".repeat(MAX_VALUES - 1));
        let (param, message) = refusal(&body("arguments", &hostile));
        assert_eq!(param.as_deref(), Some("messages"), "{message}");
        assert_eq!(json_or_text("[1]"), json!([1]));
        for absent in [json!(null), json!(""), json!(" \n")] {
            assert_eq!(arguments(absent.into()), json!({}));
        }
        assert_eq!(arguments(json!("{\"a\": 1}").into()), json!({"a": 1}));
        assert_eq!(json_or_text(&hostile), json!(hostile));
        assert_eq!(json_or_text("[1"), json!("[1"));
    }

    #[test]
    fn the_memory_of_values_is_bounded() {
        let found = count_values(br#"{"model": "m", "input": [1, 2, [3]]}"#, Some("input")).unwrap();
        assert_eq!(found, BodyValues { values: 3, tokens: 3 });
        assert_eq!(found.bytes(), 3 * VALUE_BYTES + 3 * TOKEN_BYTES);
        assert_eq!(values_in(&json!({"a": [1, {"b": null}]})), 5);
    }
}
