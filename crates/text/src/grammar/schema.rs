//! Preparation of JSON schemas (JSON Schema 2020-12): keywords that restrict nothing, which the compiler would refuse, and
//! objects that name their properties.

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

/// Keywords that combine schemas for one value.
const COMBINING: &[&str] = &["oneOf", "not", "if", "dependentSchemas"];

/// Keywords that say which properties an object may or must have beside those that it names.
const OF_FURTHER_PROPERTIES: &[&str] =
    &["additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "minProperties"];

/// Removes the keywords that restrict nothing from a schema and its parts.
pub(super) fn remove_annotations(schema: &mut Map<String, Value>) {
    schema.retain(|keyword, value| match keyword.as_str() {
        "const" | "default" | "examples" => true,
        "propertyNames" => !allows_every_name(value),
        "uniqueItems" => *value != false,
        "format" => value.as_str().is_none_or(|format| FORMATS.contains(&format)),
        _ => !value.is_null(),
    });
    parts(schema).into_iter().for_each(remove_annotations);
}

/// Adds `additionalProperties: false` to objects that list their properties and have no keyword for others. Without it, a
/// small model adds properties until its answer is cut off, and functions take only the arguments that they list. Every
/// value that is valid afterwards is valid under the original schema. A schema that combines schemas for one value is not
/// changed, because a closed schema could exclude a property that another one requires.
pub(super) fn close_objects(schema: &mut Map<String, Value>) {
    if !combines(schema) {
        close(schema);
    }
}

fn close(schema: &mut Map<String, Value>) {
    let has_keyword = OF_FURTHER_PROPERTIES.iter().any(|keyword| schema.contains_key(*keyword));
    if !has_keyword && lists_properties(schema) {
        schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    parts(schema).into_iter().for_each(close);
}

/// Returns true if a schema lists properties, among them all that it requires.
fn lists_properties(schema: &Map<String, Value>) -> bool {
    let Some(Value::Object(listed)) = schema.get("properties") else { return false };
    let mut required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    !listed.is_empty() && required.all(|name| name.as_str().is_some_and(|name| listed.contains_key(name)))
}

/// Returns true if a schema or one of its parts combines several schemas for one value.
fn combines(schema: &mut Map<String, Value>) -> bool {
    let has = |keyword: &str| schema.contains_key(keyword);
    let joins = schema.get("allOf").and_then(Value::as_array).is_some_and(|all| all.len() > 1);
    let of_properties =
        ["properties", "required"].iter().chain(OF_FURTHER_PROPERTIES).any(|keyword| has(keyword));
    let refines = of_properties && ["allOf", "anyOf", "$ref", "enum", "const"].into_iter().any(has);
    COMBINING.iter().any(|keyword| has(keyword))
        || joins
        || refines
        || parts(schema).into_iter().any(combines)
}

/// Returns the schemas that a schema consists of.
fn parts(schema: &mut Map<String, Value>) -> Vec<&mut Map<String, Value>> {
    let mut parts = Vec::new();
    for (keyword, value) in schema {
        let has_schemas = OF_SCHEMAS.contains(&keyword.as_str());
        let has_named_schemas = OF_NAMED_SCHEMAS.contains(&keyword.as_str());
        match value {
            Value::Array(all) if has_schemas => parts.extend(all.iter_mut().filter_map(Value::as_object_mut)),
            Value::Object(object) => {
                if has_schemas {
                    parts.push(object);
                } else if has_named_schemas {
                    parts.extend(object.values_mut().filter_map(Value::as_object_mut));
                }
            }
            _ => {}
        }
    }
    parts
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
    fn objects_that_name_their_properties_are_closed() {
        let check = |mut schema: Value, expect: Value| {
            close_objects(schema.as_object_mut().unwrap());
            assert_eq!(schema, expect);
        };
        let open = json!({"type": "object", "properties": {"a": {}}, "required": ["a"]});
        let mut closed = open.clone();
        closed["additionalProperties"] = json!(false);
        check(open.clone(), closed.clone());
        check(
            json!({"$defs": {"a": open}, "anyOf": [open, {"$ref": "#/$defs/a"}], "items": {"allOf": [open]}}),
            json!({"$defs": {"a": closed}, "anyOf": [closed, {"$ref": "#/$defs/a"}], "items": {"allOf": [closed]}}),
        );
        for kept in [
            json!({"type": "object"}),
            json!({"type": "object", "properties": {}}),
            json!({"properties": {"a": {}}, "required": ["b"]}),
            json!({"properties": {"a": {}}, "additionalProperties": true}),
            json!({"properties": {"a": {}}, "patternProperties": {"^x": {}}}),
            json!({"properties": {"a": {}}, "minProperties": 2}),
            json!({"properties": {"a": {}}, "anyOf": [{"required": ["b"]}]}),
            json!({"properties": {"a": {}}, "$ref": "#/$defs/b", "$defs": {"b": {"required": ["b"]}}}),
            json!({"required": ["b"], "anyOf": [open, {"properties": {"b": {}}}]}),
            json!({"allOf": [open, {"properties": {"b": {}}}]}),
            json!({"oneOf": [open, {"properties": {"a": {}, "b": {}}}]}),
            json!({"not": open}),
            json!({"items": open, "if": {}}),
            json!({"const": open, "default": open, "enum": [open]}),
        ] {
            check(kept.clone(), kept);
        }
    }

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
