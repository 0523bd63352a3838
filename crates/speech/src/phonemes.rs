//! Ids of phonemes for a model, and division of long sentences.

use std::collections::HashMap;

use crate::error::SpeechError;

/// Marks after which a long sentence is divided.
const CLAUSE_END: &str = ",;:—";

/// Ids of the phonemes that a model reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alphabet(HashMap<char, i64>);

impl Alphabet {
    /// Reads a JSON object from a phoneme to its id.
    ///
    /// # Errors
    /// [`SpeechError::BadFile`].
    pub fn from_json(file: &[u8]) -> Result<Self, SpeechError> {
        serde_json::from_slice(file).map(Self).map_err(SpeechError::json("phoneme ids"))
    }

    /// Returns the ids of phonemes. Phonemes that the model does not know are left out.
    pub fn ids(&self, phonemes: &str) -> Vec<i64> {
        phonemes.chars().filter_map(|c| self.0.get(&c).copied()).collect()
    }
}

/// Divides the phonemes of a sentence into parts of at most `limit` characters: after clauses, else between words, else
/// inside a word.
///
/// # Panics
/// Panics if the limit is 0.
pub fn divide(phonemes: &str, limit: usize) -> Vec<&str> {
    assert!(limit > 0, "a limit of 0 phonemes");
    let mut parts = Vec::new();
    let mut rest = phonemes.trim();
    while let Some((end, _)) = rest.char_indices().nth(limit) {
        let beginning = &rest[..end];
        let marks = beginning.char_indices().rev().filter(|(_, c)| CLAUSE_END.contains(*c));
        let clause = marks.map(|(offset, c)| offset + c.len_utf8()).find(|end| rest[*end..].starts_with(' '));
        // A clause of a few words would sound cut off.
        let clause = clause.filter(|end| *end >= beginning.len() / 4);
        let cut = clause.or_else(|| beginning.rfind(' ').filter(|end| *end > 0)).unwrap_or(end);
        parts.push(rest[..cut].trim());
        rest = rest[cut..].trim_start();
    }
    parts.push(rest);
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sentences_are_divided_after_clauses_and_between_words() {
        let check = |phonemes: &str, limit, expect: &[&str]| {
            assert_eq!(divide(phonemes, limit), expect, "{phonemes}");
        };
        check("", 8, &[]);
        check("ab cd", 8, &["ab cd"]);
        check("ab, cd ef", 8, &["ab,", "cd ef"]);
        check("abc def ghi", 8, &["abc def", "ghi"]);
        check("abcdefghij", 8, &["abcdefgh", "ij"]);
        check("a, bcdefgh ijk", 12, &["a, bcdefgh", "ijk"]);
    }

    #[test]
    fn unknown_phonemes_are_left_out() {
        let alphabet = Alphabet::from_json(r#"{"a": 3, "ˈ": 7}"#.as_bytes()).unwrap();
        assert_eq!(alphabet.ids("ˈa!a"), [7, 3, 3]);
        assert!(Alphabet::from_json(b"[]").is_err());
    }
}
