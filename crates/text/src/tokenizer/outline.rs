//! Checks of a `tokenizer.json` before the `tokenizers` crate reads it. That crate panics on some malformed files, may give
//! an added token another id than the file states, and does not return the largest id.

use std::fmt;

use super::{TokenizerError, malformed};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// Maximum token id. Real vocabularies have fewer than 300,000 tokens.
const MAX_ID: u32 = (1 << 22) - 1;

/// The fields of a `tokenizer.json` that are checked.
#[derive(Debug, Deserialize)]
pub(super) struct Outline {
    /// Added tokens with the ids that the file declares.
    #[serde(default)]
    added_tokens: Vec<DeclaredToken>,
    model: ModelOutline,
}

/// An added token and its id.
#[derive(Debug, Deserialize)]
struct DeclaredToken {
    id: u64,
    content: String,
}

#[derive(Debug, Deserialize)]
struct ModelOutline {
    #[serde(default)]
    vocab: VocabOutline,
    #[serde(default)]
    merges: MergesOutline,
    continuing_subword_prefix: Option<String>,
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
        self.added_tokens.iter().map(|token| token.id).fold(self.model.vocab.largest_id, u64::max)
    }

    /// One more than the largest token id; ids below it may be unused.
    pub(super) fn vocab_size(&self) -> u32 {
        u32::try_from(self.largest_id()).unwrap_or(MAX_ID) + 1
    }

    /// Bytes of the longest spelling in the vocabulary.
    pub(super) fn longest_piece(&self) -> usize {
        self.model.vocab.longest
    }

    /// Checks that every added token has the id that the file declares.
    pub(super) fn check_added(&self, id_of: impl Fn(&str) -> Option<u32>) -> Result<(), TokenizerError> {
        for DeclaredToken { id, content } in &self.added_tokens {
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
                while let Some((Length(length), id)) = map.next_entry::<Length, u64>()? {
                    sizes.largest_id = sizes.largest_id.max(id);
                    sizes.longest = sizes.longest.max(length);
                }
                Ok(sizes)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<VocabOutline, A::Error> {
                let mut count = 0_u64;
                let mut sizes = VocabOutline::default();
                while let Some((Length(length), _)) = seq.next_element::<(Length, IgnoredAny)>()? {
                    count += 1;
                    sizes.longest = sizes.longest.max(length);
                }
                sizes.largest_id = count.saturating_sub(1);
                Ok(sizes)
            }
        }
        deserializer.deserialize_any(Sizes)
    }
}

/// The bytes of the longest merged token; merges are pairs or strings with a space inside.
#[derive(Debug, Default)]
struct MergesOutline {
    longest: Option<usize>,
}

impl<'de> Deserialize<'de> for MergesOutline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let merges = Option::<Vec<Merge>>::deserialize(deserializer)?.unwrap_or_default();
        Ok(Self { longest: merges.iter().map(|merge| merge.0).max() })
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
                while let Some(Length(length)) = seq.next_element()? {
                    sum += length;
                }
                Ok(Merge(sum))
            }
        }
        deserializer.deserialize_any(Sum)
    }
}

/// The bytes of a string that is not kept.
struct Length(usize);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Measure;
        impl Visitor<'_> for Measure {
            type Value = Length;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token's text")
            }

            fn visit_str<E>(self, text: &str) -> Result<Length, E> {
                Ok(Length(text.len()))
            }
        }
        deserializer.deserialize_str(Measure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        check("[]", "not usable");
        check(r#"{"model":{"vocab":{"a":-1}}}"#, "not usable");
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
