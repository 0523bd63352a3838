//! Limits on the source of a grammar.

use std::borrow::Cow;

use serde_json::Value;

use super::{GrammarError, make_safe, schema_size};

/// Maximum bytes of a grammar or of a schema's JSON.
pub(super) const MAX_BYTES: usize = 128 << 10;

/// Maximum size of the grammar that the compiler makes of schemas, in bytes: for each grammar, and for each byte of it.
/// The schemas of all tools are one grammar.
const MIN_BUILT_BYTES: usize = 256 << 10;
const BUILT_PER_BYTE: usize = 256;

/// Maximum number of characters `&`, which intersects regular expressions, in a grammar's source.
const MAX_INTERSECTIONS: usize = 64;

/// Maximum number of times `%json` in a grammar's source. What follows is parsed, and several may be in one another's
/// text.
const MAX_SCHEMAS: usize = 1024;

/// Maximum depth of brackets in a grammar's source, which is parsed by recursion.
pub(super) const MAX_DEPTH: usize = 200;

pub(super) fn too_many_combinations(max: usize) -> GrammarError {
    GrammarError::unusable(format!(
        "its keywords combine to a grammar of more than {max} bytes; combine fewer alternatives, patterns and properties"
    ))
}

/// Returns the maximum size of the grammar that the compiler makes of schemas of this length.
pub(super) fn max_grammar_bytes(length: usize) -> usize {
    MIN_BUILT_BYTES + length * BUILT_PER_BYTE
}

pub(super) fn check_size(found: usize) -> Result<(), GrammarError> {
    if found > MAX_BYTES { Err(GrammarError::TooLarge { found }) } else { Ok(()) }
}

/// Checks the source of a Lark grammar and the schemas in it, and returns it with schemas that the compiler holds exactly.
pub(super) fn prepared_lark(source: &str) -> Result<Cow<'_, str>, GrammarError> {
    check_text(source)?;
    let max = max_grammar_bytes(source.len());
    let mut left = max;
    let schemas = source.matches("%json").count();
    if schemas > MAX_SCHEMAS {
        return Err(GrammarError::unusable(format!(
            "expected at most {MAX_SCHEMAS} uses of %json, found {schemas}"
        )));
    }

    let mut prepared = String::new();
    let mut copied = 0;
    for (at, keyword) in source.match_indices("%json") {
        let begin = at + keyword.len();
        let mut values = serde_json::Deserializer::from_str(&source[begin..]).into_iter::<Value>();
        // The keyword may be in a comment or a literal. After a real one, the compiler refuses what is not JSON.
        let Some(Ok(Value::Object(mut fields))) = values.next() else { continue };
        let end = begin + values.byte_offset();
        // What stands in the text of another schema is not compiled.
        if at >= copied {
            let given = fields.clone();
            make_safe(&mut fields)?;
            if fields != given {
                prepared.push_str(&source[copied..begin]);
                prepared.push(' ');
                prepared.push_str(&Value::Object(fields.clone()).to_string());
                check_size(prepared.len())?;
                copied = end;
            }
        }
        left = schema_size::remaining(&fields, left).ok_or_else(|| too_many_combinations(max))?;
    }
    if copied == 0 {
        return Ok(Cow::Borrowed(source));
    }
    prepared.push_str(&source[copied..]);
    Ok(Cow::Owned(prepared))
}

pub(super) fn check_text(source: &str) -> Result<(), GrammarError> {
    check_size(source.len())?;
    let intersections = source.bytes().filter(|&byte| byte == b'&').count();
    if intersections > MAX_INTERSECTIONS {
        let reason =
            format!("expected at most {MAX_INTERSECTIONS} times the character &, found {intersections}");
        return Err(GrammarError::unusable(reason));
    }
    let mut depth = 0usize;
    let mut deepest = 0;
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest > MAX_DEPTH { Err(GrammarError::TooDeep { found: deepest }) } else { Ok(()) }
}
