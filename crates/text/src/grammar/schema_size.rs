//! Size of the grammar that the compiler makes of a JSON schema.
//!
//! The compiler intersects the schemas of `allOf`, and a schema with the keywords beside it, alternative by alternative.
//! References in them are resolved each time, so a few bytes can describe gigabytes. This module follows the compiler
//! without making anything, counts the bytes, and stops at a limit.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::numbers::decimal_of;

/// Number of bytes of a schema without keywords.
const SCHEMA: usize = 64;

/// Number of bytes of a regular expression, a format or a literal, in addition to its length.
const EXPRESSION: usize = 1 << 10;

/// Number of bytes for each pair of properties if their number is limited.
const PAIR: usize = 64;

/// Number of bytes for each remainder of a division by `multipleOf`.
const REMAINDER: usize = 16;

/// Maximum number of remainders of one number.
const MAX_REMAINDERS: u64 = 20_000;

/// Maximum number of definitions, which the compiler follows by recursion.
const MAX_DEFINITIONS: usize = 4096;

/// Number of pairs of alternatives of a `oneOf` for each byte. The compiler compares each pair.
const PAIRS_PER_BYTE: usize = 8;

/// Maximum number of schemas inside each other, references included.
const MAX_DEPTH: usize = 160;

/// Keywords that restrict values. All others are annotations.
const RESTRICTING: &[&str] = &[
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    "type",
    "enum",
    "const",
    "pattern",
    "format",
    "minLength",
    "maxLength",
    "multipleOf",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "minProperties",
    "maxProperties",
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
];

/// Returns the number of bytes that remain of `limit` after the grammar that the compiler makes of a schema, by an estimate;
/// `None` if the grammar is larger.
pub(super) fn remaining(schema: &Map<String, Value>, limit: usize) -> Option<usize> {
    let mut estimate = Estimate::new(schema, limit);
    estimate.intersection(vec![Conjunct::Schema(schema)]).ok()?;
    // The compiler compiles each definition once.
    while let Some(definition) = estimate.pending.pop() {
        estimate.intersection(vec![Conjunct::Schema(definition)]).ok()?;
    }
    Some(estimate.left)
}

/// The grammar is larger than the limit.
struct TooLarge;

/// Part of an intersection.
#[derive(Clone, Copy)]
enum Conjunct<'a> {
    Schema(&'a Map<String, Value>),
    /// Keywords of a schema, without those that combine schemas.
    Own(&'a Map<String, Value>),
    /// Alternatives, of which one applies.
    OneOf(&'a [Value]),
}

struct Estimate<'a> {
    root: &'a Map<String, Value>,
    /// Number of bytes up to the limit.
    left: usize,
    depth: usize,
    /// Targets of references that stand by themselves.
    defined: BTreeSet<&'a str>,
    /// Those whose size was not added yet.
    pending: Vec<&'a Map<String, Value>>,
}

/// Returns the number of alternatives of a schema that are compared one by one.
fn alternatives_of(schema: &Value) -> usize {
    let lists =
        ["enum", "anyOf", "oneOf", "type"].into_iter().filter_map(|keyword| schema.get(keyword)?.as_array());
    lists.map(Vec::len).sum::<usize>().max(1)
}

fn restricts(schema: &Map<String, Value>) -> usize {
    schema.keys().filter(|keyword| RESTRICTING.contains(&keyword.as_str())).count()
}

impl<'a> Estimate<'a> {
    fn new(root: &'a Map<String, Value>, limit: usize) -> Self {
        Self { root, left: limit, depth: 0, defined: BTreeSet::new(), pending: Vec::new() }
    }

    fn add(&mut self, bytes: usize) -> Result<(), TooLarge> {
        self.left = self.left.checked_sub(bytes).ok_or(TooLarge)?;
        Ok(())
    }

    /// Adds the size of an intersection.
    fn intersection(&mut self, conjuncts: Vec<Conjunct<'a>>) -> Result<(), TooLarge> {
        if self.depth >= MAX_DEPTH {
            return Err(TooLarge);
        }
        self.depth += 1;
        let added = self.flattened(conjuncts).and_then(|conjuncts| self.alternatives(&conjuncts));
        self.depth -= 1;
        added
    }

    /// Returns the parts of an intersection, with the schemas of `allOf` and of references.
    fn flattened(&mut self, mut pending: Vec<Conjunct<'a>>) -> Result<Vec<Conjunct<'a>>, TooLarge> {
        let mut found = Vec::new();
        while let Some(conjunct) = pending.pop() {
            self.add(SCHEMA)?;
            let Conjunct::Schema(schema) = conjunct else {
                found.push(conjunct);
                continue;
            };
            let mut own = restricts(schema);
            if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
                own -= 1;
                // A reference by itself remains one.
                let is_alone = own == 0 && pending.is_empty() && found.is_empty();
                let target = self.target(reference);
                if !is_alone {
                    pending.extend(target.map(Conjunct::Schema));
                } else if self.defined.insert(reference) {
                    self.pending.extend(target);
                }
                if self.defined.len() > MAX_DEFINITIONS {
                    return Err(TooLarge);
                }
            }

            if let Some(Value::Array(schemas)) = schema.get("allOf") {
                own -= 1;
                pending.extend(schemas.iter().filter_map(Value::as_object).map(Conjunct::Schema));
            }
            if let Some(Value::Array(schemas)) = schema.get("oneOf") {
                let alternatives: usize = schemas.iter().map(alternatives_of).sum();
                self.add(alternatives.saturating_mul(alternatives) / PAIRS_PER_BYTE)?;
            }
            for alternatives in ["anyOf", "oneOf"].iter().filter_map(|keyword| schema.get(*keyword)) {
                own -= 1;
                found.extend(alternatives.as_array().map(|schemas| Conjunct::OneOf(schemas)));
            }
            if own > 0 {
                found.push(Conjunct::Own(schema));
            }
        }
        Ok(found)
    }

    /// Adds the size of an intersection, alternative by alternative.
    fn alternatives(&mut self, conjuncts: &[Conjunct<'a>]) -> Result<(), TooLarge> {
        let choice = conjuncts.iter().position(|conjunct| matches!(conjunct, Conjunct::OneOf(_)));
        if let Some(Conjunct::OneOf(schemas)) = choice.map(|at| conjuncts[at]) {
            for schema in schemas.iter().filter_map(Value::as_object) {
                let mut chosen = conjuncts.to_vec();
                chosen[choice.unwrap_or_default()] = Conjunct::Schema(schema);
                self.add(SCHEMA * chosen.len())?;
                self.intersection(chosen)?;
            }
            return Ok(());
        }
        let own = conjuncts.iter().filter_map(|conjunct| match conjunct {
            Conjunct::Own(schema) => Some(*schema),
            Conjunct::Schema(_) | Conjunct::OneOf(_) => None,
        });
        let own: Vec<_> = own.collect();
        self.values(&own)?;
        self.properties(&own)?;
        self.items(&own)
    }

    /// Adds the size of the keywords for texts, numbers and literals.
    fn values(&mut self, own: &[&'a Map<String, Value>]) -> Result<(), TooLarge> {
        let mut expressions = 0u32;
        let mut remainders = 1u64;
        let mut places = (u32::MAX, 0);
        for schema in own {
            for text in ["pattern", "format"].iter().filter_map(|keyword| schema.get(*keyword)?.as_str()) {
                expressions += 1;
                self.add(EXPRESSION + text.len())?;
            }
            let literals = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
            for literal in literals.chain(schema.get("const")) {
                self.add(EXPRESSION + literal.to_string().len())?;
            }
            if let Some(divisor) = schema.get("multipleOf") {
                let divisor = decimal_of(divisor).map_err(|_| TooLarge)?;
                remainders = remainders.saturating_mul(u64::from(divisor.coefficient));
                places = (places.0.min(divisor.places), places.1.max(divisor.places));
            }
        }

        // An automaton for all of several expressions has a state for each combination of theirs.
        let combined = expressions.saturating_sub(1).saturating_mul(2).min(40);
        self.add(if combined > 0 { EXPRESSION << combined } else { 0 })?;
        // The least common multiple of several divisors has the decimal places of all.
        remainders = remainders.saturating_mul(10_u64.pow(places.1.saturating_sub(places.0)));
        if remainders > MAX_REMAINDERS {
            return Err(TooLarge);
        }
        self.add(if remainders > 1 { remainders as usize * REMAINDER } else { 0 })
    }

    /// Adds the size of the keywords for objects.
    fn properties(&mut self, own: &[&'a Map<String, Value>]) -> Result<(), TooLarge> {
        let fields = |keyword: &'static str| {
            own.iter().enumerate().flat_map(move |(at, schema)| {
                let named = schema.get(keyword).and_then(Value::as_object).into_iter().flatten();
                named.map(move |(name, schema)| (at, name, schema))
            })
        };
        let mut names: BTreeMap<&str, Vec<(usize, &'a Value)>> = BTreeMap::new();
        for (at, name, schema) in fields("properties") {
            names.entry(name).or_default().push((at, schema));
        }
        let patterns: Vec<_> = fields("patternProperties").collect();
        let others: Vec<(usize, &'a Value)> = own
            .iter()
            .enumerate()
            .filter_map(|(at, schema)| Some((at, schema.get("additionalProperties")?)))
            .filter(|(_, schema)| schema.is_object())
            .collect();
        let is_counted = own
            .iter()
            .any(|schema| schema.contains_key("minProperties") || schema.contains_key("maxProperties"));
        if is_counted {
            self.add(names.len().saturating_mul(names.len()).saturating_mul(PAIR))?;
        }

        self.add(patterns.len().saturating_mul(patterns.len()).saturating_mul(EXPRESSION))?;
        let pattern_bytes: usize = patterns.iter().map(|(_, pattern, _)| SCHEMA + pattern.len()).sum();
        self.add(names.len().saturating_mul(pattern_bytes))?;
        for (name, schemas) in &names {
            self.add(SCHEMA + name.len())?;
            let is_defined = |at: usize| schemas.iter().any(|(known, _)| *known == at);
            // A property that a schema does not name follows its schema for all others.
            let further = others.iter().filter(|(at, _)| !is_defined(*at)).map(|(_, schema)| *schema);
            let matching = patterns.iter().filter(|(at, ..)| own.len() > 1 && !is_defined(*at));
            let matching = matching.map(|(_, _, schema)| *schema);
            self.all(schemas.iter().map(|(_, schema)| *schema).chain(further).chain(matching))?;
        }
        for (_, _, schema) in &patterns {
            self.all([*schema])?;
        }
        self.all(others.iter().map(|(_, schema)| *schema))
    }

    /// Adds the size of the keywords for lists.
    fn items(&mut self, own: &[&'a Map<String, Value>]) -> Result<(), TooLarge> {
        let longest = own.iter().filter_map(|schema| places(schema)).map(Vec::len).max().unwrap_or(0);
        for at in 0..longest {
            let here =
                own.iter().filter_map(|schema| match places(schema).and_then(|places| places.get(at)) {
                    None => schema.get("items"),
                    place => place,
                });
            self.all(here.collect::<Vec<_>>())?;
        }
        self.all(own.iter().filter_map(|schema| schema.get("items")).collect::<Vec<_>>())
    }

    /// Adds the size of the intersection of schemas.
    fn all(&mut self, schemas: impl IntoIterator<Item = &'a Value>) -> Result<(), TooLarge> {
        let schemas = schemas.into_iter().filter_map(Value::as_object).filter(|schema| restricts(schema) > 0);
        let conjuncts: Vec<_> = schemas.map(Conjunct::Schema).collect();
        if conjuncts.is_empty() { Ok(()) } else { self.intersection(conjuncts) }
    }

    /// Returns the schema that a reference names. As for the compiler, its parts are names as they are.
    fn target(&self, reference: &str) -> Option<&'a Map<String, Value>> {
        let mut parts = reference.strip_prefix('#')?.split('/').filter(|part| !part.is_empty());
        let mut found = self.root;
        while let Some(part) = parts.next() {
            found = match found.get(part)? {
                Value::Object(fields) => fields,
                Value::Array(elements) => elements.get(parts.next()?.parse::<usize>().ok()?)?.as_object()?,
                _ => return None,
            };
        }
        Some(found)
    }
}

/// Returns the schemas of the first elements of a list.
fn places(schema: &Map<String, Value>) -> Option<&Vec<Value>> {
    schema.get("prefixItems")?.as_array()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{Grammar, GrammarError},
        *,
    };

    fn schema_fits(schema: &Value) -> bool {
        let limit = super::super::limits::max_grammar_bytes(schema.to_string().len());
        remaining(schema.as_object().unwrap(), limit).is_some()
    }

    /// Returns a schema whose definitions each intersect the one before with itself.
    fn doubling(levels: usize, name: &str) -> Value {
        let mut defs = Map::new();
        defs.insert(format!("{name}0"), json!({"type": "string", "pattern": "^[a-z]+$"}));
        for level in 1..=levels {
            let before = json!({"$ref": format!("#/$defs/{name}{}", level - 1)});
            defs.insert(format!("{name}{level}"), json!({"allOf": [before, before]}));
        }
        let last = json!({"$ref": format!("#/$defs/{name}{levels}")});
        json!({"type": "object", "properties": {"v": {"allOf": [last, last]}}, "$defs": defs})
    }

    #[test]
    fn hostile_schemas_are_too_large() {
        let names = |count: usize| (0..count).map(|at| (format!("a{at}"), json!({}))).collect::<Map<_, _>>();
        let pattern = |length: usize| json!({"type": "string", "pattern": "a".repeat(length)});
        let choice = json!({"anyOf": (0..150).map(|at| json!({"minLength": at})).collect::<Vec<_>>()});
        let any = json!({"$ref": "#/$defs/any"});
        let numbers = [2, 3, 5, 7, 11, 13, 17, 19].map(|divisor| json!({"multipleOf": divisor}));
        let texts: Vec<Value> = (0..30).map(|at| json!({"pattern": format!("a.{{{at}}}b")})).collect();
        let of_names = (0..400).map(|at| (format!("^a{at}$"), json!({}))).collect::<Map<_, _>>();
        for schema in [
            doubling(20, "a"),
            doubling(20, "a~1"),
            doubling(MAX_DEPTH + 1, "a"),
            json!({"allOf": [pattern(20_000), choice, choice]}),
            json!({"allOf": [{"properties": names(3000)}, {"additionalProperties": pattern(60_000)}]}),
            json!({"allOf": [{"properties": {"b": any}}, any], "$defs": {"any": {"allOf": [any, any]}}}),
            json!({"properties": names(300), "minProperties": 1}),
            json!({"multipleOf": 9_699_690}),
            json!({"$ref": "#/$defs/q", "$defs": {"q": {"multipleOf": 2_147_483_648_u32}}}),
            json!({"items": {"$ref": "#/$defs/q"}, "$defs": {"q": {"$ref": "#/$defs/r"}, "r": {"multipleOf": 99_999}}}),
            json!({"allOf": [{"multipleOf": 1e-8}, {"multipleOf": 7}]}),
            json!({"allOf": numbers}),
            json!({"allOf": texts}),
            json!({"patternProperties": of_names}),
            json!({"properties": names(3000), "patternProperties": {"x".repeat(30_000): {}}}),
        ] {
            let shown: String = schema.to_string().chars().take(200).collect();
            assert!(!schema_fits(&schema), "{shown}");
            let lark = Grammar::Lark(format!("start: \"a\" %json{schema}"));
            assert!(matches!(lark.rule(), Err(GrammarError::Unusable { .. })), "{shown}");
        }
        // The schemas of a grammar share a limit.
        let many = "%json {\"multipleOf\": 9973} ".repeat(60);
        assert!(Grammar::Lark(format!("start: {many}")).rule().is_err());
        let refused = super::super::json_rule(&doubling(20, "a")).unwrap_err().to_string();
        assert!(refused.contains("combine fewer alternatives"), "{refused}");
    }

    #[test]
    fn ordinary_schemas_fit() {
        // Types that refer to each other many times, as in the schemas of large APIs.
        let mut types = Map::new();
        for level in 0..8 {
            let next = json!({"$ref": format!("#/$defs/N{}", level + 1)});
            let fields = (0..6).map(|at| (format!("f{at}"), next.clone())).collect::<Map<_, _>>();
            types.insert(
                format!("N{level}"),
                json!({"type": "object", "properties": fields, "required": ["f0"]}),
            );
        }
        types.insert(
            "N8".to_owned(),
            json!({"enum": (0..40).map(|at| format!("value {at}")).collect::<Vec<_>>()}),
        );
        let first = json!({"$ref": "#/$defs/N0"});
        let union = [json!({"$ref": "#/$defs/N1"}), first.clone(), json!({"$ref": "#/$defs/N2"})];
        for mut schema in [
            json!({"oneOf": union, "discriminator": {"propertyName": "kind"}}),
            json!({"type": "object", "description": "u", "anyOf": union}),
            json!({"$ref": "#/$defs/N0", "nullable": true, "x-order": 1}),
            json!({"allOf": [first, {"properties": {"id": {"type": "integer"}}, "required": ["id"]}]}),
            json!({"type": "array", "items": {"allOf": [first], "description": "A type."}, "minItems": 1}),
            json!({"type": "object", "properties": {"a": first, "b": {"anyOf": [first, {"type": "null"}]}}}),
        ] {
            schema["$defs"] = types.clone().into();
            assert!(schema_fits(&schema), "{schema}");
        }
        let node = json!({"type": "object", "properties": {"next": {"$ref": "#"}, "all": {"type": "array", "items": {"$ref": "#"}}}});
        let text =
            json!({"type": "string", "format": "email", "pattern": "@", "minLength": 3, "maxLength": 1000});
        let settings = json!({"type": "object", "additionalProperties": text, "minProperties": 1});
        let price = json!({"type": "number", "multipleOf": 0.01, "minimum": 0});
        let headers = json!({"patternProperties": {"^x-": {}, "^[a-z]+$": text}});
        for schema in [node, text, settings, price, headers] {
            assert!(schema_fits(&schema), "{schema}");
            assert!(Grammar::Lark(format!("start: item+\nitem: %json {schema} \",\"")).rule().is_ok());
        }
    }

    #[test]
    fn references_name_parts_of_the_document() {
        let target = |pointer: &str| {
            let root =
                json!({"$defs": {"a~1b": {"title": "x"}}, "anyOf": [{}, {"title": "y"}], "title": "r"});
            let root = root.as_object().unwrap().clone();
            let estimate = Estimate::new(&root, 0);
            estimate.target(pointer).and_then(|schema| Some(schema.get("title")?.as_str()?.to_owned()))
        };
        assert_eq!(target("#/$defs/a~1b").as_deref(), Some("x"));
        assert_eq!(target("#/anyOf/1").as_deref(), Some("y"));
        assert_eq!(target("#").as_deref(), Some("r"));
        for missing in ["#/$defs/c", "#/anyOf/7", "other.json#/a", "#a"] {
            assert_eq!(target(missing), None, "{missing}");
        }
    }
}
