//! The metadata of a model card, as a listing contains it. Its values have any form and size; only the licence is kept.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// The metadata of a model card, or the value of one of its keys.
#[derive(Debug, Default)]
pub(super) struct CardValue {
    /// The value itself, if it is a string.
    text: Option<String>,
    /// The string with the key `license`, if the value is an object with one.
    pub(super) license: Option<String>,
}

impl<'de> Deserialize<'de> for CardValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CardVisitor)
    }
}

struct CardVisitor;

impl<'de> Visitor<'de> for CardVisitor {
    type Value = CardValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<CardValue, E> {
        Ok(CardValue::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<CardValue, E> {
        Ok(CardValue::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<CardValue, E> {
        Ok(CardValue::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<CardValue, E> {
        Ok(CardValue::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<CardValue, E> {
        Ok(CardValue::default())
    }

    fn visit_str<E>(self, text: &str) -> Result<CardValue, E> {
        Ok(CardValue { text: Some(text.to_owned()), license: None })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<CardValue, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(CardValue::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<CardValue, A::Error> {
        let mut card = CardValue::default();
        while let Some(key) = map.next_key::<String>()? {
            if key == "license" {
                card.license = map.next_value::<CardValue>()?.text;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(card)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_licence_that_is_a_string_is_kept() {
        let check = |json: &str, expect: Option<&str>| {
            let card: CardValue = serde_json::from_str(json).unwrap();
            assert_eq!(card.license.as_deref(), expect, "{json}");
        };
        check(r#"{"license":"mit"}"#, Some("mit"));
        check(r#"{"tags":["a",1],"license":"m\u0069t","base":{"license":"x"}}"#, Some("mit"));
        check(r#"{"license":"mit","license":"apache-2.0"}"#, Some("apache-2.0"));
        let others = [r#"["mit","gemma"]"#, r#"{"license":"mit"}"#, "null", "true", "1", "-1", "0.5"];
        for other in others {
            check(&format!(r#"{{"license":{other}}}"#), None);
        }
        for other in [r#"["license","mit"]"#, r#""mit""#, r#"{"a":{"license":"mit"}}"#, "null", "1"] {
            check(other, None);
        }
    }

    #[test]
    fn other_values_are_skipped_and_not_built() {
        // A value of this depth cannot be built.
        let deep = ["[".repeat(1000), "]".repeat(1000)].concat();
        let card: CardValue = serde_json::from_str(&format!(r#"{{"a":{deep},"license":"mit"}}"#)).unwrap();
        assert_eq!(card.license.as_deref(), Some("mit"));
    }
}
