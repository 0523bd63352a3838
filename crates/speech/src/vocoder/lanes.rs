//! Functions of several numbers at once, with polynomials in place of a mathematical library, so that the compiler uses
//! vector instructions and every machine computes the same values. Errors are below 3 · 10⁻⁷ of the largest value.

use std::f32::consts;

/// Number of elements that are computed together.
pub(super) const LANES: usize = 16;

/// Adding and subtracting this rounds a number of less than 2²² to an integer.
const ROUND: f32 = 12_582_912.0;

/// Elements that are computed together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Lanes(pub(super) [f32; LANES]);

impl Lanes {
    /// Loads up to [`LANES`] numbers; the others are 0.
    pub(super) fn load(from: &[f32]) -> Self {
        let mut lanes = [0.0; LANES];
        lanes[..from.len()].copy_from_slice(from);
        Self(lanes)
    }

    pub(super) fn min(self, limit: f32) -> Self {
        self.map(|x| x.min(limit))
    }

    pub(super) fn times(self, factor: f32) -> Self {
        self.map(|x| x * factor)
    }

    pub(super) fn exp(self) -> Self {
        self.map(exp)
    }

    pub(super) fn tanh(self) -> Self {
        self.map(|x| 1.0 - 2.0 / (exp(2.0 * x.clamp(-10.0, 10.0)) + 1.0))
    }

    /// Returns sines and cosines.
    pub(super) fn sin_cos(self) -> [Self; 2] {
        [self.map(|x| sin_cos(x)[0]), self.map(|x| sin_cos(x)[1])]
    }

    /// Returns the real and imaginary parts of noise with a normal distribution of variance 1. Lane `i` has the values of
    /// `first + i · step`, which depend on nothing else but the seed.
    pub(super) fn noise(seed: u64, first: u64, step: u64) -> [Self; 2] {
        let mut radius = [0.0; LANES];
        let mut angle = [0.0; LANES];
        for (lane, (radius, angle)) in radius.iter_mut().zip(&mut angle).enumerate() {
            let random = mixed(seed, first.wrapping_add(lane as u64 * step));
            *radius = ((random >> 40) + 1) as f32 / (1u64 << 24) as f32;
            *angle = ((random >> 16) & 0xff_ffff) as f32 / (1u64 << 24) as f32;
        }
        // The method of Box and Muller.
        let radius = Self(radius).map(|x| (-2.0 * ln(x)).sqrt());
        let [sine, cosine] = Self(angle).map(|x| (x - 0.5) * consts::TAU).sin_cos();
        [radius.by(cosine), radius.by(sine)]
    }

    fn by(self, other: Self) -> Self {
        let mut lanes = self.0;
        lanes.iter_mut().zip(&other.0).for_each(|(x, y)| *x *= y);
        Self(lanes)
    }

    fn map(self, function: impl Fn(f32) -> f32) -> Self {
        Self(self.0.map(function))
    }
}

/// Returns a random number for a place in a sequence: SplitMix64 (Steele et al. 2014, doi:10.1145/2714064.2660195).
pub(super) fn mixed(seed: u64, place: u64) -> u64 {
    let mut state = seed.wrapping_add(place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Returns eˣ, with the polynomial of Cephes.
#[inline]
fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.0, 88.0);
    let power = (x * consts::LOG2_E + ROUND) - ROUND;
    let rest = x - power * 0.693_359_4 + power * 2.121_944_4e-4;
    let mut sum = 1.987_569_1e-4;
    for factor in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
        sum = sum * rest + factor;
    }
    let value = sum * rest * rest + rest + 1.0;
    value * f32::from_bits(((power as i32 + 127) as u32) << 23)
}

/// Returns the natural logarithm of a positive number, with the polynomial of Cephes.
#[inline]
fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    let mantissa = f32::from_bits(bits & 0x7f_ffff | 0x3f00_0000);
    let is_small = mantissa < consts::FRAC_1_SQRT_2;
    let power = (bits >> 23) as i32 - 126 - i32::from(is_small);
    let rest = if is_small { mantissa + mantissa - 1.0 } else { mantissa - 1.0 };
    let power = power as f32;
    let mut sum = 7.037_683_6e-2;
    for factor in [
        -0.115_146_1,
        0.116_769_984,
        -0.124_201_41,
        0.142_493_23,
        -0.166_680_58,
        0.200_007_14,
        -0.249_999_94,
        0.333_333_3,
    ] {
        sum = sum * rest + factor;
    }
    let square = rest * rest;
    let tail = sum * rest * square - power * 2.121_944_4e-4 - 0.5 * square;
    rest + tail + power * 0.693_359_4
}

/// Returns the sine and the cosine of an angle of less than some thousand turns, with the polynomials of Cephes.
#[inline]
pub(super) fn sin_cos(x: f32) -> [f32; 2] {
    let quarter = (x * consts::FRAC_2_PI + ROUND) - ROUND;
    let rest = x - quarter * 1.570_312_5 - quarter * 4.837_513e-4 - quarter * 7.549_79e-8;
    let square = rest * rest;
    let sine = ((-1.951_529_6e-4 * square + 8.332_161e-3) * square - 0.166_666_55) * square * rest + rest;
    let cosine = ((2.443_315_7e-5 * square - 1.388_731_6e-3) * square + 4.166_664_6e-2) * square * square
        - 0.5 * square
        + 1.0;
    let quadrant = quarter as i32;
    let is_odd = quadrant & 1 == 1;
    let [sine, cosine] = if is_odd { [cosine, sine] } else { [sine, cosine] };
    [with_sign_of(sine, quadrant), with_sign_of(cosine, quadrant + 1)]
}

/// Returns a value with the sign that it has in a quadrant.
#[inline]
fn with_sign_of(value: f32, quadrant: i32) -> f32 {
    f32::from_bits(value.to_bits() ^ (((quadrant & 2) as u32) << 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_close_to_those_of_the_library() {
        let check = |found: f32, expect: f64, scale: f64| {
            assert!((f64::from(found) - expect).abs() <= 3e-7 * scale, "{found}, expected {expect}");
        };
        for index in -4000..=4000 {
            let x = index as f32 / 371.0;
            let exact = f64::from(x);
            check(exp(x), exact.exp(), exact.exp());
            check(sin_cos(x)[0], exact.sin(), 1.0);
            check(sin_cos(x)[1], exact.cos(), 1.0);
            check(Lanes::load(&[x]).tanh().0[0], exact.tanh(), 1.0);
            let positive = (x.abs() + 1e-6).min(1.0);
            check(ln(positive), f64::from(positive).ln(), 16.0);
        }
        // Angles of the pulse train.
        for index in 0..2000 {
            let x = index as f32 * 0.7;
            assert!((f64::from(sin_cos(x)[0]) - f64::from(x).sin()).abs() < 2e-6, "{x}");
        }
    }

    #[test]
    fn noise_is_normal_and_depends_on_the_place_alone() {
        let mut sum = [0.0f64; 2];
        let count = 4000;
        for first in 0..count {
            for part in Lanes::noise(7, first * LANES as u64, 1) {
                sum[0] += part.0.iter().map(|x| f64::from(*x)).sum::<f64>();
                sum[1] += part.0.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            }
        }
        let values = (count * 2 * LANES as u64) as f64;
        assert!((sum[0] / values).abs() < 0.01, "mean {}", sum[0] / values);
        assert!((sum[1] / values - 1.0).abs() < 0.02, "variance {}", sum[1] / values);

        let [real, _] = Lanes::noise(7, 3, 5);
        let [later, _] = Lanes::noise(7, 8, 5);
        assert_eq!(real.0[1], later.0[0]);
        assert_ne!(Lanes::noise(8, 3, 5)[0], real);
    }
}
