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

/// Replaces the patterns that pydantic writes for decimal numbers. They have look-around, which the compiler does not support.
pub(super) fn replace_decimal_patterns(schema: &mut Map<String, Value>) {
    if let Some(pattern) = schema.get_mut("pattern")
        && let Some(replaced) = pattern.as_str().and_then(decimal_pattern)
    {
        *pattern = replaced.into();
    }
    parts(schema).into_iter().for_each(replace_decimal_patterns);
}

/// Returns a pattern without look-around for the numbers of a pattern of pydantic: any decimal number, or one with a maximum
/// number of digits before and after the point. Leading and trailing zeros do not count.
fn decimal_pattern(pattern: &str) -> Option<String> {
    // The first group excludes numbers without digits.
    let digits = pattern.strip_prefix(r"^(?!^[-+.]*$)[+-]?0*")?;
    if digits == r"\d*\.?\d*$" {
        return Some(r"^[+-]?(\d+\.?\d*|\.\d+)$".to_owned());
    }
    if let Some(places) = digits.strip_prefix(r"\d*\.?\d{0,").and_then(|rest| rest.strip_suffix("}0*$")) {
        let places = count(places)?;
        return Some(format!(r"^[+-]?(\d+(\.\d{{0,{places}}}0*)?|\.\d{{1,{places}}}0*)$"));
    }
    let (whole, rest) = digits.strip_prefix(r"(?:\d{0,")?.split_once(r"}|(?=[\d.]{1,")?;
    let (length, rest) = rest.split_once(r"}0*$)\d{0,")?;
    let (again, places) = rest.split_once(r"}\.\d{0,")?;
    let whole = count(whole)?;
    let again = count(again)?;
    let length = count(length)?;
    let places = count(places.strip_suffix("}0*$)")?)?;
    // The look-ahead limits the length of a number whose two parts may be longer together.
    let is_redundant = whole == again && whole.checked_add(places)? < length;
    is_redundant.then(|| {
        format!(r"^[+-]?((0+\d{{0,{whole}}}|\d{{1,{whole}}})(\.\d{{0,{places}}}0*)?|\.\d{{1,{places}}}0*)$")
    })
}

/// Returns a number of digits above 0.
fn count(text: &str) -> Option<u32> {
    text.parse().ok().filter(|count| *count > 0)
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
pub(super) fn parts(schema: &mut Map<String, Value>) -> Vec<&mut Map<String, Value>> {
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
    fn patterns_of_decimal_numbers_are_replaced() {
        let replaced = |pattern: &str| {
            let mut schema = json!({"anyOf": [{"type": "number"}, {"type": "string", "pattern": pattern}]});
            replace_decimal_patterns(schema.as_object_mut().unwrap());
            schema["anyOf"][1]["pattern"].as_str().unwrap().to_owned()
        };
        let numbers = [
            "", "-", ".", "+.", "0", "12", "-12.", ".5", "1.25", "123.4", "1.2500", "007.1", "1e3",
            "1234567", "0.001",
        ];
        for pattern in [
            r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$",
            r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d{0,2}0*$",
            r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,3}|(?=[\d.]{1,6}0*$)\d{0,3}\.\d{0,2}0*$)",
        ] {
            let found = replaced(pattern);
            assert!(!found.contains("(?"), "{found}");
            // The last pattern has no end in its first alternative. Its replacement has.
            let original = pattern.replace("}|(?=", "}$|(?=");
            let [original, found] = [original, found]
                .map(|pattern| jsonschema::validator_for(&json!({"pattern": pattern})).unwrap());
            for number in numbers {
                let number = json!(number);
                assert_eq!(found.is_valid(&number), original.is_valid(&number), "{number} {pattern}");
            }
        }
        for kept in [r"^(?!a)b$", r"^(?!^[-+.]*$)[+-]?0*\d*x$", "^[0-9]+$"] {
            assert_eq!(replaced(kept), kept);
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
