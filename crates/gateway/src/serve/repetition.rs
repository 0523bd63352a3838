//! Detection of an answer that only repeats itself, as those of small models do at times.

use narthex_spec::TokenId;

/// Number of times that a part of at least [`SHORTEST`] tokens occurs in a row before it counts as repetition.
const TIMES: usize = 5;

/// Length of the shortest part for which [`TIMES`] suffice. Shorter parts are often repeated on purpose, in lines, tables
/// and numbers.
const SHORTEST: usize = 8;

/// Number of tokens that repeat a shorter part before they count as repetition.
const SHORT_PARTS: usize = 256;

/// Length of the longest part that is found.
const LONGEST: usize = 512;

/// The latest tokens of an answer, and how far they repeat earlier ones.
pub(super) struct RepetitionGuard {
    /// The latest tokens in a ring: the token at position `n` is at `n % LONGEST`.
    recent: Vec<TokenId>,
    /// Number of tokens so far.
    position: usize,
    /// For each distance from 1, the number of latest tokens that equal the token at that distance before them.
    runs: Vec<usize>,
}

impl RepetitionGuard {
    pub(super) fn new() -> Self {
        Self { recent: Vec::with_capacity(LONGEST), position: 0, runs: vec![0; LONGEST] }
    }

    /// Takes a token. Returns true if the answer repeats itself with it.
    pub(super) fn push(&mut self, token: TokenId) -> bool {
        let mut repeats = false;
        // Number of latest tokens that repeat a short part, which longer parts may consist of.
        let mut in_short_part = 0;
        for distance in 1..=LONGEST.min(self.position) {
            let run = &mut self.runs[distance - 1];
            *run = if self.recent[(self.position - distance) % LONGEST] == token { *run + 1 } else { 0 };
            // The first occurrence of the part is not in the run.
            let repeated = *run + distance;
            if distance < SHORTEST {
                in_short_part = in_short_part.max(repeated);
                repeats |= repeated >= SHORT_PARTS;
            } else {
                let needed = distance * TIMES;
                repeats |= repeated >= needed && in_short_part < needed;
            }
        }
        let at = self.position % LONGEST;
        match self.recent.get_mut(at) {
            Some(oldest) => *oldest = token,
            None => self.recent.push(token),
        }
        self.position += 1;
        repeats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of tokens after which an answer counts as repetition.
    fn stops_after(tokens: impl IntoIterator<Item = u32>) -> Option<usize> {
        let mut guard = RepetitionGuard::new();
        tokens.into_iter().position(|token| guard.push(token)).map(|last| last + 1)
    }

    /// Returns a beginning without repetition, and a part that occurs several times after it.
    fn repeated(part: u32, times: usize) -> Vec<u32> {
        let beginning = (10_000..10_700).chain(0..part);
        beginning.chain((0..part).cycle().take(part as usize * (times - 1))).collect()
    }

    #[test]
    fn five_occurrences_of_a_part_are_repetition() {
        for part in [8, 9, 30, 511, 512] {
            assert_eq!(stops_after(repeated(part, 4)), None, "{part}");
            assert_eq!(stops_after(repeated(part, 9)), Some(700 + part as usize * 5), "{part}");
        }
        assert_eq!(stops_after(repeated(513, 9)), None, "parts of this length are not compared");
        assert_eq!(stops_after((0..8).cycle()), Some(40), "from the first token on");
    }

    #[test]
    fn short_parts_need_more_occurrences() {
        for part in [1, 3, 7] {
            let tokens = repeated(part, 40);
            let enough = 700 + SHORT_PARTS;
            assert_eq!(stops_after(tokens).is_some(), part * 40 > SHORT_PARTS as u32, "{part}");
            assert_eq!(stops_after(repeated(part, 300)), Some(enough), "{part}");
        }
    }

    #[test]
    fn counting_is_not_repetition() {
        let list = (0..200).flat_map(|number| (0..12).chain([1000 + number]));
        assert_eq!(stops_after(list), None);
    }
}
