//! Scales of channels for AWQ (Lin et al. 2023, arXiv:2306.00978) and SmoothQuant (Xiao et al. 2022, arXiv:2211.10438).
//!
//! AWQ multiplies the columns of a weight that read large channels before they are rounded, so that their integers are finer.
//! The scale is the mean magnitude of a channel to the power of a strength, which is searched. SmoothQuant divides the range of a
//! channel between the activation and the weight, so that integers represent both about as well.
//!
//! This module computes on vectors. See [`super::channel_groups`] for the weights that get the scales.

use super::gptq::subtract_rows;

/// Number of strengths of AWQ that are compared: 0 to below 1.
const STRENGTHS: usize = 20;

/// Share of a channel's range that SmoothQuant moves from the activation to the weight, on a logarithmic scale.
const MIGRATION_STRENGTH: f32 = 0.5;

/// Smallest mean magnitude of a channel, as a share of the largest, that AWQ tells from 0.
const LEAST_MAGNITUDE: f32 = 1e-4;

/// Maximum of a scale and of its inverse. It keeps the f16 scales of blocks in the range of full precision.
const LARGEST: f32 = 64.0;

/// Scales of AWQ for one strength.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Power of the magnitudes.
    pub strength: f32,
    /// One scale for each channel.
    pub scales: Vec<f32>,
}

/// Returns the scales of AWQ for channels of these mean magnitudes, for each strength. Those of the first are 1.
pub fn awq_candidates(magnitudes: &[f32]) -> Vec<Candidate> {
    let largest = magnitudes.iter().copied().fold(0.0, f32::max);
    let least = largest * LEAST_MAGNITUDE;
    let strengths = (0..STRENGTHS).map(|step| step as f32 / STRENGTHS as f32);
    strengths
        .map(|strength| {
            let scales = magnitudes
                .iter()
                .map(|magnitude| if least > 0.0 { magnitude.max(least).powf(strength) } else { 1.0 });
            Candidate { strength, scales: centred(scales.collect()) }
        })
        .collect()
}

/// Returns the scales of SmoothQuant for channels with these largest magnitudes of the activation and of the weights' columns.
/// A channel without any has the scale 1.
pub fn smooth_scales(activations: &[f32], weights: &[f32]) -> Vec<f32> {
    let pairs = activations.iter().zip(weights);
    let scales = pairs.map(|(activation, weight)| {
        activation.powf(MIGRATION_STRENGTH) / weight.powf(1.0 - MIGRATION_STRENGTH)
    });
    centred(scales.collect())
}

fn is_positive(scale: f32) -> bool {
    scale > 0.0 && scale.is_finite()
}

/// Divides scales by the geometric mean of the extremes. Only the relation between scales counts, and numbers near 1 keep most
/// bits in half precision. Scales that are not positive numbers become 1.
fn centred(mut scales: Vec<f32>) -> Vec<f32> {
    let valid = || scales.iter().copied().filter(|scale| is_positive(*scale));
    let low = valid().fold(f32::INFINITY, f32::min);
    let high = valid().fold(0.0, f32::max);
    let centre = low.sqrt() * high.sqrt();
    for scale in &mut scales {
        *scale = if is_positive(*scale) { (*scale / centre).clamp(LARGEST.recip(), LARGEST) } else { 1.0 };
    }
    scales
}

/// Inputs of linear layers for some tokens of a text.
#[derive(Debug, Clone, PartialEq)]
pub struct InputSample {
    tokens: usize,
    /// `[channels, tokens]`.
    channels: Vec<f32>,
}

impl InputSample {
    /// Creates the sample from rows of `channels` elements, one for each token.
    pub fn new(channels: usize, rows: &[f32]) -> Self {
        let tokens = rows.len() / channels.max(1);
        let mut transposed = vec![0.0; channels * tokens];
        for (token, row) in rows.chunks_exact(channels.max(1)).enumerate() {
            row.iter().zip(transposed.iter_mut().skip(token).step_by(tokens)).for_each(|(x, out)| *out = *x);
        }
        Self { tokens, channels: transposed }
    }

    /// Returns the sum of the squares of the products with the row of a weight.
    fn squares(&self, row: &[f32]) -> f64 {
        let mut products = vec![0.0; self.tokens];
        subtract_rows(&mut products, row, &self.channels, self.tokens);
        products.iter().map(|x| f64::from(*x).powi(2)).sum()
    }

    /// Returns the loss of a row for each of the scales of its columns. `round` replaces a row by what its integers represent.
    pub fn loss(&self, row: &[f32], scales: &[Vec<f32>], round: impl Fn(&mut [f32])) -> RowLoss {
        let errors = scales.iter().map(|scales| {
            let mut rounded: Vec<f32> = row.iter().zip(scales).map(|(x, scale)| x * scale).collect();
            round(&mut rounded);
            let pairs = rounded.iter_mut().zip(row.iter().zip(scales));
            pairs.for_each(|(rounded, (x, scale))| *rounded = *rounded / scale - x);
            self.squares(&rounded)
        });
        RowLoss { errors: errors.collect(), outputs: self.squares(row) }
    }
}

/// Loss of the outputs of one or more rows of a weight by rounding.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RowLoss {
    /// Sum of the squares by which the outputs change, for each candidate.
    errors: Vec<f64>,
    /// Sum of the squares of the outputs.
    outputs: f64,
}

impl RowLoss {
    /// Adds the loss of more rows.
    pub fn add(&mut self, other: &Self) {
        self.errors.resize(other.errors.len(), 0.0);
        self.errors.iter_mut().zip(&other.errors).for_each(|(error, other)| *error += other);
        self.outputs += other.outputs;
    }
}

/// Returns the loss of a candidate over the layers, each relative to its outputs.
fn relative_loss(layers: &[RowLoss], candidate: usize) -> f64 {
    let layers = layers.iter().filter(|layer| layer.outputs > 0.0);
    layers.map(|layer| layer.errors.get(candidate).copied().unwrap_or(0.0) / layer.outputs).sum()
}

/// Returns the index of the candidate with the least loss over the layers, each relative to its outputs; the first of equal ones.
pub fn best(layers: &[RowLoss]) -> usize {
    let candidates = layers.iter().map(|layer| layer.errors.len()).max().unwrap_or(0);
    (0..candidates)
        .min_by(|&a, &b| relative_loss(layers, a).total_cmp(&relative_loss(layers, b)))
        .unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::quant::block::Form4;

    /// Scales and losses computed by an independent program, `tests/goldens/scaling/make.py`.
    #[derive(Deserialize)]
    struct ScalingGolden {
        channels: usize,
        block: usize,
        inputs: Vec<f32>,
        weights: Vec<Vec<f32>>,
        candidates: Vec<Vec<f32>>,
        losses: Vec<f64>,
        best: usize,
        smooth: Vec<f32>,
    }

    fn golden() -> ScalingGolden {
        serde_json::from_str(include_str!("../../tests/goldens/scaling/expected.json")).unwrap()
    }

    fn close(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-5 * expected, "{found} {expected}");
        }
    }

    /// Returns a number for each channel of rows.
    fn of_channels(rows: &[f32], channels: usize, combine: impl Fn(f32, f32) -> f32) -> Vec<f32> {
        let mut all = vec![0.0; channels];
        for row in rows.chunks(channels) {
            all.iter_mut().zip(row).for_each(|(x, y)| *x = combine(*x, y.abs()));
        }
        all
    }

    /// Rounds a row to nearest, in blocks with the zero point and the scale of their range.
    fn round_to_nearest(row: &mut [f32], block: usize) {
        for values in row.chunks_mut(block) {
            let low = values.iter().copied().fold(0.0, f32::min);
            let high = values.iter().copied().fold(0.0, f32::max);
            let scale = (high - low) / 15.0;
            let zero = (-low / scale).round_ties_even();
            for x in values {
                *x = ((*x / scale + zero).round_ties_even().clamp(0.0, 15.0) - zero) * scale;
            }
        }
    }

    /// Returns the losses of all rows of a weight.
    fn losses(golden: &ScalingGolden, weight: &[f32], round: impl Fn(&mut [f32])) -> RowLoss {
        let sample = InputSample::new(golden.channels, &golden.inputs);
        let mut all = RowLoss::default();
        let rows = weight.chunks(golden.channels);
        rows.for_each(|row| all.add(&sample.loss(row, &golden.candidates, &round)));
        all
    }

    #[test]
    fn scales_are_those_of_an_independent_program() {
        let golden = golden();
        let magnitudes = of_channels(&golden.inputs, golden.channels, |x, y| x + y);
        let candidates = awq_candidates(&magnitudes);
        assert_eq!(candidates.len(), golden.candidates.len());
        for (candidate, expected) in candidates.iter().zip(&golden.candidates) {
            close(&candidate.scales, expected);
        }
        assert!(candidates[0].scales.iter().all(|scale| *scale == 1.0) && candidates[0].strength == 0.0);

        let activations = of_channels(&golden.inputs, golden.channels, f32::max);
        let weights = of_channels(&golden.weights.concat(), golden.channels, f32::max);
        close(&smooth_scales(&activations, &weights), &golden.smooth);
    }

    #[test]
    fn the_strength_has_the_least_loss_of_an_independent_program() {
        let golden = golden();
        let layers: Vec<RowLoss> = golden
            .weights
            .iter()
            .map(|weight| losses(&golden, weight, |row| round_to_nearest(row, golden.block)))
            .collect();
        for (index, expected) in golden.losses.iter().enumerate() {
            let found: f64 = layers.iter().map(|layer| layer.errors[index] / layer.outputs).sum();
            assert!((found / expected - 1.0).abs() < 1e-3, "{index}: {found} {expected}");
        }
        assert_eq!(best(&layers), golden.best);
        // Without inputs there is no loss, and without layers no candidate.
        assert_eq!((best(&[RowLoss { errors: vec![0.0; 3], outputs: 0.0 }]), best(&[])), (0, 0));
    }

    #[test]
    fn scaled_outliers_lose_less_in_searched_blocks() {
        let golden = golden();
        for form in [Form4::Zeros, Form4::Symmetric] {
            let loss = losses(&golden, &golden.weights[0], |row| form.round(row, golden.block));
            let found = best(std::slice::from_ref(&loss));
            assert!(found > 0 && loss.errors[found] < 0.5 * loss.errors[0], "{form:?}: {:?}", loss.errors);
        }
    }

    #[test]
    fn channels_without_a_size_are_not_scaled() {
        let nothing = |scales: &[f32]| assert!(scales.iter().all(|scale| *scale == 1.0), "{scales:?}");
        awq_candidates(&[0.0; 3]).iter().for_each(|candidate| nothing(&candidate.scales));
        nothing(&smooth_scales(&[0.0, 0.0], &[1.0, 0.0]));
        close(&smooth_scales(&[4.0, 0.0, 1.0, 1.0], &[1.0, 1.0, 4.0, 0.0]), &[2.0, 1.0, 0.5, 1.0]);
        assert_eq!(smooth_scales(&[1e20, 1.0], &[1.0, 1e20]), [LARGEST, LARGEST.recip()]);
    }
}
