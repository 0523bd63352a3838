//! Normalisation of English sentences: everything that is not a word is written as words, as a person reads it.
//!
//! Each step reads one kind of text. The steps run in the order of [`normalize`]; a step may leave digits for later ones.
//! After the last step, only letters, spaces and punctuation are left.

mod calendar;
mod characters;
mod names;
mod numbers;
mod pattern;
mod quantities;
mod web;

use crate::english::Accent;

/// Maximum length in bytes of a text without spaces. Longer ones are divided.
const MAX_WORD_BYTES: usize = 256;

/// Returns a sentence in words.
pub fn normalize(sentence: &str, accent: Accent) -> String {
    let mut text = characters::cleaned(sentence);
    text = characters::with_spaces(text, MAX_WORD_BYTES);
    text = web::addresses(text);
    text = names::abbreviations(text);
    text = names::roman_numerals(text);
    if text.contains(|c: char| c.is_ascii_digit()) {
        text = calendar::dates(text, accent);
        text = calendar::times(text);
        text = quantities::codes(text);
        text = quantities::money(text);
        text = quantities::ranges(text);
        text = quantities::measures(text);
        text = quantities::fractions(text);
        text = quantities::numbers(text);
    }
    characters::spoken(&text)
}

#[cfg(test)]
mod tests;
