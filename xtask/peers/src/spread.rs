//! Spreads and ratios of repeated measurements.

use serde::Serialize;

/// Returns the median of the numbers, or `None` for an empty list.
pub(super) fn median(numbers: &[f64]) -> Option<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// Values of a quantity in several rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// Values of the rounds, in order of time.
    pub(super) rounds: Vec<f64>,
}

impl Spread {
    /// Returns the spread of at least one number; `None` for an empty list.
    pub(super) fn of(rounds: Vec<f64>) -> Option<Self> {
        let median = median(&rounds)?;
        let min = rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let max = rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self { median, min, max, rounds })
    }

    /// Divides this spread by another, round by round, so that a slow phase of the machine affects both sides.
    pub(super) fn over(&self, other: &Self) -> Option<Self> {
        Self::of(self.rounds.iter().zip(&other.rounds).map(|(a, b)| a / b).collect())
    }

    /// Returns the spread of all values multiplied by a factor.
    pub(super) fn times(&self, factor: f64) -> Self {
        let Self { median, min, max, rounds } = self;
        let rounds = rounds.iter().map(|value| value * factor).collect();
        Self { median: median * factor, min: min * factor, max: max * factor, rounds }
    }

    /// Formats as `12.3 (11.9 to 12.5)`, with `digits` decimals.
    pub(super) fn format(&self, digits: usize) -> String {
        format!("{:.digits$} ({:.digits$} to {:.digits$})", self.median, self.min, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_and_ratios() {
        assert_eq!(Spread::of(Vec::new()), None);
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        let (a, b) = (Spread::of(vec![90.0, 50.0, 99.0]).unwrap(), Spread::of(vec![100.0; 3]).unwrap());
        assert_eq!((a.median, a.min, a.max), (90.0, 50.0, 99.0));
        assert_eq!(a.times(2.0), Spread::of(vec![180.0, 100.0, 198.0]).unwrap());
        // The second round was slow for both sides, which does not change the ratio.
        let slow = Spread::of(vec![100.0, 50.0, 100.0]).unwrap();
        assert_eq!(a.over(&slow).unwrap().rounds, [0.9, 1.0, 0.99]);
        assert_eq!(a.over(&b).unwrap().format(2), "0.90 (0.50 to 0.99)");
    }
}
