//! Layer norm of the sum of a residual stream and a branch.

use crate::{
    kernels::Kernels,
    math::{load_part, store_part},
    simd::{LANES, Operation, Simd},
    view::{MatrixMut, MatrixRef},
};

/// Parameters of a layer norm. Gain and bias have an element for each column.
#[derive(Debug, Clone, Copy)]
pub struct LayerNorm<'a> {
    /// Factors of the normalised elements.
    pub gain: &'a [f32],
    /// Numbers that are added afterwards.
    pub bias: &'a [f32],
    /// Number that is added to the variance.
    pub epsilon: f32,
}

impl Kernels {
    /// Adds a residual stream to rows, and replaces each sum by its layer norm: the sum less its mean, divided by the
    /// standard deviation, multiplied by the gain, plus the bias.
    ///
    /// # Panics
    /// Panics if the shapes do not match.
    pub fn add_layer_norm(&self, residual: MatrixRef<'_>, norm: LayerNorm<'_>, rows: MatrixMut<'_>) {
        let shape = (residual.rows(), residual.columns());
        assert_eq!((rows.rows(), rows.columns()), shape, "shape of the rows");
        let lengths = (norm.gain.len(), norm.bias.len());
        assert_eq!(lengths, (shape.1, shape.1), "lengths of gain and bias");
        self.run_floats(AddLayerNorm { residual, norm, rows });
    }
}

/// Operation that adds a residual stream to rows and normalises the sums.
struct AddLayerNorm<'a> {
    residual: MatrixRef<'a>,
    norm: LayerNorm<'a>,
    rows: MatrixMut<'a>,
}

impl Operation for AddLayerNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        for row in 0..self.residual.rows() {
            normalize(s, self.residual.row(row), &self.norm, self.rows.row_mut(row));
        }
    }
}

#[inline(always)]
fn normalize<S: Simd>(s: S, residual: &[f32], norm: &LayerNorm<'_>, row: &mut [f32]) {
    let count = row.len() as f32;
    let mut sum = s.splat(0.0);
    for (x, y) in residual.chunks(LANES).zip(row.chunks_mut(LANES)) {
        let both = s.add(load_part(s, x, 0.0), load_part(s, y, 0.0));
        sum = s.add(sum, both);
        store_part(s, both, y);
    }
    let mean = s.sum(sum) / count;
    let center = s.splat(mean);
    let mut squares = s.splat(0.0);
    for x in row.chunks(LANES) {
        // The lanes after the last element are the mean, so that their differences are 0.
        let difference = s.sub(load_part(s, x, mean), center);
        squares = s.mul_add(difference, difference, squares);
    }
    let inverse = s.splat(1.0 / (s.sum(squares) / count + norm.epsilon).sqrt());
    let parameters = norm.gain.chunks(LANES).zip(norm.bias.chunks(LANES));
    for (x, (gain, bias)) in row.chunks_mut(LANES).zip(parameters) {
        let scaled = s.mul(s.sub(load_part(s, x, 0.0), center), inverse);
        let normed = s.mul_add(scaled, load_part(s, gain, 0.0), load_part(s, bias, 0.0));
        store_part(s, normed, x);
    }
}
