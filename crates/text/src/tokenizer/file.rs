//! Parser of `tokenizer.json` with limits. On some malformed files the `tokenizers` crate panics, allocates as much
//! memory as the file states, or gives an added token another id than the file states.
//!
//! Vocabulary and merges are most of a file. They are parsed into the types from which the crate's models are built, and
//! all other fields into a [`Value`].

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};
use tokenizers::models::bpe::Merges;

use super::{
    SHIELD, TokenizerError,
    file_model::{FileModel, FileVocabulary, token_id},
    limited_json::{MAX_VALUES, add_values, next_value, too_many},
    malformed,
};

/// Maximum size of a `tokenizer.json` in bytes. One of 250,000 tokens takes about 30 MB.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// Maximum number of added tokens. Gemma has six thousand.
pub(super) const MAX_ADDED: usize = 1 << 16;

/// Maximum number of values of an added token besides its id and text. Real files have five.
const MAX_ADDED_VALUES: usize = 16;

/// Maximum number of bytes of an added token's spelling. The spellings are compared with a text at each position. Real ones
/// have fewer than 100.
const MAX_ADDED_SPELLING: usize = 1 << 10;

/// A parsed `tokenizer.json`.
#[derive(Debug, Default)]
pub(super) struct TokenizerFile {
    /// All fields. The model lacks its vocabulary and merges; truncation and padding are null.
    pub(super) json: Value,
    pub(super) vocab: FileVocabulary,
    /// Merges in order of priority. Only BPE models require them.
    pub(super) merges: Option<Merges>,
    pub(super) added: AddedIds,
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

impl<'de> Deserialize<'de> for TokenizerFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FileVisitor;
        impl<'de> Visitor<'de> for FileVisitor {
            type Value = TokenizerFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the object of a tokenizer.json")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TokenizerFile, A::Error> {
                let mut fields = Map::new();
                let mut values = 0;
                let mut added = AddedTokens::default();
                let mut model = None;
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "added_tokens" => added = map.next_value()?,
                        "model" => {
                            let found: FileModel = map.next_value()?;
                            add_values::<A::Error>(&mut values, found.values, MAX_VALUES)?;
                            model = Some(found);
                        }
                        _ => {
                            let value = next_value(&mut map, &mut values, MAX_VALUES)?;
                            fields.insert(name, value);
                        }
                    }
                }

                let FileModel { settings, vocab, merges, .. } =
                    model.ok_or_else(|| A::Error::missing_field("model"))?;
                fields.insert("added_tokens".to_owned(), Value::Array(added.tokens));
                fields.insert("model".to_owned(), Value::Object(settings));
                for setting in ["truncation", "padding"] {
                    fields.insert(setting.to_owned(), Value::Null);
                }
                Ok(TokenizerFile { json: Value::Object(fields), vocab, merges, added: added.ids })
            }
        }
        deserializer.deserialize_map(FileVisitor)
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
                let mut fields = Map::new();
                let mut values = 0;
                let mut id = None;
                let mut content = None;
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::tokenizer::{
        file_model::{MAX_MERGES, MAX_SPELLING, MAX_TOKENS},
        limited_json::MAX_TEXT,
    };

    /// Parses a file with these fields.
    pub(in crate::tokenizer) fn parse_value(json: &Value) -> Result<TokenizerFile, TokenizerError> {
        TokenizerFile::parse(&serde_json::to_vec(json).unwrap())
    }

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
