//! Rounding of numbers to integers of eight bits with a common scale, the largest magnitude divided by 127.

use crate::{
    math::load_part,
    simd::{LANES, Operation, Simd},
};

/// Largest magnitude of a rounded activation. -128 is excluded because its negation does not fit into eight bits.
const TOP: f32 = 127.0;

/// Magnitudes below this are treated as 0, because the inverse of their scale would not be finite, for integers of up to
/// sixteen bits.
const LEAST: f32 = 1e-34;

/// Operation that rounds one row.
pub(crate) struct RoundRow<'a> {
    pub(crate) row: &'a [f32],
    pub(crate) out: &'a mut [i8],
}

impl Operation for RoundRow<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        round(s, self.row, self.out)
    }
}

/// Operation that rounds blocks of `V` vectors, each with its scale. The last block may be shorter. It is compiled as a
/// function of its own.
pub(crate) struct RoundBlocks<'a, I, const V: usize> {
    pub(crate) values: &'a [f32],
    pub(crate) integers: &'a mut [i8],
    /// Places of the scales.
    pub(crate) scales: I,
}

impl<'a, I: Iterator<Item = &'a mut f32>, const V: usize> Operation for RoundBlocks<'_, I, V> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { values, integers, mut scales } = self;
        let blocks = values.chunks_exact(V * LANES);
        let rest = blocks.remainder();

        let mut places = integers.chunks_exact_mut(V * LANES);
        for ((values, out), scale) in blocks.zip(&mut places).zip(&mut scales) {
            let (values, _) = values.as_chunks::<LANES>();
            let mut vectors = [s.splat(0.0); V];
            for v in 0..V {
                vectors[v] = s.load(&values[v]);
            }
            let mut peak = s.splat_int(0);
            for v in 0..V {
                peak = s.max_magnitude(peak, vectors[v]);
            }
            let peak = greatest(s, peak);
            if let Some(fixed) = fixed_scale(peak) {
                out.fill(0);
                *scale = fixed;
                continue;
            }
            *scale = peak / TOP;
            let (out, _) = out.as_chunks_mut::<LANES>();
            let inverse = s.splat(TOP / peak);
            for v in 0..V {
                s.round_to_i8(s.mul(vectors[v], inverse), &mut out[v]);
            }
        }

        if let (false, Some(out), Some(scale)) = (rest.is_empty(), places.next(), scales.next()) {
            *scale = round(s, rest, out);
        }
    }
}

/// Rounds numbers that share one scale, and returns the scale. Elements of `out` after the last number are not changed.
#[inline(always)]
pub(crate) fn round<S: Simd>(s: S, values: &[f32], out: &mut [i8]) -> f32 {
    let (whole, rest) = values.as_chunks::<LANES>();
    let peak = peak(s, whole, rest);
    if let Some(fixed) = fixed_scale(peak) {
        out[..values.len()].fill(0);
        return fixed;
    }
    let inverse = s.splat(TOP / peak);
    let (whole_out, rest_out) = out[..values.len()].as_chunks_mut::<LANES>();
    for (x, out) in whole.iter().zip(whole_out) {
        s.round_to_i8(s.mul(s.load(x), inverse), out);
    }
    if !rest.is_empty() {
        let mut integers = [0; LANES];
        s.round_to_i8(s.mul(load_part(s, rest, 0.0), inverse), &mut integers);
        rest_out.copy_from_slice(&integers[..rest_out.len()]);
    }
    peak / TOP
}

/// Returns the largest magnitude of vectors and of up to sixteen further numbers.
#[inline(always)]
pub(crate) fn peak<S: Simd>(s: S, whole: &[[f32; LANES]], rest: &[f32]) -> f32 {
    let mut peak = s.splat_int(0);
    if !rest.is_empty() {
        peak = s.max_magnitude(peak, load_part(s, rest, 0.0));
    }
    for x in whole {
        peak = s.max_magnitude(peak, s.load(x));
    }
    greatest(s, peak)
}

/// Returns the greatest of sixteen magnitudes, which are given as the bits of floats.
#[inline(always)]
fn greatest<S: Simd>(s: S, magnitudes: S::Ints) -> f32 {
    let mut lanes = [0; LANES];
    s.store_ints(magnitudes, &mut lanes);
    f32::from_bits(lanes.into_iter().fold(0, i32::max) as u32)
}

/// Returns the scale of numbers that become zeros: 0 if all are too small, and NaN if one is not finite.
#[inline(always)]
pub(crate) fn fixed_scale(peak: f32) -> Option<f32> {
    if !peak.is_finite() {
        return Some(f32::NAN);
    }
    (peak < LEAST).then_some(0.0)
}
