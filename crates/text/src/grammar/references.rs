//! References of JSON schemas, in the form that the compiler follows.
//!
//! The compiler reads the parts of `#/$defs/name` as names as they are, without the escapes of JSON pointers and of URIs.
//! All other references are followed here: their target is copied into `$defs`, so that the passes over a schema see it.

use std::{borrow::Cow, collections::BTreeMap};

use serde_json::{Map, Value};

use super::{
    GrammarError,
    limits::{MAX_BYTES, check_size},
    schema::parts,
};

/// Keywords of the root that hold schemas for references.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Replaces the references of a schema by references to its root or to its definitions.
///
/// # Errors
/// A reference is to no part of the schema, or the targets are too large together.
pub(super) fn resolve(root: &mut Map<String, Value>) -> Result<(), GrammarError> {
    if !has_other_reference(&mut root.clone(), root) {
        return Ok(());
    }
    let original = Value::Object(root.clone());
    let mut copies = Copies { original: &original, names: BTreeMap::new(), pending: Vec::new() };
    copies.redirect(root)?;
    let mut added = Vec::new();
    let mut bytes = 0;
    while let Some((name, target)) = copies.pending.pop() {
        let mut target = target.clone();
        bytes += target.to_string().len();
        check_size(bytes)?;
        if let Value::Object(fields) = &mut target {
            copies.redirect(fields)?;
        }
        added.push((name, target));
    }

    let definitions = root.entry("$defs").or_insert_with(|| Value::Object(Map::new()));
    match definitions {
        Value::Object(fields) => fields.extend(added),
        other => return Err(unresolved(&other.to_string())),
    }
    Ok(())
}

/// Returns true if a schema has a reference that the compiler does not follow.
fn has_other_reference(schema: &mut Map<String, Value>, root: &Map<String, Value>) -> bool {
    let reference = schema.get("$ref").and_then(Value::as_str);
    reference.is_some_and(|reference| !is_plain(reference, root))
        || parts(schema).into_iter().any(|part| has_other_reference(part, root))
}

/// Returns true if the compiler follows a reference.
fn is_plain(reference: &str, root: &Map<String, Value>) -> bool {
    let Some(path) = reference.strip_prefix("#/") else { return reference == "#" };
    let Some((keyword, name)) = path.split_once('/') else { return false };
    let is_name = DEFINITIONS.contains(&keyword) && !name.contains('/') && decoded(name) == name;
    is_name && root.get(keyword).is_some_and(|definitions| definitions.get(name).is_some())
}

/// Targets that become definitions.
struct Copies<'a> {
    original: &'a Value,
    /// Names of the definitions, by reference.
    names: BTreeMap<String, String>,
    /// Targets that were not copied yet.
    pending: Vec<(String, &'a Value)>,
}

impl Copies<'_> {
    /// Replaces the references of a schema and of its parts.
    fn redirect(&mut self, schema: &mut Map<String, Value>) -> Result<(), GrammarError> {
        if let Some(Value::String(reference)) = schema.get_mut("$ref") {
            let root = self.original.as_object();
            if root.is_some_and(|root| !is_plain(reference, root)) {
                *reference = self.plain(reference)?;
            }
        }
        parts(schema).into_iter().try_for_each(|part| self.redirect(part))
    }

    /// Returns a reference with the same target that the compiler follows.
    fn plain(&mut self, reference: &str) -> Result<String, GrammarError> {
        if let Some(name) = self.names.get(reference) {
            return Ok(format!("#/$defs/{name}"));
        }
        let target = target(self.original, reference).ok_or_else(|| unresolved(reference))?;
        if std::ptr::eq(target, self.original) {
            return Ok("#".to_owned());
        }
        let mut names = (self.names.len()..).map(|number| format!("reference_{number}"));
        let free_name = names.find(|name| self.original["$defs"].get(name).is_none());
        let name = free_name.unwrap_or_default();
        self.names.insert(reference.to_owned(), name.clone());
        self.pending.push((name.clone(), target));
        Ok(format!("#/$defs/{name}"))
    }
}

fn unresolved(reference: &str) -> GrammarError {
    let mut shown = reference.to_owned();
    shown.truncate(shown.floor_char_boundary(MAX_BYTES.min(200)));
    let reason = "expected a reference to a part of the same schema, such as \"#/$defs/name\"";
    GrammarError::unsupported(format!("the schema's \"$ref\": {shown:?}"), reason)
}

/// Returns the part of a schema that a reference names: by a JSON pointer, by an `$anchor`, or after the schema's `$id`.
fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let id = root["$id"].as_str().map(|id| id.trim_end_matches('#')).filter(|id| !id.is_empty());
    let reference = id.and_then(|id| reference.strip_prefix(id)).unwrap_or(reference);
    let fragment = match reference.strip_prefix('#') {
        Some(fragment) => fragment,
        None if reference.is_empty() => "",
        None => return None,
    };
    if fragment.is_empty() || fragment == "/" {
        return Some(root);
    }
    let Some(pointer) = fragment.strip_prefix('/') else { return anchored(root, &decoded(fragment)) };
    pointer.split('/').try_fold(root, |value, part| match value {
        Value::Object(fields) => fields.get(decoded(part).as_ref()).or_else(|| fields.get(part)),
        Value::Array(values) => values.get(part.parse::<usize>().ok()?),
        _ => None,
    })
}

/// Returns the schema with this `$anchor`.
fn anchored<'a>(value: &'a Value, anchor: &str) -> Option<&'a Value> {
    match value {
        Value::Object(fields) if fields.get("$anchor").is_some_and(|found| found == anchor) => Some(value),
        Value::Object(fields) => fields.values().find_map(|value| anchored(value, anchor)),
        Value::Array(values) => values.iter().find_map(|value| anchored(value, anchor)),
        _ => None,
    }
}

/// Returns the name that a part of a JSON pointer in a URI stands for: `%3C` is `<`, `~1` is `/`, and `~0` is `~`.
fn decoded(part: &str) -> Cow<'_, str> {
    if !part.contains(['%', '~']) {
        return Cow::Borrowed(part);
    }
    let bytes = part.as_bytes();
    let mut text = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match (byte, hex_digit(bytes.get(at + 1)), hex_digit(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                text.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                text.push(byte);
                at += 1;
            }
        }
    }
    match String::from_utf8(text) {
        Ok(text) => Cow::Owned(text.replace("~1", "/").replace("~0", "~")),
        Err(_) => Cow::Borrowed(part),
    }
}

fn hex_digit(byte: Option<&u8>) -> Option<u32> {
    char::from(*byte?).to_digit(16)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_followed_with_their_escapes() {
        let target = |reference: &str| {
            let mut root = json!({
                "$id": "https://a.example/b", "title": "r", "$ref": reference,
                "$defs": {
                    "Box<string>": {"title": "box"}, "x/y": {"title": "slash"}, "a~b": {"title": "tilde"},
                    "a%3Cb": {"title": "raw"}, "é": {"title": "accent"}, "c": {"$anchor": "here", "title": "anchor"},
                    "plain": {"title": "plain"}, "deep": {"properties": {"d": {"title": "deep"}}},
                },
                "anyOf": [{}, {"title": "list"}], "x-types": {"e": {"title": "other", "$ref": "#/$defs/x~1y"}},
            });
            let root = root.as_object_mut().unwrap();
            resolve(root)?;
            let reference = root["$ref"].as_str().unwrap();
            assert!(is_plain(reference, root), "{reference}");
            let target = reference
                .strip_prefix("#/$defs/")
                .map_or(&root["title"], |name| &root["$defs"][name]["title"]);
            Ok::<_, GrammarError>(target.as_str().unwrap().to_owned())
        };
        for (reference, expect) in [
            ("#/$defs/Box%3Cstring%3E", "box"),
            ("#/$defs/Box<string>", "box"),
            ("#/$defs/x~1y", "slash"),
            ("#/$defs/x%7E1y", "slash"),
            ("#/$defs/a~0b", "tilde"),
            ("#/$defs/a%3Cb", "raw"),
            ("#/$defs/%C3%A9", "accent"),
            ("#/$defs/plain", "plain"),
            ("#/$defs/deep/properties/d", "deep"),
            ("#/anyOf/1", "list"),
            ("#/x-types/e", "other"),
            ("#here", "anchor"),
            ("https://a.example/b#/$defs/plain", "plain"),
            ("https://a.example/b", "r"),
            ("#", "r"),
        ] {
            assert_eq!(target(reference).as_deref(), Ok(expect), "{reference}");
        }
        for missing in ["#/$defs/z", "#/anyOf/7", "other.json#/a", "#a", "#/$defs/deep/z", ""] {
            let error = target(missing).map(|_| String::new()).unwrap_or_else(|error| error.to_string());
            assert_eq!(error.contains("\"$ref\""), !missing.is_empty(), "{missing}: {error}");
        }
    }

    #[test]
    fn copies_are_limited_and_may_refer_to_themselves() {
        let mut root = json!({"properties": {"a": {"items": {"$ref": "#/properties/a"}}}});
        resolve(root.as_object_mut().unwrap()).unwrap();
        let copied = json!({"items": {"$ref": "#/$defs/reference_0"}});
        assert_eq!(root, json!({"properties": {"a": copied}, "$defs": {"reference_0": copied}}));
        let all: Vec<Value> =
            (0..100).map(|at| json!({"$ref": format!("#/x/{}a", "%".repeat(at))})).collect();
        let names = (0..100).map(|at| (format!("{}a", "%".repeat(at)), json!({"title": "t".repeat(4000)})));
        let mut root = json!({"anyOf": all, "x": names.collect::<Map<_, _>>()});
        assert!(matches!(resolve(root.as_object_mut().unwrap()), Err(GrammarError::TooLarge { .. })));
    }
}
