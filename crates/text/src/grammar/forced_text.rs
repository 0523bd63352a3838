//! Estimate of the text that a grammar forces at once.
//!
//! The compiler writes all of this text as soon as it must come, whatever its length: `(a{1000}){1000}` forces a megabyte,
//! which takes seconds and 170 MB. For such grammars, its search for this text is switched off.

use serde_json::Value;

/// Maximum number of bytes that are forced at once.
const MAX_FORCED: usize = 256 << 10;

/// Returns true if a regular expression may force too much.
pub(super) fn in_regex(source: &str) -> bool {
    repetitions(source).saturating_mul(source.len()) > MAX_FORCED
}

/// Returns true if a pattern of a schema may force too much.
pub(super) fn in_schema(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            let pattern = fields.get("pattern").and_then(Value::as_str);
            let of_names = fields.get("patternProperties").and_then(Value::as_object);
            let of_names = of_names.into_iter().flat_map(|patterns| patterns.keys());
            pattern.is_some_and(in_regex)
                || of_names.into_iter().any(|name| in_regex(name))
                || fields.values().any(in_schema)
        }
        Value::Array(values) => values.iter().any(in_schema),
        _ => false,
    }
}

/// Returns true if a Lark grammar, or a pattern of a schema in it, may force too much.
pub(super) fn in_lark(source: &str) -> bool {
    let mut repeated = 1;
    let mut at = 0;
    while let Some(found) = source[at..].find("%json") {
        let begin = at + found + "%json".len();
        repeated = repetitions(&source[at..begin]).saturating_mul(repeated);
        let mut values = serde_json::Deserializer::from_str(&source[begin..]).into_iter::<Value>();
        at = begin;
        if let Some(Ok(schema)) = values.next() {
            if in_schema(&schema) {
                return true;
            }
            at += values.byte_offset();
        }
    }
    repetitions(&source[at..]).saturating_mul(repeated).saturating_mul(source.len()) > MAX_FORCED
}

/// Returns the product of the numbers of repetitions in a source, such as `{3}`, `{3,}` and `~ 3`. Repetitions may be inside
/// each other, directly or through names.
fn repetitions(source: &str) -> usize {
    let counts = source.split(['{', '~']).skip(1).filter_map(|rest| {
        let rest = rest.trim_start();
        let end = rest.find(|char: char| !char.is_ascii_digit()).unwrap_or(rest.len());
        (end > 0).then(|| rest[..end].parse().unwrap_or(usize::MAX).max(1))
    });
    counts.fold(1, usize::saturating_mul)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nested_repetitions_force_long_texts() {
        for (source, expect) in [
            ("(a{1000}){1000}", true),
            ("(a{1000}){1000,}", true),
            ("((a{99}){99}){99}", true),
            ("a{99999999999999999999999}", true),
            ("[a-z]{1,1000}(x|y){0,9}b{20}", false),
            ("a{1000}", false),
        ] {
            assert_eq!(in_regex(source), expect, "{source}");
            assert_eq!(in_schema(&json!({"items": [{"pattern": source}]})), expect, "{source}");
            assert_eq!(in_schema(&json!({"patternProperties": {source: {}}})), expect, "{source}");
            assert_eq!(in_lark(&format!("start: /{source}/")), expect, "{source}");
            assert_eq!(
                in_lark(&format!("start: a %json {{\"pattern\": \"{source}\"}} a\na: \"x\"")),
                expect,
                "{source}"
            );
        }
        assert!(in_lark("start: A ~ 1000\nA: B{1000}\nB: \"x\""));
        assert!(!in_lark("start: %json {\"default\": \"{1000}{1000}\"} \"}\""));
    }
}
