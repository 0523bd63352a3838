//! Regular expressions with conditions on the characters around a match, in place of lookaround.

use std::sync::OnceLock;

use regex::{Captures, Regex};

/// A regular expression that is compiled at its first use.
pub(super) struct Pattern {
    source: fn() -> String,
    compiled: OnceLock<Option<Regex>>,
}

/// A match, and the text around it.
pub(super) struct Found<'t> {
    captures: Captures<'t>,
    text: &'t str,
    start: usize,
    end: usize,
}

impl<'t> Found<'t> {
    /// Returns the text of a group; empty if the group did not take part.
    pub(super) fn group(&self, index: usize) -> &'t str {
        self.captures.get(index).map_or("", |group| group.as_str())
    }

    /// Returns the character before the match.
    pub(super) fn before(&self) -> Option<char> {
        self.text[..self.start].chars().next_back()
    }

    /// Returns the character after the match.
    pub(super) fn after(&self) -> Option<char> {
        self.text[self.end..].chars().next()
    }

    /// Returns the text before the match.
    pub(super) fn text_before(&self) -> &'t str {
        &self.text[..self.start]
    }

    /// Returns the text after the match.
    pub(super) fn rest(&self) -> &'t str {
        &self.text[self.end..]
    }

    /// Returns true if no letter, digit or underscore touches the match.
    pub(super) fn is_separate(&self) -> bool {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        !self.before().is_some_and(is_word) && !self.after().is_some_and(is_word)
    }

    /// Returns true if the match is not part of a word or of a longer number.
    pub(super) fn is_whole_number(&self) -> bool {
        let is_number_mark = |c: char| matches!(c, '.' | ',' | '/' | ':');
        let continues = || {
            let mut rest = self.rest().chars();
            rest.next().is_some_and(is_number_mark) && rest.next().is_some_and(|c| c.is_ascii_digit())
        };
        let follows = || {
            let mut before = self.text_before().chars().rev();
            before.next().is_some_and(is_number_mark) && before.next().is_some_and(|c| c.is_ascii_digit())
        };
        self.is_separate() && !continues() && !follows()
    }
}

impl Pattern {
    /// Makes a pattern of a regular expression.
    pub(super) const fn new(source: fn() -> String) -> Self {
        Self { source, compiled: OnceLock::new() }
    }

    /// Replaces matches by the result of `change`. A match without one stays as it is, and the search goes on after it.
    pub(super) fn replace(
        &self,
        text: String,
        mut change: impl FnMut(&Found<'_>) -> Option<String>,
    ) -> String {
        let Some(regex) = self.compiled.get_or_init(|| Regex::new(&(self.source)()).ok()) else {
            return text;
        };
        let mut changed = String::new();
        let mut copied = 0;
        for captures in regex.captures_iter(&text) {
            let Some(whole) = captures.get(0) else { continue };
            let start = whole.start();
            let end = whole.end();
            if let Some(words) = change(&Found { captures, text: &text, start, end }) {
                changed.push_str(&text[copied..start]);
                changed.push_str(&words);
                copied = end;
            }
        }
        if copied == 0 && changed.is_empty() {
            return text;
        }
        changed.push_str(&text[copied..]);
        changed
    }
}

/// Declares a pattern.
macro_rules! pattern {
    ($name:ident, $($source:tt)+) => {
        static $name: Pattern = Pattern::new(|| format!($($source)+));
    };
}

pub(super) use pattern;

/// A number with optional commas and decimals.
pub(super) const NUMBER: &str = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?";

/// Returns an alternation of literal texts, the longest first.
pub(super) fn any_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut texts: Vec<&str> = texts.into_iter().collect();
    texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
    texts.into_iter().map(regex::escape).collect::<Vec<_>>().join("|")
}

#[cfg(test)]
impl Pattern {
    /// Fails if the source is not a regular expression.
    pub(super) fn check(&self) {
        let source = (self.source)();
        Regex::new(&source).unwrap_or_else(|error| panic!("{source}: {error}"));
    }
}
