//! Reading of a `tokenizer.json` with limits. On some malformed files the `tokenizers` crate panics, allocates as much
//! memory as the file states, or gives an added token another id than the file states.
//!
//! Most of a file is vocabulary and merges. They are read once, into the types from which the crate's models are built.
//! The other fields become a [`Value`].

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};
use tokenizers::models::bpe::{Merges, Vocab};

use super::{
    SHIELD, TokenizerError,
    limited_json::{LimitedValue, MAX_VALUES, add_values, too_many},
    malformed,
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

/// A parsed `tokenizer.json`.
#[derive(Debug, Default)]
pub(super) struct TokenizerFile {
    /// All fields except the truncation, the padding, and the vocabulary and the merges of the model.
    pub(super) json: Value,
    pub(super) vocab: Vocabulary,
    /// Pairs of tokens of a BPE model, the most frequent ones first. Other models may have none.
    pub(super) merges: Option<Merges>,
    pub(super) added: AddedIds,
}

/// Vocabulary of a model.
#[derive(Debug, Default)]
pub(super) enum Vocabulary {
    /// The file has none.
    #[default]
    None,
    /// Ids of the tokens.
    Ids(Vocab),
    /// Tokens with their scores, in the order of their ids.
    Scores(Vec<(String, f64)>),
}

/// The ids that a file states for added tokens.
#[derive(Debug, Default)]
pub(super) struct AddedIds(Vec<AddedId>);

#[derive(Debug)]
struct AddedId {
    id: u32,
    content: String,
}

impl AddedIds {
    /// Checks that every added token has the id that the file states.
    pub(super) fn check(&self, id_of: impl Fn(&str) -> Option<u32>) -> Result<(), TokenizerError> {
        for AddedId { id, content } in &self.0 {
            if let Some(found) = id_of(content)
                && found != *id
            {
                return Err(malformed(format!(
                    "expected id {id} for the added token {content:?}, found {found}"
                )));
            }
        }
        Ok(())
    }
}

impl Vocabulary {
    /// Returns true if it has ids and this token.
    pub(super) fn has_id(&self, token: &str) -> bool {
        matches!(self, Self::Ids(ids) if ids.contains_key(token))
    }

    /// Returns the number of bytes of the longest token.
    pub(super) fn longest(&self) -> usize {
        let longest = match self {
            Self::None => None,
            Self::Ids(ids) => ids.keys().map(String::len).max(),
            Self::Scores(tokens) => tokens.iter().map(|(token, _)| token.len()).max(),
        };
        longest.unwrap_or(0)
    }

    fn largest_id(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Ids(ids) => ids.values().copied().max().unwrap_or(0),
            Self::Scores(tokens) => tokens.len().saturating_sub(1) as u32,
        }
    }
}

impl TokenizerFile {
    /// Parses and checks a file.
    pub(super) fn parse(json: &[u8]) -> Result<Self, TokenizerError> {
        let file: Self = serde_json::from_slice(json).map_err(malformed)?;
        let lengths = file.merges.iter().flatten().map(|(left, right)| left.len() + right.len());
        let Some(merged) = lengths.max() else { return Ok(file) };
        let prefix = file.json["model"]["continuing_subword_prefix"].as_str().unwrap_or_default();
        if !prefix.is_empty() {
            return Err(malformed(format!(
                "expected merges without a sub-word prefix, found the prefix {prefix:?}"
            )));
        }
        let longest = file.vocab.longest();
        if merged > longest {
            return Err(malformed(format!(
                "expected merges that make tokens of at most {longest} bytes, as the longest one, found one of {merged}"
            )));
        }
        Ok(file)
    }

    /// Returns one more than the largest token id; ids below it may be unused.
    pub(super) fn vocab_size(&self) -> u32 {
        self.added.0.iter().map(|token| token.id).fold(self.vocab.largest_id(), u32::max) + 1
    }
}

/// Reads the value of a field and adds its number of values to `count`.
fn next_value<'de, A: MapAccess<'de>>(
    map: &mut A,
    count: &mut usize,
    most: usize,
) -> Result<Value, A::Error> {
    let LimitedValue { value, count: more } = map.next_value()?;
    add_values(count, more, most)?;
    Ok(value)
}

/// Checks the id of a token.
fn token_id<E: Error>(id: u64) -> Result<u32, E> {
    match u32::try_from(id) {
        Ok(id) if id <= MAX_ID => Ok(id),
        _ => Err(E::custom(format!("expected token ids up to {MAX_ID}, found {id}"))),
    }
}

impl<'de> Deserialize<'de> for TokenizerFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FileVisitor;
        impl<'de> Visitor<'de> for FileVisitor {
            type Value = TokenizerFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the object of a tokenizer.json")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TokenizerFile, A::Error> {
                let (mut fields, mut values) = (Map::new(), 0);
                let (mut added, mut model) = (AddedTokens::default(), None);
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "added_tokens" => added = map.next_value()?,
                        "model" => {
                            let found: Model = map.next_value()?;
                            add_values::<A::Error>(&mut values, found.values, MAX_VALUES)?;
                            model = Some(found);
                        }
                        _ => {
                            let value = next_value(&mut map, &mut values, MAX_VALUES)?;
                            fields.insert(name, value);
                        }
                    }
                }
                let Model { fields: model, vocab, merges, .. } =
                    model.ok_or_else(|| A::Error::missing_field("model"))?;
                fields.insert("added_tokens".to_owned(), Value::Array(added.tokens));
                fields.insert("model".to_owned(), Value::Object(model));
                for setting in ["truncation", "padding"] {
                    fields.insert(setting.to_owned(), Value::Null);
                }
                Ok(TokenizerFile { json: Value::Object(fields), vocab, merges, added: added.ids })
            }
        }
        deserializer.deserialize_map(FileVisitor)
    }
}

/// The model of a file.
#[derive(Default)]
struct Model {
    /// All fields except the vocabulary and the merges.
    fields: Map<String, Value>,
    vocab: Vocabulary,
    merges: Option<Merges>,
    /// Number of values in the fields.
    values: usize,
}

impl<'de> Deserialize<'de> for Model {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ModelVisitor;
        impl<'de> Visitor<'de> for ModelVisitor {
            type Value = Model;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the object of a model")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Model, A::Error> {
                let mut model = Model::default();
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "vocab" => model.vocab = map.next_value()?,
                        "merges" => model.merges = map.next_value::<Option<MergeList>>()?.map(|list| list.0),
                        _ => {
                            let value = next_value(&mut map, &mut model.values, MAX_VALUES)?;
                            model.fields.insert(name, value);
                        }
                    }
                }
                Ok(model)
            }
        }
        deserializer.deserialize_map(ModelVisitor)
    }
}

/// Added tokens, as they are and by their ids.
#[derive(Default)]
struct AddedTokens {
    tokens: Vec<Value>,
    ids: AddedIds,
}

impl<'de> Deserialize<'de> for AddedTokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AddedVisitor;
        impl<'de> Visitor<'de> for AddedVisitor {
            type Value = AddedTokens;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of added tokens")
            }

            fn visit_unit<E>(self) -> Result<AddedTokens, E> {
                Ok(AddedTokens::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<AddedTokens, A::Error> {
                let mut added = AddedTokens::default();
                while let Some(AddedToken { fields, id, content }) = seq.next_element()? {
                    if added.tokens.len() == MAX_ADDED {
                        return Err(too_many("added tokens", MAX_ADDED));
                    }
                    if content.len() > MAX_ADDED_SPELLING {
                        return Err(too_many("bytes of an added token", MAX_ADDED_SPELLING));
                    }
                    if content.contains(SHIELD) {
                        return Err(A::Error::custom(format!(
                            "expected added tokens without the character U+FDD0, found {content:?}"
                        )));
                    }
                    added.tokens.push(Value::Object(fields));
                    added.ids.0.push(AddedId { id, content });
                }
                Ok(added)
            }
        }
        deserializer.deserialize_any(AddedVisitor)
    }
}

struct AddedToken {
    /// All fields, also those that follow.
    fields: Map<String, Value>,
    id: u32,
    content: String,
}

impl<'de> Deserialize<'de> for AddedToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TokenVisitor;
        impl<'de> Visitor<'de> for TokenVisitor {
            type Value = AddedToken;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an added token")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<AddedToken, A::Error> {
                let (mut fields, mut values) = (Map::new(), 0);
                let (mut id, mut content) = (None, None);
                while let Some(name) = map.next_key::<String>()? {
                    let value = match name.as_str() {
                        "id" => Value::from(*id.insert(token_id(map.next_value()?)?)),
                        "content" => Value::from(content.insert(map.next_value::<String>()?).as_str()),
                        _ => next_value(&mut map, &mut values, MAX_ADDED_VALUES)?,
                    };
                    fields.insert(name, value);
                }
                let id = id.ok_or_else(|| A::Error::missing_field("id"))?;
                let content = content.ok_or_else(|| A::Error::missing_field("content"))?;
                Ok(AddedToken { fields, id, content })
            }
        }
        deserializer.deserialize_map(TokenVisitor)
    }
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct VocabularyVisitor;
        impl<'de> Visitor<'de> for VocabularyVisitor {
            type Value = Vocabulary;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of token ids or an array of tokens with scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
                let mut ids = Vocab::default();
                while let Some((Spelling(token), id)) = map.next_entry()? {
                    if ids.len() == MAX_TOKENS {
                        return Err(too_many("tokens", MAX_TOKENS));
                    }
                    ids.insert(token, token_id(id)?);
                }
                Ok(Vocabulary::Ids(ids))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vocabulary, A::Error> {
                let mut tokens = Vec::new();
                while let Some((Spelling(token), score)) = seq.next_element()? {
                    if tokens.len() == MAX_TOKENS {
                        return Err(too_many("tokens", MAX_TOKENS));
                    }
                    tokens.push((token, score));
                }
                Ok(Vocabulary::Scores(tokens))
            }
        }
        deserializer.deserialize_any(VocabularyVisitor)
    }
}

/// Merges: pairs, or texts with a space between the tokens.
struct MergeList(Merges);

impl<'de> Deserialize<'de> for MergeList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor;
        impl<'de> Visitor<'de> for ListVisitor {
            type Value = MergeList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of merges")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<MergeList, A::Error> {
                let mut merges = Merges::new();
                while let Some(Merge(pair)) = seq.next_element()? {
                    if merges.len() == MAX_MERGES {
                        return Err(too_many("merges", MAX_MERGES));
                    }
                    merges.extend(pair);
                }
                Ok(MergeList(merges))
            }
        }
        deserializer.deserialize_seq(ListVisitor)
    }
}

/// The two tokens of a merge; `None` for the line with the version of old files.
struct Merge(Option<(String, String)>);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two tokens")
            }

            fn visit_str<E: Error>(self, merge: &str) -> Result<Merge, E> {
                if merge.starts_with("#version") {
                    return Ok(Merge(None));
                }
                match merge.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => {
                        Ok(Merge(Some((left.to_owned(), right.to_owned()))))
                    }
                    _ => Err(E::custom(format!(
                        "expected two tokens with a space between them, found {merge:?}"
                    ))),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
                let (Some(Spelling(left)), Some(Spelling(right))) =
                    (seq.next_element()?, seq.next_element()?)
                else {
                    return Err(A::Error::custom("expected a merge of two tokens, found fewer"));
                };
                match seq.next_element::<Spelling>()? {
                    None => Ok(Merge(Some((left, right)))),
                    Some(_) => Err(too_many("tokens in a merge", 2)),
                }
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}

/// A token's text of limited length.
struct Spelling(String);

impl<'de> Deserialize<'de> for Spelling {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SpellingVisitor;
        impl Visitor<'_> for SpellingVisitor {
            type Value = Spelling;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token's text")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Spelling, E> {
                if text.len() > MAX_SPELLING {
                    return Err(too_many("bytes of a token", MAX_SPELLING));
                }
                Ok(Spelling(text.to_owned()))
            }
        }
        deserializer.deserialize_str(SpellingVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::limited_json::MAX_TEXT;

    fn check(json: &str, expect: &str) {
        let found = match TokenizerFile::parse(json.as_bytes()) {
            Ok(file) => format!("{} ids", file.vocab_size()),
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
    fn added_tokens_have_the_ids_that_the_file_states() {
        let file =
            TokenizerFile::parse(br#"{"added_tokens":[{"id":5,"content":"<s>"}],"model":{}}"#).unwrap();
        assert_eq!(file.vocab_size(), 6);
        assert!(file.added.check(|_| Some(5)).is_ok());
        let error = file.added.check(|_| Some(4)).unwrap_err().to_string();
        assert!(error.contains("expected id 5 for the added token \"<s>\", found 4"), "{error}");
    }

    #[test]
    fn malformed_merges_are_refused() {
        let check = |merges: &str, expect: &str| {
            let json = format!(r#"{{"model":{{"vocab":{{"a":0,"b":1,"ab":2}},"merges":{merges}}}}}"#);
            self::check(&json, expect);
        };
        check(r#"["a b"]"#, "3 ids");
        check(r##"["#version: 0.2","a b",["a","b"]]"##, "3 ids");
        check("null", "3 ids");
        for merge in ["ab", "a b ", "a  b", "a b c"] {
            check(&format!("[{merge:?}]"), &format!("two tokens with a space between them, found {merge:?}"));
        }
        check(r#"[["a"]]"#, "expected a merge of two tokens, found fewer");
        check("[1]", "expected two tokens");
        check("{}", "expected a list of merges");
    }
}
