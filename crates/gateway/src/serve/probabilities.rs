//! Probabilities of logits.

/// Returns the probability of a logit.
pub(super) fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

/// Returns the function from the logits of a row to probabilities, which have a sum of 1.
pub(super) fn softmax(row: &[f32]) -> impl Fn(f32) -> f64 + use<> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|logit| f64::from(logit - max).exp()).sum();
    move |logit| f64::from(logit - max).exp() / sum
}

/// Returns the index of the largest value; of equal ones, the first.
pub(super) fn first_largest(values: &[f32]) -> usize {
    (1..values.len()).fold(0, |best, index| if values[index] > values[best] { index } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_logits_do_not_overflow() {
        let probability = softmax(&[1e30, 1.0]);
        assert_eq!([probability(1e30), probability(1.0)], [1.0, 0.0]);
    }

    #[test]
    fn logits_become_probabilities() {
        assert_eq!(sigmoid(0.0), 0.5);
        assert!((sigmoid(2.0) - 0.880_797).abs() < 1e-6 && sigmoid(f32::NEG_INFINITY) == 0.0);
        assert!(sigmoid(1000.0) == 1.0 && sigmoid(-1000.0) == 0.0);
    }
}
