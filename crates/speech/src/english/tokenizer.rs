//! Tokens of a normalised sentence, with the rules of spaCy for English (Explosion AI, MIT): a text between spaces is a
//! special case such as `don't`, or loses punctuation at both ends and is divided at hyphens.

use std::collections::HashMap;

use crate::error::SpeechError;

const QUOTES: &str = "'\"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉";
const PUNCTUATION: &str = "…,:;!?¿¡()[]{}。？！，、；：～·—–";

/// A token, and whether a space follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) has_space_after: bool,
}

/// Divides sentences into tokens.
pub(super) struct Tokenizer {
    /// Tokens of texts that are divided differently.
    exceptions: HashMap<String, Vec<String>>,
    /// Length of the longest of these texts in bytes.
    longest: usize,
}

impl Tokenizer {
    /// Reads a JSON object from a text to its tokens.
    pub(super) fn from_json(file: &[u8]) -> Result<Self, SpeechError> {
        let exceptions: HashMap<String, Vec<String>> =
            serde_json::from_slice(file).map_err(SpeechError::json("table of tokens"))?;
        let longest = exceptions.keys().map(String::len).max().unwrap_or(0);
        Ok(Self { exceptions, longest })
    }

    /// Returns the tokens of a sentence.
    pub(super) fn tokens(&self, sentence: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for text in sentence.split_whitespace() {
            let tokens = self.split(text).into_iter().filter(|token| !token.is_empty());
            pieces.extend(tokens.map(|token| Piece { text: token.to_owned(), has_space_after: false }));
            if let Some(last) = pieces.last_mut() {
                last.has_space_after = true;
            }
        }
        if let Some(last) = pieces.last_mut() {
            last.has_space_after = false;
        }
        pieces
    }

    fn exception(&self, text: &str) -> Option<&Vec<String>> {
        // A long text is not hashed, so that the work is proportional to its length.
        if text.len() <= self.longest { self.exceptions.get(text) } else { None }
    }

    fn split<'a>(&'a self, text: &'a str) -> Vec<&'a str> {
        if let Some(tokens) = self.exception(text) {
            return tokens.iter().map(String::as_str).collect();
        }
        let mut rest = text;
        let mut tokens = Vec::new();
        let mut ends = Vec::new();
        while !rest.is_empty() && self.exception(rest).is_none() {
            let (prefix, without_prefix) = rest.split_at(prefix_length(rest));
            if !prefix.is_empty() && self.exception(without_prefix).is_some() {
                tokens.push(prefix);
                rest = without_prefix;
                break;
            }
            let suffix_length = suffix_length(without_prefix);
            let (without_suffix, suffix) = rest.split_at(rest.len() - suffix_length);
            if !suffix.is_empty() && self.exception(without_suffix).is_some() {
                ends.push(suffix);
                rest = without_suffix;
                break;
            }
            if prefix.is_empty() && suffix.is_empty() {
                break;
            }
            if !prefix.is_empty() {
                tokens.push(prefix);
            }
            if !suffix.is_empty() {
                ends.push(suffix);
            }
            rest = &rest[prefix.len()..rest.len() - suffix.len()];
        }

        match self.exception(rest) {
            Some(special) => tokens.extend(special.iter().map(String::as_str)),
            None => split_inside(rest, &mut tokens),
        }
        tokens.extend(ends.into_iter().rev());
        self.joined(tokens)
    }

    /// Joins adjacent tokens that form a special case, such as `Sept` and `.`, and divides it as listed.
    fn joined<'a>(&'a self, tokens: Vec<&'a str>) -> Vec<&'a str> {
        if tokens.len() < 2 {
            return tokens;
        }
        let mut joined = Vec::with_capacity(tokens.len());
        let mut index = 0;
        while index < tokens.len() {
            let special = [3, 2].into_iter().find_map(|count| {
                let parts = tokens.get(index..index + count)?;
                let length: usize = parts.iter().map(|part| part.len()).sum();
                let special = (length <= self.longest).then(|| self.exceptions.get(&parts.concat()))??;
                Some((count, special))
            });
            match special {
                Some((count, special)) => {
                    joined.extend(special.iter().map(String::as_str));
                    index += count;
                }
                None => {
                    joined.push(tokens[index]);
                    index += 1;
                }
            }
        }
        joined
    }
}

/// Returns the length in bytes of the dots at the start of a text, if there are at least two.
fn dots(text: &str) -> usize {
    let dots = text.bytes().take_while(|byte| *byte == b'.').count();
    if dots >= 2 { dots } else { 0 }
}

/// Returns the length in bytes of the punctuation at the start of a text.
fn prefix_length(text: &str) -> usize {
    match text.chars().next() {
        Some(c) if PUNCTUATION.contains(c) || QUOTES.contains(c) => c.len_utf8(),
        _ => dots(text),
    }
}

/// Returns the length in bytes of the punctuation, or of the ending of a possessive, at the end of a text.
fn suffix_length(text: &str) -> usize {
    let trailing_dots = text.len() - text.trim_end_matches('.').len();
    if trailing_dots >= 2 {
        return trailing_dots;
    }
    if let Some(suffix) = ["'s", "'S", "’s", "’S"].into_iter().find(|suffix| text.ends_with(suffix)) {
        return suffix.len();
    }
    let mut ends = text.chars().rev();
    match ends.next() {
        Some(c) if PUNCTUATION.contains(c) || QUOTES.contains(c) => c.len_utf8(),
        Some('.') => {
            let ends_word = match (ends.next(), ends.next()) {
                (Some(c), _) if is_lower(c) || PUNCTUATION.contains(c) || QUOTES.contains(c) => true,
                (Some('-'), _) => true,
                (Some(last), Some(before)) => is_upper(last) && is_upper(before),
                _ => false,
            };
            usize::from(ends_word)
        }
        _ => 0,
    }
}

/// Divides a word at hyphens, dots, commas and colons between letters.
fn split_inside<'a>(text: &'a str, tokens: &mut Vec<&'a str>) {
    let mut start = 0;
    let mut offset = 0;
    let mut before = None;
    while let Some(c) = text[offset..].chars().next() {
        let length = infix_length(before, &text[offset..]);
        if length > 0 && offset > 0 {
            tokens.extend((offset > start).then(|| &text[start..offset]));
            tokens.push(&text[offset..offset + length]);
            start = offset + length;
            before = text[..start].chars().next_back();
            offset = start;
        } else {
            before = Some(c);
            offset += c.len_utf8();
        }
    }
    tokens.extend((start < text.len()).then(|| &text[start..]));
}

/// Returns the length in bytes of a mark at the start of `text` that divides a word; 0 if it does not start with one.
fn infix_length(before: Option<char>, text: &str) -> usize {
    let dots = dots(text);
    if dots > 0 {
        return dots;
    }
    let mut chars = text.chars();
    let (Some(before), Some(mark)) = (before, chars.next()) else { return 0 };
    let after = chars.next().unwrap_or(' ');
    let is_infix = match mark {
        '…' => true,
        '.' => (is_lower(before) || QUOTES.contains(before)) && (is_upper(after) || QUOTES.contains(after)),
        ',' => before.is_alphabetic() && after.is_alphabetic(),
        ':' | '/' => before.is_alphanumeric() && after.is_alphabetic(),
        '-' | '–' | '—' if before.is_alphanumeric() => return hyphens(text),
        _ => false,
    };
    if is_infix { mark.len_utf8() } else { 0 }
}

/// Returns the length in bytes of the hyphens or dashes at the start of a text, if a letter follows.
fn hyphens(text: &str) -> usize {
    ["---", "--", "-", "–", "——", "—"]
        .into_iter()
        .find(|mark| text.strip_prefix(mark).is_some_and(|rest| rest.starts_with(char::is_alphabetic)))
        .map_or(0, str::len)
}

fn is_lower(c: char) -> bool {
    matches!(c, 'a'..='z' | 'ß'..='ö' | 'ø'..='ÿ')
}

fn is_upper(c: char) -> bool {
    matches!(c, 'A'..='Z' | 'À'..='Ö' | 'Ø'..='Þ')
}
