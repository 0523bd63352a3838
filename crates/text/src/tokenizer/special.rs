//! Special tokens, and the insertion of marks that break their spelling in a user's text.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
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
    /// Spellings by their first byte, which makes the search fast.
    by_first: HashMap<u8, Vec<String>>,
    /// Bytes of the longest spelling.
    longest: usize,
}

impl SpecialTable {
    /// Creates a table of these tokens; those without a spelling are left out.
    pub(super) fn new(tokens: impl IntoIterator<Item = SpecialToken>) -> Self {
        let mut table = Self::default();
        for token in tokens {
            let Some(&first) = token.text.as_bytes().first() else { continue };
            table.longest = table.longest.max(token.text.len());
            table.ids.insert(token.id);
            table.by_first.entry(first).or_default().push(token.text.clone());
            table.tokens.push(token);
        }
        table.tokens.sort_by_key(|token| token.id);
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
        let mut found = BTreeSet::new();
        for part in ranges.iter().filter_map(|range| text.get(range.clone())) {
            for (at, _) in part.char_indices() {
                found.extend(self.spellings_at(part, at));
            }
        }
        Self::new(self.tokens.iter().filter(|token| found.contains(&token.text)).cloned())
    }

    fn spellings_at<'a>(&'a self, text: &'a str, at: usize) -> impl Iterator<Item = &'a String> {
        let rest = text.get(at..).unwrap_or_default();
        self.spellings_from(text, at)
            .into_iter()
            .flatten()
            .filter(move |spelling| rest.starts_with(spelling.as_str()))
    }

    fn breaks_at(&self, text: &str, at: usize, half: Option<usize>) -> bool {
        let Some(spellings) = self.spellings_from(text, at) else { return false };
        let Some(rest) = text.get(at..) else { return false };
        half.is_some_and(|half| at >= half)
            || spellings.iter().any(|spelling| rest.starts_with(spelling.as_str()))
    }

    /// Returns the spellings that start with the byte at `at`.
    fn spellings_from(&self, text: &str, at: usize) -> Option<&Vec<String>> {
        text.as_bytes().get(at).and_then(|first| self.by_first.get(first))
    }

    /// Returns the first position from which `text`, trimmed as templates do, is a partial spelling.
    fn half_spelling(&self, text: &str) -> Option<usize> {
        let text = text.trim_end();
        let window = text.len().saturating_sub(self.longest);
        (window..text.len()).find(|&at| {
            let (Some(spellings), Some(tail)) = (self.spellings_from(text, at), text.get(at..)) else {
                return false;
            };
            spellings.iter().any(|spelling| spelling.starts_with(tail))
        })
    }
}

/// Inserts `mark` into every spelling in `text` that is not inside one of the ranges `kept`, which are in order and not
/// adjacent. Each mark is next to a character outside of them, so that no spelling inside is broken.
pub(super) fn break_outside(
    tables: [&SpecialTable; 2],
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
        for spelling in tables.iter().flat_map(|table| table.spellings_at(text, at)) {
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
    fn spellings_are_whole_only_where_they_are_kept() {
        let token = |(id, text): (u32, &str)| SpecialToken { id, text: text.to_owned() };
        let table =
            |spellings: &[&'static str]| SpecialTable::new((0..).zip(spellings.iter().copied()).map(token));
        let (specials, more) = (table(&["<s>", "<s>>", "<<s", "é!é"]), table(&["<t>"]));
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
            assert_eq!(break_outside([&specials, &more], &plain, &ranges, '|'), expect, "{text}");
        };
        check("<s> <t>", "<|s> <|t>");
        check("«<s> <t>»", "<s> <t>");
        check("«<s»> «<t»>", "<s|> <t|>");
        check("<«s>» x <«t>»", "<|s> x <|t>");
        check("«<s>»> <«<s>»", "<s>|> <|<s>");
        check("é«!»é «é»!«é»", "é|!é é|!é");
        check("«»", "");
    }
}
