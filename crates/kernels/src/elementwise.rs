//! Kernels that read and write each number once: norms, activation functions, rotary positions, softmax.

use crate::{
    math::{exp, load_part, silu, store_part},
    simd::{LANES, Operation, Simd},
    view::{MatrixMut, MatrixRef},
};

/// Addition of a branch to a residual stream.
#[derive(Debug)]
pub struct ResidualSum<'a> {
    /// Residual stream.
    pub stream: MatrixRef<'a>,
    /// Rows that are added to it.
    pub branch: MatrixRef<'a>,
    /// Place of the sum.
    pub sum: MatrixMut<'a>,
}

/// Rows that are normalised.
pub(crate) enum NormInput<'a> {
    Rows(MatrixRef<'a>),
    /// Sum of two matrices, which is computed first.
    Sum(ResidualSum<'a>),
}

/// Operation that divides each row by its root mean square and multiplies it by a gain.
pub(crate) struct RmsNorm<'a> {
    pub(crate) input: NormInput<'a>,
    pub(crate) gain: &'a [f32],
    pub(crate) epsilon: f32,
    pub(crate) out: MatrixMut<'a>,
}

impl Operation for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        for row in 0..self.out.rows() {
            let out = self.out.row_mut(row);
            match &mut self.input {
                NormInput::Sum(ResidualSum { stream, branch, sum }) => {
                    let sum = sum.row_mut(row);
                    add(s, stream.row(row), branch.row(row), sum);
                    normalize(s, sum, self.gain, self.epsilon, out);
                }
                NormInput::Rows(rows) => normalize(s, rows.row(row), self.gain, self.epsilon, out),
            }
        }
    }
}

#[inline(always)]
fn add<S: Simd>(s: S, a: &[f32], b: &[f32], sum: &mut [f32]) {
    for ((a, b), sum) in a.chunks(LANES).zip(b.chunks(LANES)).zip(sum.chunks_mut(LANES)) {
        store_part(s, s.add(load_part(s, a, 0.0), load_part(s, b, 0.0)), sum);
    }
}

#[inline(always)]
fn normalize<S: Simd>(s: S, input: &[f32], gain: &[f32], epsilon: f32, out: &mut [f32]) {
    let mut squares = s.splat(0.0);
    for x in input.chunks(LANES) {
        let x = load_part(s, x, 0.0);
        squares = s.mul_add(x, x, squares);
    }
    let inverse = s.splat(1.0 / (s.sum(squares) / input.len() as f32 + epsilon).sqrt());
    for ((x, gain), out) in input.chunks(LANES).zip(gain.chunks(LANES)).zip(out.chunks_mut(LANES)) {
        let scaled = s.mul(load_part(s, x, 0.0), inverse);
        store_part(s, s.mul(scaled, load_part(s, gain, 0.0)), out);
    }
}

/// Operation that computes `silu(gate) * up`.
pub(crate) struct SwiGlu<'a> {
    pub(crate) gate: &'a [f32],
    pub(crate) up: &'a [f32],
    pub(crate) out: &'a mut [f32],
}

impl Operation for SwiGlu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let parts = self.gate.chunks(LANES).zip(self.up.chunks(LANES)).zip(self.out.chunks_mut(LANES));
        for ((gate, up), out) in parts {
            let gate = silu(s, load_part(s, gate, 0.0));
            store_part(s, s.mul(gate, load_part(s, up, 0.0)), out);
        }
    }
}

/// Bounds of gate and up projection: their product is `(clamp(up, -limit, limit) + 1) * g * sigmoid(slope * g)`, where
/// `g = min(gate, limit)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateClamp {
    /// Maximum of gate and up projection, and minus the minimum of the latter.
    pub limit: f32,
    /// Factor on the gate in the sigmoid.
    pub slope: f32,
}

/// Operation that computes the product of a clamped gate and up projection.
pub(crate) struct ClampedSwiGlu<'a> {
    pub(crate) gate: &'a [f32],
    pub(crate) up: &'a [f32],
    pub(crate) clamp: GateClamp,
    pub(crate) out: &'a mut [f32],
}

impl Operation for ClampedSwiGlu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let one = s.splat(1.0);
        let [least, most] = [-self.clamp.limit, self.clamp.limit].map(|bound| s.splat(bound));
        let slope = s.splat(-self.clamp.slope);
        let parts = self.gate.chunks(LANES).zip(self.up.chunks(LANES)).zip(self.out.chunks_mut(LANES));
        for ((gate, up), out) in parts {
            let gate = s.min(most, load_part(s, gate, 0.0));
            let up = s.max(least, s.min(most, load_part(s, up, 0.0)));
            let activated = s.div(gate, s.add(one, exp(s, s.mul(gate, slope))));
            store_part(s, s.mul(activated, s.add(up, one)), out);
        }
    }
}

/// Operation that rotates pairs of a head's elements. A pair consists of elements at the same index of the two halves.
pub(crate) struct Rotate<'a> {
    pub(crate) heads: &'a mut [f32],
    pub(crate) head_size: usize,
    pub(crate) cos: &'a [f32],
    pub(crate) sin: &'a [f32],
}

impl Operation for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let half = self.cos.len();
        for head in self.heads.chunks_exact_mut(self.head_size) {
            let (first, rest) = head.split_at_mut(half);
            let pairs = first.chunks_mut(LANES).zip(rest[..half].chunks_mut(LANES));
            for ((x, y), (cos, sin)) in pairs.zip(self.cos.chunks(LANES).zip(self.sin.chunks(LANES))) {
                let a = load_part(s, x, 0.0);
                let b = load_part(s, y, 0.0);
                let cos = load_part(s, cos, 0.0);
                let sin = load_part(s, sin, 0.0);
                store_part(s, s.sub(s.mul(a, cos), s.mul(b, sin)), x);
                store_part(s, s.mul_add(b, cos, s.mul(a, sin)), y);
            }
        }
    }
}

/// Operation that replaces a row by its exponentials divided by their sum.
pub(crate) struct Softmax<'a> {
    pub(crate) row: &'a mut [f32],
}

impl Operation for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let peak = greatest(s, self.row);
        if peak == f32::NEG_INFINITY {
            // The row has no element above minus infinity: it is empty, or its elements are minus infinity or NaN. NaN
            // is kept.
            self.row.iter_mut().filter(|x| !x.is_nan()).for_each(|x| *x = 0.0);
            return;
        }
        let sum = exp_sum(s, self.row, peak);
        let sum = s.splat(sum);
        for x in self.row.chunks_mut(LANES) {
            let quotient = s.div(load_part(s, x, 0.0), sum);
            store_part(s, quotient, x);
        }
    }
}

/// Returns the greatest number that is not NaN, or minus infinity.
#[inline(always)]
pub(crate) fn greatest<S: Simd>(s: S, row: &[f32]) -> f32 {
    let mut peak = s.splat(f32::NEG_INFINITY);
    for x in row.chunks(LANES) {
        peak = s.max(load_part(s, x, f32::NEG_INFINITY), peak);
    }
    s.max_lane(peak)
}

/// Replaces each number by the exponential of its difference from `peak`, and returns the sum of the exponentials.
#[inline(always)]
pub(crate) fn exp_sum<S: Simd>(s: S, row: &mut [f32], peak: f32) -> f32 {
    let mut sum = s.splat(0.0);
    let peak = s.splat(peak);
    for x in row.chunks_mut(LANES) {
        let power = exp(s, s.sub(load_part(s, x, f32::NEG_INFINITY), peak));
        sum = s.add(sum, power);
        store_part(s, power, x);
    }
    s.sum(sum)
}
