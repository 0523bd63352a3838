//! Spreads and ratios of repeated measurements.

use serde::Serialize;

/// The median of some figures; `None` of none.
pub(super) fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// A figure over several rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// The figures themselves, in order of time.
    pub(super) rounds: Vec<f64>,
}

impl Spread {
    /// The spread of at least one figure.
    pub(super) fn of(rounds: Vec<f64>) -> Option<Self> {
        let median = median(&rounds)?;
        let min = rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let max = rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self { median, min, max, rounds })
    }

    /// This over another, round by round: what slows a machine for a while slows both sides of a ratio.
    pub(super) fn over(&self, other: &Self) -> Option<Self> {
        Self::of(self.rounds.iter().zip(&other.rounds).map(|(a, b)| a / b).collect())
    }

    /// `12.3 (11.9 to 12.5)`, with as many digits behind the point.
    pub(super) fn shown(&self, digits: usize) -> String {
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
        // The second round was slow for both, and the ratio does not see it.
        let slow = Spread::of(vec![100.0, 50.0, 100.0]).unwrap();
        assert_eq!(a.over(&slow).unwrap().rounds, [0.9, 1.0, 0.99]);
        assert_eq!(a.over(&b).unwrap().shown(2), "0.90 (0.50 to 0.99)");
    }
}
