//! Triangular filters of mel bins.

/// Weights of consecutive frequencies that a mel bin sums.
pub(crate) struct Filter {
    first: usize,
    weights: Vec<f64>,
}

impl Filter {
    /// Returns the triangle with these edges in Hz over the frequencies of a spectrum, which are `step` Hz apart.
    pub(crate) fn triangle(edges: [f64; 3], frequencies: usize, step: f64) -> Self {
        let weights = (0..frequencies).map(|at| {
            let frequency = step * at as f64;
            let rise = (frequency - edges[0]) / (edges[1] - edges[0]);
            let fall = (edges[2] - frequency) / (edges[2] - edges[1]);
            rise.min(fall).max(0.0)
        });
        let weights: Vec<f64> = weights.collect();
        let first = weights.iter().position(|weight| *weight > 0.0).unwrap_or(0);
        let end = weights.iter().rposition(|weight| *weight > 0.0).map_or(first, |last| last + 1);
        Self { first, weights: weights[first..end].to_vec() }
    }

    /// Returns the filter with all weights multiplied by a factor.
    pub(crate) fn scaled(mut self, factor: f64) -> Self {
        self.weights.iter_mut().for_each(|weight| *weight *= factor);
        self
    }

    /// Returns the weighted sum of a spectrum's frequencies.
    pub(crate) fn apply(&self, spectrum: &[f64]) -> f64 {
        self.weights.iter().zip(&spectrum[self.first..]).map(|(weight, value)| weight * value).sum()
    }
}
