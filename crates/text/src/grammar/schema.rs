//! Keywords of JSON schemas that restrict nothing, which the compiler would refuse (JSON Schema 2020-12).

use serde_json::{Map, Value};

/// Formats that JSON Schema defines. All others are annotations.
const FORMATS: &[&str] = &[
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "idn-email",
    "hostname",
    "idn-hostname",
    "ipv4",
    "ipv6",
    "uri",
    "uri-reference",
    "iri",
    "iri-reference",
    "uuid",
    "uri-template",
    "json-pointer",
    "relative-json-pointer",
    "regex",
];

/// Keywords whose value is a schema or a list of schemas.
const OF_SCHEMAS: &[&str] = &[
    "items",
    "additionalItems",
    "prefixItems",
    "unevaluatedItems",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
];

/// Keywords whose value is an object of schemas.
const OF_NAMED_SCHEMAS: &[&str] =
    &["properties", "patternProperties", "dependentSchemas", "$defs", "definitions"];

/// Removes the keywords that restrict nothing from a schema and its parts.
pub(super) fn remove_annotations(schema: &mut Map<String, Value>) {
    schema.retain(|keyword, value| match keyword.as_str() {
        "const" | "default" | "examples" => true,
        "propertyNames" => !allows_every_name(value),
        "uniqueItems" => *value != false,
        "format" => value.as_str().is_none_or(|format| FORMATS.contains(&format)),
        _ => !value.is_null(),
    });
    for (keyword, value) in schema {
        match value {
            Value::Object(part) if OF_SCHEMAS.contains(&keyword.as_str()) => remove_annotations(part),
            Value::Array(parts) if OF_SCHEMAS.contains(&keyword.as_str()) => {
                parts.iter_mut().filter_map(Value::as_object_mut).for_each(remove_annotations);
            }
            Value::Object(parts) if OF_NAMED_SCHEMAS.contains(&keyword.as_str()) => {
                parts.values_mut().filter_map(Value::as_object_mut).for_each(remove_annotations);
            }
            _ => {}
        }
    }
}

/// Returns true if every string is valid under a schema of names.
fn allows_every_name(schema: &Value) -> bool {
    match schema {
        Value::Bool(allows) => *allows,
        Value::Object(fields) => fields.iter().all(|(key, value)| key == "type" && value == "string"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_keywords_without_effect_are_removed() {
        let check = |mut schema: Value, expect: Value| {
            remove_annotations(schema.as_object_mut().unwrap());
            assert_eq!(schema, expect);
        };
        let names = json!({"type": "string"});
        check(json!({"propertyNames": names, "uniqueItems": false, "properties": null}), json!({}));
        let secret = json!({"type": "string", "format": "password"});
        check(
            json!({"properties": {"a": secret, "format": true}, "items": [secret], "anyOf": [secret]}),
            json!({"properties": {"a": names, "format": true}, "items": [names], "anyOf": [names]}),
        );
        for kept in [
            json!({"propertyNames": {"type": "string", "maxLength": 3}}),
            json!({"propertyNames": false, "uniqueItems": true, "const": null}),
            json!({"type": "string", "format": "email"}),
            json!({"enum": [{"format": "password"}], "default": {"format": "password"}}),
        ] {
            check(kept.clone(), kept);
        }
    }
}
