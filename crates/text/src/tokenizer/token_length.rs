//! Upper bound on the bytes of text per token. A text that is far too long is refused by it before it is tokenized,
//! which is slow.

use serde_json::Value;

use super::{SHIELD, bytes::alphabet, file::TokenizerFile};

/// Factor by which canonical composition (NFC) may shrink a text: three Hangul letters of three bytes each become one
/// syllable of three bytes (Unicode Standard Annex 15).
const COMPOSED: usize = 3;

/// Maximum length of the text of one token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenLengthBound {
    /// Bytes of text.
    bytes: usize,
    /// `true` if added tokens absorb any amount of white space around them.
    strips: bool,
    /// Bytes without a token in the vocabulary. A run of them may vanish or become one unknown token.
    lacks: Vec<u8>,
}

/// Returns true if a byte occurs in UTF-8.
fn in_utf8(byte: u8) -> bool {
    !matches!(byte, 0xC0 | 0xC1 | 0xF5..)
}

impl TokenLengthBound {
    /// Returns the bound of a tokenizer; `None` if text may vanish or one token may represent unknown text of any length.
    pub(super) fn of(file: &TokenizerFile) -> Option<Self> {
        let json = &file.json;
        let model = &json["model"];
        let splits = steps(&json["pre_tokenizer"], "pretokenizers");
        let bytes = (0..=u8::MAX).filter(|&byte| in_utf8(byte));
        let lacks: Vec<u8> = if splits.iter().any(|step| step["type"] == "ByteLevel") {
            bytes.filter(|&byte| !file.vocab.has_id(&alphabet()[usize::from(byte)].to_string())).collect()
        } else {
            bytes
                .filter(|byte| {
                    model["byte_fallback"] != true || !file.vocab.has_id(&format!("<0x{byte:02X}>"))
                })
                .collect()
        };
        let is_normal = steps(&json["normalizer"], "normalizers").is_empty();
        // With a normaliser, missing bytes may result from other characters.
        let whole =
            lacks.is_empty() || (is_normal && lacks.len() < 128 && lacks.iter().all(|byte| *byte >= 0x80));
        if model["type"] != "BPE" || !whole || !splits.iter().all(|step| keeps_text(step)) {
            return None;
        }

        let mut shrinks = 1;
        for step in steps(&json["normalizer"], "normalizers") {
            match step["type"].as_str() {
                Some("Prepend") => {}
                Some("NFC") => shrinks = COMPOSED,
                Some("Replace") if replaced(step)? => {}
                _ => return None,
            }
        }
        let added = json["added_tokens"].as_array().map_or(&[][..], Vec::as_slice);
        let spelled = added.iter().filter_map(|token| token["content"].as_str()).map(str::len);
        Some(Self {
            bytes: spelled.fold(file.vocab.longest().max(1), usize::max).saturating_mul(shrinks),
            strips: added.iter().any(|token| token["lstrip"] == true || token["rstrip"] == true),
            lacks,
        })
    }

    /// Returns a lower bound on the number of tokens of a text.
    pub(super) fn fewest(&self, text: &str) -> usize {
        let kept = text.chars().filter(|c| *c != SHIELD && !(self.strips && c.is_whitespace()));
        kept.map(|c| self.known_bytes(c)).sum::<usize>().div_ceil(self.bytes)
    }

    /// Returns the number of a character's bytes that have tokens.
    fn known_bytes(&self, c: char) -> usize {
        if self.lacks.is_empty() || c.is_ascii() {
            return c.len_utf8();
        }
        c.encode_utf8(&mut [0; 4]).bytes().filter(|byte| !self.lacks.contains(byte)).count()
    }
}

/// Returns true if a step of the pre-tokenizer drops no text.
fn keeps_text(step: &Value) -> bool {
    match step["type"].as_str() {
        Some("ByteLevel" | "Digits" | "Metaspace") => true,
        Some("Split") => step["behavior"] != "Removed",
        _ => false,
    }
}

/// Returns the steps of a normaliser or pre-tokenizer.
pub(super) fn steps<'a>(json: &'a Value, of_sequence: &str) -> Vec<&'a Value> {
    match &json[of_sequence] {
        Value::Array(steps) if json["type"] == "Sequence" => steps.iter().collect(),
        _ if json.is_null() => Vec::new(),
        _ => vec![json],
    }
}

/// Returns true if a replacement is at least as long as the string that it replaces; `None` if the pattern is not a
/// string.
fn replaced(step: &Value) -> Option<bool> {
    Some(step["pattern"]["String"].as_str()?.len() <= step["content"].as_str()?.len())
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::tokenizer::file::tests::parse_value;

    fn reach(changes: Value) -> Option<TokenLengthBound> {
        let spellings = alphabet().iter().map(char::to_string).chain(["four".to_owned()]);
        let letters: Map<String, Value> = spellings.map(|spelling| (spelling, 0.into())).collect();
        let mut json = json!({
            "added_tokens": [{"id": 1, "content": "<|end|>"}],
            "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": letters},
        });
        for (key, value) in changes.as_object().unwrap() {
            json[key] = value.clone();
        }
        TokenLengthBound::of(&parse_value(&json).unwrap())
    }

    #[test]
    fn a_token_has_the_bytes_of_the_longest_piece_or_added_token() {
        let check = |changes, bytes, strips| {
            assert_eq!(reach(changes), Some(TokenLengthBound { bytes, strips, lacks: Vec::new() }));
        };
        check(json!({}), 7, false);
        check(json!({"added_tokens": null}), 4, false);
        check(json!({"added_tokens": [{"id": 1, "content": "<s>", "rstrip": true}]}), 4, true);
        check(json!({"normalizer": {"type": "NFC"}}), 21, false);
        let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        check(
            json!({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend"}, spaces]}}),
            7,
            false,
        );
        let split = json!({"type": "Split", "behavior": "Isolated"});
        let both = json!([split, {"type": "ByteLevel"}]);
        check(json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": both}}), 7, false);
    }

    #[test]
    fn nothing_is_said_where_text_may_vanish() {
        for changes in [
            json!({"model": {"type": "WordPiece"}}),
            json!({"pre_tokenizer": {"type": "Whitespace"}}),
            json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "behavior": "Removed"}, {"type": "ByteLevel"}]}}),
            json!({"pre_tokenizer": null}),
            json!({"pre_tokenizer": null, "model": {"type": "BPE", "byte_fallback": true, "vocab": {"<0x00>": 0}}}),
            json!({"model": {"type": "BPE", "vocab": {"Ā": 0}}}),
            json!({"normalizer": {"type": "StripAccents"}}),
            json!({"normalizer": {"type": "Replace", "pattern": {"String": "  "}, "content": " "}}),
            json!({"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}}),
        ] {
            assert_eq!(reach(changes.clone()), None, "{changes}");
        }
    }

    #[test]
    fn what_may_vanish_is_not_counted() {
        let reach = |strips| TokenLengthBound { bytes: 4, strips, lacks: Vec::new() };
        assert_eq!((reach(false).fewest("12345"), reach(false).fewest("")), (2, 0));
        assert_eq!((reach(false).fewest("1   2"), reach(true).fewest("1 \t\n2")), (2, 1));
        assert_eq!(reach(false).fewest(&format!("12{SHIELD}{SHIELD}34")), 1);
        // The vocabulary has one of the two bytes of é (C3 A9).
        assert_eq!(TokenLengthBound { lacks: vec![0xA9], ..reach(false) }.fewest("éééé1"), 2);
    }

    #[test]
    fn a_vocabulary_may_lack_bytes() {
        let without = |lacking: &[u8]| {
            let letters = (0..=255u8).filter(|byte| !lacking.contains(byte));
            let letters = letters.map(|byte| (alphabet()[usize::from(byte)].to_string(), 0.into()));
            reach(json!({"model": {"type": "BPE", "vocab": letters.collect::<Map<String, Value>>()}}))
        };
        let lacks = |lacking| without(lacking).map(|reach| reach.lacks);
        // These bytes do not occur in UTF-8.
        assert_eq!(lacks(&[0xC0, 0xC1, 0xF5, 0xFF]), Some(vec![]));
        assert_eq!(lacks(&[0xC0, 0xF1]), Some(vec![0xF1]));
        assert_eq!(lacks(b"a"), None);
    }
}
