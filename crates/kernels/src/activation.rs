//! Activation functions of networks without a gate.

use crate::{
    kernels::Kernels,
    math::{exp, load_part, silu, store_part, tanh},
    simd::{LANES, Operation, Simd},
};

/// Activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * Φ(x)`, where `Φ` is the distribution function of the normal distribution.
    Gelu,
    /// The approximation of [`Self::Gelu`] by a hyperbolic tangent.
    GeluTanh,
    /// The greater of `x` and 0.
    Relu,
    /// `x` times the logistic function of `x`.
    Silu,
    /// The hyperbolic tangent.
    Tanh,
}

impl Kernels {
    /// Replaces each number by the value of an activation function. The error of [`Activation::Gelu`] is at most 1e-7,
    /// or 2e-7 of the result.
    pub fn activate(&self, activation: Activation, row: &mut [f32]) {
        self.run_floats(Activate { activation, row });
    }
}

/// Operation that replaces each number by the value of an activation function.
struct Activate<'a> {
    activation: Activation,
    row: &'a mut [f32],
}

impl Operation for Activate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { activation, row } = self;
        match activation {
            Activation::Gelu => map(row, s, gelu),
            Activation::GeluTanh => map(row, s, gelu_tanh),
            Activation::Relu => map(row, s, |s, x| s.max(s.splat(0.0), x)),
            Activation::Silu => map(row, s, silu),
            Activation::Tanh => map(row, s, tanh),
        }
    }
}

#[inline(always)]
fn map<S: Simd>(row: &mut [f32], s: S, f: impl Fn(S, S::Floats) -> S::Floats) {
    for x in row.chunks_mut(LANES) {
        store_part(s, f(s, load_part(s, x, 0.0)), x);
    }
}

/// Coefficients of a polynomial `P`, starting with the highest power, for which `exp(t * P(t))` is twice the probability
/// that a normal variable exceeds `t`. Fitted from 0 to 6 for the least error of GELU; beyond, `t * P(t)` decreases
/// faster than it should, and the result is 0.
const TAIL: [f32; 8] = [
    -1.318_370_4e-6,
    1.944_704_2e-5,
    -9.112_738e-5,
    -1.885_965_2e-4,
    5.022_155e-3,
    -3.647_869e-2,
    -0.318_266_93,
    -0.797_889_35,
];

/// Magnitude from which the tail of the distribution is 0 in single precision.
const TAIL_CUTOFF: f32 = 16.0;

/// Computes `max(x, 0) - |x| * tail(|x|)`, where the tail is the probability that a normal variable exceeds `|x|`.
#[inline(always)]
fn gelu<S: Simd>(s: S, x: S::Floats) -> S::Floats {
    let zero = s.splat(0.0);
    let distance = s.min(s.splat(TAIL_CUTOFF), s.max(s.sub(zero, x), x));
    let mut sum = s.splat(TAIL[0]);
    for coefficient in &TAIL[1..] {
        sum = s.mul_add(sum, distance, s.splat(*coefficient));
    }
    let tail = exp(s, s.mul(sum, distance));
    s.sub(s.max(zero, x), s.mul(s.mul(distance, s.splat(0.5)), tail))
}

/// Factor of the logistic function's argument, `2 * sqrt(2 / π)`.
const GELU_SCALE: f32 = 1.595_769_2;

/// Factor of the cubic part of its argument.
const GELU_CUBIC: f32 = 0.044_715;

/// Computes `x / 2 * (1 + tanh(sqrt(2 / π) * (x + 0.044715 x³)))`, with the logistic function in place of the tangent.
#[inline(always)]
fn gelu_tanh<S: Simd>(s: S, x: S::Floats) -> S::Floats {
    let one = s.splat(1.0);
    let inner = s.mul(x, s.mul_add(s.mul(x, x), s.splat(GELU_CUBIC), one));
    s.div(x, s.add(one, exp(s, s.mul(inner, s.splat(-GELU_SCALE)))))
}
