//! Stop strings: text is withheld only while it may still become one.

/// Watches a growing text for strings that end it.
#[derive(Debug, Clone)]
pub struct StopStrings {
    stops: Vec<String>,
    /// The end of the text so far that may be the beginning of a stop string.
    held: String,
}

/// What a piece of text brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopOutcome {
    /// Text that no stop string can take back.
    pub text: String,
    /// The stop string that ended the text, by number; what follows it is dropped.
    pub stopped: Option<usize>,
}

impl StopStrings {
    /// Watches for these strings; empty ones are left out.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(), held: String::new() }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, piece: &str) -> StopOutcome {
        if self.stops.is_empty() {
            return StopOutcome { text: piece.to_owned(), stopped: None };
        }
        self.held.push_str(piece);
        let found =
            self.stops.iter().enumerate().filter_map(|(number, stop)| Some((self.held.find(stop)?, number)));
        if let Some((at, number)) = found.min() {
            let text = self.held[..at].to_owned();
            self.held.clear();
            return StopOutcome { text, stopped: Some(number) };
        }
        let keep_from = self.first_possible_stop();
        let rest = self.held.split_off(keep_from);
        StopOutcome { text: std::mem::replace(&mut self.held, rest), stopped: None }
    }

    /// Ends the text; what was withheld is text after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the earliest ending that begins a stop string starts.
    fn first_possible_stop(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let start = self.held.len().saturating_sub(longest.saturating_sub(1));
        (start..self.held.len())
            .filter(|&at| self.held.is_char_boundary(at))
            .find(|&at| self.stops.iter().any(|stop| stop.starts_with(&self.held[at..])))
            .unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut watch = StopStrings::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let mut text = String::new();
        for piece in pieces {
            let outcome = watch.push(piece);
            text.push_str(&outcome.text);
            if outcome.stopped.is_some() {
                return (text, outcome.stopped);
            }
        }
        text.push_str(&watch.finish());
        (text, None)
    }

    #[test]
    fn stops_across_borders() {
        let check = |stops: &[&str], pieces: &[&str], text: &str, stopped| {
            assert_eq!(run(stops, pieces), (text.to_owned(), stopped));
        };
        check(&["END"], &["abEN", "Dcd"], "ab", Some(0));
        check(&["END"], &["abEN", "xEND"], "abENx", Some(0));
        check(&["END"], &["abEN"], "abEN", None);
        check(&["b", "abc"], &["xabc"], "x", Some(1));
        check(&["é!"], &["é", "é", "!"], "é", Some(0));
        check(&[], &["a", "b"], "ab", None);
    }

    proptest! {
        #[test]
        fn every_split_gives_the_same(text in "[abé]{0,12}", stops in prop::collection::vec("[abé]{1,3}", 0..3), cut in 0usize..13) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let cut = (0..=cut.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap();
            let pieces: Vec<String> = text.chars().map(String::from).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let by_characters = run(&stops, &pieces).0;
            prop_assert_eq!(run(&stops, &[&text[..cut], &text[cut..]]).0.len() >= by_characters.len(), true);
            let earliest_end = stops.iter().filter_map(|s| text.find(s).map(|at| at + s.len())).min();
            if let Some(end) = earliest_end {
                prop_assert!(by_characters.len() < end);
            } else {
                prop_assert_eq!(by_characters, text);
            }
        }
    }
}
