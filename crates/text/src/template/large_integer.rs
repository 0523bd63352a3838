//! Integers beyond 64 bits in templates. In JSON values they are strings that start with a character that no string of a
//! conversation or template has, and in a template's values they are objects that are displayed as such a string.

use std::{fmt, sync::Arc};

use minijinja::{
    Value,
    value::{Object, ObjectRepr, Serde},
};
use serde::{Serialize, Serializer};
use serde_json::{Value as Json, value::RawValue};

/// Character before the digits. Those of a conversation are spelled in another way.
pub(super) const MARK: char = '\u{FDD1}';

/// An integer.
#[derive(Debug)]
struct LargeInteger {
    marked: String,
}

impl Object for LargeInteger {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.marked)
    }
}

/// Returns the string that stands for an integer in a JSON value.
pub(super) fn marked(digits: &str) -> Json {
    Json::String(format!("{MARK}{digits}"))
}

/// Returns the value of a template for a JSON value.
pub(super) fn template_value(json: &Json) -> Value {
    Value::from(Serde(Written { json, integer: Integer::Object }))
}

/// Returns a JSON value for a serializer of text, which writes the digits.
pub(super) fn written(json: &Json) -> impl Serialize {
    Written { json, integer: Integer::Digits }
}

/// Form of an integer.
#[derive(Clone, Copy)]
enum Integer {
    Object,
    Digits,
}

struct Written<'a> {
    json: &'a Json,
    integer: Integer,
}

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { json, integer } = *self;
        match json {
            Json::String(text) => match (text.strip_prefix(MARK), integer) {
                (None, _) => to.serialize_str(text),
                (Some(_), Integer::Object) => {
                    Value::from_object(LargeInteger { marked: text.clone() }).serialize(to)
                }
                (Some(digits), Integer::Digits) => match RawValue::from_string(digits.to_owned()) {
                    Ok(digits) => digits.serialize(to),
                    // A template has cut the number.
                    Err(_) => to.serialize_str(digits),
                },
            },
            Json::Array(items) => to.collect_seq(items.iter().map(|json| Written { json, integer })),
            Json::Object(fields) => {
                to.collect_map(fields.iter().map(|(name, json)| (name, Written { json, integer })))
            }
            other => other.serialize(to),
        }
    }
}
