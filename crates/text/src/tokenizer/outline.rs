//! Checks of a `tokenizer.json` before the `tokenizers` crate reads it. On some malformed files that crate panics,
//! allocates as much memory as the file states, or gives an added token another id than the file states. It does not
//! return the largest id. Values read here are counted and not kept.

use std::fmt;

use super::{
    SHIELD, TokenizerError,
    limited_json::{LimitedValue, MAX_VALUES, add_values, too_many},
    malformed,
};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

/// Maximum token id. Real vocabularies have fewer than 300,000 tokens.
const MAX_ID: u32 = (1 << 22) - 1;

/// Maximum size of a `tokenizer.json` in bytes. One of 250,000 tokens takes about 30 MB.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// Maximum number of tokens of the vocabulary.
pub const MAX_TOKENS: usize = 1 << 19;

/// Maximum number of merges. Gemma has half a million.
pub const MAX_MERGES: usize = 3 << 18;

/// Maximum number of added tokens. Gemma has six thousand.
pub(super) const MAX_ADDED: usize = 1 << 16;

/// Maximum number of values of an added token besides its id and text. Real files have five.
const MAX_ADDED_VALUES: usize = 16;

/// Maximum number of bytes of a token's spelling.
const MAX_SPELLING: usize = 1 << 14;

/// Maximum number of bytes of an added token's spelling. The spellings are compared with a text at each position. Real ones
/// have fewer than 100.
const MAX_ADDED_SPELLING: usize = 1 << 10;

/// The fields of a `tokenizer.json` that are checked.
#[derive(Debug, Default)]
pub(super) struct Outline {
    /// Added tokens with the ids that the file declares.
    added_tokens: AddedOutline,
    model: ModelOutline,
}

/// An added token and its id.
#[derive(Debug)]
struct DeclaredToken {
    id: u64,
    content: String,
}

#[derive(Debug, Default)]
struct AddedOutline(Vec<DeclaredToken>);

#[derive(Debug, Default)]
struct ModelOutline {
    vocab: VocabOutline,
    merges: MergesOutline,
    continuing_subword_prefix: Option<String>,
    /// Number of values in the other fields.
    values: usize,
}

/// Reads and checks `json`.
pub(super) fn read(json: &[u8]) -> Result<Outline, TokenizerError> {
    let outline: Outline = serde_json::from_slice(json).map_err(malformed)?;
    let largest = outline.largest_id();
    if largest > u64::from(MAX_ID) {
        return Err(malformed(format!("expected token ids up to {MAX_ID}, found {largest}")));
    }
    let model = &outline.model;
    if let (Some(_), Some(prefix)) = (model.merges.longest, model.continuing_subword_prefix.as_deref())
        && !prefix.is_empty()
    {
        return Err(malformed(format!(
            "expected merges without a sub-word prefix, found the prefix {prefix:?}"
        )));
    }
    let longest = model.vocab.longest;
    match model.merges.longest {
        Some(found) if found > longest => Err(malformed(format!(
            "expected merges that make tokens of at most {longest} bytes, as the longest one, found one of {found}"
        ))),
        _ => Ok(outline),
    }
}

impl Outline {
    fn largest_id(&self) -> u64 {
        self.added_tokens.0.iter().map(|token| token.id).fold(self.model.vocab.largest_id, u64::max)
    }

    /// Returns one more than the largest token id; ids below it may be unused.
    pub(super) fn vocab_size(&self) -> u32 {
        u32::try_from(self.largest_id()).unwrap_or(MAX_ID) + 1
    }

    /// Returns the number of bytes of the longest spelling in the vocabulary.
    pub(super) fn longest_piece(&self) -> usize {
        self.model.vocab.longest
    }

    /// Checks that every added token has the id that the file declares.
    pub(super) fn check_added(&self, id_of: impl Fn(&str) -> Option<u32>) -> Result<(), TokenizerError> {
        for DeclaredToken { id, content } in &self.added_tokens.0 {
            if let Some(found) = id_of(content)
                && u64::from(found) != *id
            {
                return Err(malformed(format!(
                    "expected id {id} for the added token {content:?}, found {found}"
                )));
            }
        }
        Ok(())
    }
}

/// Skips the value of a field and adds its number of values to `count`.
fn skip_value<'de, A: MapAccess<'de>>(map: &mut A, count: &mut usize, most: usize) -> Result<(), A::Error> {
    let LimitedValue(more) = map.next_value()?;
    add_values(count, more, most)
}

impl<'de> Deserialize<'de> for Outline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OutlineVisitor;
        impl<'de> Visitor<'de> for OutlineVisitor {
            type Value = Outline;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the object of a tokenizer.json")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Outline, A::Error> {
                let mut outline = Outline::default();
                let mut values = 0;
                let mut has_model = false;
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "added_tokens" => outline.added_tokens = map.next_value()?,
                        "model" => {
                            outline.model = map.next_value()?;
                            add_values::<A::Error>(&mut values, outline.model.values, MAX_VALUES)?;
                            has_model = true;
                        }
                        _ => skip_value(&mut map, &mut values, MAX_VALUES)?,
                    }
                }
                if has_model { Ok(outline) } else { Err(A::Error::missing_field("model")) }
            }
        }
        deserializer.deserialize_map(OutlineVisitor)
    }
}

impl<'de> Deserialize<'de> for ModelOutline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ModelVisitor;
        impl<'de> Visitor<'de> for ModelVisitor {
            type Value = ModelOutline;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the object of a model")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ModelOutline, A::Error> {
                let mut model = ModelOutline::default();
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "vocab" => model.vocab = map.next_value()?,
                        "merges" => model.merges = map.next_value()?,
                        "continuing_subword_prefix" => model.continuing_subword_prefix = map.next_value()?,
                        _ => skip_value(&mut map, &mut model.values, MAX_VALUES)?,
                    }
                }
                Ok(model)
            }
        }
        deserializer.deserialize_map(ModelVisitor)
    }
}

impl<'de> Deserialize<'de> for AddedOutline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tokens;
        impl<'de> Visitor<'de> for Tokens {
            type Value = AddedOutline;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of added tokens")
            }

            fn visit_unit<E>(self) -> Result<AddedOutline, E> {
                Ok(AddedOutline::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<AddedOutline, A::Error> {
                let mut tokens: Vec<DeclaredToken> = Vec::new();
                while let Some(token) = seq.next_element::<DeclaredToken>()? {
                    if tokens.len() == MAX_ADDED {
                        return Err(too_many("added tokens", MAX_ADDED));
                    }
                    if token.content.len() > MAX_ADDED_SPELLING {
                        return Err(too_many("bytes of an added token", MAX_ADDED_SPELLING));
                    }
                    if token.content.contains(SHIELD) {
                        return Err(A::Error::custom(format!(
                            "expected added tokens without the character U+FDD0, found {:?}",
                            token.content
                        )));
                    }
                    tokens.push(token);
                }
                Ok(AddedOutline(tokens))
            }
        }
        deserializer.deserialize_any(Tokens)
    }
}

impl<'de> Deserialize<'de> for DeclaredToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TokenVisitor;
        impl<'de> Visitor<'de> for TokenVisitor {
            type Value = DeclaredToken;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an added token")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DeclaredToken, A::Error> {
                let (mut id, mut content, mut values) = (None, None, 0);
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "id" => id = Some(map.next_value()?),
                        "content" => content = Some(map.next_value::<String>()?),
                        _ => skip_value(&mut map, &mut values, MAX_ADDED_VALUES)?,
                    }
                }
                let id = id.ok_or_else(|| A::Error::missing_field("id"))?;
                let content = content.ok_or_else(|| A::Error::missing_field("content"))?;
                Ok(DeclaredToken { id, content })
            }
        }
        deserializer.deserialize_map(TokenVisitor)
    }
}

/// Sizes of a vocabulary: an object of ids by text, or an array of texts with scores.
#[derive(Debug, Default)]
struct VocabOutline {
    largest_id: u64,
    longest: usize,
}

impl<'de> Deserialize<'de> for VocabOutline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Sizes;
        impl<'de> Visitor<'de> for Sizes {
            type Value = VocabOutline;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of token ids or an array of tokens with scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VocabOutline, A::Error> {
                let mut sizes = VocabOutline::default();
                let mut count = 0;
                while let Some((Length(length), id)) = map.next_entry::<Length, u64>()? {
                    count += 1;
                    if count > MAX_TOKENS {
                        return Err(too_many("tokens", MAX_TOKENS));
                    }
                    sizes.largest_id = sizes.largest_id.max(id);
                    sizes.longest = sizes.longest.max(length);
                }
                Ok(sizes)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<VocabOutline, A::Error> {
                let mut count = 0;
                let mut sizes = VocabOutline::default();
                while let Some((Length(length), _)) = seq.next_element::<(Length, f64)>()? {
                    count += 1;
                    if count > MAX_TOKENS {
                        return Err(too_many("tokens", MAX_TOKENS));
                    }
                    sizes.longest = sizes.longest.max(length);
                }
                sizes.largest_id = (count as u64).saturating_sub(1);
                Ok(sizes)
            }
        }
        deserializer.deserialize_any(Sizes)
    }
}

/// Number of bytes of the longest merged token. Merges are pairs or strings with a space inside.
#[derive(Debug, Default)]
struct MergesOutline {
    longest: Option<usize>,
}

impl<'de> Deserialize<'de> for MergesOutline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Merges;
        impl<'de> Visitor<'de> for Merges {
            type Value = MergesOutline;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of merges")
            }

            fn visit_unit<E>(self) -> Result<MergesOutline, E> {
                Ok(MergesOutline::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<MergesOutline, A::Error> {
                let (mut count, mut longest) = (0, None);
                while let Some(Merge(length)) = seq.next_element()? {
                    count += 1;
                    if count > MAX_MERGES {
                        return Err(too_many("merges", MAX_MERGES));
                    }
                    longest = longest.max(Some(length));
                }
                Ok(MergesOutline { longest })
            }
        }
        deserializer.deserialize_any(Merges)
    }
}

struct Merge(usize);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Sum;
        impl<'de> Visitor<'de> for Sum {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two tokens")
            }

            fn visit_str<E>(self, merge: &str) -> Result<Merge, E> {
                Ok(Merge(merge.len().saturating_sub(1)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
                let mut sum = 0;
                let mut parts = 0;
                while let Some(Length(length)) = seq.next_element()? {
                    parts += 1;
                    if parts > 2 {
                        return Err(too_many("tokens in a merge", 2));
                    }
                    sum += length;
                }
                Ok(Merge(sum))
            }
        }
        deserializer.deserialize_any(Sum)
    }
}

/// Number of bytes of a string that is not kept.
struct Length(usize);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Measure;
        impl Visitor<'_> for Measure {
            type Value = Length;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token's text")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Length, E> {
                if text.len() > MAX_SPELLING {
                    return Err(too_many("bytes of a token", MAX_SPELLING));
                }
                Ok(Length(text.len()))
            }
        }
        deserializer.deserialize_str(Measure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::limited_json::MAX_TEXT;

    fn check(json: &str, expect: &str) {
        let found = match read(json.as_bytes()) {
            Ok(outline) => format!("{} ids", outline.vocab_size()),
            Err(error) => error.to_string(),
        };
        assert!(found.contains(expect), "{json}: {found}");
    }

    #[test]
    fn sizes_are_read_and_checked() {
        check(r#"{"model":{"vocab":{"a":0,"b":7},"merges":[]}}"#, "8 ids");
        check(r#"{"model":{"vocab":[["a",0.5],["b",-1]]}}"#, "2 ids");
        check(
            r#"{"model":{"vocab":{"a":4294967295}}}"#,
            "expected token ids up to 4194303, found 4294967295",
        );
        check(r#"{"added_tokens":[{"id":4194304,"content":"x"}],"model":{}}"#, "found 4194304");
        check(r#"{"model":{"vocab":{"a":0,"b":1},"merges":["a b"]}}"#, "found one of 2");
        check(r#"{"model":{"vocab":{"a":0,"b":1},"merges":[["a","b"]]}}"#, "found one of 2");
        check(
            r###"{"model":{"vocab":{"a":0,"##b":1,"ab":2},"merges":["a ##b"],"continuing_subword_prefix":"##"}}"###,
            r###"found the prefix "##""###,
        );
        check(
            r#"{"added_tokens":[{"id":1,"content":"<\uFDD0>"}],"model":{}}"#,
            "without the character U+FDD0, found",
        );
        check("[]", "not usable");
        check(r#"{"model":{"vocab":{"a":-1}}}"#, "not usable");
    }

    #[test]
    fn sizes_are_limited() {
        let list = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
        let merges =
            format!(r#"{{"model":{{"vocab":{{"ab":0}},"merges":{}}}}}"#, list("\"a b\"", MAX_MERGES + 1));
        check(&merges, "expected at most 786432 merges, found more");
        let vocab = format!(r#"{{"model":{{"vocab":{}}}}}"#, list("[\"a\",0]", MAX_TOKENS + 1));
        check(&vocab, "expected at most 524288 tokens, found more");
        let added = list(r#"{"id":1,"content":"a"}"#, MAX_ADDED + 1);
        check(&format!(r#"{{"added_tokens":{added},"model":{{}}}}"#), "at most 65536 added tokens");
        check(
            &format!(r#"{{"model":{{}},"x":{}}}"#, list("[]", MAX_VALUES)),
            "at most 65536 values in a field",
        );
        check(
            &format!(r#"{{"model":{{"x":{}}}}}"#, list("{\"a\":1}", MAX_VALUES / 3 + 1)),
            "values in a field",
        );
        check(
            &format!(r#"{{"model":{{"vocab":{{"{}":0}}}}}}"#, "a".repeat(MAX_SPELLING + 1)),
            "bytes of a token",
        );
        let long = "a".repeat(MAX_ADDED_SPELLING + 1);
        check(
            &format!(r#"{{"added_tokens":[{{"id":1,"content":"{long}"}}],"model":{{}}}}"#),
            "at most 1024 bytes of an added token",
        );
        check(&format!(r#"{{"model":{{}},"x":"{}"}}"#, "a".repeat(MAX_TEXT + 1)), "bytes of a string");
        let half = list("0", MAX_VALUES / 2);
        check(&format!(r#"{{"x":{half},"model":{{}},"y":{half}}}"#), "at most 65536 values in all fields");
        check(&format!(r#"{{"x":{half},"model":{{"y":{half}}}}}"#), "at most 65536 values in all fields");
        check(&format!(r#"{{"model":{{"x":{half},"y":{half}}}}}"#), "at most 65536 values in all fields");
        let fields = list("0", MAX_ADDED_VALUES);
        let token = format!(r#"{{"id":1,"content":"a","x":{fields}}}"#);
        check(&format!(r#"{{"added_tokens":[{token}],"model":{{}}}}"#), "at most 16 values in all fields");
        check(r#"{"model":{"vocab":{"abc":0},"merges":[["a","b","c"]]}}"#, "at most 2 tokens in a merge");
    }

    #[test]
    fn added_tokens_have_the_ids_that_they_declare() {
        let outline = read(br#"{"added_tokens":[{"id":5,"content":"<s>"}],"model":{}}"#).unwrap();
        assert_eq!(outline.vocab_size(), 6);
        assert!(outline.check_added(|_| Some(5)).is_ok());
        let error = outline.check_added(|_| Some(4)).unwrap_err().to_string();
        assert!(error.contains("expected id 5 for the added token \"<s>\", found 4"), "{error}");
    }
}
