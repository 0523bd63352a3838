//! A field of a body that is a text or a list.
//!
//! It is read in one pass. Serde's untagged enums would first store the field as a generic value and then copy its texts,
//! and their errors would not name the element.

use std::{fmt, marker::PhantomData};

use schemars::JsonSchema;
use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor, value::SeqAccessDeserializer};

/// Element of a list that a text may replace.
pub(crate) trait ListElement {
    /// Description of the field in errors, after "expected".
    const EXPECTED: &'static str;
}

/// A text or a list.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(inline, untagged)]
pub(crate) enum TextOrList<T> {
    Text(String),
    List(Vec<T>),
}

impl ListElement for String {
    const EXPECTED: &'static str = "a string or a list of strings";
}

impl TextOrList<String> {
    pub(crate) fn into_texts(self) -> Vec<String> {
        match self {
            Self::Text(text) => vec![text],
            Self::List(texts) => texts,
        }
    }
}

impl<'de, T: ListElement + Deserialize<'de>> Deserialize<'de> for TextOrList<T> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_any(TextOrListVisitor(PhantomData))
    }
}

struct TextOrListVisitor<T>(PhantomData<T>);

impl<'de, T: ListElement + Deserialize<'de>> Visitor<'de> for TextOrListVisitor<T> {
    type Value = TextOrList<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(TextOrList::Text(text.to_owned()))
    }

    // Content blocks are stored as generic values, which own their texts.
    fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
        Ok(TextOrList::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(elements)).map(TextOrList::List)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_lists_are_read_and_other_values_refused() {
        let read = |json: &str| serde_json::from_str::<TextOrList<String>>(json);
        let check = |json: &str, expect: &[&str]| {
            assert_eq!(read(json).unwrap().into_texts(), expect, "{json}");
        };
        check(r#""a\nb""#, &["a\nb"]);
        check(r#"["a", "b"]"#, &["a", "b"]);
        check("[]", &[]);
        for json in ["5", "{}", "null"] {
            let error = read(json).unwrap_err().to_string();
            assert!(error.contains("expected a string or a list of strings"), "{json}: {error}");
        }
        assert!(read(r#"["a", 5]"#).unwrap_err().to_string().contains("integer `5`, expected a string"));
    }
}
