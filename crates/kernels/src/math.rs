//! Elementary functions on vectors, and loops over slices.

use crate::simd::{LANES, ROUNDING_CONSTANT, Simd};

/// The exponential of arguments below this is 0, because the exact result would be subnormal.
const LEAST: f32 = -87.0;

/// The exponential of arguments above this is that of this number.
const GREATEST: f32 = 88.0;

/// Natural logarithm of 2, in two parts. The first has few significant bits, so that its products are exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// Coefficients of the polynomial in Cephes' `expf`, starting with the highest power.
const EXP: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5];

/// Computes the exponential with an error of at most 2 units in the last place. The exponential of NaN is NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::Floats) -> S::Floats {
    let rounder = s.splat(ROUNDING_CONSTANT);
    let clamped = s.max(s.splat(LEAST), s.min(s.splat(GREATEST), x));
    let power = s.sub(s.mul_add(clamped, s.splat(std::f32::consts::LOG2_E), rounder), rounder);
    let rest = s.mul_add(power, s.splat(-LN_2[0]), clamped);
    let rest = s.mul_add(power, s.splat(-LN_2[1]), rest);
    let mut sum = s.splat(EXP[0]);
    for coefficient in &EXP[1..] {
        sum = s.mul_add(sum, rest, s.splat(*coefficient));
    }
    let sum = s.mul_add(sum, s.mul(rest, rest), s.add(rest, s.splat(1.0)));
    s.zero_where_less(x, s.splat(LEAST), s.mul(sum, s.pow2(power)))
}

/// Computes the hyperbolic tangent with an error of at most 2e-7.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::Floats) -> S::Floats {
    let one = s.splat(1.0);
    s.sub(one, s.div(s.splat(2.0), s.add(exp(s, s.add(x, x)), one)))
}

/// Computes `x` times the logistic function of `x`.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::Floats) -> S::Floats {
    s.div(x, s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), x))))
}

/// Loads up to sixteen numbers, and fills the remaining lanes with `padding`.
#[inline(always)]
pub(crate) fn load_part<S: Simd>(s: S, x: &[f32], padding: f32) -> S::Floats {
    match x.first_chunk() {
        Some(x) => s.load(x),
        None => {
            let mut lanes = [padding; LANES];
            lanes[..x.len()].copy_from_slice(x);
            s.load(&lanes)
        }
    }
}

/// Stores up to sixteen numbers.
#[inline(always)]
pub(crate) fn store_part<S: Simd>(s: S, x: S::Floats, out: &mut [f32]) {
    match out.first_chunk_mut() {
        Some(out) => s.store(x, out),
        None => {
            let mut lanes = [0.0; LANES];
            s.store(x, &mut lanes);
            out.copy_from_slice(&lanes[..out.len()]);
        }
    }
}
