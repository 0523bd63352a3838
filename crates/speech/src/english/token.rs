//! A token of a sentence: a word, a part of a word, or punctuation.

use super::stress;

/// A token.
#[derive(Debug, Clone)]
pub(super) struct Token<'a> {
    pub(super) text: String,
    /// Tag of the part of speech, in the notation of the Penn Treebank.
    pub(super) tag: &'a str,
    /// Set if a space follows in the sentence.
    pub(super) has_space_after: bool,
    /// Set if the phonemes are separated from those of the token before it in the same word.
    pub(super) has_space_before: bool,
    /// The phonemes, once they are known.
    pub(super) phonemes: Option<String>,
}

impl<'a> Token<'a> {
    pub(super) fn new(text: &str, tag: &'a str) -> Self {
        Self { text: text.to_owned(), tag, has_space_after: false, has_space_before: false, phonemes: None }
    }

    /// Replaces primary stress by secondary stress.
    pub(super) fn reduce_stress(&mut self) {
        self.phonemes = self.phonemes.take().map(|phonemes| stress::reduced(&phonemes));
    }

    /// Returns the number of characters, where an uppercase letter counts twice.
    fn weight(&self) -> usize {
        self.text.chars().map(|c| if c.to_lowercase().eq([c]) { 1 } else { 2 }).sum()
    }
}

/// Joins the tokens of a word. The tag is that of the heaviest token, where an uppercase letter counts twice.
pub(super) fn joined<'a>(tokens: &[Token<'a>]) -> Token<'a> {
    // The first of equally heavy tokens.
    let heaviest = tokens.iter().rev().max_by_key(|token| token.weight());
    let text = tokens.iter().map(|token| token.text.as_str()).collect();
    Token {
        text,
        tag: heaviest.map_or("", |token| token.tag),
        has_space_after: tokens.last().is_some_and(|token| token.has_space_after),
        has_space_before: false,
        phonemes: None,
    }
}
