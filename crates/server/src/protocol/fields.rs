//! The fields of a body. The body is split into its fields once, and each struct parses only the fields that it names. A
//! field that no struct has read is unknown.

use std::{cell::Cell, fmt};

use axum::http::StatusCode;
use serde::{
    Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor, value::MapDeserializer},
    forward_to_deserialize_any,
};
use serde_json::value::RawValue;

use super::problem::{in_words_of_json, without_position};
use crate::error::ApiError;

/// The fields of a body, in its order.
#[derive(Debug)]
pub(crate) struct BodyFields<'a>(Vec<Field<'a>>);

/// A field and its JSON text.
#[derive(Debug)]
pub(crate) struct Field<'a> {
    pub(crate) name: String,
    value: &'a RawValue,
    /// Set once the endpoint has read the field.
    is_read: Cell<bool>,
}

impl Field<'_> {
    /// Returns the value as text.
    pub(crate) fn json(&self) -> &str {
        self.value.get()
    }

    /// Returns true for null, false and empty values, which require nothing.
    pub(crate) fn is_absent(&self) -> bool {
        let json = self.json();
        let brackets = [("[", "]"), ("{", "}")];
        let inner = brackets.iter().find_map(|(open, close)| json.strip_prefix(open)?.strip_suffix(close));
        matches!(json, "null" | "false" | "\"\"") || inner.is_some_and(|inner| inner.trim().is_empty())
    }
}

impl<'a> BodyFields<'a> {
    /// Divides a body that is a JSON object.
    pub(crate) fn divide(body: &'a [u8]) -> Result<Self, ApiError> {
        let mut json = serde_json::Deserializer::from_slice(body);
        let fields = json.deserialize_map(FieldsVisitor).and_then(|fields| json.end().map(|()| fields));
        fields.map(Self).map_err(|error| unexpected_json(&whole_problem(&error)))
    }

    /// Reads the fields of a struct. An error names the field.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_path_to_error::deserialize(StructFields { body: self, marks_read: true }).map_err(field_error)
    }

    /// Reads the fields of a struct like [`Self::read`], but the endpoint must also read them elsewhere, or they are hints.
    pub(crate) fn copy<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_path_to_error::deserialize(StructFields { body: self, marks_read: false }).map_err(field_error)
    }

    /// Counts fields without effect as read.
    pub(crate) fn skip(&self, names: &[&str]) {
        self.0.iter().filter(|field| names.contains(&&*field.name)).for_each(|field| field.is_read.set(true));
    }

    /// Returns all fields.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Field<'a>> {
        self.0.iter()
    }

    /// Returns the fields that were not read and have a value other than null, false or empty.
    pub(crate) fn unread(&self) -> impl Iterator<Item = &Field<'a>> {
        self.0.iter().filter(|field| !field.is_read.get() && !field.is_absent())
    }

    /// Refuses fields that were not read: if they were ignored, the answer would be to a different request.
    pub(crate) fn refuse_unread(&self) -> Result<(), ApiError> {
        self.unread().next().map_or(Ok(()), |field| Err(ApiError::unsupported(&field.name)))
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Vec<Field<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some((name, value)) = map.next_entry()? {
            fields.push(Field { name, value, is_read: Cell::default() });
        }
        Ok(fields)
    }
}

/// Deserializer of the struct that names its fields.
struct StructFields<'f, 'a> {
    body: &'f BodyFields<'a>,
    marks_read: bool,
}

impl<'de> Deserializer<'de> for StructFields<'_, 'de> {
    type Error = serde_json::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let fields = self.body.all().filter(|field| names.contains(&&*field.name));
        visitor.visit_map(MapDeserializer::new(fields.map(|field| {
            field.is_read.set(field.is_read.get() || self.marks_read);
            (field.name.as_str(), field.value)
        })))
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.deserialize_struct("", &[], visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Returns the error of a struct, which names the field.
pub(crate) fn field_error(error: serde_path_to_error::Error<serde_json::Error>) -> ApiError {
    let path = error.path().to_string();
    let error = error.into_inner();
    // The path of the field says more than a position in it.
    let problem = without_position(&error);
    match missing_field(&problem) {
        Some(field) if path == "." => ApiError::required(field),
        Some(field) => ApiError::required(&format!("{path}.{field}")),
        None if path == "." => unexpected_json(&problem),
        None => {
            let problem = in_words_of_json(&path, &problem);
            ApiError::bad_request(path.clone(), format!("{path}: {problem}"))
        }
    }
}

/// Returns the problem of a whole body, with its position if the body is not JSON.
fn whole_problem(error: &serde_json::Error) -> String {
    if error.is_data() { without_position(error) } else { error.to_string() }
}

fn unexpected_json(problem: &str) -> ApiError {
    ApiError::plain(
        StatusCode::BAD_REQUEST,
        format!("the body is not the expected JSON: {}", in_words_of_json("", problem)),
    )
}

fn missing_field(message: &str) -> Option<&str> {
    message.strip_prefix("missing field `")?.split('`').next()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Sample {
        #[expect(dead_code, reason = "only its presence is tested")]
        model: String,
        #[expect(dead_code, reason = "only its type is tested")]
        n: Option<usize>,
        #[serde(default)]
        parts: Vec<Part>,
    }

    #[derive(Debug, Deserialize)]
    struct Part {
        text: String,
    }

    fn read(body: &str) -> Result<Sample, ApiError> {
        let fields = BodyFields::divide(body.as_bytes())?;
        let sample = fields.read()?;
        fields.refuse_unread()?;
        Ok(sample)
    }

    #[test]
    fn errors_name_the_field() {
        let check = |body: &str, param: Option<&str>, text: &str| {
            let error = read(body).unwrap_err().body();
            assert_eq!(error["error"]["param"].as_str(), param, "{error}");
            let message = error["error"]["message"].as_str().unwrap();
            assert!(message.contains(text) && (param.is_none() || !message.contains("line")), "{error}");
        };
        check("{}", Some("model"), "required");
        check(r#"{"model": "m", "n": -1}"#, Some("n"), "-1");
        check(r#"{"model": 3}"#, Some("model"), "model: expected a string, found 3");
        check(r#"{"model": "m", "parts": [{"text": "a"}, {}]}"#, Some("parts[1].text"), "required");
        check(r#"{"model": "m", "parts": [{"text": null}]}"#, Some("parts[0].text"), "null");
        check(r#"{"model": "m""#, None, "line 1");
        check(r#"{"model": "m"} x"#, None, "trailing");
        check("[]", None, "expected an object");
        check(r#"{"model": "m", "x": 1}"#, Some("x"), "not supported");
        check(r#"{"model": "m", "model": "n"}"#, None, "duplicate field");
        assert_eq!(
            read(r#"{"model": "m", "x": null, "parts": [{"text": "\u00e9"}]}"#).unwrap().parts[0].text,
            "é"
        );
    }

    #[test]
    fn unread_fields_that_ask_for_something_are_found() {
        let check = |body: &str, expect: &[&str]| {
            let fields = BodyFields::divide(body.as_bytes()).unwrap();
            fields.skip(&["seed", "metadata"]);
            let unread: Vec<_> = fields.unread().map(|field| field.name.as_str()).collect();
            assert_eq!(unread, expect, "{body}");
        };
        check(r#"{"model": "m", "seed": 1, "metadata": {"a": "b"}}"#, &["model"]);
        check(r#"{"tools": [ ], "suffix": null, "store": false, "logit_bias": {}, "user": ""}"#, &[]);
        check(r#"{"tools": [null], "a": 0, "b": " ", "c": true}"#, &["tools", "a", "b", "c"]);
        check(r#"{"audio": {"voice": null}}"#, &["audio"]);
    }

    #[test]
    fn copied_fields_remain_unread() {
        let fields = BodyFields::divide(br#"{"model": "m", "n": 1}"#).unwrap();
        fields.copy::<Sample>().unwrap();
        assert_eq!(fields.unread().count(), 2);
        fields.read::<Sample>().unwrap();
        fields.copy::<Sample>().unwrap();
        assert_eq!(fields.unread().count(), 0);
    }
}
