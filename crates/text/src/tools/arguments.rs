//! Check of arguments against the schema of their tool.
//!
//! The check follows JSON Schema 2020-12, except that formats and keywords that it does not know allow everything. Its
//! work is bounded, since the schema comes from a client; what would exceed the bounds is not allowed.

use regex::RegexBuilder;
use serde_json::{Map, Value};

/// Maximum number of schemas that are applied to values, and maximum depth of their nesting.
const MAX_STEPS: usize = 100_000;
const MAX_DEPTH: usize = 128;

/// Maximum bytes of a compiled pattern.
const MAX_PATTERN: usize = 1 << 20;

/// Returns true if a schema allows a value.
pub(super) fn allows(schema: &Value, value: &Value) -> bool {
    SchemaCheck { root: schema, steps: 0, depth: 0 }.allows(schema, value)
}

/// Returns the schema to which a local reference points.
pub(super) fn referred<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    root.pointer(&percent_decoded(pointer)?)
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

struct SchemaCheck<'a> {
    root: &'a Value,
    steps: usize,
    depth: usize,
}

impl<'a> SchemaCheck<'a> {
    fn allows(&mut self, schema: &Value, value: &Value) -> bool {
        self.steps += 1;
        if self.steps > MAX_STEPS || self.depth > MAX_DEPTH {
            return false;
        }
        let fields = match schema {
            Value::Object(fields) => fields,
            other => return *other != false,
        };
        self.depth += 1;
        let is_allowed = self.all_keywords(fields, value);
        self.depth -= 1;
        // Nothing is allowed once the steps are used up, also not by `not`.
        is_allowed && self.steps <= MAX_STEPS
    }

    fn all_keywords(&mut self, schema: &Map<String, Value>, value: &Value) -> bool {
        schema.iter().all(|(keyword, rule)| self.combination(keyword, rule, schema, value))
            && schema.iter().all(|(keyword, rule)| match value {
                Value::Number(_) => number_rule(keyword, rule, value),
                Value::String(text) => text_rule(keyword, rule, text),
                Value::Array(items) => self.list_rule(keyword, rule, schema, items),
                Value::Object(fields) => self.object_rule(keyword, rule, schema, fields),
                Value::Null | Value::Bool(_) => true,
            })
    }

    /// Checks a keyword that applies to values of every type.
    fn combination(
        &mut self,
        keyword: &str,
        rule: &Value,
        schema: &Map<String, Value>,
        value: &Value,
    ) -> bool {
        let list = rule.as_array().map_or(&[][..], Vec::as_slice);
        match keyword {
            "type" => match rule {
                Value::String(name) => is_of_type(value, name),
                _ => {
                    list.is_empty()
                        || list.iter().filter_map(Value::as_str).any(|name| is_of_type(value, name))
                }
            },

            "enum" => list.iter().any(|one| is_equal(one, value)),
            "const" => is_equal(rule, value),
            "$ref" => {
                let root: &'a Value = self.root;
                let target = rule.as_str().and_then(|reference| referred(root, reference));
                target.is_none_or(|target| self.allows(target, value))
            }
            "allOf" => list.iter().all(|one| self.allows(one, value)),
            "anyOf" => list.is_empty() || list.iter().any(|one| self.allows(one, value)),
            "oneOf" => list.is_empty() || list.iter().filter(|one| self.allows(one, value)).count() == 1,
            "not" => !self.allows(rule, value),
            "if" => {
                let branch = if self.allows(rule, value) { "then" } else { "else" };
                schema.get(branch).is_none_or(|branch| self.allows(branch, value))
            }
            _ => true,
        }
    }

    fn list_rule(
        &mut self,
        keyword: &str,
        rule: &Value,
        schema: &Map<String, Value>,
        items: &[Value],
    ) -> bool {
        match keyword {
            "minItems" => count(rule).is_none_or(|least| items.len() as f64 >= least),
            "maxItems" => count(rule).is_none_or(|most| items.len() as f64 <= most),
            "uniqueItems" => *rule != true || self.are_unique(items),
            "prefixItems" => {
                let schemas = rule.as_array().map_or(&[][..], Vec::as_slice);
                schemas.iter().zip(items).all(|(schema, item)| self.allows(schema, item))
            }

            "items" => {
                let before = schema.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
                items.iter().skip(before).all(|item| self.allows(rule, item))
            }
            "contains" => {
                let matching = items.iter().filter(|item| self.allows(rule, item)).count() as f64;
                let least = schema.get("minContains").and_then(count).unwrap_or(1.0);
                let most = schema.get("maxContains").and_then(count).unwrap_or(f64::INFINITY);
                matching >= least && matching <= most
            }
            _ => true,
        }
    }

    fn are_unique(&mut self, items: &[Value]) -> bool {
        self.steps += items.len() * items.len() / 2;
        self.steps <= MAX_STEPS
            && items
                .iter()
                .enumerate()
                .all(|(at, item)| !items[..at].iter().any(|other| is_equal(other, item)))
    }

    fn object_rule(
        &mut self,
        keyword: &str,
        rule: &Value,
        schema: &Map<String, Value>,
        fields: &Map<String, Value>,
    ) -> bool {
        match keyword {
            "required" => {
                let mut names = rule.as_array().into_iter().flatten().filter_map(Value::as_str);
                names.all(|name| fields.contains_key(name))
            }
            "minProperties" => count(rule).is_none_or(|least| fields.len() as f64 >= least),
            "maxProperties" => count(rule).is_none_or(|most| fields.len() as f64 <= most),
            "propertyNames" => fields.keys().all(|name| self.allows(rule, &Value::from(name.as_str()))),
            "properties" => {
                let mut properties = rule.as_object().into_iter().flatten();
                properties
                    .all(|(name, schema)| fields.get(name).is_none_or(|value| self.allows(schema, value)))
            }

            "patternProperties" => rule.as_object().into_iter().flatten().all(|(pattern, schema)| {
                fields
                    .iter()
                    .filter(|(name, _)| matches(pattern, name))
                    .all(|(_, value)| self.allows(schema, value))
            }),
            "additionalProperties" => {
                let named = schema.get("properties").and_then(Value::as_object);
                let patterns = schema.get("patternProperties").and_then(Value::as_object);
                fields.iter().all(|(name, value)| {
                    named.is_some_and(|named| named.contains_key(name))
                        || patterns.is_some_and(|all| all.keys().any(|pattern| matches(pattern, name)))
                        || self.allows(rule, value)
                })
            }
            _ => true,
        }
    }
}

fn number_rule(keyword: &str, rule: &Value, value: &Value) -> bool {
    let (Some(bound), Some(number)) = (rule.as_f64(), value.as_f64()) else { return true };
    match keyword {
        "minimum" => number >= bound,
        "maximum" => number <= bound,
        "exclusiveMinimum" => number > bound,
        "exclusiveMaximum" => number < bound,
        "multipleOf" => {
            let quotient = number / bound;
            bound <= 0.0 || (quotient - quotient.round()).abs() <= 1e-9 * quotient.abs().max(1.0)
        }
        _ => true,
    }
}

fn text_rule(keyword: &str, rule: &Value, text: &str) -> bool {
    match keyword {
        "minLength" => count(rule).is_none_or(|least| text.chars().count() as f64 >= least),
        "maxLength" => count(rule).is_none_or(|most| text.chars().count() as f64 <= most),
        "pattern" => rule.as_str().is_none_or(|pattern| matches(pattern, text)),
        _ => true,
    }
}

/// Returns a number of characters, items or properties.
fn count(rule: &Value) -> Option<f64> {
    rule.as_f64()
}

/// Returns true if a text has a part that matches a pattern. A pattern that cannot be compiled allows every text.
fn matches(pattern: &str, text: &str) -> bool {
    let compiled = RegexBuilder::new(pattern).size_limit(MAX_PATTERN).build();
    compiled.map_or(true, |compiled| compiled.is_match(text))
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    }
}

/// Returns true if two values are equal. Numbers are compared by value: 1 equals 1.0.
fn is_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            a == b || a.is_f64() != b.is_f64() && a.as_f64() == b.as_f64()
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| is_equal(a, b)))
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_check_agrees_with_an_independent_validator() {
        let schemas = [
            json!(true),
            json!(false),
            json!({"type": "integer", "minimum": 1, "exclusiveMaximum": 3}),
            json!({"type": ["string", "null"], "maxLength": 2}),
            json!({"enum": ["a", 1, null, {"a": [1]}]}),
            json!({"const": 1.0}),
            json!({"type": "string", "pattern": "^a+$"}),
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 1, "uniqueItems": true}),
            json!({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}),
            json!({"contains": {"const": 1}, "maxContains": 1}),
            json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                "additionalProperties": false}),
            json!({"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": {"type": "string"}}),
            json!({"propertyNames": {"maxLength": 1}, "minProperties": 1, "maxProperties": 1}),
            json!({"anyOf": [{"type": "string"}, {"minimum": 2}]}),
            json!({"oneOf": [{"type": "integer"}, {"minimum": 2}]}),
            json!({"allOf": [{"type": "number"}, {"multipleOf": 0.1}]}),
            json!({"not": {"type": "string"}}),
            json!({"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"type": "integer"}}),
            json!({"$ref": "#/$defs/a~1%62", "$defs": {"a/b": {"type": "string"}}}),
            json!({"properties": {"a": {"$ref": "#"}}, "type": ["object", "integer"]}),
        ];
        let values = [
            json!(null),
            json!(true),
            json!(1),
            json!(1.0),
            json!(1.5),
            json!(0.3),
            json!(2),
            json!(3),
            json!(""),
            json!("a"),
            json!("aaé"),
            json!([]),
            json!([1]),
            json!([1, 1]),
            json!([1, 2.0]),
            json!(["a", 1]),
            json!({}),
            json!({"a": 1}),
            json!({"a": [1]}),
            json!({"a": {"a": 1}}),
            json!({"a": "b"}),
            json!({"x": 1, "y": "z"}),
            json!({"x": "1"}),
            json!({"long": 1}),
        ];
        for schema in &schemas {
            let validator = jsonschema::validator_for(schema).unwrap();
            for value in &values {
                assert_eq!(allows(schema, value), validator.is_valid(value), "{schema} {value}");
            }
        }
    }

    #[test]
    fn the_work_is_bounded() {
        let circle = json!({"$ref": "#"});
        assert!(!allows(&circle, &json!(1)));
        assert!(!allows(
            &json!({"$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}),
            &json!(1)
        ));
        let mut wide = json!({"type": "integer"});
        for _ in 0..40 {
            wide = json!({"anyOf": [{"allOf": [wide, false]}, {"type": "integer"}]});
        }
        assert!(allows(&wide, &json!(1)));
        let doubled = json!({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}});
        assert!(!allows(&doubled, &json!(1)));
        let long = Value::from((0..5000).map(Value::from).collect::<Vec<_>>());
        assert!(!allows(&json!({"uniqueItems": true}), &long));
        assert!(allows(&json!({"pattern": "(a{1000}){1000}"}), &json!("b")));
    }
}
