//! Special tokens, and the insertion of marks that break their spelling in a user's text.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    iter,
    ops::Range,
};

use narthex_spec::TokenId;

/// A token for structure instead of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecialToken {
    /// Id.
    pub id: TokenId,
    /// Spelling.
    pub text: String,
}

/// All special tokens of a tokenizer.
#[derive(Debug, Clone, Default)]
pub(super) struct SpecialTable {
    tokens: Vec<SpecialToken>,
    ids: HashSet<TokenId>,
    /// Spellings by their first byte, which most characters of a text do not have.
    by_first: HashMap<u8, SortedSpellings>,
    /// Bytes of the longest spelling.
    longest: usize,
}

impl SpecialTable {
    /// Creates a table of these tokens; those without a spelling are left out.
    pub(super) fn new(tokens: impl IntoIterator<Item = SpecialToken>) -> Self {
        let mut table = Self::default();
        let mut by_first: HashMap<u8, Vec<String>> = HashMap::new();
        for token in tokens {
            let Some(&first) = token.text.as_bytes().first() else { continue };
            table.longest = table.longest.max(token.text.len());
            table.ids.insert(token.id);
            by_first.entry(first).or_default().push(token.text.clone());
            table.tokens.push(token);
        }
        table.tokens.sort_by_key(|token| token.id);
        let sorted = by_first.into_iter().map(|(first, texts)| (first, SortedSpellings::new(texts)));
        table.by_first = sorted.collect();
        table
    }

    /// Returns the special tokens by ascending id.
    pub(super) fn tokens(&self) -> &[SpecialToken] {
        &self.tokens
    }

    pub(super) fn contains(&self, id: TokenId) -> bool {
        self.ids.contains(&id)
    }

    /// Returns true if [`Self::break_up`] would change `text`.
    pub(super) fn touches(&self, text: &str) -> bool {
        let half = self.half_spelling(text);
        text.char_indices().any(|(at, _)| self.breaks_at(text, at, half))
    }

    /// Inserts `mark` after the first character of every spelling in `text`, and of a partial spelling at the end of
    /// `text` that the text after it might complete.
    pub(super) fn break_up(&self, text: &str, mark: char) -> String {
        let half = self.half_spelling(text);
        let mut broken = String::with_capacity(text.len() + 16);
        for (at, char) in text.char_indices() {
            broken.push(char);
            if self.breaks_at(text, at, half) {
                broken.push(mark);
            }
        }
        broken
    }

    /// Returns the tokens whose spelling occurs inside one of the ranges of `text`.
    pub(super) fn found_in(&self, text: &str, ranges: &[Range<usize>]) -> Self {
        let mut found: BTreeSet<&str> = BTreeSet::new();
        for part in ranges.iter().filter_map(|range| text.get(range.clone())) {
            for (at, _) in part.char_indices() {
                for spelling in self.spellings_at(part, at) {
                    // Those with which it starts were found with it.
                    if !found.insert(spelling) {
                        break;
                    }
                }
            }
        }
        Self::new(self.tokens.iter().filter(|token| found.contains(token.text.as_str())).cloned())
    }

    /// Returns the spellings at a position, the longest first.
    pub(super) fn spellings_at<'a>(&'a self, text: &'a str, at: usize) -> impl Iterator<Item = &'a str> {
        let rest = text.get(at..).unwrap_or_default();
        self.spellings_like(rest).into_iter().flat_map(move |spellings| spellings.at_start(rest))
    }

    fn breaks_at(&self, text: &str, at: usize, half: Option<usize>) -> bool {
        let Some(rest) = text.get(at..) else { return false };
        let Some(spellings) = self.spellings_like(rest) else { return false };
        half.is_some_and(|half| at >= half) || spellings.is_at_start(rest)
    }

    /// Returns the spellings that have the first byte of `text`.
    fn spellings_like(&self, text: &str) -> Option<&SortedSpellings> {
        text.as_bytes().first().and_then(|first| self.by_first.get(first))
    }

    /// Returns the first position from which `text`, trimmed as templates do, is a partial spelling.
    fn half_spelling(&self, text: &str) -> Option<usize> {
        let text = text.trim_end();
        let window = text.len().saturating_sub(self.longest);
        (window..text.len()).find(|&at| {
            let tail = text.get(at..).unwrap_or_default();
            self.spellings_like(tail).is_some_and(|spellings| spellings.continues(tail))
        })
    }
}

/// A spelling of a sorted list.
#[derive(Debug, Clone)]
struct SortedSpelling {
    text: String,
    /// Index of the longest of the other spellings with which this one starts.
    prefix: Option<usize>,
    /// Index of the shortest spelling with which this one starts; its own if it starts with no other.
    shortest: usize,
}

/// Different spellings in ascending order. Each spelling with which a text starts is also a prefix of the last spelling
/// that is not after the text in this order. A binary search finds that one.
#[derive(Debug, Clone)]
struct SortedSpellings(Vec<SortedSpelling>);

impl SortedSpellings {
    fn new(mut texts: Vec<String>) -> Self {
        texts.sort_unstable();
        texts.dedup();
        let mut sorted: Vec<SortedSpelling> = Vec::with_capacity(texts.len());
        // The spellings with which the last one starts, and itself, by length.
        let mut prefixes: Vec<usize> = Vec::new();
        for text in texts {
            while let Some(other) = prefixes.last().and_then(|at| sorted.get(*at)) {
                if text.starts_with(other.text.as_str()) {
                    break;
                }
                prefixes.pop();
            }
            let prefix = prefixes.last().copied();
            prefixes.push(sorted.len());
            let shortest = prefixes.first().copied().unwrap_or_default();
            sorted.push(SortedSpelling { text, prefix, shortest });
        }
        Self(sorted)
    }

    /// Returns the last spelling that is not after `text`.
    fn last_until(&self, text: &str) -> Option<&SortedSpelling> {
        let count = self.0.partition_point(|spelling| spelling.text.as_str() <= text);
        self.0.get(count.checked_sub(1)?)
    }

    /// Returns true if `text` starts with a spelling.
    fn is_at_start(&self, text: &str) -> bool {
        let shortest = self.last_until(text).and_then(|last| self.0.get(last.shortest));
        shortest.is_some_and(|spelling| text.starts_with(spelling.text.as_str()))
    }

    /// Returns the spellings with which `text` starts, the longest first.
    fn at_start<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let last = self.last_until(text);
        let common = last.map_or(0, |last| {
            last.text.bytes().zip(text.bytes()).take_while(|(known, found)| known == found).count()
        });
        iter::successors(last, move |spelling| self.0.get(spelling.prefix?))
            .map(|spelling| spelling.text.as_str())
            .skip_while(move |spelling| spelling.len() > common)
    }

    /// Returns true if `text` is the beginning of a spelling.
    fn continues(&self, text: &str) -> bool {
        let at = self.0.partition_point(|spelling| spelling.text.as_str() < text);
        self.0.get(at).is_some_and(|spelling| spelling.text.starts_with(text))
    }
}

/// Inserts `mark` into every spelling in `text` that is not inside one of the ranges `kept`, which are in order and not
/// adjacent. Each mark is next to a character outside of them, so that no spelling inside is broken.
pub(super) fn break_outside(
    tables: [&SpecialTable; 3],
    text: &str,
    kept: &[Range<usize>],
    mark: char,
) -> String {
    let mut breaks = Vec::new();
    let mut later = kept;
    for (at, char) in text.char_indices() {
        while later.first().is_some_and(|range| range.end <= at) {
            later = &later[1..];
        }
        let around = later.first().filter(|range| range.start <= at);
        // If a spelling ends after a range, the longest one does.
        for spelling in tables.iter().filter_map(|table| table.spellings_at(text, at).next()) {
            match around {
                None => breaks.push(at + char.len_utf8()),
                Some(range) if range.end < at + spelling.len() => breaks.push(range.end),
                Some(_) => {}
            }
        }
    }

    breaks.sort_unstable();
    breaks.dedup();
    let mut broken = String::with_capacity(text.len() + breaks.len() * mark.len_utf8());
    let mut copied = 0;
    for at in breaks {
        broken.push_str(text.get(copied..at).unwrap_or_default());
        broken.push(mark);
        copied = at;
    }
    broken.push_str(text.get(copied..).unwrap_or_default());
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_text_has_no_spelling_left() {
        let spellings = ["<s>", "<s>>", "[SEP]", "é!"];
        let token = |(id, text): (u32, &str)| SpecialToken { id, text: text.to_owned() };
        let table = SpecialTable::new((0..).zip(spellings).map(token));
        let check = |text: &str, expect: &str| {
            let broken = table.break_up(text, '|');
            assert_eq!(broken, expect, "{text}");
            assert_eq!(table.touches(text), text != expect, "{text}");
            for rest in ["", "s>", ">", "SEP]", "!"] {
                for joined in [format!("{broken}{rest}"), format!("{}{rest}", broken.trim())] {
                    assert!(!spellings.iter().any(|spelling| joined.contains(spelling)), "{joined}");
                }
            }
        };
        check("plain", "plain");
        check("a <s> b", "a <|s> b");
        check("<s>>[SEP]", "<|s>>[|SEP]");
        check("é!", "é|!");
        check("end <s", "end <|s");
        check("end <  ", "end <|  ");
        check("[SE[S", "[SE[|S");
        check("", "");
    }

    #[test]
    fn a_search_finds_what_a_comparison_with_every_spelling_finds() {
        let spellings = ["<", "<<", "<<ab", "<<a", "<<b", "<a", "<a", "a<", "éé<", "é", "<<<<c"];
        let token = |(id, text): (u32, &str)| SpecialToken { id, text: text.to_owned() };
        let table = SpecialTable::new((0..).zip(spellings).map(token));
        for text in ["<<ab", "<<<b<a", "ééé<<", "a<a<<a", "b<<<", "<<<<<<c", "<<ac<é", "é", "aa"] {
            for (at, _) in text.char_indices() {
                let rest = text.get(at..).unwrap();
                let mut expect: Vec<&str> =
                    spellings.into_iter().filter(|spelling| rest.starts_with(*spelling)).collect();
                expect.sort_unstable_by_key(|spelling| std::cmp::Reverse(spelling.len()));
                expect.dedup();
                assert_eq!(table.breaks_at(text, at, None), !expect.is_empty(), "{rest}");
                assert_eq!(table.spellings_at(text, at).collect::<Vec<_>>(), expect, "{rest}");
            }
            let is_half = |tail: &str| spellings.iter().any(|spelling| spelling.starts_with(tail));
            let half = (0..text.len()).find(|&at| text.get(at..).is_some_and(is_half));
            assert_eq!(table.half_spelling(text), half, "{text}");
            let found = table.found_in(text, std::slice::from_ref(&(0..text.len())));
            let contained = spellings.into_iter().filter(|spelling| text.contains(*spelling)).count();
            assert_eq!(found.tokens().len(), contained, "{text}");
        }
    }

    #[test]
    fn spellings_are_whole_only_where_they_are_kept() {
        let token = |(id, text): (u32, &str)| SpecialToken { id, text: text.to_owned() };
        let table =
            |spellings: &[&'static str]| SpecialTable::new((0..).zip(spellings.iter().copied()).map(token));
        let tables = [&["<s>", "<s>>", "<<s", "é!é"][..], &["<t>"], &["<u>"]].map(table);
        let [specials, more, others] = &tables;
        // Text in « » is inside a range.
        let check = |text: &str, expect: &str| {
            let (mut plain, mut ranges) = (String::new(), Vec::new());
            for part in text.split_inclusive('»') {
                let (before, kept) = part.split_once('«').unwrap_or((part, ""));
                plain.push_str(before);
                let start = plain.len();
                plain.push_str(kept.trim_end_matches('»'));
                ranges.extend((start < plain.len()).then_some(start..plain.len()));
            }
            assert_eq!(break_outside([specials, more, others], &plain, &ranges, '|'), expect, "{text}");
        };
        check("<s> <t> <u>", "<|s> <|t> <|u>");
        check("«<s> <t>»", "<s> <t>");
        check("«<s»> «<t»>", "<s|> <t|>");
        check("<«s>» x <«t>»", "<|s> x <|t>");
        check("«<s>»> <«<s>»", "<s>|> <|<s>");
        check("é«!»é «é»!«é»", "é|!é é|!é");
        check("«»", "");
    }
}
