//! Parameters without effect in Narthex. They are ignored if their value requires nothing, and a header lists their
//! names.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Map, Value, json};

use crate::{error::ApiError, ignored::Ignored};

/// Names of all hints.
pub(crate) const NAMES: &[&str] = &[
    "add_generation_prompt",
    "best_of",
    "cache_prompt",
    "id_slot",
    "keep_alive",
    "mirostat",
    "prediction",
    "priority",
    "store",
    "verbosity",
];

/// Returns true if a hint with this value has no effect.
fn is_neutral(name: &str, value: &Value) -> bool {
    match name {
        "add_generation_prompt" => *value == true,
        "best_of" => value.as_f64() == Some(1.0),
        "id_slot" => value.as_i64().is_some_and(|slot| slot < 0),
        "mirostat" | "priority" => value.as_f64() == Some(0.0),
        _ => true,
    }
}

/// The hints of a body.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// Hints that were ignored.
    ignored: Ignored,
    /// First hint with a value that would require an effect.
    refused: Option<&'static str>,
}

impl Hints {
    /// Returns the ignored hints, or the error of one that would require an effect.
    pub(crate) fn check(self) -> Result<Ignored, ApiError> {
        self.refused.map_or(Ok(self.ignored), |name| Err(ApiError::unsupported(name)))
    }
}

impl JsonSchema for Hints {
    fn schema_name() -> Cow<'static, str> {
        "Hints".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let fields: Map<String, Value> = NAMES.iter().map(|name| ((*name).to_owned(), json!(true))).collect();
        json_schema!({"type": "object", "properties": fields})
    }
}

impl<'de> Deserialize<'de> for Hints {
    fn deserialize<D: Deserializer<'de>>(body: D) -> Result<Self, D::Error> {
        body.deserialize_map(HintVisitor)
    }
}

struct HintVisitor;

impl<'de> Visitor<'de> for HintVisitor {
    type Value = Hints;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Hints, A::Error> {
        let mut hints = Hints::default();
        while let Some(field) = fields.next_key::<String>()? {
            let Some(name) = NAMES.iter().find(|name| **name == field) else {
                fields.next_value::<IgnoredAny>()?;
                continue;
            };
            let value: Value = fields.next_value()?;
            if value.is_null() || value == false {
                continue;
            }
            if is_neutral(name, &value) {
                hints.ignored.push(name);
            } else {
                hints.refused.get_or_insert(name);
            }
        }
        Ok(hints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::read_fields;

    #[test]
    fn hints_without_effect_are_ignored_and_named() {
        let read = |body: &str| read_fields::<Hints>(body.as_bytes()).and_then(Hints::check);
        let check = |body: &str, expect: Result<&[&str], &str>| match (read(body), expect) {
            (Ok(ignored), Ok(names)) => assert_eq!(ignored.names(), names, "{body}"),
            (Err(error), Err(param)) => assert_eq!(error.body()["error"]["param"], param, "{body}"),
            (found, _) => panic!("{body}: {found:?}"),
        };
        check(r#"{"model": "m", "store": false, "verbosity": null}"#, Ok(&[]));
        check(r#"{"verbosity": "low", "store": true}"#, Ok(&["verbosity", "store"]));
        check(r#"{"best_of": 1, "mirostat": 0}"#, Ok(&["best_of", "mirostat"]));
        check(r#"{"best_of": 2}"#, Err("best_of"));
        check(r#"{"id_slot": -1, "priority": 3}"#, Err("priority"));
    }
}
