//! The model of a `tokenizer.json`: its settings, vocabulary and merges.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};
use tokenizers::models::bpe::{Merges, Vocab};

use super::limited_json::{MAX_VALUES, next_value, too_many};

/// Maximum token id. Real vocabularies have fewer than 300,000 tokens.
const MAX_ID: u32 = (1 << 22) - 1;

/// Maximum number of tokens of the vocabulary.
pub const MAX_TOKENS: usize = 1 << 19;

/// Maximum number of merges. Gemma has half a million.
pub const MAX_MERGES: usize = 3 << 18;

/// Maximum number of bytes of a token's spelling.
pub(super) const MAX_SPELLING: usize = 1 << 14;

/// The model of a file.
#[derive(Default)]
pub(super) struct FileModel {
    /// All fields except the vocabulary and the merges.
    pub(super) settings: Map<String, Value>,
    pub(super) vocab: FileVocabulary,
    pub(super) merges: Option<Merges>,
    /// Number of values in the settings.
    pub(super) values: usize,
}

/// Vocabulary of a model.
#[derive(Debug, Default)]
pub(super) enum FileVocabulary {
    /// The file has none.
    #[default]
    None,
    /// Ids of the tokens.
    Ids(Vocab),
    /// Tokens with their scores, in the order of their ids.
    Scores(Vec<(String, f64)>),
}

impl FileVocabulary {
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

    pub(super) fn largest_id(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Ids(ids) => ids.values().copied().max().unwrap_or(0),
            Self::Scores(tokens) => tokens.len().saturating_sub(1) as u32,
        }
    }
}

/// Checks the id of a token.
pub(super) fn token_id<E: Error>(id: u64) -> Result<u32, E> {
    match u32::try_from(id) {
        Ok(id) if id <= MAX_ID => Ok(id),
        _ => Err(E::custom(format!("expected token ids up to {MAX_ID}, found {id}"))),
    }
}

impl<'de> Deserialize<'de> for FileModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ModelVisitor;
        impl<'de> Visitor<'de> for ModelVisitor {
            type Value = FileModel;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the object of a model")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FileModel, A::Error> {
                let mut model = FileModel::default();
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "vocab" => model.vocab = map.next_value()?,
                        "merges" => model.merges = map.next_value::<Option<MergeList>>()?.map(|list| list.0),
                        _ => {
                            let value = next_value(&mut map, &mut model.values, MAX_VALUES)?;
                            model.settings.insert(name, value);
                        }
                    }
                }
                Ok(model)
            }
        }
        deserializer.deserialize_map(ModelVisitor)
    }
}

impl<'de> Deserialize<'de> for FileVocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct VocabularyVisitor;
        impl<'de> Visitor<'de> for VocabularyVisitor {
            type Value = FileVocabulary;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of token ids or an array of tokens with scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FileVocabulary, A::Error> {
                let mut ids = Vocab::default();
                while let Some((TokenText(token), id)) = map.next_entry()? {
                    if ids.len() == MAX_TOKENS {
                        return Err(too_many("tokens", MAX_TOKENS));
                    }
                    ids.insert(token, token_id(id)?);
                }
                Ok(FileVocabulary::Ids(ids))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<FileVocabulary, A::Error> {
                let mut tokens = Vec::new();
                while let Some((TokenText(token), score)) = seq.next_element()? {
                    if tokens.len() == MAX_TOKENS {
                        return Err(too_many("tokens", MAX_TOKENS));
                    }
                    tokens.push((token, score));
                }
                Ok(FileVocabulary::Scores(tokens))
            }
        }
        deserializer.deserialize_any(VocabularyVisitor)
    }
}

/// A list of merges. Each is a pair of tokens, or a text with a space between them.
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
                let (Some(TokenText(left)), Some(TokenText(right))) =
                    (seq.next_element()?, seq.next_element()?)
                else {
                    return Err(A::Error::custom("expected a merge of two tokens, found fewer"));
                };
                match seq.next_element::<TokenText>()? {
                    None => Ok(Merge(Some((left, right)))),
                    Some(_) => Err(too_many("tokens in a merge", 2)),
                }
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}

/// A token's text of limited length.
struct TokenText(String);

impl<'de> Deserialize<'de> for TokenText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl Visitor<'_> for TextVisitor {
            type Value = TokenText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token's text")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<TokenText, E> {
                if text.len() > MAX_SPELLING {
                    return Err(too_many("bytes of a token", MAX_SPELLING));
                }
                Ok(TokenText(text.to_owned()))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}
