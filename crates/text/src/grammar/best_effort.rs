//! Schemas without the keywords that cannot be enforced, for clients that do not ask for a guarantee.

use serde_json::{Map, Value, json};

use super::{
    numbers::{self, decimal_of},
    refusal::{SCHEMA_CLASSES, expression_error},
    schema::parts,
};

/// Keywords that cannot be enforced.
const NOT_ENFORCED: &[&str] = &[
    "uniqueItems",
    "propertyNames",
    "not",
    "contains",
    "minContains",
    "maxContains",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
];

/// Formats that can be enforced.
const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"];

/// Keywords for the size of numbers.
const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];

/// Returns a schema without the keywords and values that cannot be enforced. `oneOf` becomes `anyOf`.
pub fn best_effort(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Value::Object(fields) = &mut schema {
        relax(fields);
    }
    schema
}

fn relax(schema: &mut Map<String, Value>) {
    schema.retain(|keyword, value| match keyword.as_str() {
        "format" => value.as_str().is_none_or(|format| FORMATS.contains(&format)),
        "pattern" => value.as_str().is_none_or(can_be_followed),
        "multipleOf" => decimal_of(value).is_ok(),
        keyword => !NOT_ENFORCED.contains(&keyword),
    });
    if let Some(Value::Object(patterns)) = schema.get_mut("patternProperties") {
        patterns.retain(|pattern, _| can_be_followed(pattern));
    }
    for keywords in [&BOUNDS[..], &["const"], &["enum"]] {
        let fields = keywords.iter().chain(&["type"]);
        let fields =
            fields.filter_map(|keyword| Some(((*keyword).to_owned(), schema.get(*keyword)?.clone())));
        if numbers::make_exact(&mut fields.collect()).is_err() {
            keywords.iter().for_each(|keyword| _ = schema.shift_remove(*keyword));
        }
    }

    if !allows_limits_on_properties(schema) {
        schema.shift_remove("minProperties");
        schema.shift_remove("maxProperties");
    }
    if let Some(alternatives) = schema.shift_remove("oneOf") {
        if schema.contains_key("anyOf") {
            let all = schema.entry("allOf").or_insert_with(|| json!([]));
            if let Some(all) = all.as_array_mut() {
                all.push(json!({"anyOf": alternatives}));
            }
        } else {
            schema.insert("anyOf".to_owned(), alternatives);
        }
    }
    parts(schema).into_iter().for_each(relax);
}

fn can_be_followed(pattern: &str) -> bool {
    expression_error(pattern, SCHEMA_CLASSES).is_none()
}

/// Returns true if all properties that a schema lists are required, which the limits on their number need.
fn allows_limits_on_properties(schema: &Map<String, Value>) -> bool {
    let Some(Value::Object(properties)) = schema.get("properties") else { return true };
    let required: Vec<&Value> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().collect();
    properties.keys().all(|name| required.iter().any(|required| *required == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_that_cannot_be_enforced_are_left_out() {
        let check = |schema: Value, expect: Value| assert_eq!(best_effort(&schema), expect, "{schema}");
        check(
            json!({"type": "array", "uniqueItems": true, "items": {"type": "string", "format": "uri-reference"}}),
            json!({"type": "array", "items": {"type": "string"}}),
        );
        check(
            json!({"type": "object", "propertyNames": {"pattern": "^a"}, "unevaluatedProperties": false}),
            json!({"type": "object"}),
        );
        check(
            json!({"oneOf": [{"minimum": 1}, {"maximum": 5}]}),
            json!({"anyOf": [{"minimum": 1}, {"maximum": 5}]}),
        );
        check(
            json!({"anyOf": [{}], "oneOf": [{"const": 1}]}),
            json!({"anyOf": [{}], "allOf": [{"anyOf": [{"const": 1}]}]}),
        );
        check(json!({"type": "string", "pattern": "(?<=a)b"}), json!({"type": "string"}));
        check(json!({"type": "number", "multipleOf": 0.07, "minimum": 1e20}), json!({"type": "number"}));
        check(json!({"type": "integer", "enum": [i64::MAX]}), json!({"type": "integer"}));
        check(
            json!({"properties": {"a": {}}, "minProperties": 1, "patternProperties": {"(?=a)": {}, "b": {}}}),
            json!({"properties": {"a": {}}, "patternProperties": {"b": {}}}),
        );
        let enforced = json!({"type": "object", "properties": {"a": {"format": "date"}}, "required": ["a"], "maxProperties": 1});
        check(enforced.clone(), enforced);
    }
}
