//! Regular expressions of a `tokenizer.json`, whose number and length are limited before they are compiled.

use serde_json::Value;

use super::{TokenizerError, malformed};

/// Maximum number of patterns. Real files have up to ten.
const MAX_PATTERNS: usize = 64;

/// Maximum number of bytes of all patterns.
const MAX_LENGTH: usize = 64 << 10;

/// Refuses a `tokenizer.json` with too many or too long patterns.
pub(super) fn check(json: &Value) -> Result<(), TokenizerError> {
    let mut count = 0;
    let mut length = 0;
    let mut pending: Vec<&Value> =
        ["normalizer", "pre_tokenizer", "decoder"].map(|part| &json[part]).to_vec();
    while let Some(value) = pending.pop() {
        if let Some(pattern) = value["Regex"].as_str() {
            count += 1;
            length += pattern.len();
        }
        match value {
            Value::Array(items) => pending.extend(items),
            Value::Object(fields) => pending.extend(fields.values()),
            _ => {}
        }
    }
    if count > MAX_PATTERNS || length > MAX_LENGTH {
        return Err(malformed(format!(
            "expected at most {MAX_PATTERNS} regular expressions of {MAX_LENGTH} bytes in total, found {count} of {length}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patterns_are_few_and_short() {
        let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}});
        let of = |steps: Vec<Value>| {
            check(&json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}))
        };
        of(vec![split("a+"); MAX_PATTERNS]).unwrap();
        let error = of(vec![split("a+"); MAX_PATTERNS + 1]).unwrap_err().to_string();
        assert!(error.contains("at most 64 regular expressions"), "{error}");
        assert!(of(vec![split(&"a".repeat(MAX_LENGTH + 1))]).is_err());
    }
}
