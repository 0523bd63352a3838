//! Acceptance rates of drafts: the share of draft tokens that the model accepts. Each sequence has its own rates, and
//! the engine has rates over all sequences.

use super::lookup::{MAX_NGRAM, MIN_NGRAM};

/// Acceptance rates assumed before the first measurement, by minimum n-gram length.
const PRIOR: [(usize, f32); CLASSES] = [(MIN_NGRAM, 0.35), (3, 0.5), (4, 0.65), (8, 0.8), (MAX_NGRAM, 0.9)];

const CLASSES: usize = 5;

/// Weight of the assumed rate, in tokens.
const PRIOR_WEIGHT: f32 = 2.0;

/// Factor by which earlier counts are multiplied at each draft.
const COUNT_DECAY: f32 = 0.85;

/// Factor by which the counts of a class are multiplied for each n-gram that was found but not drafted.
const UNUSED_DECAY: f32 = 0.98;

/// Counts for each class of n-gram lengths. The longer the matching n-gram, the more likely is its continuation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Acceptance {
    classes: [Counts; CLASSES],
}

/// Counts of accepted and rejected tokens, in which earlier drafts weigh less than recent ones.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    accepted: f32,
    rejected: f32,
}

impl Counts {
    /// Returns the probability that a draft token is accepted if all tokens before it were. `prior` is the rate assumed
    /// before the first measurement.
    pub(crate) fn rate(&self, prior: f32) -> f32 {
        (self.accepted + prior * PRIOR_WEIGHT) / (self.accepted + self.rejected + PRIOR_WEIGHT)
    }

    /// Records the number of accepted tokens of a draft of `width`. Tokens after the first rejected one are not
    /// counted.
    pub(crate) fn record(&mut self, accepted: usize, width: usize) {
        self.accepted = self.accepted * COUNT_DECAY + accepted as f32;
        self.rejected = self.rejected * COUNT_DECAY + f32::from(u8::from(accepted < width));
    }

    /// Multiplies both counts by a factor, so that the rate moves towards the assumed one.
    pub(crate) fn scale(&mut self, factor: f32) {
        self.accepted *= factor;
        self.rejected *= factor;
    }
}

impl Acceptance {
    fn class(ngram: usize) -> usize {
        PRIOR.iter().rposition(|(least, _)| ngram >= *least).unwrap_or(0)
    }

    /// Returns the probability that a draft token is accepted if all tokens before it were. A sequence with few drafts
    /// has the rate of `all` sequences.
    pub(crate) fn rate(&self, ngram: usize, all: &Self) -> f32 {
        let class = Self::class(ngram);
        self.classes[class].rate(all.classes[class].rate(PRIOR[class].1))
    }

    /// Records the number of accepted tokens of a draft of `width`.
    pub(crate) fn record(&mut self, ngram: usize, accepted: usize, width: usize) {
        self.classes[Self::class(ngram)].record(accepted, width);
    }

    /// Records that an n-gram was found but not drafted, because no draft was expected to be faster. The counts of its
    /// class decrease, so that such drafts are tried again from time to time.
    pub(crate) fn record_unused(&mut self, ngram: usize) {
        self.classes[Self::class(ngram)].scale(UNUSED_DECAY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_what_was_accepted_and_classes_are_apart() {
        let (mut acceptance, all) = (Acceptance::default(), Acceptance::default());
        let rate = |acceptance: &Acceptance, ngram| acceptance.rate(ngram, &all);
        assert!(rate(&acceptance, 2) < rate(&acceptance, 3) && rate(&acceptance, 9) < rate(&acceptance, 16));
        let before = rate(&acceptance, 5);
        for _ in 0..20 {
            acceptance.record(9, 7, 7);
            acceptance.record(2, 0, 3);
        }
        assert!(rate(&acceptance, 8) > 0.95 && rate(&acceptance, 2) < 0.12, "{acceptance:?}");
        assert_eq!(rate(&acceptance, 5), before);
        for _ in 0..20 {
            acceptance.record(9, 0, 7);
        }
        assert!(rate(&acceptance, 8) < 0.4, "{acceptance:?}");
    }

    #[test]
    fn a_new_sequence_has_the_rate_of_all_until_it_has_its_own() {
        let (mut sequence, mut all) = (Acceptance::default(), Acceptance::default());
        let assumed = sequence.rate(2, &all);
        (0..10).for_each(|_| all.record(2, 0, 3));
        assert!(sequence.rate(2, &all) < 0.12, "{all:?}");
        assert_eq!(sequence.rate(3, &all), Acceptance::default().rate(3, &Acceptance::default()));
        (0..10).for_each(|_| sequence.record(2, 3, 3));
        assert!(sequence.rate(2, &all) > 0.8, "{sequence:?}");
        // Unused drafts are tried again after some time.
        (0..200).for_each(|_| all.record_unused(2));
        assert!((Acceptance::default().rate(2, &all) - assumed).abs() < 0.02, "{all:?}");
    }
}
