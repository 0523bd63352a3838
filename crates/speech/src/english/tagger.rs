//! Parts of speech, by an averaged perceptron over a word, its neighbours and the tags before it.
//!
//! A word with one usual tag has it without a computation.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;

use crate::error::SpeechError;

/// Words and tags before the first word of a sentence.
const START: [&str; 2] = ["-START2-", "-START-"];

/// Words after the last word of a sentence.
const END: [&str; 2] = ["-END-", "-END2-"];

/// Tag of a word without any known property.
const UNKNOWN: &str = "NN";

/// Name of the file in messages.
const WHAT: &str = "tagger";

/// Weights of a tagger.
pub(super) struct Tagger {
    /// Tags in ascending order, so that the last of several tags with the highest score is the largest.
    tags: Vec<String>,
    usual: HashMap<String, usize>,
    /// Words with properties of their own.
    vocabulary: HashSet<String>,
    /// Weights of properties: pairs of a tag's index and a weight.
    weights: HashMap<String, Vec<(u16, f32)>>,
}

#[derive(Deserialize)]
struct TaggerFile {
    tags: Vec<String>,
    #[serde(rename = "tagdict")]
    usual: HashMap<String, String>,
    vocab: HashSet<String>,
    weights: HashMap<String, HashMap<String, f32>>,
}

impl Tagger {
    pub(super) fn from_json(file: &[u8]) -> Result<Self, SpeechError> {
        let TaggerFile { mut tags, usual, vocab, weights } =
            serde_json::from_slice(file).map_err(SpeechError::json(WHAT))?;
        tags.sort_unstable();
        let usual = usual.into_iter().map(|(word, tag)| Ok((word, usize::from(index_of(&tag, &tags)?))));
        let usual = usual.collect::<Result<_, SpeechError>>()?;
        let weights = weights.into_iter().map(|(property, of)| {
            let of = of.into_iter().map(|(tag, weight)| Ok((index_of(&tag, &tags)?, weight)));
            Ok((property, of.collect::<Result<_, SpeechError>>()?))
        });
        let weights = weights.collect::<Result<_, SpeechError>>()?;
        Ok(Self { tags, usual, vocabulary: vocab, weights })
    }

    /// Returns the tag of each word of a sentence.
    pub(super) fn tags(&self, words: &[&str]) -> Vec<&str> {
        let known = words.iter().map(|word| self.known_form(word));
        let [start2, start] = START.map(str::to_owned);
        let forms: Vec<String> =
            [start2, start].into_iter().chain(known).chain(END.map(str::to_owned)).collect();

        let mut tags: Vec<&str> = Vec::with_capacity(words.len());
        let mut before = START;
        for (index, word) in words.iter().enumerate() {
            let usual = self.usual.get(*word).map(|&tag| self.tags[tag].as_str());
            let tag =
                usual.unwrap_or_else(|| self.predict(word, index == 0, &forms[index..index + 5], before));
            tags.push(tag);
            before = [before[1], tag];
        }
        tags
    }

    /// Returns the form of a word in properties: its shape for a rare one.
    fn known_form(&self, word: &str) -> String {
        let form = form(word);
        if self.vocabulary.contains(&form) { form } else { format!("<{}>", shape(word)) }
    }

    /// Predicts the tag of a word from the forms of two words before it, its own, and two after it, and from the two tags
    /// before it.
    fn predict(&self, word: &str, is_first: bool, forms: &[String], [before2, before]: [&str; 2]) -> &str {
        let properties = [
            "b".to_owned(),
            format!("s3={}", ending(word)),
            format!("p1={}", word.chars().next().map(String::from).unwrap_or_default()),
            format!("w={}", forms[2]),
            format!("sh={}", shape(word)),
            if is_first { "i0" } else { "i+" }.to_owned(),
            format!("t-1={before}"),
            format!("t-2={before2}"),
            format!("t-12={before},{before2}"),
            format!("w-1={}", forms[1]),
            format!("s3-1={}", ending(&forms[1])),
            format!("w-2={}", forms[0]),
            format!("w+1={}", forms[3]),
            format!("s3+1={}", ending(&forms[3])),
            format!("w+2={}", forms[4]),
        ];

        let mut scores = vec![0.0f64; self.tags.len()];
        let mut is_known = false;
        for weights in properties.iter().filter_map(|property| self.weights.get(property)) {
            is_known = true;
            for &(tag, weight) in weights {
                scores[usize::from(tag)] += f64::from(weight);
            }
        }
        let best = scores.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
        match best.filter(|_| is_known) {
            Some((tag, _)) => &self.tags[tag],
            None => UNKNOWN,
        }
    }
}

/// Returns the index of a tag in the sorted list of tags.
fn index_of(tag: &String, tags: &[String]) -> Result<u16, SpeechError> {
    let index = tags.binary_search(tag).ok().and_then(|index| u16::try_from(index).ok());
    let reason = format!("the tag {tag} is not in its list of tags");
    index.ok_or(SpeechError::BadFile { what: WHAT, reason })
}

/// Returns the last three characters of a word.
fn ending(word: &str) -> &str {
    let start = word.char_indices().rev().nth(2).map_or(0, |(start, _)| start);
    &word[start..]
}

/// Returns a word in lowercase, or a class of numbers and compounds.
fn form(word: &str) -> String {
    let is_digits = word.chars().all(char::is_numeric);
    match word.chars().next() {
        Some(first) if first != '-' && word.contains('-') => "!HYPHEN".to_owned(),
        Some(_) if is_digits && word.chars().count() == 4 => "!YEAR".to_owned(),
        Some(first) if first.is_numeric() => "!DIGITS".to_owned(),
        _ => word.to_lowercase(),
    }
}

/// Returns the shape of a word: its use of capital letters, or the classes of its first characters.
fn shape(word: &str) -> String {
    if word.chars().all(char::is_alphabetic) {
        let first = word.chars().next().map_or(0, char::len_utf8);
        let rest = &word[first..];
        let is_capital = word.starts_with(char::is_uppercase);
        let has_lower_rest = rest.chars().all(char::is_lowercase);
        let has_upper_rest = rest.chars().all(char::is_uppercase);
        return match (is_capital, rest.is_empty()) {
            (true, true) => "X1",
            (true, false) if has_upper_rest => "XX",
            (true, false) if has_lower_rest => "Xx",
            (false, _) if has_lower_rest && word.starts_with(char::is_lowercase) => "x",
            _ => "xX",
        }
        .to_owned();
    }

    if word.chars().all(char::is_numeric) {
        return "d".to_owned();
    }
    word.chars()
        .take(4)
        .map(|c| match c {
            c if c.is_numeric() => 'd',
            c if c.is_alphabetic() => 'x',
            c => c,
        })
        .collect()
}
