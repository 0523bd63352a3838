//! Stop strings, which end a stream of text.
//!
//! A stop string may be spread over several pieces, so the end of the text is withheld while it may still become one.
//! Stop tokens are handled by the engine.
//!
//! The automaton is our own because that of `aho-corasick` does not expose the length of the partial match, which is
//! the number of bytes to withhold.

use std::sync::Arc;

/// Result of a piece of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopOutcome {
    /// Text that is not part of a stop string; may be empty.
    pub text: String,
    /// Index of the stop string that was reached. No text follows it.
    pub stopped: Option<usize>,
}

/// Searches a stream of text for stop strings (Knuth, Morris and Pratt 1977, one automaton per string).
///
/// The text ends before the stop string that is complete first, or before the longest of those that are complete at the
/// same position. The result does not depend on the division of the text into pieces. Clones share the automata.
#[derive(Debug, Clone)]
pub struct StopStrings {
    automata: Arc<[Automaton]>,
    /// For each string, the length of its longest prefix that ends the text.
    matched: Vec<usize>,
    /// End of the text that may be the start of a stop string.
    held: String,
    stopped: Option<usize>,
}

#[derive(Debug)]
struct Automaton {
    pattern: Vec<u8>,
    /// For each prefix of the pattern, the length of its longest proper suffix that is also a prefix of the pattern.
    fallback: Vec<usize>,
}

impl StopStrings {
    /// Creates a search for `stops`. Empty strings are never found.
    pub fn new(stops: Vec<String>) -> Self {
        let automata: Arc<[Automaton]> = stops.into_iter().map(Automaton::new).collect();
        Self { matched: vec![0; automata.len()], automata, held: String::new(), stopped: None }
    }

    /// Takes the next piece of text. After a stop string, text is dropped.
    pub fn push(&mut self, text: &str) -> StopOutcome {
        if self.stopped.is_some() {
            return StopOutcome { text: String::new(), stopped: self.stopped };
        }
        let before = self.held.len();
        let mut held = std::mem::take(&mut self.held);
        held.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            if let Some((index, length)) = self.advance(byte) {
                held.truncate(before + at + 1 - length);
                self.stopped = Some(index);
                return StopOutcome { text: held, stopped: self.stopped };
            }
        }
        let tail = self.matched.iter().copied().max().unwrap_or(0);
        self.held = held.split_off(held.len() - tail);
        StopOutcome { text: held, stopped: None }
    }

    /// Returns the index of the stop string that was reached.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// Ends the text and returns what was withheld. A text that follows is searched as a new one.
    pub fn finish(&mut self) -> String {
        self.matched.fill(0);
        std::mem::take(&mut self.held)
    }

    /// Feeds one byte to all automata. Returns the index and length of the longest string that it completes.
    fn advance(&mut self, byte: u8) -> Option<(usize, usize)> {
        let mut complete: Option<(usize, usize)> = None;
        for (index, (automaton, matched)) in self.automata.iter().zip(&mut self.matched).enumerate() {
            let length = automaton.pattern.len();
            if automaton.advance(matched, byte) && complete.is_none_or(|(_, longest)| length > longest) {
                complete = Some((index, length));
            }
        }
        complete
    }
}

impl Automaton {
    fn new(pattern: String) -> Self {
        let pattern = pattern.into_bytes();
        let mut fallback = vec![0; pattern.len() + 1];
        let mut length = 0;
        for at in 1..pattern.len() {
            while length > 0 && pattern[at] != pattern[length] {
                length = fallback[length];
            }
            length += usize::from(pattern[at] == pattern[length]);
            fallback[at + 1] = length;
        }
        Self { pattern, fallback }
    }

    /// Feeds one byte after a prefix of length `matched`. Returns true if it completes the pattern.
    fn advance(&self, matched: &mut usize, byte: u8) -> bool {
        if self.pattern.is_empty() {
            return false;
        }
        while *matched > 0 && self.pattern[*matched] != byte {
            *matched = self.fallback[*matched];
        }
        *matched += usize::from(self.pattern[*matched] == byte);
        *matched == self.pattern.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Feeds `pieces`. Returns the resulting text and the index of the stop string that ended it.
    fn replay(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut watch = StopStrings::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let mut text = String::new();
        let mut stopped = None;
        for piece in pieces {
            let outcome = watch.push(piece);
            text.push_str(&outcome.text);
            stopped = outcome.stopped;
        }
        text.push_str(&watch.finish());
        (text, stopped)
    }

    /// Reference result by brute force: the first position at which a stop string ends, then the longest one that ends
    /// there.
    fn expected(stops: &[&str], text: &str) -> (String, Option<usize>) {
        let ends = (0..=text.len()).filter(|&end| text.is_char_boundary(end));
        for end in ends {
            let candidates = stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty());
            let reached = candidates.filter(|(_, stop)| text[..end].ends_with(**stop));
            if let Some((index, stop)) = reached.min_by_key(|(index, stop)| (usize::MAX - stop.len(), *index))
            {
                return (text[..end - stop.len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn text_ends_before_the_first_stop_string() {
        let check = |stops: &[&str], text: &str, expect: &str, stopped: Option<usize>| {
            assert_eq!(replay(stops, &[text]), (expect.to_owned(), stopped), "{stops:?} {text:?}");
        };
        check(&["\n\n"], "one\ntwo\n\nthree", "one\ntwo", Some(0));
        check(&["STOP", "TO"], "a STOP b", "a S", Some(1));
        check(&["b", "abab"], "xabab", "xa", Some(0));
        check(&["ab", "xab"], "xab", "", Some(1));
        check(&["é"], "caf\u{e9}!", "caf", Some(0));
        check(&["", "z"], "abc", "abc", None);
        check(&[], "abc", "abc", None);
        check(&["abcd"], "abc", "abc", None);
    }

    #[test]
    fn only_a_possible_beginning_is_withheld() {
        let mut watch = StopStrings::new(vec!["</end>".to_owned(), "aab".to_owned()]);
        let mut check = |piece: &str, expect: &str| assert_eq!(watch.push(piece).text, expect, "{piece}");
        check("x", "x");
        check("y<", "y");
        check("/e", "");
        check("a", "</e");
        check("a", "");
        check("a", "a");
        check("c", "aac");
        assert_eq!(watch.push("d</").text, "d");
        assert_eq!(watch.finish(), "</");
    }

    #[test]
    fn nothing_comes_after_a_stop_string() {
        let mut watch = StopStrings::new(vec!["!".to_owned()]);
        assert_eq!(watch.push("a!b"), StopOutcome { text: "a".to_owned(), stopped: Some(0) });
        assert_eq!(watch.push("c"), StopOutcome { text: String::new(), stopped: Some(0) });
        assert_eq!(watch.finish(), "");
    }

    #[test]
    fn clones_share_the_automata_and_search_apart() {
        let mut first = StopStrings::new(vec!["ab".to_owned()]);
        assert_eq!(first.push("a").text, "");
        let mut second = StopStrings::clone(&first);
        assert!(Arc::ptr_eq(&first.automata, &second.automata));
        assert_eq!(second.push("b").stopped, Some(0));
        assert_eq!(first.push("c"), StopOutcome { text: "ac".to_owned(), stopped: None });
    }

    #[test]
    fn every_split_point_gives_the_same() {
        let stops = ["abab", "aé", "ba é", "\n\n"];
        for text in ["xababx", "aababé", "ba ba é", "a\n\na", "abaéab"] {
            let whole = expected(&stops, text);
            for split in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
                assert_eq!(replay(&stops, &[&text[..split], &text[split..]]), whole, "{text:?} at {split}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_cut_gives_what_the_definition_gives(
            stops in prop::collection::vec("[abé]{0,4}", 0..4),
            pieces in prop::collection::vec("[abé]{0,3}", 0..8),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(replay(&stops, &pieces), expected(&stops, &pieces.concat()));
        }
    }
}
