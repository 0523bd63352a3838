//! Answers under schemas of numbers, checked by another validator.

use serde_json::{Map, Value};

/// Keywords with numbers, beside `type`, `allOf` and `enum`, of the schemas that are checked. The validator and the compiler agree on their meaning; on that of patterns and
/// formats they do not.
const KEYWORDS: [&str; 6] =
    ["const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// Checks the text of a complete answer, if its schema describes numbers alone.
///
/// # Panics
/// The answer is not valid.
pub fn check(schema: &Value, text: &[u8]) {
    if !schema.as_object().is_some_and(is_of_numbers) {
        return;
    }
    let Ok(validator) = jsonschema::validator_for(schema) else { return };
    let value: Value = serde_json::from_slice(text).expect("JSON");
    assert!(validator.is_valid(&value), "{value} under {schema}");
}

fn is_of_numbers(schema: &Map<String, Value>) -> bool {
    schema.iter().all(|(keyword, value)| match (keyword.as_str(), value) {
        ("allOf", Value::Array(parts)) => {
            parts.iter().all(|part| part.as_object().is_some_and(is_of_numbers))
        }
        ("enum", Value::Array(values)) => values.iter().all(Value::is_number),
        ("type", Value::String(name)) => ["integer", "number"].contains(&name.as_str()),
        (keyword, Value::Number(_)) => KEYWORDS.contains(&keyword),
        _ => false,
    })
}
