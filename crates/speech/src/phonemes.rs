//! Ids of phonemes for a model, and division of long sentences.

use std::collections::HashMap;

use serde::Deserialize;

use crate::error::SpeechError;

/// Marks after which a long sentence is divided.
const CLAUSE_END: &str = ",;:—";

/// Phonemes of Piper that begin a text, end it, and stand between two phonemes.
pub const PIPER_FRAME: [char; 3] = ['^', '$', '_'];

/// Ids of the phonemes that a model reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alphabet(HashMap<char, Vec<i64>>);

/// Ids of a phoneme in a file.
#[derive(Deserialize)]
#[serde(untagged)]
enum StatedIds {
    One(i64),
    Several(Vec<i64>),
}

impl Alphabet {
    /// Reads a JSON object from a phoneme to its id, or to several ids.
    ///
    /// # Errors
    /// [`SpeechError::BadFile`].
    pub fn from_json(file: &[u8]) -> Result<Self, SpeechError> {
        let stated: HashMap<char, StatedIds> =
            serde_json::from_slice(file).map_err(SpeechError::json("phoneme ids"))?;
        let ids = stated.into_iter().map(|(phoneme, ids)| match ids {
            StatedIds::One(id) => (phoneme, vec![id]),
            StatedIds::Several(ids) => (phoneme, ids),
        });
        Ok(Self(ids.collect()))
    }

    /// Returns the ids of phonemes. Phonemes that the model does not know are left out.
    pub fn ids(&self, phonemes: &str) -> Vec<i64> {
        phonemes.chars().flat_map(|phoneme| self.of(phoneme)).copied().collect()
    }

    /// Returns the ids of phonemes as Piper arranges them: between the ids that begin and end a text, with pads between two
    /// phonemes. Empty if the model knows no phoneme of them.
    pub fn ids_with_pads(&self, phonemes: &str) -> Vec<i64> {
        let [begin, end, pad] = PIPER_FRAME.map(|phoneme| self.of(phoneme));
        let known = phonemes.chars().map(|phoneme| self.of(phoneme)).filter(|ids| !ids.is_empty());
        let padded: Vec<i64> = known.flat_map(|ids| ids.iter().chain(pad)).copied().collect();
        if padded.is_empty() {
            return padded;
        }
        [begin, pad, &padded, end].concat()
    }

    fn of(&self, phoneme: char) -> &[i64] {
        self.0.get(&phoneme).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns whether the model knows a phoneme.
    pub fn has(&self, phoneme: char) -> bool {
        !self.of(phoneme).is_empty()
    }

    /// Returns the letters that the model knows, in order.
    pub fn letters(&self) -> String {
        let mut letters: Vec<char> = self.0.keys().copied().filter(|c| c.is_alphabetic()).collect();
        letters.sort_unstable();
        letters.into_iter().collect()
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
    #[test]
    fn phonemes_of_piper_have_pads_between_them() {
        let alphabet = Alphabet::from_json(br#"{"_": [0], "^": [1], "$": [2], "a": [14], "b": [15, 16]}"#);
        let alphabet = alphabet.unwrap();
        assert_eq!(alphabet.ids_with_pads("ab!a"), [1, 0, 14, 0, 15, 16, 0, 14, 0, 2]);
        assert!(alphabet.ids_with_pads("!").is_empty());
        assert!(alphabet.has('^') && !alphabet.has('!'));
        assert_eq!(alphabet.letters(), "ab");
    }
}
