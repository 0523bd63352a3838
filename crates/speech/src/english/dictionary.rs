//! A dictionary of pronunciations: one text with all words and phonemes, and a sorted index.

use std::{collections::HashMap, fmt};

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use crate::error::SpeechError;

/// Key of the pronunciation of a word as other parts of speech than those that are listed.
const DEFAULT: &str = "DEFAULT";

/// Words with their phonemes.
#[derive(Default)]
pub(super) struct Dictionary {
    /// All words and phonemes.
    text: String,
    /// Words in ascending order.
    entries: Vec<Entry>,
    /// Pronunciations of heteronyms by part of speech, by the offset of the word.
    variants: HashMap<u32, Vec<(String, Option<String>)>>,
}

/// Place of a word in the text. Its phonemes follow it.
#[derive(Debug, Clone, Copy)]
struct Entry {
    word: u32,
    phonemes: u32,
    end: u32,
}

/// Pronunciation of a word.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pronunciation<'a> {
    /// The same phonemes for every part of speech.
    One(&'a str),
    /// Phonemes by part of speech; `None` for a word that is spelled.
    ByTag(&'a [(String, Option<String>)]),
}

impl<'a> Pronunciation<'a> {
    /// Returns true if the pronunciation depends on this tag.
    pub(super) fn has(self, tag: &str) -> bool {
        matches!(self, Self::ByTag(variants) if variants.iter().any(|(key, _)| key == tag))
    }

    /// Returns the phonemes for a tag, or else for all others; `None` for a word that is spelled.
    pub(super) fn of(self, tag: &str) -> Option<&'a str> {
        match self {
            Self::One(phonemes) => Some(phonemes),
            Self::ByTag(variants) => {
                let variant = [tag, DEFAULT]
                    .into_iter()
                    .find_map(|wanted| variants.iter().find(|(key, _)| key == wanted));
                variant.and_then(|(_, phonemes)| phonemes.as_deref())
            }
        }
    }
}

impl Dictionary {
    /// Reads a JSON object from a word to its phonemes, or to phonemes by part of speech.
    pub(super) fn from_json(file: &[u8]) -> Result<Self, SpeechError> {
        serde_json::from_slice(file).map_err(SpeechError::json("dictionary"))
    }

    /// Returns the pronunciation of a word. A lowercase word may be listed with a capital letter, and the reverse.
    pub(super) fn get(&self, word: &str) -> Option<Pronunciation<'_>> {
        let exact = self.exact(word);
        let mut chars = word.chars();
        let (Some(first), Some(_)) = (chars.next(), chars.next()) else { return exact };
        exact.or_else(|| {
            let lower = word.to_lowercase();
            let capitalized: String = first.to_uppercase().chain(lower.chars().skip(1)).collect();
            if word == lower && capitalized != word {
                self.exact(&capitalized)
            } else if word == capitalized {
                self.exact(&lower)
            } else {
                None
            }
        })
    }

    /// Returns true if [`Self::get`] returns a pronunciation.
    pub(super) fn contains(&self, word: &str) -> bool {
        self.get(word).is_some()
    }

    fn exact(&self, word: &str) -> Option<Pronunciation<'_>> {
        let index = self.entries.binary_search_by(|entry| self.word(*entry).cmp(word)).ok()?;
        let entry = self.entries[index];
        Some(match self.variants.get(&entry.word) {
            Some(variants) => Pronunciation::ByTag(variants),
            None => Pronunciation::One(&self.text[entry.phonemes as usize..entry.end as usize]),
        })
    }

    fn word(&self, entry: Entry) -> &str {
        &self.text[entry.word as usize..entry.phonemes as usize]
    }
}

impl<'de> Deserialize<'de> for Dictionary {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(DictionaryVisitor)
    }
}

struct DictionaryVisitor;

impl<'de> Visitor<'de> for DictionaryVisitor {
    type Value = Dictionary;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from words to phonemes")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Dictionary, A::Error> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Value {
            One(String),
            ByTag(HashMap<String, Option<String>>),
        }

        let mut dictionary = Dictionary::default();
        while let Some((word, value)) = map.next_entry::<String, Value>()? {
            let start = offset(&dictionary.text)?;
            dictionary.text.push_str(&word);
            let phonemes = offset(&dictionary.text)?;
            match value {
                Value::One(text) => dictionary.text.push_str(&text),
                Value::ByTag(variants) => {
                    dictionary.variants.insert(start, variants.into_iter().collect());
                }
            }
            let end = offset(&dictionary.text)?;
            dictionary.entries.push(Entry { word: start, phonemes, end });
        }
        let mut entries = std::mem::take(&mut dictionary.entries);
        entries.sort_by(|a, b| dictionary.word(*a).cmp(dictionary.word(*b)));
        dictionary.entries = entries;
        Ok(dictionary)
    }
}

/// Returns the offset of the end of a text.
fn offset<E: serde::de::Error>(text: &str) -> Result<u32, E> {
    u32::try_from(text.len()).map_err(|_| E::custom("the dictionary exceeds 4 GiB"))
}
