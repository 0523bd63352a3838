//! Size of the grammar that the compiler makes of a JSON schema.
//!
//! The compiler intersects the schemas of `allOf`, and a schema with the keywords beside it, alternative by alternative.
//! References in them are resolved each time, so a few bytes can describe gigabytes. The size is estimated from above
//! before the schema is compiled.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::schema::{OF_NAMED_SCHEMAS, OF_SCHEMAS};

/// Number of bytes of a schema without keywords.
const SCHEMA: usize = 64;

/// Number of bytes of a regular expression, a format or a literal, in addition to its length.
const EXPRESSION: usize = 1 << 10;

/// Maximum number of references inside each other.
const MAX_DEPTH: usize = 64;

/// Keywords that restrict nothing, so that they need no intersection.
const ANNOTATIONS: &[&str] = &[
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$schema",
    "$id",
    "$defs",
    "definitions",
];

/// Returns an upper bound on the bytes of the grammar that the compiler makes of a schema.
pub(super) fn bytes(schema: &Map<String, Value>) -> usize {
    let mut sizes = ResolvedSchemas { root: schema, of_references: BTreeMap::new(), depth: 0 };
    sizes.of_object(schema, Use::Alone).bytes
}

/// Size of a part of the grammar.
#[derive(Debug, Clone, Copy)]
struct GrammarSize {
    /// Number of its alternatives, or of its properties.
    parts: usize,
    /// Number of bytes of all parts.
    bytes: usize,
}

impl GrammarSize {
    const LEAF: Self = Self { parts: 1, bytes: SCHEMA };
    const UNLIMITED: Self = Self { parts: usize::MAX, bytes: usize::MAX };

    /// Returns the size of an intersection, which has each pair of parts.
    fn and(self, other: Self) -> Self {
        let bytes = |one: Self, other: Self| one.bytes.saturating_mul(other.parts);
        Self {
            parts: self.parts.saturating_mul(other.parts),
            bytes: bytes(self, other).saturating_add(bytes(other, self)),
        }
    }

    /// Returns the size of one or the other.
    fn or(self, other: Self) -> Self {
        Self { parts: self.parts.saturating_add(other.parts), bytes: self.bytes.saturating_add(other.bytes) }
    }
}

/// Use of a schema by the compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    /// By itself. A reference remains one.
    Alone,
    /// In an intersection, which resolves its references.
    Intersected,
}

/// A schema whose references are resolved, each once.
struct ResolvedSchemas<'a> {
    root: &'a Map<String, Value>,
    /// ResolvedSchemas of references in intersections; `None` while one is computed.
    of_references: BTreeMap<&'a str, Option<GrammarSize>>,
    depth: usize,
}

impl<'a> ResolvedSchemas<'a> {
    fn of(&mut self, schema: &'a Value, used: Use) -> GrammarSize {
        schema.as_object().map_or(GrammarSize::LEAF, |schema| self.of_object(schema, used))
    }

    fn of_object(&mut self, schema: &'a Map<String, Value>, used: Use) -> GrammarSize {
        let restricts = |keyword: &&String| !ANNOTATIONS.contains(&keyword.as_str());
        let combined = |keyword: &str| matches!(keyword, "allOf" | "anyOf" | "oneOf" | "$ref");
        let all_of = schema.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
        let is_intersection = schema.keys().filter(restricts).count() > 1 || all_of > 1;
        let is_combined = schema.keys().any(|keyword| combined(keyword));
        let used = if is_combined && is_intersection { Use::Intersected } else { used };
        let mut size = GrammarSize::LEAF;
        let mut others: Vec<GrammarSize> = Vec::new();
        for (keyword, value) in schema {
            match (keyword.as_str(), value) {
                ("$ref", Value::String(reference)) => others.push(self.of_reference(reference, used)),
                ("allOf", Value::Array(schemas)) => {
                    let schemas: Vec<GrammarSize> =
                        schemas.iter().map(|schema| self.of(schema, used)).collect();
                    others.extend(schemas);
                }
                ("anyOf" | "oneOf", Value::Array(schemas)) => {
                    let schemas = schemas.iter().map(|schema| self.of(schema, used));
                    others.extend(schemas.reduce(GrammarSize::or));
                }
                ("$defs" | "definitions", _) => {}
                _ => {
                    let own = self.of_keyword(keyword, value, used);
                    size = GrammarSize {
                        parts: size.parts.max(own.parts),
                        bytes: size.bytes.saturating_add(own.bytes),
                    };
                }
            }
        }
        others.into_iter().fold(size, |size, other| if is_intersection { size.and(other) } else { other })
    }

    /// Returns the size of a keyword that combines no schemas.
    fn of_keyword(&mut self, keyword: &str, value: &'a Value, used: Use) -> GrammarSize {
        let sum = |sizes: Vec<GrammarSize>, parts: usize| {
            let bytes = sizes.iter().fold(0usize, |bytes, size| bytes.saturating_add(size.bytes));
            GrammarSize { parts: sizes.iter().fold(parts, |parts, size| parts.max(size.parts)), bytes }
        };
        match (keyword, value) {
            ("pattern" | "format", Value::String(text)) => {
                GrammarSize { parts: 1, bytes: EXPRESSION + text.len() }
            }
            ("enum", Value::Array(values)) => {
                let length: usize = values.iter().map(|value| value.to_string().len()).sum();
                GrammarSize { parts: values.len().max(1), bytes: values.len() * EXPRESSION + length }
            }
            ("const", value) => GrammarSize { parts: 1, bytes: EXPRESSION + value.to_string().len() },
            (keyword, Value::Object(schemas)) if OF_NAMED_SCHEMAS.contains(&keyword) => {
                let sizes: Vec<GrammarSize> = schemas
                    .iter()
                    .map(|(name, schema)| {
                        let size = self.of(schema, used);
                        GrammarSize { bytes: size.bytes.saturating_add(SCHEMA + name.len()), ..size }
                    })
                    .collect();
                let parts = sizes.len().max(1);
                sum(sizes, parts)
            }
            (keyword, Value::Array(schemas)) if OF_SCHEMAS.contains(&keyword) => {
                let sizes: Vec<GrammarSize> = schemas.iter().map(|schema| self.of(schema, used)).collect();
                let parts = sizes.len().max(1);
                sum(sizes, parts)
            }
            (keyword, schema) if OF_SCHEMAS.contains(&keyword) => self.of(schema, used),
            _ => GrammarSize { parts: 1, bytes: 0 },
        }
    }

    /// Returns the size of a reference.
    fn of_reference(&mut self, reference: &'a str, used: Use) -> GrammarSize {
        if used == Use::Alone {
            return GrammarSize::LEAF;
        }
        if let Some(known) = self.of_references.get(reference) {
            // A reference to itself remains one.
            return known.unwrap_or(GrammarSize::LEAF);
        }
        if self.depth >= MAX_DEPTH {
            return GrammarSize::UNLIMITED;
        }
        let Some(schema) = self.target(reference) else { return GrammarSize::LEAF };
        self.of_references.insert(reference, None);
        self.depth += 1;
        let size = self.of_object(schema, Use::Intersected);
        self.depth -= 1;
        self.of_references.insert(reference, Some(size));
        size
    }

    /// Returns the schema that a reference to the same document names.
    fn target(&self, reference: &str) -> Option<&'a Map<String, Value>> {
        let pointer = reference.strip_prefix('#')?;
        let mut parts = pointer.split('/');
        let mut found = self.root;
        parts.next().filter(|first| first.is_empty())?;
        let mut parts = parts.peekable();
        while let Some(part) = parts.next() {
            let name = part.replace("~1", "/").replace("~0", "~");
            let value = found.get(&name)?;
            match value {
                Value::Object(fields) => found = fields,
                // An element of a list of schemas.
                Value::Array(elements) => {
                    found = elements.get(parts.next()?.parse::<usize>().ok()?)?.as_object()?
                }
                _ => return None,
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn size(schema: &Value) -> usize {
        bytes(schema.as_object().unwrap())
    }

    /// Returns a schema whose definitions each intersect the one before with itself.
    fn doubling(levels: usize) -> Value {
        let mut defs = Map::new();
        defs.insert("a0".to_owned(), json!({"type": "string", "pattern": "^[a-z]+$"}));
        for level in 1..=levels {
            let before = json!({"$ref": format!("#/$defs/a{}", level - 1)});
            defs.insert(format!("a{level}"), json!({"allOf": [before, before]}));
        }
        let last = json!({"$ref": format!("#/$defs/a{levels}")});
        json!({"type": "object", "properties": {"v": {"allOf": [last, last]}}, "$defs": defs})
    }

    #[test]
    fn intersections_multiply_and_references_do_not() {
        assert!(size(&doubling(20)) > 1 << 30);
        assert!(size(&doubling(3)) < 64 << 10, "{}", size(&doubling(3)));
        assert_eq!(size(&doubling(MAX_DEPTH + 1)), usize::MAX);
        let refused = super::super::json_rule(&doubling(20)).unwrap_err().to_string();
        assert!(refused.contains("combine fewer alternatives"), "{refused}");
        super::super::json_rule(&doubling(3)).unwrap();
        let pattern = json!({"pattern": "a".repeat(20_000)});
        let choice = json!({"anyOf": (0..150).map(|at| json!({"minLength": at})).collect::<Vec<_>>()});
        assert!(size(&json!({"allOf": [pattern, choice, choice]})) > 256 << 20);
        let properties: Map<_, _> = (0..3000).map(|at| (at.to_string(), json!({}))).collect();
        let others = json!({"additionalProperties": {"pattern": "a".repeat(60_000)}});
        assert!(size(&json!({"allOf": [{"properties": properties}, others]})) > 128 << 20);
    }

    #[test]
    fn ordinary_schemas_are_small() {
        let person = json!({"type": "object", "properties": {
            "name": {"type": "string", "pattern": "^[A-Z][a-z]+$"},
            "kind": {"enum": ["a", "b", "c"]},
            "friends": {"type": "array", "items": {"$ref": "#/$defs/person"}},
            "home": {"allOf": [{"$ref": "#/$defs/place"}], "description": "Where."},
        }});
        let place = json!({"type": "object", "properties": {"city": {"type": "string"}, "by": {"$ref": "#/$defs/person"}}});
        let extended =
            json!({"allOf": [{"$ref": "#/$defs/person"}, {"properties": {"age": {"type": "integer"}}}]});
        let schema = json!({"anyOf": [extended, {"$ref": "#/$defs/place"}], "$defs": {"person": person, "place": place}});
        assert!(size(&schema) < 64 << 10, "{}", size(&schema));
        // A list of references to a large schema is not resolved.
        let list: Vec<Value> = (0..500).map(|_| json!({"$ref": "#/$defs/person"})).collect();
        let schema = json!({"anyOf": list, "$defs": {"person": person, "place": place}});
        assert!(size(&schema) < 64 << 10, "{}", size(&schema));
    }

    #[test]
    fn references_name_parts_of_the_document() {
        let target = |pointer: &str| {
            let root = json!({"$defs": {"a/b": {"title": "x"}}, "anyOf": [{}, {"title": "y"}]});
            let root = root.as_object().unwrap().clone();
            let sizes = ResolvedSchemas { root: &root, of_references: BTreeMap::new(), depth: 0 };
            sizes.target(pointer).and_then(|schema| Some(schema.get("title")?.as_str()?.to_owned()))
        };
        assert_eq!(target("#/$defs/a~1b").as_deref(), Some("x"));
        assert_eq!(target("#/anyOf/1").as_deref(), Some("y"));
        for missing in ["#", "#/$defs/c", "#/anyOf/7", "other.json#/a", "#a"] {
            assert_eq!(target(missing), None, "{missing}");
        }
    }
}
