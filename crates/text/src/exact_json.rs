//! JSON in which integers beyond 64 bits keep their digits.
//!
//! `serde_json` reads such integers as floating point. Schemas and arguments may have them, as those of blockchains with
//! 256 bits do, and a model must see them as the client wrote them.

use std::{borrow::Cow, fmt, ops::Deref};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, value::RawValue};

/// Number of digits of the shortest integer beyond 64 bits.
const LONG: usize = 19;

/// First characters of the strings of a marked tree: of texts, and of integers.
const TEXT: char = 't';
const INTEGER: char = 'i';

/// A JSON value, with its text if it has integers beyond 64 bits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExactJson {
    /// The value, in which these integers are floating point.
    value: Value,
    /// JSON in one line, without white space.
    source: Option<Box<str>>,
}

impl ExactJson {
    /// Parses a text.
    ///
    /// # Errors
    /// The text is not JSON.
    pub fn parse(text: &str) -> serde_json::Result<Self> {
        let value = serde_json::from_str(text)?;
        if !has_large_integer(text) {
            return Ok(Self { value, source: None });
        }
        let given = Self { value, source: Some(text.into()) };
        let source = serde_json::to_string(&given.tree().root())?.into();
        Ok(Self { value: given.value, source: Some(source) })
    }

    /// Returns true if a JSON text may have integers beyond 64 bits: it has as many digits one after another.
    pub fn may_be_inexact(text: &str) -> bool {
        text.as_bytes().split(|byte| !byte.is_ascii_digit()).any(|digits| digits.len() >= LONG)
    }

    /// Creates an object.
    pub fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        let fields: Vec<(&str, Self)> = fields.into_iter().collect();
        let is_exact = fields.iter().any(|(_, field)| field.source.is_some());
        let source = is_exact.then(|| {
            let fields = fields.iter().map(|(name, field)| format!("{}:{field}", Value::from(*name)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(",")).into()
        });
        let fields: Map<String, Value> =
            fields.into_iter().map(|(name, field)| (name.to_owned(), field.value)).collect();
        Self { value: fields.into(), source }
    }

    /// Returns the value, in which integers beyond 64 bits are floating point.
    pub fn into_value(self) -> Value {
        self.value
    }

    /// Returns the memory that the digits of integers beyond 64 bits take in addition to the value, in bytes.
    pub fn source_bytes(&self) -> usize {
        self.source.as_ref().map_or(0, |source| source.len())
    }

    /// Returns the value with the digits of its integers.
    pub(crate) fn tree(&self) -> ExactTree<'_> {
        let marked = self.source.as_deref().and_then(|source| serde_json::from_str(&marked(source)).ok());
        match marked {
            Some(marked) => ExactTree { value: Cow::Owned(marked), is_marked: true },
            None => ExactTree { value: Cow::Borrowed(&self.value), is_marked: false },
        }
    }
}

impl Deref for ExactJson {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.value
    }
}

impl From<Value> for ExactJson {
    fn from(value: Value) -> Self {
        Self { value, source: None }
    }
}

impl PartialEq<Value> for ExactJson {
    fn eq(&self, other: &Value) -> bool {
        self.value == *other
    }
}

/// Displays the value as JSON.
impl fmt::Display for ExactJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => f.write_str(source),
            None => self.value.fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for ExactJson {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(from)?;
        Self::parse(text.get()).map_err(serde::de::Error::custom)
    }
}

impl Serialize for ExactJson {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.source {
            Some(source) => {
                RawValue::from_string(source.to_string()).map_err(serde::ser::Error::custom)?.serialize(to)
            }
            None => self.value.serialize(to),
        }
    }
}

/// A value with the digits of its integers.
pub(crate) struct ExactTree<'a> {
    value: Cow<'a, Value>,
    /// Set if the first character of each string, except of names, tells texts from integers.
    is_marked: bool,
}

impl ExactTree<'_> {
    pub(crate) fn root(&self) -> ExactPart<'_> {
        ExactPart { value: &self.value, is_marked: self.is_marked }
    }
}

/// A part of an [`ExactTree`].
#[derive(Clone, Copy)]
pub(crate) struct ExactPart<'a> {
    value: &'a Value,
    is_marked: bool,
}

/// Content of a part.
pub(crate) enum ExactContent<'a> {
    /// Digits of an integer beyond 64 bits, after its sign.
    Integer(&'a str),
    Text(&'a str),
    List(Vec<ExactPart<'a>>),
    Object(Vec<(&'a str, ExactPart<'a>)>),
    /// Null, a truth value, or another number.
    Other(&'a Value),
}

impl<'a> ExactPart<'a> {
    /// Returns a value without integers beyond 64 bits.
    pub(crate) fn plain(value: &'a Value) -> Self {
        Self { value, is_marked: false }
    }

    /// Returns an element of this list, or a value of this object.
    fn part(&self, value: &'a Value) -> Self {
        Self { value, is_marked: self.is_marked }
    }

    pub(crate) fn content(self) -> ExactContent<'a> {
        match self.value {
            Value::String(text) if !self.is_marked => ExactContent::Text(text),
            Value::String(text) => match text.strip_prefix(INTEGER) {
                Some(digits) => ExactContent::Integer(digits),
                None => ExactContent::Text(text.strip_prefix(TEXT).unwrap_or(text)),
            },
            Value::Array(items) => ExactContent::List(items.iter().map(|item| self.part(item)).collect()),
            Value::Object(fields) => {
                let fields = fields.iter().map(|(name, value)| (name.as_str(), self.part(value)));
                ExactContent::Object(fields.collect())
            }
            other => ExactContent::Other(other),
        }
    }
}

/// Writes the digits of integers; for serializers of JSON.
impl Serialize for ExactPart<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.content() {
            ExactContent::Integer(digits) => {
                RawValue::from_string(digits.to_owned()).map_err(serde::ser::Error::custom)?.serialize(to)
            }
            ExactContent::Text(text) => to.serialize_str(text),
            ExactContent::List(items) => to.collect_seq(items),
            ExactContent::Object(fields) => to.collect_map(fields),
            ExactContent::Other(value) => value.serialize(to),
        }
    }
}

/// A string or number of a JSON text, and the text before it since the last one.
enum Token<'a> {
    Name { before: &'a str, quoted: &'a str },
    Text { before: &'a str, quoted: &'a str },
    Number { before: &'a str, digits: &'a str },
    End { before: &'a str },
}

/// Divides valid JSON after its first string or number.
fn next_token(text: &str) -> (Token<'_>, &str) {
    let Some(start) = text.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit()) else {
        return (Token::End { before: text }, "");
    };
    let (before, rest) = text.split_at(start);
    if !rest.starts_with('"') {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || "+-.eE".contains(c))).unwrap_or(rest.len());
        let (digits, rest) = rest.split_at(end);
        return (Token::Number { before, digits }, rest);
    }

    let mut is_escaped = true;
    let end = rest.find(|c| {
        let is_end = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    });
    let (quoted, rest) = rest.split_at(end.map_or(rest.len(), |end| end + 1));
    let is_name = rest.trim_start().starts_with(':');
    (if is_name { Token::Name { before, quoted } } else { Token::Text { before, quoted } }, rest)
}

/// Returns true if a number of a JSON text is an integer beyond 64 bits.
fn is_large_integer(number: &str) -> bool {
    number.len() >= LONG
        && !number.contains(['.', 'e', 'E'])
        && number.parse::<i64>().is_err()
        && number.parse::<u64>().is_err()
}

/// Returns true if valid JSON has an integer beyond 64 bits.
fn has_large_integer(text: &str) -> bool {
    let mut rest = if ExactJson::may_be_inexact(text) { text } else { "" };
    while !rest.is_empty() {
        let (token, after) = next_token(rest);
        if matches!(token, Token::Number { digits, .. } if is_large_integer(digits)) {
            return true;
        }
        rest = after;
    }
    false
}

/// Returns valid JSON with integers beyond 64 bits as strings, and marks at the start of all strings except names.
fn marked(text: &str) -> String {
    let mut marked = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while !rest.is_empty() {
        let (token, after) = next_token(rest);
        match token {
            Token::Text { before, quoted } => {
                marked.extend([before, "\""]);
                marked.push(TEXT);
                marked.push_str(quoted.get(1..).unwrap_or_default());
            }
            Token::Number { before, digits } if is_large_integer(digits) => {
                marked.extend([before, "\""]);
                marked.push(INTEGER);
                marked.extend([digits, "\""]);
            }
            Token::Name { before, quoted: token } | Token::Number { before, digits: token } => {
                marked.extend([before, token]);
            }
            Token::End { before } => marked.push_str(before),
        }
        rest = after;
    }
    marked
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Returns a part as JSON.
    fn written(part: ExactPart<'_>) -> String {
        match part.content() {
            ExactContent::Integer(digits) => digits.to_owned(),
            ExactContent::Text(text) => Value::from(text).to_string(),
            ExactContent::List(items) => {
                format!("[{}]", items.into_iter().map(written).collect::<Vec<_>>().join(","))
            }
            ExactContent::Object(fields) => {
                let fields =
                    fields.into_iter().map(|(name, part)| format!("{}:{}", Value::from(name), written(part)));
                format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
            }
            ExactContent::Other(value) => value.to_string(),
        }
    }

    #[test]
    fn integers_beyond_64_bits_keep_their_digits() {
        for text in [
            "18446744073709551616",
            "-9223372036854775809",
            r#"{"i1":["i1","t2","\"18446744073709551616\\",100000000000000000001],"n":{}}"#,
            r#"{"18446744073709551616":115792089237316195423570985008687907853269984665640564039457584007913129639935}"#,
        ] {
            let exact = ExactJson::parse(text).unwrap();
            assert!(exact.source.is_some(), "{text}");
            assert_eq!((written(exact.tree().root()).as_str(), exact.to_string().as_str()), (text, text));
            assert_eq!(*exact, serde_json::from_str::<Value>(text).unwrap());
            assert_eq!(
                serde_json::from_str::<ExactJson>(&serde_json::to_string(&exact).unwrap()).unwrap(),
                exact
            );
        }
        for text in [
            "18446744073709551615",
            "-9223372036854775808",
            "1e30",
            "1.00000000000000000001",
            "\"1844674407370955161618\"",
        ] {
            let exact = ExactJson::parse(text).unwrap();
            assert_eq!((exact.source.clone(), exact.to_string()), (None, exact.value.to_string()), "{text}");
        }
        ExactJson::parse("18446744073709551616 1").unwrap_err();
        let large = ExactJson::parse("18446744073709551616").unwrap();
        let object = ExactJson::object([("a", json!("b").into()), ("\"", large)]);
        assert_eq!(object.to_string(), r#"{"a":"b","\"":18446744073709551616}"#);
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(Value::from),
            any::<i32>().prop_map(|number| Value::from(f64::from(number) / 2.0)),
            "[it\"\\\\:1é ]{0,4}".prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("[it\"\\\\:]{0,3}", inner), 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_large_integer_changes_nothing_beside_it(value in values()) {
            let text = format!("[{},18446744073709551616]", serde_json::to_string_pretty(&value).unwrap());
            let exact = ExactJson::parse(&text).unwrap();
            let compact = format!("[{value},18446744073709551616]");
            prop_assert_eq!((written(exact.tree().root()), exact.to_string()), (compact.clone(), compact));
        }
    }
}
