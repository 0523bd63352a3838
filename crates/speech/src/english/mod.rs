//! Pronunciation of English sentences, in the phonemes of misaki and Kokoro.
//!
//! Dictionaries, rules and their order are those of misaki 0.9.4 (hexgrad, Apache-2.0), which trained voices expect:
//! `tokenizer` splits a sentence into words, `tagger` finds their parts of speech, `lexicon` looks them up with
//! rules for inflections and stress, and a model spells words that are in no dictionary (`letters`). The sentence must
//! be normalised, without digits and symbols ([`crate::normalize`]).

mod dictionary;
mod letters;
mod lexicon;
mod stress;
mod subwords;
mod tagger;
mod token;
mod tokenizer;

use std::collections::HashMap;

pub use letters::LetterModel;

use self::{
    letters::LetterAlphabet,
    lexicon::{Following, Lexicon},
    tagger::Tagger,
    token::Token,
    tokenizer::Tokenizer,
};
use crate::error::SpeechError;

/// Accent of an English voice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Accent {
    /// American.
    American,
    /// British.
    British,
}

/// Contents of the files that describe the pronunciation of one accent.
#[derive(Debug, Clone, Copy)]
pub struct EnglishFiles<'a> {
    /// Dictionary of checked pronunciations: a JSON object from a word to its phonemes, or to phonemes by part of speech.
    pub gold: &'a [u8],
    /// Dictionary of derived pronunciations, in the same form.
    pub silver: &'a [u8],
    /// Weights of the part-of-speech tagger, as JSON.
    pub tagger: &'a [u8],
    /// Words that are divided differently than the rules divide them: a JSON object from a text to its tokens.
    pub exceptions: &'a [u8],
    /// Letters and phonemes of the model for unknown words, as JSON.
    pub letters: &'a [u8],
}

/// Maximum number of subwords that are looked up as one word. Longer chains of hyphens are divided.
const MAX_SUBWORDS: usize = 16;

/// Marks between the subwords of a word, which are not spoken.
const SILENT: &str = "',-._‘’/";

/// Punctuation that a model reads.
const PUNCTUATION: &str = ";:,.!?—…\"“”";

/// Punctuation that ends a phrase.
const PHRASE_END: &str = ";:,.!?—…";

/// Tags of punctuation.
const PUNCTUATION_TAGS: [&str; 11] = [".", ",", "-LRB-", "-RRB-", "``", "\"\"", "''", ":", "$", "#", "NFP"];

/// Pronunciation of one accent of English.
pub struct English {
    tokenizer: Tokenizer,
    tagger: Tagger,
    lexicon: Lexicon,
    letters: LetterAlphabet,
}

/// One word of a sentence, divided into subwords.
type Word<'a> = Vec<Token<'a>>;

impl English {
    /// Reads the files.
    ///
    /// # Errors
    /// [`SpeechError::BadFile`].
    pub fn new(accent: Accent, files: EnglishFiles<'_>) -> Result<Self, SpeechError> {
        Ok(Self {
            tokenizer: Tokenizer::from_json(files.exceptions)?,
            tagger: Tagger::from_json(files.tagger)?,
            lexicon: Lexicon::from_json(accent, files.gold, files.silver)?,
            letters: LetterAlphabet::from_json(files.letters)?,
        })
    }

    /// Returns the phonemes of a normalised sentence. `model` spells words that are in no dictionary.
    ///
    /// # Errors
    /// The errors of `model`.
    pub fn phonemes<E>(&self, sentence: &str, model: &mut dyn LetterModel<Error = E>) -> Result<String, E> {
        let mut unknown = Unknown { letters: &self.letters, model, known: HashMap::new() };
        let mut words = self.words(sentence);
        let mut following = Following::default();
        for word in words.iter_mut().rev() {
            following = self.pronounce(word, following, &mut unknown)?;
        }

        let mut text = String::new();
        for word in &words {
            let start = text.len();
            for token in word {
                let phonemes = token.phonemes.as_deref().unwrap_or_default();
                let follows = text.len() > start && !text.ends_with(' ');
                if token.has_space_before && follows && !phonemes.is_empty() {
                    text.push(' ');
                }
                text.extend(phonemes.chars().map(|c| match c {
                    'ɾ' => 'T',
                    'ʔ' => 't',
                    c => c,
                }));
            }
            if word.last().is_some_and(|token| token.has_space_after) {
                text.push(' ');
            }
        }
        Ok(text.trim().to_owned())
    }

    /// Returns the words of a sentence with their tags. Punctuation has its phonemes already.
    fn words(&self, sentence: &str) -> Vec<Word<'_>> {
        let pieces = self.tokenizer.tokens(sentence);
        let texts: Vec<&str> = pieces.iter().map(|piece| piece.text.as_str()).collect();
        let tags = self.tagger.tags(&texts);

        let mut words: Vec<Word<'_>> = Vec::new();
        // Set while the next token belongs to the last word.
        let mut is_open = false;
        for (piece, tag) in pieces.iter().zip(tags) {
            let subwords = subwords::split(&piece.text);
            let last = subwords.len().saturating_sub(1);
            for (index, subword) in subwords.into_iter().enumerate() {
                let mut token = Token::new(subword, tag);
                token.has_space_after = index == last && piece.has_space_after;
                token.phonemes = punctuation_phonemes(&token);
                let ends_word = token.has_space_after;
                if token.phonemes.is_some() {
                    words.push(vec![token]);
                    is_open = false;
                    continue;
                }
                match words.last_mut().filter(|word| is_open && word.len() < MAX_SUBWORDS) {
                    Some(word) => {
                        word.push(token);
                        // A word that has begun without a space goes on until punctuation or a space.
                        is_open = !ends_word;
                    }
                    None => {
                        words.push(vec![token]);
                        is_open = !ends_word;
                    }
                }
            }
        }
        words
    }

    /// Pronounces a word, given the word after it. Returns its effect on the word before it.
    fn pronounce<E>(
        &self,
        word: &mut Word<'_>,
        following: Following,
        unknown: &mut Unknown<'_, E>,
    ) -> Result<Following, E> {
        if let [token] = word.as_mut_slice() {
            if token.phonemes.is_none() {
                token.phonemes = self.lexicon.phonemes(token, following);
            }
            if token.phonemes.is_none() {
                token.phonemes = Some(unknown.spell(&token.text)?);
            }
            return Ok(following.before(token));
        }

        let mut following = following;
        let mut left = 0;
        let mut right = word.len();
        while left < right {
            let span = &word[left..right];
            let joined = span.iter().all(|token| token.phonemes.is_none()).then(|| token::joined(span));
            let found = joined.and_then(|mut token| {
                token.phonemes = Some(self.lexicon.phonemes(&token, following)?);
                Some(token)
            });
            if let Some(token) = found {
                following = following.before(&token);
                word[left + 1..right].iter_mut().for_each(|rest| rest.phonemes = Some(String::new()));
                word[left].phonemes = token.phonemes;
                right = left;
                left = 0;
            } else if left + 1 < right {
                left += 1;
            } else {
                right -= 1;
                let token = &mut word[right];
                if token.phonemes.is_none() {
                    if !token.text.chars().all(|c| SILENT.contains(c)) {
                        let phonemes = unknown.spell(&token::joined(word).text)?;
                        word.iter_mut().for_each(|rest| rest.phonemes = Some(String::new()));
                        word[0].phonemes = Some(phonemes);
                        return Ok(following);
                    }
                    token.phonemes = Some(String::new());
                }
                left = 0;
            }
        }
        resolve_stress(word);
        Ok(following)
    }
}

/// Returns the phonemes of punctuation; `None` for words.
fn punctuation_phonemes(token: &Token<'_>) -> Option<String> {
    if token.tag == ":" && matches!(token.text.as_str(), "-" | "–") {
        return Some("—".to_owned());
    }
    let is_word = !token.text.is_empty() && token.text.chars().all(|c| c.is_ascii_alphabetic());
    if !PUNCTUATION_TAGS.contains(&token.tag) || is_word {
        return None;
    }
    Some(match token.tag {
        "-LRB-" => "(".to_owned(),
        "-RRB-" => ")".to_owned(),
        "``" => "“".to_owned(),
        "\"\"" | "''" => "”".to_owned(),
        _ => token.text.chars().filter(|c| PUNCTUATION.contains(*c)).collect(),
    })
}

/// Separates the subwords of a word by spaces if they have characters of different classes, and else reduces the stress
/// of a part of them.
fn resolve_stress(word: &mut [Token<'_>]) {
    let text = token::joined(word).text;
    let mut classes = text.chars().filter(|c| !SILENT.contains(*c)).map(character_class);
    let first = classes.next();
    let has_spaces = text.contains([' ', '/']) || classes.any(|class| Some(class) != first);

    if has_spaces {
        word[1..].iter_mut().for_each(|token| token.has_space_before = true);
    } else {
        reduce_stress(word);
    }
}

/// Returns the class of a character: letter, digit or other.
fn character_class(c: char) -> u8 {
    match c {
        c if c.is_alphabetic() => 0,
        c if c.is_ascii_digit() => 1,
        _ => 2,
    }
}

/// Reduces the stress of the lighter half of the subwords with phonemes.
fn reduce_stress(word: &mut [Token<'_>]) {
    let mut weights: Vec<(bool, usize, usize)> = word
        .iter()
        .enumerate()
        .filter_map(|(index, token)| {
            let phonemes = token.phonemes.as_deref().filter(|phonemes| !phonemes.is_empty())?;
            Some((phonemes.contains(stress::PRIMARY), stress::weight(phonemes), index))
        })
        .collect();

    if let [(_, _, first), (_, _, second)] = weights[..]
        && word[first].text.chars().count() == 1
    {
        word[second].reduce_stress();
        return;
    }
    let stressed = weights.iter().filter(|(is_primary, ..)| *is_primary).count();
    if weights.len() < 2 || stressed <= weights.len().div_ceil(2) {
        return;
    }
    weights.sort_unstable();
    for &(_, _, index) in &weights[..weights.len() / 2] {
        word[index].reduce_stress();
    }
}

/// Words that are in no dictionary.
struct Unknown<'a, E> {
    letters: &'a LetterAlphabet,
    model: &'a mut dyn LetterModel<Error = E>,
    /// Pronunciations of the sentence's earlier words.
    known: HashMap<String, String>,
}

impl<E> Unknown<'_, E> {
    /// Returns the phonemes of a text: those of its words, separated by spaces.
    fn spell(&mut self, text: &str) -> Result<String, E> {
        let mut spelled = Vec::new();
        for piece in subwords::letter_runs(text) {
            if let Some(phonemes) = self.known.get(piece) {
                spelled.push(phonemes.clone());
                continue;
            }
            let phonemes = self.letters.spell(piece, self.model)?;
            self.known.insert(piece.to_owned(), phonemes.clone());
            spelled.push(phonemes);
        }
        spelled.retain(|phonemes| !phonemes.is_empty());
        Ok(spelled.join(" "))
    }
}
