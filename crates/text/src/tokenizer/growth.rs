//! Growth of a text by the steps of a `tokenizer.json`, and of its tokens by the post-processor. Steps that replace a text
//! by a longer one multiply: four of them would make terabytes of a few words.

use base64::{Engine, prelude::BASE64_STANDARD as BASE64};
use serde_json::Value;

use super::{TokenizerError, malformed};

/// Maximum factor by which the normalisation may lengthen a text. Real files reach about 1,500, with compiled texts and a
/// Unicode normalisation.
const MAX_NORMALISED: usize = 1 << 12;

/// Maximum factor by which the division into words may lengthen a text. Real files reach 16.
const MAX_DIVIDED: usize = 64;

/// Maximum factor by which the decoder may lengthen a token. Real files have steps that do not lengthen it.
const MAX_DECODED: usize = 64;

/// Maximum number of values of the post-processor, which adds tokens to each text. Real files have up to 100.
const MAX_POST_VALUES: usize = 1 << 10;

/// Maximum number of places in the post-processor for a text. Real files have three: one for a single text, and two for a
/// pair.
const MAX_POST_TEXTS: usize = 8;

/// Maximum number of ids of a special token in the post-processor. Real files have one.
const MAX_POST_IDS: usize = 16;

/// Refuses a `tokenizer.json` whose steps may lengthen a text too much, or whose post-processor may add too many tokens.
pub(super) fn check(json: &Value) -> Result<(), TokenizerError> {
    let normalised = normalisation_steps(json);
    let divided = steps(&json["pre_tokenizer"], "pretokenizers");
    // The reader also accepts a list of a step's values.
    if let Some(other) = normalised.iter().chain(&divided).find(|step| !step.is_object()) {
        let found: String = other.to_string().chars().take(100).collect();
        return Err(malformed(format!("expected steps that are objects, found {found}")));
    }
    let normalised = normalised.into_iter().map(|step| factor(step).saturating_mul(of_type(step)));
    check_growth("normalisation", normalised, MAX_NORMALISED)?;
    let divided = divided.into_iter().map(|step| factor(step).saturating_mul(of_type(step)));
    check_growth("division into words", divided, MAX_DIVIDED)?;
    check_growth("decoder", steps(&json["decoder"], "decoders").into_iter().map(factor), MAX_DECODED)?;
    check_post_processor(&json["post_processor"])
}

fn check_growth(what: &str, factors: impl Iterator<Item = usize>, most: usize) -> Result<(), TokenizerError> {
    let growth = factors.fold(1_usize, usize::saturating_mul);
    if growth <= most {
        return Ok(());
    }
    Err(malformed(format!(
        "expected a {what} that lengthens a text by a factor of at most {most}, found {growth}"
    )))
}

fn check_post_processor(processor: &Value) -> Result<(), TokenizerError> {
    let mut values = 0;
    let mut texts = 0;
    let mut pending = vec![processor];
    while let Some(value) = pending.pop() {
        values += 1;
        match value {
            Value::Array(items) => pending.extend(items),
            Value::Object(fields) => {
                texts += usize::from(fields.contains_key("Sequence"));
                let ids = fields.get("ids").and_then(Value::as_array).map_or(0, Vec::len);
                check_count("ids of a token", ids, MAX_POST_IDS)?;
                pending.extend(fields.values());
            }
            _ => {}
        }
    }
    check_count("values", values, MAX_POST_VALUES)?;
    check_count("places for a text", texts, MAX_POST_TEXTS)
}

fn check_count(what: &str, found: usize, limit: usize) -> Result<(), TokenizerError> {
    if found <= limit {
        return Ok(());
    }
    Err(malformed(format!("expected a post-processor of at most {limit} {what}, found {found}")))
}

/// Returns the steps of a normalisation, also those of sequences inside of sequences.
pub(super) fn normalisation_steps(json: &Value) -> Vec<&Value> {
    steps(&json["normalizer"], "normalizers")
}

/// Returns the steps of a sequence, whose field `inner` has them, or of a single step. The reader does not require that
/// steps state their types, and a step with the field `inner` may be of another type, so it is returned, too.
fn steps<'a>(first: &'a Value, inner: &str) -> Vec<&'a Value> {
    let mut steps = Vec::new();
    let mut pending = vec![first];
    while let Some(step) = pending.pop() {
        if !step.is_null() {
            steps.push(step);
        }
        if let Value::Array(inner) = &step[inner] {
            pending.extend(inner.iter().rev());
        }
    }
    steps
}

/// Returns an upper bound on the factor by which a step of this type lengthens every text. A Unicode normalisation
/// replaces three bytes by up to 33 (U+FDFA), canonical decomposition two by up to six, and lower-casing two by three
/// (U+023A). Other types write each byte as a character, add spaces around characters, or replace spaces.
fn of_type(step: &Value) -> usize {
    let stated = match step["type"].as_str() {
        Some("NFKC" | "NFKD") => 11,
        Some("NFC" | "NFD") => 3,
        Some("Lowercase") => 2,
        Some("ByteLevel") => 2 * (1 + usize::from(step["add_prefix_space"] == true)),
        Some("Metaspace") => 1 + step["replacement"].as_str().map_or(3, str::len),
        _ => 1,
    };
    // The reader recognises BERT's normaliser, which decomposes, by its fields instead of its type.
    if step["clean_text"].is_boolean() { stated.max(3) } else { stated }
}

/// Returns an upper bound on the factor by which a step lengthens a text, at least 1.
fn factor(step: &Value) -> usize {
    let content = step["content"].as_str().map_or(0, str::len);
    let replaced = match step["pattern"]["String"].as_str() {
        Some(pattern) if !pattern.is_empty() => content.div_ceil(pattern.len()),
        // An empty match is between two bytes. A regular expression may match one.
        _ => content.saturating_add(1),
    };
    // The part between two special tokens may have one byte.
    let prepended = step["prepend"].as_str().map_or(0, str::len).saturating_add(1);
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
        assert!(error.contains("a factor of at most 4096, found 1000000000000"), "{error}");
        of(vec![text("aaaa", 4 * MAX_NORMALISED)]).unwrap();
        of(vec![replace(json!({"Regex": "a*"}), MAX_NORMALISED)]).unwrap_err();
        of(vec![text("", MAX_NORMALISED)]).unwrap_err();
        of(vec![json!({"type": "Prepend", "prepend": "a".repeat(MAX_NORMALISED)})]).unwrap_err();
        check(&json!({"normalizer": text("a", MAX_NORMALISED + 1)})).unwrap_err();
        of(vec![json!({"type": "ByteLevel"}); 13]).unwrap_err();
        let untyped = json!({"pattern": {"String": "a"}, "content": "a".repeat(MAX_NORMALISED + 1)});
        of(vec![json!({"normalizers": [untyped]})]).unwrap_err();
        // `Ⱥ` has two bytes, and its small letter three.
        of(vec![json!({"type": "Lowercase"}); 13]).unwrap_err();
        let bert = |kind: Value| {
            json!({"type": kind, "clean_text": false, "handle_chinese_chars": false,
            "strip_accents": true, "lowercase": false})
        };
        for kind in [Value::Null, json!("Bert"), json!("BertNormalizer"), json!("other")] {
            of(vec![bert(kind.clone()); 7]).unwrap();
            of(vec![bert(kind); 8]).unwrap_err();
        }
        let long = "a".repeat(MAX_NORMALISED);
        of(vec![json!({"type": "Prepend", "prepend": long, "normalizers": []})]).unwrap_err();
        let error = of(vec![json!([long])]).unwrap_err().to_string();
        assert!(error.contains("expected steps that are objects, found [\"aaa"), "{error}");
        check(&json!({"normalizer": null})).unwrap();
    }

    #[test]
    fn words_and_decoded_tokens_have_a_limit() {
        let words = |count| {
            let step = json!({"type": "ByteLevel", "add_prefix_space": false});
            check(&json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": vec![step; count]}}))
        };
        words(6).unwrap();
        let error = words(7).unwrap_err().to_string();
        assert!(error.contains("division into words") && error.contains("at most 64, found 128"), "{error}");
        let decoded = |length| {
            let step = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(length)});
            check(&json!({"decoder": {"type": "Sequence", "decoders": [step, {"type": "ByteLevel"}]}}))
        };
        decoded(64).unwrap();
        decoded(65).unwrap_err();
    }

    /// Chains of published tokenizers with much normalisation.
    #[test]
    fn real_chains_are_accepted() {
        let texts = format!("ab\0{}\0", "x".repeat(33));
        let bytes = [&4_u32.to_le_bytes()[..], &[0; 4], texts.as_bytes()].concat();
        let compiled = json!({"type": "Precompiled", "precompiled_charsmap": BASE64.encode(bytes)});
        let spaces = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"});
        let quotes = json!({"type": "Replace", "pattern": {"String": "``"}, "content": "\""});
        let metaspace = json!({"type": "Metaspace", "replacement": "▁", "add_prefix_space": true});
        for steps in [
            // As in T5 and NLLB.
            vec![compiled.clone(), spaces.clone()],
            // As in ALBERT and XLNet.
            vec![
                quotes.clone(),
                quotes,
                json!({"type": "NFKD"}),
                json!({"type": "StripAccents"}),
                json!({"type": "Lowercase"}),
                compiled.clone(),
            ],
            vec![json!({"type": "NFKC"}), compiled, spaces],
        ] {
            let normalizer = json!({"type": "Sequence", "normalizers": steps});
            let words =
                json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]});
            check(&json!({"normalizer": normalizer, "pre_tokenizer": words, "decoder": metaspace})).unwrap();
        }
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
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let error = check(&json!({"post_processor": {"single": vec![text; 9]}})).unwrap_err().to_string();
        assert!(error.contains("at most 8 places for a text, found 9"), "{error}");
        let token = json!({"id": "<s>", "ids": vec![1; 17], "tokens": ["<s>"]});
        check(&json!({"post_processor": {"special_tokens": {"<s>": token}}})).unwrap_err();
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
        of(MAX_NORMALISED + 1).unwrap_err();
    }
}
