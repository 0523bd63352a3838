//! Check of the values of a schema's keywords. A wrong value is named with its keyword, and a number of characters, items or
//! properties that no answer can reach is refused, or left out if it is a maximum.

use serde_json::{Map, Value};

use super::{GrammarError, message::shortened, schema::parts};

/// Minimum and maximum numbers of characters, items and properties.
const MINIMA: [&str; 3] = ["minLength", "minItems", "minProperties"];
const MAXIMA: [&str; 3] = ["maxLength", "maxItems", "maxProperties"];

/// Maximum of such a number. No context of a model holds as many characters.
const MAX_COUNT: u64 = 1 << 24;

/// Types of values.
const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// Checks the values of keywords in a schema and in its parts, and removes maximum numbers that restrict nothing.
///
/// # Errors
/// A keyword has a value of another kind, or a minimum that no answer can reach.
pub(super) fn check(schema: &mut Map<String, Value>) -> Result<(), GrammarError> {
    for keyword in MINIMA.iter().chain(&MAXIMA) {
        let Some(value) = schema.get_mut(*keyword) else { continue };
        let count = count(keyword, value)?;
        match count {
            0..=MAX_COUNT => *value = count.into(),
            _ if MAXIMA.contains(keyword) => _ = schema.shift_remove(*keyword),
            _ => {
                return Err(wrong(
                    keyword,
                    value,
                    &format!("no answer is so long; expected at most {MAX_COUNT}"),
                ));
            }
        }
    }
    for (keyword, value) in schema.iter() {
        if let Some(expected) = expected_instead(keyword, value) {
            return Err(wrong(keyword, value, &format!("expected {expected}")));
        }
    }
    parts(schema).into_iter().try_for_each(check)
}

/// Returns the value of a keyword with a number, which may be written with a fraction of 0. One beyond 64 bits is the
/// greatest.
fn count(keyword: &str, value: &Value) -> Result<u64, GrammarError> {
    let number = value.as_f64().filter(|number| *number >= 0.0 && number.fract() == 0.0);
    number.map(|number| number as u64).ok_or_else(|| wrong(keyword, value, "expected a whole number from 0"))
}

fn is_schema(value: &Value) -> bool {
    value.is_object() || value.is_boolean()
}

fn is_type(value: &Value) -> bool {
    value.as_str().is_some_and(|name| TYPES.contains(&name))
}

/// Returns the kind of value that a keyword has, if this one is of another kind.
fn expected_instead(keyword: &str, value: &Value) -> Option<&'static str> {
    let all = |is: &dyn Fn(&Value) -> bool| value.as_array().is_some_and(|values| values.iter().all(is));
    let has_values = value.as_array().is_some_and(|values| !values.is_empty());
    let (is_valid, expected) = match keyword {
        "type" => {
            let expected = "\"null\", \"boolean\", \"integer\", \"number\", \"string\", \"array\", \"object\" or a list of \
                            them";
            (is_type(value) || has_values && all(&is_type), expected)
        }
        "enum" => (has_values, "a list with at least one value"),
        "anyOf" | "oneOf" => (has_values && all(&is_schema), "a list with at least one schema"),
        "allOf" | "prefixItems" => (all(&is_schema), "a list of schemas"),
        "items" => (is_schema(value) || all(&is_schema), "a schema"),
        "additionalItems" | "additionalProperties" => (is_schema(value), "a schema"),
        "properties" | "patternProperties" => {
            let fields = value.as_object();
            (
                fields.is_some_and(|fields| fields.values().all(is_schema)),
                "an object whose values are schemas",
            )
        }
        "required" => (all(&Value::is_string), "a list of names"),
        "pattern" | "format" | "$ref" => (value.is_string(), "a string"),
        _ => return None,
    };
    (!is_valid).then_some(expected)
}

fn wrong(keyword: &str, value: &Value, reason: &str) -> GrammarError {
    GrammarError::unsupported(format!("the schema's {keyword:?}: {}", shortened(&value.to_string())), reason)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(schema: Value) -> Result<Value, String> {
        let Value::Object(mut fields) = schema else { panic!("{schema}") };
        check(&mut fields).map_err(|error| error.to_string())?;
        Ok(fields.into())
    }

    #[test]
    fn values_of_another_kind_are_named_with_their_keyword() {
        let refused = |schema: Value, expected: &str| {
            let error = checked(json!({"properties": {"a": schema}})).unwrap_err();
            assert_eq!(error, format!("the schema's {expected}"));
        };
        let whole = "cannot be enforced: expected a whole number from 0";
        refused(json!({"minLength": -1}), &format!("\"minLength\": -1 {whole}"));
        refused(json!({"maxItems": 1.5}), &format!("\"maxItems\": 1.5 {whole}"));
        refused(json!({"minProperties": "a"}), &format!("\"minProperties\": \"a\" {whole}"));
        refused(
            json!({"enum": []}),
            "\"enum\": [] cannot be enforced: expected a list with at least one value",
        );
        refused(json!({"pattern": 5}), "\"pattern\": 5 cannot be enforced: expected a string");
        refused(json!({"items": 5}), "\"items\": 5 cannot be enforced: expected a schema");
        for wrong in [
            json!({"type": "strin"}),
            json!({"type": []}),
            json!({"type": 5}),
            json!({"anyOf": []}),
            json!({"oneOf": [5]}),
            json!({"allOf": {}}),
            json!({"prefixItems": 5}),
            json!({"additionalProperties": 5}),
            json!({"properties": {"a": 5}}),
            json!({"patternProperties": []}),
            json!({"required": [5]}),
            json!({"required": true}),
            json!({"format": 5}),
            json!({"$ref": 5}),
        ] {
            let error = checked(wrong.clone()).unwrap_err();
            assert!(error.contains("cannot be enforced: expected"), "{wrong}: {error}");
        }
        let long = checked(json!({"type": "a".repeat(1000)})).unwrap_err();
        assert!(long.len() < 400, "{long}");
    }

    #[test]
    fn numbers_that_no_answer_reaches_are_refused_or_restrict_nothing() {
        for keyword in MINIMA {
            for count in [json!(MAX_COUNT + 1), json!(1_000_000_000_000u64), json!(1e30)] {
                let error = checked(json!({keyword: count})).unwrap_err();
                let expected =
                    format!("the schema's {keyword:?}: {count} cannot be enforced: no answer is so long");
                assert!(error.starts_with(&expected), "{error}");
            }
        }
        for keyword in MAXIMA {
            assert_eq!(checked(json!({keyword: 1_000_000_000_000u64})), Ok(json!({})));
        }
    }

    #[test]
    fn valid_values_stay() {
        for schema in [
            json!({"type": ["string", "null"], "minLength": 0, "maxLength": MAX_COUNT}),
            json!({"enum": [1], "const": 1, "items": [{}, true], "prefixItems": [], "allOf": []}),
            json!({"properties": {"minLength": {"type": "integer"}, "a": true}, "required": ["a"]}),
            json!({"default": {"minLength": -1}, "examples": [{"type": 5}], "title": 5}),
        ] {
            assert_eq!(checked(schema.clone()), Ok(schema));
        }
        assert_eq!(checked(json!({"minItems": 5.0})), Ok(json!({"minItems": 5})));
    }
}
