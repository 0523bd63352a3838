//! Schemas of arguments that are written one by one, such as keyword arguments.

use serde_json::{Map, Value};

/// Keywords that restrict an object only through its properties.
const PLAIN: &[&str] = &[
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "title",
    "description",
    "default",
    "examples",
    "example",
    "$comment",
    "strict",
];

/// Keywords that contain the schemas for references.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// A property of an object's schema.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Parameter<'a> {
    pub(super) name: &'a str,
    /// Its schema, with the definitions to which it may refer.
    pub(super) schema: Value,
    pub(super) is_required: bool,
}

/// Returns the properties of an object's schema, in order.
///
/// # Errors
/// The name of a keyword that restricts the object in another way.
pub(super) fn parameters(schema: &Value) -> Result<Vec<Parameter<'_>>, String> {
    let Some(object) = schema.as_object() else { return Ok(Vec::new()) };
    if let Some(keyword) = object.keys().find(|key| !PLAIN.contains(&key.as_str())) {
        return Err(keyword.clone());
    }
    if schema["type"] != "object" && object.contains_key("type") {
        return Err("type".to_owned());
    }
    let properties = schema["properties"].as_object();
    let has_property = |name: &str| properties.is_some_and(|properties| properties.contains_key(name));
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !required.iter().all(|name| has_property(name)) {
        return Err("required".to_owned());
    }
    let properties = properties.into_iter().flatten();
    properties
        .map(|(name, property)| {
            let is_required = required.contains(&name.as_str());
            Ok(Parameter { name, schema: with_definitions(property, object)?, is_required })
        })
        .collect()
}

/// Returns a property's schema with the definitions of the object's schema.
fn with_definitions(property: &Value, object: &Map<String, Value>) -> Result<Value, String> {
    check_references(property)?;
    let mut property = if *property == true { Value::Object(Map::new()) } else { property.clone() };
    for keyword in DEFINITIONS {
        if let (Some(definitions), Some(fields)) = (object.get(keyword), property.as_object_mut()) {
            if fields.contains_key(keyword) {
                return Err(keyword.to_owned());
            }
            check_references(definitions)?;
            fields.insert(keyword.to_owned(), definitions.clone());
        }
    }
    Ok(property)
}

/// Refuses references to anything but the definitions.
fn check_references(schema: &Value) -> Result<(), String> {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(target)) = fields.get("$ref")
                && !DEFINITIONS.iter().any(|keyword| target.starts_with(&format!("#/{keyword}/")))
            {
                return Err("$ref".to_owned());
            }
            fields.values().try_for_each(check_references)
        }
        Value::Array(items) => items.iter().try_for_each(check_references),
        _ => Ok(()),
    }
}

/// Types of the values that a schema allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueKinds {
    /// Only strings.
    Strings,
    /// No strings.
    Others,
    /// Strings and others.
    Mixed,
}

impl ValueKinds {
    /// Determines the types from the `type`, `enum`, `const` and alternatives of a schema.
    pub(super) fn of(schema: &Value) -> Self {
        let of_type = |name: &Value| if name == "string" { Self::Strings } else { Self::Others };
        let of_value = |value: &Value| if value.is_string() { Self::Strings } else { Self::Others };
        match (&schema["type"], &schema["const"], &schema["enum"]) {
            (name @ Value::String(_), _, _) => of_type(name),
            (Value::Array(names), _, _) => Self::joined(names.iter().map(of_type)),
            (_, value, _) if schema.get("const").is_some() => of_value(value),
            (_, _, Value::Array(values)) => Self::joined(values.iter().map(of_value)),
            _ => {
                let alternatives = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
                alternatives.map_or(Self::Mixed, |all| Self::joined(all.iter().map(Self::of)))
            }
        }
    }

    fn joined(kinds: impl Iterator<Item = Self>) -> Self {
        kinds.reduce(|a, b| if a == b { a } else { Self::Mixed }).unwrap_or(Self::Mixed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn properties_are_taken_apart_only_if_nothing_else_binds_them() {
        let check = |schema: Value, expect: Result<&[(&str, bool)], &str>| {
            let found = parameters(&schema);
            let names = found.as_ref().map(|found| {
                found.iter().map(|parameter| (parameter.name, parameter.is_required)).collect::<Vec<_>>()
            });
            assert_eq!(names.as_deref().map_err(|keyword| keyword.as_str()), expect, "{schema}");
        };
        check(json!({}), Ok(&[]));
        let both = json!({"a": {"type": "string"}, "b": true});
        let expect: &[(&str, bool)] = &[("a", false), ("b", true)];
        check(json!({"type": "object", "properties": both, "required": ["b"]}), Ok(expect));
        check(json!({"properties": both, "minProperties": 1}), Err("minProperties"));
        check(json!({"properties": both, "required": ["c"]}), Err("required"));
        check(json!({"properties": {"a": {"items": {"$ref": "#"}}}}), Err("$ref"));
        let schema = json!({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "null"}}});
        let found = parameters(&schema).unwrap();
        assert_eq!(found[0].schema, json!({"$ref": "#/$defs/x", "$defs": {"x": {"type": "null"}}}));
    }

    #[test]
    fn kinds_of_values_are_known() {
        let check = |schema: Value, expect| assert_eq!(ValueKinds::of(&schema), expect, "{schema}");
        check(json!({"type": "string"}), ValueKinds::Strings);
        check(json!({"enum": ["a", "b"]}), ValueKinds::Strings);
        check(json!({"type": "integer", "enum": [1]}), ValueKinds::Others);
        check(json!({"anyOf": [{"type": "integer"}, {"const": null}]}), ValueKinds::Others);
        check(json!({"type": ["string", "null"]}), ValueKinds::Mixed);
        check(json!({}), ValueKinds::Mixed);
    }
}
