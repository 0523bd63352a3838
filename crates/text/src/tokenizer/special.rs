//! Special tokens, and how their spelling is broken in a user's text.

use std::collections::{HashMap, HashSet};

use narthex_spec::TokenId;

/// A token that stands for structure instead of text.
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
    /// Spellings by their first byte; text has few places where one may begin.
    by_first: HashMap<u8, Vec<String>>,
    /// Bytes of the longest spelling.
    longest: usize,
}

impl SpecialTable {
    /// A table of these tokens; those without a spelling are left out.
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

    /// Every special token, by rising id.
    pub(super) fn tokens(&self) -> &[SpecialToken] {
        &self.tokens
    }

    pub(super) fn contains(&self, id: TokenId) -> bool {
        self.ids.contains(&id)
    }

    /// Returns whether [`Self::break_up`] would change `text`.
    pub(super) fn touches(&self, text: &str) -> bool {
        let half = self.half_spelling(text);
        text.char_indices().any(|(at, _)| self.breaks_at(text, at, half))
    }

    /// Inserts `mark` after the first character of every spelling in `text`, and of one that begins at the end of `text`
    /// and might continue in the text that a template writes after it.
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

    fn breaks_at(&self, text: &str, at: usize, half: Option<usize>) -> bool {
        let Some(spellings) = self.spellings_from(text, at) else { return false };
        let Some(rest) = text.get(at..) else { return false };
        half.is_some_and(|half| at >= half)
            || spellings.iter().any(|spelling| rest.starts_with(spelling.as_str()))
    }

    /// The spellings that begin with the byte at `at`.
    fn spellings_from(&self, text: &str, at: usize) -> Option<&Vec<String>> {
        text.as_bytes().get(at).and_then(|first| self.by_first.get(first))
    }

    /// Returns the first position from which `text`, trimmed as templates do, is the beginning of a spelling.
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
}
