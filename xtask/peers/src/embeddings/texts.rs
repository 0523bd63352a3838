//! Texts of the measurements: random words of a text, the same on every machine.

use narthex_engine::sample::SplitMix64;
use serde::Serialize;

/// Number of texts that are embedded together.
pub(super) const BATCH: usize = 256;

/// Number of texts that are embedded one by one.
pub(super) const SINGLES: usize = 32;

/// Smallest and largest number of words of a text in a batch, which are about 5 and 240 tokens.
const WORDS: (f64, f64) = (3.0, 205.0);

/// Number of words of a single text, which are about 20 tokens.
const SINGLE_WORDS: usize = 16;

/// Texts of one pass.
#[derive(Debug, Serialize)]
pub(super) struct TextSet {
    /// Texts that are embedded together, in random order.
    pub(super) batch: Vec<String>,
    /// Texts that are embedded one by one.
    pub(super) single: Vec<String>,
}

/// Texts of one round. No two rounds have the same texts.
#[derive(Debug, Serialize)]
pub(super) struct TextPlan {
    /// Texts of the pass that is not counted.
    pub(super) warmup: TextSet,
    pub(super) measured: TextSet,
}

/// Draws the texts with which activations are calibrated. No round has any of them.
pub(super) fn calibration(words: &[&str]) -> Vec<String> {
    // The first round is 1, so its first seed is 2.
    TextSet::new(words, 0).batch
}

impl TextPlan {
    /// Draws the texts of a round, which counts from 1, from these words.
    pub(super) fn new(words: &[&str], round: u64) -> Self {
        Self { warmup: TextSet::new(words, 2 * round), measured: TextSet::new(words, 2 * round + 1) }
    }
}

impl TextSet {
    fn new(words: &[&str], seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let mut batch: Vec<(u64, String)> =
            (0..BATCH).map(|number| (random.next_u64(), text(words, length(number), &mut random))).collect();
        batch.sort_by_key(|(place, _)| *place);
        let single = (0..SINGLES).map(|_| text(words, SINGLE_WORDS, &mut random)).collect();
        Self { batch: batch.into_iter().map(|(_, text)| text).collect(), single }
    }
}

/// Returns the number of words of a text in a batch. The logarithms are evenly distributed, and every batch has the same
/// numbers of words.
fn length(number: usize) -> usize {
    let (least, most) = WORDS;
    let share = (number as f64 + 0.5) / BATCH as f64;
    (least * (most / least).powf(share)).round() as usize
}

fn text(words: &[&str], length: usize, random: &mut SplitMix64) -> String {
    let mut word =
        || words.get((random.next_f64() * words.len() as f64) as usize).copied().unwrap_or_default();
    let drawn: Vec<&str> = (0..length).map(|_| word()).collect();
    drawn.join(" ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn texts_are_reproducible_and_never_repeated() {
        let words: Vec<String> = (0..400).map(|number| format!("word{number}")).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut all: BTreeSet<String> = calibration(&words).into_iter().collect();
        for round in 1..=5 {
            let TextPlan { warmup, measured } = TextPlan::new(&words, round);
            assert_eq!(measured.batch, TextPlan::new(&words, round).measured.batch);
            for texts in [warmup, measured] {
                let lengths: Vec<usize> = texts.batch.iter().map(|text| text.split(' ').count()).collect();
                assert!(!lengths.is_sorted());
                let mut sorted = lengths.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..BATCH).map(length).collect::<Vec<_>>());
                assert!(texts.single.iter().all(|text| text.split(' ').count() == SINGLE_WORDS));
                all.extend(texts.batch.into_iter().chain(texts.single));
            }
        }
        assert_eq!(all.len(), BATCH + 5 * 2 * (BATCH + SINGLES));
        assert_eq!((length(0), length(BATCH - 1)), (3, 203));
    }
}
