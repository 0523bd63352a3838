//! Times of steps that verify drafts, relative to a step of one token, and the choice of a draft's width.

use std::time::Duration;

/// Widths of drafts. Together with the token before them, they fill the row blocks of kernels for few rows.
const WIDTHS: [usize; 4] = [1, 3, 7, 15];

/// Maximum number of tokens in a draft.
pub(crate) const MAX_WIDTH: usize = WIDTHS[WIDTHS.len() - 1];

/// Relative times assumed before the first measurement of each width.
const PRIOR: [f32; WIDTHS.len()] = [1.25, 1.5, 2.0, 3.2];

/// Minimum expected speed-up for which a draft is used.
const MIN_GAIN: f32 = 1.1;

/// Weight of a new measurement in a moving average.
const SMOOTHING: f32 = 0.25;

/// Fraction by which the time of a width that was not selected moves towards the assumed one at each selection, so that
/// the width is tried again from time to time.
const DECAY_TO_PRIOR: f32 = 0.002;

/// Returns a moving average after another measurement. Each measurement is clamped: a single slow step is noise, several
/// are a trend.
pub(crate) fn average(old: Option<f32>, found: f32) -> f32 {
    let old = old.unwrap_or(found);
    old + SMOOTHING * (found.clamp(old / 2.0, old * 2.0) - old)
}

/// Measured times of an executor's steps with one sequence.
#[derive(Debug, Clone)]
pub(crate) struct StepCosts {
    /// Seconds of a step of one token, if measured.
    single: Option<f32>,
    /// Time for each width, relative to a step of one token.
    relative: [f32; WIDTHS.len()],
    /// True for each width that was measured.
    measured: [bool; WIDTHS.len()],
}

impl StepCosts {
    /// Creates an instance without measurements.
    pub(crate) fn new() -> Self {
        Self { single: None, relative: PRIOR, measured: [false; WIDTHS.len()] }
    }

    /// Records the time of a step of one token followed by a draft of `width` tokens.
    pub(crate) fn record(&mut self, width: usize, time: Duration) {
        let seconds = time.as_secs_f32();
        if width == 0 {
            self.single = Some(average(self.single, seconds));
        } else if let Some(single) = self.single.filter(|single| *single > 0.0)
            && let Some(place) = WIDTHS.iter().position(|place| *place >= width)
        {
            let found = seconds / single;
            let old = self.relative[place];
            if self.measured[place] {
                self.relative[place] = average(Some(old), found);
                return;
            }
            self.measured[place] = true;
            self.relative[place] = found;
            // If one width costs more than assumed, as in graphs of fixed shapes, the others do as well.
            let unmeasured = self.relative.iter_mut().zip(&self.measured).filter(|(_, measured)| !**measured);
            unmeasured.for_each(|(relative, _)| *relative *= (found / old).max(1.0));
        }
    }

    /// Returns a time in steps of one token, if these were measured.
    pub(crate) fn in_steps(&self, seconds: f32) -> Option<f32> {
        self.single.filter(|single| *single > 0.0).map(|single| seconds / single)
    }

    /// Returns the time of a step that verifies a draft of `width` tokens, in steps of one token.
    pub(crate) fn relative(&self, width: usize) -> f32 {
        let place = WIDTHS.iter().position(|place| *place >= width);
        place.map_or(f32::INFINITY, |place| self.relative[place])
    }

    /// Returns the width, at most `most`, with the most tokens per unit of time at this acceptance probability; 0 if no
    /// draft is faster. Each draft token takes `token_cost` steps of one token before it is verified.
    pub(crate) fn width(&mut self, rate: f32, most: usize, token_cost: f32) -> usize {
        let mut best = (MIN_GAIN, 0);
        for (&width, &relative) in WIDTHS.iter().zip(&self.relative).filter(|(width, _)| **width <= most) {
            // One token of the model, and the draft's tokens up to the first rejected one.
            let tokens: f32 = (0..=width as i32).map(|place| rate.powi(place)).sum();
            let gain = tokens / (relative + token_cost * width as f32);
            if gain > best.0 {
                best = (gain, width);
            }
        }
        for (place, width) in WIDTHS.iter().enumerate().filter(|(_, width)| **width != best.1) {
            let decay = if *width <= most { DECAY_TO_PRIOR } else { 0.0 };
            self.relative[place] += decay * (PRIOR[place] - self.relative[place]);
        }
        best.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(relative: [f32; 4]) -> StepCosts {
        let mut costs = StepCosts::new();
        for _ in 0..40 {
            costs.record(0, Duration::from_millis(10));
            for (width, relative) in WIDTHS.iter().zip(relative) {
                costs.record(*width, Duration::from_secs_f32(0.01 * relative));
            }
        }
        costs
    }

    #[test]
    fn the_width_follows_acceptance_and_measured_times() {
        let check = |relative, rate, most, expect| {
            assert_eq!(measured(relative).width(rate, most, 0.0), expect, "{relative:?} {rate} {most}");
        };
        let cheap = [1.1, 1.2, 1.3, 1.5];
        check(cheap, 0.98, 15, 15);
        check(cheap, 0.98, 14, 7);
        check(cheap, 0.98, 0, 0);
        check(cheap, 0.4, 15, 3);
        check(cheap, 0.1, 15, 0);
        // If each draft token costs as much as a step, no draft is faster.
        check([2.0, 4.0, 8.0, 16.0], 0.98, 15, 0);
        check([1.5, 2.5, 7.0, 14.0], 0.95, 15, 3);
    }

    #[test]
    fn the_time_of_drafting_makes_drafts_shorter() {
        let check = |rate, token_cost, expect| {
            let found = measured([1.1, 1.2, 1.3, 1.5]).width(rate, 15, token_cost);
            assert_eq!(found, expect, "{rate} {token_cost}");
        };
        check(0.9, 0.02, 15);
        check(0.9, 0.1, 7);
        check(0.9, 0.4, 3);
        check(0.9, 0.9, 0);
        let costs = measured([1.1, 1.2, 1.3, 1.5]);
        assert!((costs.in_steps(0.005).unwrap() - 0.5).abs() < 0.01);
        assert!((costs.relative(2) - 1.2).abs() < 0.01 && costs.relative(16).is_infinite());
    }

    #[test]
    fn one_slow_step_changes_little_and_what_does_not_pay_is_tried_again() {
        let mut costs = measured([1.1, 1.2, 1.3, 1.5]);
        costs.record(15, Duration::from_secs(9));
        assert_eq!(costs.width(0.98, 15, 0.0), 15);
        // A graph of fixed shape costs the same for every width; one step shows it.
        let mut costs = StepCosts::new();
        costs.record(0, Duration::from_millis(10));
        costs.record(15, Duration::from_millis(200));
        assert_eq!(costs.width(0.98, 15, 0.0), 0);
        let mut costs = measured([2.0, 4.0, 8.0, 16.0]);
        let steps = (0..2000).position(|_| costs.width(0.98, 15, 0.0) > 0);
        assert!(steps.is_some_and(|steps| steps > 30), "{steps:?}");
    }
}
