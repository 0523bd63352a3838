//! Probabilities of logits.

/// Returns the probability of a logit.
pub(super) fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

/// Returns probabilities with a sum of 1.
pub(super) fn softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials: Vec<f64> = logits.iter().map(|&logit| f64::from(logit - max).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.into_iter().map(|value| (value / sum) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_logits_do_not_overflow() {
        assert_eq!(softmax(&[1e30, 1.0]), [1.0, 0.0]);
    }

    #[test]
    fn logits_become_probabilities() {
        assert_eq!(sigmoid(0.0), 0.5);
        assert!((sigmoid(2.0) - 0.880_797).abs() < 1e-6 && sigmoid(f32::NEG_INFINITY) == 0.0);
        assert!(sigmoid(1000.0) == 1.0 && sigmoid(-1000.0) == 0.0);
    }
}
