//! Words that are in no dictionary: a model reads letters and returns phonemes.

use std::collections::HashMap;

use serde::Deserialize;

use crate::error::SpeechError;

/// Model that reads the letters of a word.
pub trait LetterModel {
    /// Error of a run.
    type Error;

    /// Returns a class for each of several positions per letter: 0 for none, else a phoneme. A class that repeats counts
    /// once.
    ///
    /// # Errors
    /// The model cannot run.
    fn run(&mut self, letters: &[i64]) -> Result<Vec<i64>, Self::Error>;
}

/// Letters that a model reads, and phonemes that it returns.
pub(super) struct LetterAlphabet {
    letters: HashMap<char, i64>,
    phonemes: Vec<String>,
    /// Maximum number of letters of a run.
    max_letters: usize,
}

#[derive(Deserialize)]
struct AlphabetFile {
    #[serde(rename = "in")]
    letters: Vec<char>,
    #[serde(rename = "out")]
    phonemes: Vec<String>,
    #[serde(rename = "maxlen")]
    max_letters: usize,
}

impl LetterAlphabet {
    pub(super) fn from_json(file: &[u8]) -> Result<Self, SpeechError> {
        let file: AlphabetFile =
            serde_json::from_slice(file).map_err(SpeechError::json("alphabet of unknown words"))?;
        let letters = file.letters.into_iter().zip(1..).collect();
        Ok(Self { letters, phonemes: file.phonemes, max_letters: file.max_letters.max(1) })
    }

    /// Returns the phonemes of a word. Letters that the model does not know are left out, and a long word is read in
    /// parts.
    pub(super) fn spell<E>(&self, word: &str, model: &mut dyn LetterModel<Error = E>) -> Result<String, E> {
        let letters: Vec<i64> = word.chars().filter_map(|c| self.letters.get(&c).copied()).collect();
        let mut spelled = String::new();
        for part in letters.chunks(self.max_letters) {
            let mut last = 0;
            for class in model.run(part)? {
                if class != last && class > 0 {
                    let phoneme = usize::try_from(class - 1).ok().and_then(|index| self.phonemes.get(index));
                    spelled.push_str(phoneme.map_or("", String::as_str));
                }
                last = class;
            }
        }
        Ok(spelled)
    }
}
