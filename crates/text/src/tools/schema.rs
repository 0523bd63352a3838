//! Schemas of arguments that are written one by one, such as keyword arguments.

use serde_json::{Map, Value, json};

use super::arguments::referred;

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

/// Maximum depth of references and combinations that are replaced by their content.
const MAX_DEPTH: usize = 16;

/// A property of an object's schema.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Parameter {
    pub(super) name: String,
    /// Its schema without references and `allOf` of its own, with the definitions to which its parts may refer.
    pub(super) schema: Value,
    pub(super) is_required: bool,
}

/// Returns the properties of an object's schema, in order.
///
/// # Errors
/// The name of a keyword that restricts the object in another way.
pub(super) fn parameters(schema: &Value) -> Result<Vec<Parameter>, String> {
    if !schema.is_object() {
        return Ok(Vec::new());
    }
    let object = flattened(schema, schema)?;
    if let Some(keyword) = object.keys().find(|key| !PLAIN.contains(&key.as_str())) {
        return Err(keyword.clone());
    }
    if object.get("type").is_some_and(|kind| kind != "object") {
        return Err("type".to_owned());
    }

    let properties = object.get("properties").and_then(Value::as_object);
    let required = object.get("required").and_then(Value::as_array).into_iter().flatten();
    let required: Vec<&str> = required.filter_map(Value::as_str).collect();
    let are_listed =
        required.iter().all(|name| properties.is_some_and(|properties| properties.contains_key(*name)));
    if !are_listed {
        return Err("required".to_owned());
    }
    let properties = properties.into_iter().flatten();
    properties
        .map(|(name, property)| {
            let is_required = required.contains(&name.as_str());
            Ok(Parameter { name: name.clone(), schema: with_definitions(property, schema)?, is_required })
        })
        .collect()
}

/// Returns a property's schema with the definitions of the object's schema.
fn with_definitions(property: &Value, root: &Value) -> Result<Value, String> {
    check_references(property)?;
    let mut fields = flattened(property, root)?;
    for keyword in DEFINITIONS {
        if let Some(definitions) = root.get(keyword) {
            if property.get(keyword).is_some() {
                return Err(keyword.to_owned());
            }
            check_references(definitions)?;
            fields.insert(keyword.to_owned(), definitions.clone());
        }
    }
    Ok(Value::Object(fields))
}

/// Returns a schema whose own reference and `allOf` are replaced by their content. References in its parts remain.
///
/// # Errors
/// The name of a keyword that cannot be joined.
pub(super) fn flattened(schema: &Value, root: &Value) -> Result<Map<String, Value>, String> {
    flattened_to(schema, root, MAX_DEPTH)
}

fn flattened_to(schema: &Value, root: &Value, depth: usize) -> Result<Map<String, Value>, String> {
    let mut fields = match schema {
        Value::Object(fields) => fields.clone(),
        Value::Bool(true) => Map::new(),
        _ => return Err("false".to_owned()),
    };
    let mut parts = Vec::new();
    if let Some(reference) = fields.shift_remove("$ref") {
        let target = reference.as_str().and_then(|reference| referred(root, reference));
        parts.push(target.ok_or("$ref")?);
    }
    let all = fields.shift_remove("allOf");
    parts.extend(all.as_ref().and_then(Value::as_array).into_iter().flatten());
    for part in parts {
        let depth = depth.checked_sub(1).ok_or("$ref")?;
        for (keyword, value) in flattened_to(part, root, depth)? {
            let joined = match fields.get(&keyword) {
                Some(other) => joined(&keyword, other, &value).ok_or_else(|| keyword.clone())?,
                None => value,
            };
            fields.insert(keyword, joined);
        }
    }
    Ok(fields)
}

/// Returns the value of a keyword that has the effect of two together; `None` if no value has it.
fn joined(keyword: &str, a: &Value, b: &Value) -> Option<Value> {
    match keyword {
        _ if a == b => Some(a.clone()),
        "title" | "description" | "default" | "examples" | "example" | "$comment" | "$schema" | "$id"
        | "$defs" | "definitions" | "strict" => Some(a.clone()),
        "minLength" | "minimum" | "minItems" => Some(if a.as_f64()? >= b.as_f64()? { a } else { b }.clone()),
        "maxLength" | "maximum" | "maxItems" => Some(if a.as_f64()? <= b.as_f64()? { a } else { b }.clone()),
        "required" => {
            let mut names = a.as_array()?.clone();
            names.extend(
                b.as_array()?
                    .iter()
                    .filter(|name| !a.as_array().is_some_and(|all| all.contains(name)))
                    .cloned(),
            );
            Some(names.into())
        }

        "enum" => {
            let both =
                a.as_array()?.iter().filter(|value| b.as_array().is_some_and(|all| all.contains(value)));
            Some(both.cloned().collect::<Vec<_>>().into())
        }
        "properties" => {
            let mut properties = a.as_object()?.clone();
            for (name, property) in b.as_object()? {
                let both = properties.get(name).map(|other| json!({"allOf": [other, property]}));
                properties.insert(name.clone(), both.unwrap_or_else(|| property.clone()));
            }
            Some(properties.into())
        }
        "type" => match (a.as_str(), b.as_str()) {
            (Some("number"), Some("integer")) | (Some("integer"), Some("number")) => Some("integer".into()),
            _ => None,
        },
        _ => None,
    }
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
        match (&schema["type"], &schema["const"], &schema["enum"]) {
            (name @ Value::String(_), _, _) => Self::of_strings(name == "string"),
            (Value::Array(names), _, _) => {
                Self::joined(names.iter().map(|name| Self::of_strings(name == "string")))
            }
            (_, value, _) if schema.get("const").is_some() => Self::of_strings(value.is_string()),
            (_, _, Value::Array(values)) => {
                Self::joined(values.iter().map(|value| Self::of_strings(value.is_string())))
            }
            _ => {
                let alternatives = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
                alternatives.map_or(Self::Mixed, |all| Self::joined(all.iter().map(Self::of)))
            }
        }
    }

    fn of_strings(are_strings: bool) -> Self {
        if are_strings { Self::Strings } else { Self::Others }
    }

    fn joined(kinds: impl Iterator<Item = Self>) -> Self {
        kinds.reduce(|a, b| if a == b { a } else { Self::Mixed }).unwrap_or(Self::Mixed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_taken_apart_only_if_nothing_else_binds_them() {
        let check = |schema: Value, expect: Result<&[(&str, bool)], &str>| {
            let found = parameters(&schema);
            let names = found.as_ref().map(|found| {
                found.iter().map(|one| (one.name.as_str(), one.is_required)).collect::<Vec<_>>()
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
        assert_eq!(found[0].schema, json!({"type": "null", "$defs": {"x": {"type": "null"}}}));
    }

    #[test]
    fn references_and_combinations_are_replaced_by_their_content() {
        let check = |schema: Value, expect: Result<Value, &str>| {
            let found = flattened(&schema, &schema).map(|mut fields| {
                fields.shift_remove("$defs");
                Value::from(fields)
            });
            assert_eq!(
                found.as_ref().map_err(String::as_str),
                expect.as_ref().map_err(|keyword| *keyword),
                "{schema}"
            );
        };
        let definitions = json!({
            "a/b": {"type": "string", "maxLength": 5},
            "c": {"allOf": [{"$ref": "#/$defs/a~1b"}, {"maxLength": 9, "minLength": 1}]},
            "loop": {"$ref": "#/$defs/loop"},
        });
        check(
            json!({"$ref": "#/$defs/a~1b", "$defs": definitions}),
            Ok(json!({"type": "string", "maxLength": 5})),
        );
        check(
            json!({"$ref": "#/$defs/c", "maxLength": 4, "$defs": definitions}),
            Ok(json!({"maxLength": 4, "type": "string", "minLength": 1})),
        );
        check(json!({"$ref": "#/$defs/loop", "$defs": definitions}), Err("$ref"));
        check(json!({"$ref": "#/$defs/none", "$defs": definitions}), Err("$ref"));
        check(json!({"allOf": [{"type": "string"}, {"type": "integer"}]}), Err("type"));
        check(
            json!({"allOf": [
                {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"a": {"minimum": 1}, "b": true}, "required": ["b", "a"]},
            ]}),
            Ok(json!({
                "properties": {"a": {"allOf": [{"type": "integer"}, {"minimum": 1}]}, "b": true},
                "required": ["a", "b"],
            })),
        );
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
