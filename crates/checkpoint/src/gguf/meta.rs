//! GGUF metadata: typed values by key.
//!
//! A missing key is `None`; a value of another type is an error with the key's name. `decoder` and `vocab` decide which
//! keys are read.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{error::Result, limits::malformed};

/// A metadata value. Numbers have the widest type of their kind.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// Any integer type.
    Int(i128),
    /// f32 or f64.
    Float(f64),
    /// A byte that is 0 or 1.
    Bool(bool),
    /// UTF-8 text.
    Text(String),
    /// An array of strings.
    Texts(Vec<String>),
    /// An array of integers of any width, or of booleans as 0 and 1. Values outside i64 are clamped: no key read here
    /// has such values.
    Ints(Vec<i64>),
    /// An array of f32 or f64, converted to f32.
    Floats(Vec<f32>),
    /// An array of arrays. No key read here has one.
    Unread,
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Self::Int(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a boolean",
            Self::Text(_) => "a string",
            Self::Texts(_) => "an array of strings",
            Self::Ints(_) => "an array of integers",
            Self::Floats(_) => "an array of floats",
            Self::Unread => "another array",
        }
    }
}

/// Metadata of a file.
#[derive(Debug)]
pub(crate) struct Metadata {
    /// Path of the file, for messages.
    pub(crate) path: PathBuf,
    /// Values by key.
    pub(crate) values: BTreeMap<String, Value>,
}

impl Metadata {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the value with a key. Fails if `read` returns `None`, because the value is not `expected`.
    fn get<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        read(value)
            .map(Some)
            .ok_or_else(|| malformed(&self.path, format!("{key} as {expected}"), value.kind()))
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>> {
        self.get(key, "a string", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// Returns a boolean.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.get(key, "a boolean", |value| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// Returns a non-negative integer.
    pub(crate) fn count(&self, key: &str) -> Result<Option<usize>> {
        let Some(count) = self.integer(key)? else { return Ok(None) };
        usize::try_from(count)
            .map(Some)
            .map_err(|_| malformed(&self.path, format!("{key} of at least zero"), count))
    }

    /// Returns a token id. Some files write an id beyond `i32` for "no token"; it is returned as `None`.
    pub(crate) fn token(&self, key: &str) -> Result<Option<u32>> {
        let id = self.integer(key)?;
        Ok(id.and_then(|id| i32::try_from(id).ok()).and_then(|id| u32::try_from(id).ok()))
    }

    fn integer(&self, key: &str) -> Result<Option<i128>> {
        self.get(key, "an integer", |value| match value {
            Value::Int(integer) => Some(*integer),
            _ => None,
        })
    }

    /// Returns a float; an integer is converted.
    pub(crate) fn float(&self, key: &str) -> Result<Option<f64>> {
        self.get(key, "a float", |value| match value {
            Value::Float(value) => Some(*value),
            Value::Int(value) => Some(*value as f64),
            _ => None,
        })
    }

    /// Returns an array of strings.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<&[String]>> {
        self.get(key, "an array of strings", |value| match value {
            Value::Texts(texts) => Some(texts.as_slice()),
            _ => None,
        })
    }

    /// Returns an array of integers.
    pub(crate) fn ints(&self, key: &str) -> Result<Option<&[i64]>> {
        self.get(key, "an array of integers", |value| match value {
            Value::Ints(ints) => Some(ints.as_slice()),
            _ => None,
        })
    }

    /// Returns an array of floats.
    pub(crate) fn floats(&self, key: &str) -> Result<Option<&[f32]>> {
        self.get(key, "an array of floats", |value| match value {
            Value::Floats(floats) => Some(floats.as_slice()),
            _ => None,
        })
    }

    /// Returns a count for each of `layers` layers. The file has either one number for all layers or an array.
    pub(crate) fn per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<usize>>> {
        let Some(Value::Ints(ints)) = self.values.get(key) else {
            return Ok(self.count(key)?.map(|count| vec![count; layers]));
        };
        let counts: Result<Vec<_>, _> = ints.iter().map(|&count| usize::try_from(count)).collect();
        match counts {
            Ok(counts) if counts.len() == layers => Ok(Some(counts)),
            Ok(counts) => Err(malformed(&self.path, format!("{layers} values of {key}"), counts.len())),
            Err(_) => Err(malformed(&self.path, format!("{key} of at least zero"), "a negative one")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Metadata {
        let values = [
            ("int", Value::Int(7)),
            ("negative", Value::Int(-1)),
            ("none", Value::Int(i128::from(u32::MAX))),
            ("float", Value::Float(0.5)),
            ("text", Value::Text("t".into())),
            ("ints", Value::Ints(vec![1, 2])),
            ("signed", Value::Ints(vec![1, -2])),
        ];
        let values = values.map(|(key, value)| (key.to_owned(), value)).into();
        Metadata { path: "m.gguf".into(), values }
    }

    fn shown<T: std::fmt::Debug>(result: Result<T>) -> String {
        match result {
            Ok(value) => format!("{value:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn values_are_read_by_type() {
        let m = metadata();
        let check = |found: String, expect: &str| assert_eq!(found, expect);
        check(shown(m.count("int")), "Some(7)");
        check(shown(m.count("absent")), "None");
        check(
            shown(m.count("negative")),
            "m.gguf is malformed: expected negative of at least zero, found -1",
        );
        check(shown(m.count("text")), "m.gguf is malformed: expected text as an integer, found a string");
        check(shown(m.float("int")), "Some(7.0)");
        check(shown(m.float("float")), "Some(0.5)");
        check(shown(m.text("int")), "m.gguf is malformed: expected int as a string, found an integer");
        check(shown(m.flag("int")), "m.gguf is malformed: expected int as a boolean, found an integer");
        check(shown(m.token("int")), "Some(7)");
        check(shown(m.token("none")), "None");
        check(shown(m.token("negative")), "None");
        check(
            shown(m.texts("ints")),
            "m.gguf is malformed: expected ints as an array of strings, found an array of integers",
        );
        check(
            shown(m.floats("ints")),
            "m.gguf is malformed: expected ints as an array of floats, found an array of integers",
        );
        check(
            shown(m.ints("text")),
            "m.gguf is malformed: expected text as an array of integers, found a string",
        );
    }

    #[test]
    fn counts_per_layer_come_once_or_each() {
        let m = metadata();
        let check = |key, layers, expect: &str| assert_eq!(shown(m.per_layer(key, layers)), expect);
        check("int", 3, "Some([7, 7, 7])");
        check("ints", 2, "Some([1, 2])");
        check("absent", 2, "None");
        check("ints", 3, "m.gguf is malformed: expected 3 values of ints, found 2");
        check("signed", 2, "m.gguf is malformed: expected signed of at least zero, found a negative one");
    }
}
