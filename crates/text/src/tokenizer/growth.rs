//! Growth of a text by the normalisation of a `tokenizer.json`, and of its tokens by the post-processor. Steps that replace
//! a text by a longer one multiply: four of them would make terabytes of a few words.

use base64::{Engine, prelude::BASE64_STANDARD as BASE64};
use serde_json::Value;

use super::{TokenizerError, malformed};

/// Maximum factor by which all steps together may lengthen a text. Real files stay below 100.
const MAX_GROWTH: usize = 1 << 10;

/// Maximum number of values of the post-processor, which adds tokens to each text. Real files have up to 100.
const MAX_POST_VALUES: usize = 1 << 10;

/// Refuses a `tokenizer.json` whose normalisation may lengthen a text too much, or whose post-processor may add too many
/// tokens.
pub(super) fn check(json: &Value) -> Result<(), TokenizerError> {
    let factors = normalisation_steps(json).into_iter().map(factor);
    let growth = factors.fold(1_usize, usize::saturating_mul);
    if growth > MAX_GROWTH {
        return Err(malformed(format!(
            "expected a normalisation that lengthens a text by a factor of at most {MAX_GROWTH}, found {growth}"
        )));
    }
    let (mut values, mut pending) = (0, vec![&json["post_processor"]]);
    while let Some(value) = pending.pop() {
        values += 1;
        match value {
            Value::Array(items) => pending.extend(items),
            Value::Object(fields) => pending.extend(fields.values()),
            _ => {}
        }
    }
    if values > MAX_POST_VALUES {
        return Err(malformed(format!(
            "expected a post-processor of at most {MAX_POST_VALUES} values, found {values}"
        )));
    }
    Ok(())
}

/// Returns the steps of a normalisation, also those of sequences inside of sequences. The reader does not require that
/// steps state their types.
pub(super) fn normalisation_steps(json: &Value) -> Vec<&Value> {
    let (mut steps, mut pending) = (Vec::new(), vec![&json["normalizer"]]);
    while let Some(step) = pending.pop() {
        match &step["normalizers"] {
            Value::Array(inner) => pending.extend(inner.iter().rev()),
            _ if step.is_null() => {}
            _ => steps.push(step),
        }
    }
    steps
}

/// Returns an upper bound on the factor by which a step lengthens a text, at least 1.
fn factor(step: &Value) -> usize {
    let length = |field: &str| step[field].as_str().map_or(0, str::len);
    let replaced = match step["pattern"]["String"].as_str() {
        Some(pattern) if !pattern.is_empty() => length("content").div_ceil(pattern.len()),
        // An empty match is between two bytes. A regular expression may match one.
        _ => length("content").saturating_add(1),
    };
    // The part between two special tokens may have one byte.
    let prepended = length("prepend").saturating_add(1);
    replaced.max(1).saturating_mul(prepended).saturating_mul(longest_replacement(step))
}

/// Returns the length of the longest text that a compiled normalisation writes. Its texts end with a zero byte and follow
/// the trie.
fn longest_replacement(step: &Value) -> usize {
    let compiled = step["precompiled_charsmap"].as_str().and_then(|text| BASE64.decode(text).ok());
    let Some((trie, rest)) = compiled.as_deref().and_then(<[u8]>::split_first_chunk) else { return 1 };
    let texts = rest.get(u32::from_le_bytes(*trie) as usize..).unwrap_or_default();
    texts.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn steps_that_lengthen_a_text_multiply() {
        let replace = |pattern: Value, length: usize| json!({"type": "Replace", "pattern": pattern, "content": "a".repeat(length)});
        let of =
            |steps: Vec<Value>| check(&json!({"normalizer": {"type": "Sequence", "normalizers": steps}}));
        let text = |pattern: &str, length| replace(json!({"String": pattern}), length);
        // As in Llama 2.
        of(vec![json!({"type": "Prepend", "prepend": "▁"}), text(" ", 3)]).unwrap();
        of(vec![text("a", 32), text("b", 32)]).unwrap();
        let error = of(vec![text("a", 1000); 4]).unwrap_err().to_string();
        assert!(error.contains("a factor of at most 1024, found 1000000000000"), "{error}");
        of(vec![text("aaaa", 4096)]).unwrap();
        of(vec![replace(json!({"Regex": "a*"}), 1024)]).unwrap_err();
        of(vec![text("", 1024)]).unwrap_err();
        of(vec![json!({"type": "Prepend", "prepend": "a".repeat(1024)})]).unwrap_err();
        check(&json!({"normalizer": text("a", 1025)})).unwrap_err();
        let untyped = json!({"pattern": {"String": "a"}, "content": "a".repeat(1025)});
        of(vec![json!({"normalizers": [untyped]})]).unwrap_err();
        check(&json!({"normalizer": null})).unwrap();
    }

    #[test]
    fn the_tokens_of_a_post_processor_are_few() {
        let of = |tokens: usize| {
            let token = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
            check(&json!({"post_processor": {"type": "TemplateProcessing", "single": vec![token; tokens]}}))
        };
        of(100).unwrap();
        let error = of(1000).unwrap_err().to_string();
        assert!(error.contains("at most 1024 values"), "{error}");
    }

    #[test]
    fn compiled_texts_count() {
        let of = |length: usize| {
            let texts = format!("ab\0{}\0c\0", "x".repeat(length));
            let bytes = [&4_u32.to_le_bytes()[..], &[0; 4], texts.as_bytes()].concat();
            check(
                &json!({"normalizer": {"type": "Precompiled", "precompiled_charsmap": BASE64.encode(bytes)}}),
            )
        };
        of(33).unwrap();
        of(1025).unwrap_err();
    }
}
