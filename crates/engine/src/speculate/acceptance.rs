//! Acceptance rate of drafts in one sequence: the share of draft tokens that the model accepted.

use super::lookup::{MAX_NGRAM, MIN_NGRAM};

/// Acceptance rates assumed before the first measurement, by minimum n-gram length.
const PRIOR: [(usize, f32); CLASSES] = [(MIN_NGRAM, 0.35), (3, 0.5), (4, 0.65), (8, 0.8), (MAX_NGRAM, 0.9)];

const CLASSES: usize = 5;

/// Weight of the assumed rate, in tokens.
const PRIOR_WEIGHT: f32 = 2.0;

/// Factor by which earlier counts are multiplied at each draft.
const COUNT_DECAY: f32 = 0.85;

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

    /// Returns the probability that a draft token is accepted if all tokens before it were.
    pub(crate) fn rate(&self, ngram: usize) -> f32 {
        let class = Self::class(ngram);
        self.classes[class].rate(PRIOR[class].1)
    }

    /// Records the number of accepted tokens of a draft of `width`.
    pub(crate) fn record(&mut self, ngram: usize, accepted: usize, width: usize) {
        self.classes[Self::class(ngram)].record(accepted, width);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_what_was_accepted_and_classes_are_apart() {
        let mut acceptance = Acceptance::default();
        assert!(acceptance.rate(2) < acceptance.rate(3) && acceptance.rate(9) < acceptance.rate(16));
        let before = acceptance.rate(5);
        for _ in 0..20 {
            acceptance.record(9, 7, 7);
            acceptance.record(2, 0, 3);
        }
        assert!(acceptance.rate(8) > 0.95 && acceptance.rate(2) < 0.12, "{acceptance:?}");
        assert_eq!(acceptance.rate(5), before);
        for _ in 0..20 {
            acceptance.record(9, 0, 7);
        }
        assert!(acceptance.rate(8) < 0.4, "{acceptance:?}");
    }
}
