//! The portable reference implementation, with arrays as vectors.

use half::f16;

use super::{LANES, Operation, ROUNDING_CONSTANT, Simd};

/// Portable implementation without any instruction set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

fn zip<A: Copy, B: Copy, T>(a: &[A; 16], b: &[B; 16], f: impl Fn(A, B) -> T) -> [T; 16] {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

fn dot(acc: [i32; 16], weights: &[u8; 64], quad: &[i8; 4]) -> [i32; 16] {
    std::array::from_fn(|lane| {
        let products = (0..4).map(|i| i32::from(weights[lane * 4 + i]) * i32::from(quad[i]));
        acc[lane].wrapping_add(products.sum())
    })
}

/// Returns `a * b + c`, rounded once.
///
/// The C library of MinGW, which `f32::mul_add` calls where the processor's instruction is not part of the target, rounds
/// twice. Double precision has the exact product. Its sum with `c` is rounded to odd, which keeps the information that the
/// last rounding needs (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
fn fused_mul_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
        return a.mul_add(b, c);
    }
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // The exact error of the sum (Knuth's TwoSum).
    let summand = sum - product;
    let error = (product - (sum - summand)) + (c - summand);
    if error == 0.0 || !error.is_finite() || sum.to_bits() & 1 == 1 {
        return sum as f32;
    }
    let away_from_zero = (error > 0.0) == (sum > 0.0);
    let bits = if away_from_zero { sum.to_bits() + 1 } else { sum.to_bits() - 1 };
    f64::from_bits(bits) as f32
}

impl Simd for Portable {
    type Ints = [i32; 16];
    type Floats = [f32; 16];
    type Bytes = [u8; 64];
    type Nibbles = [u8; 64];
    type StepSums = [i32; 16];
    type Quad = [i8; 4];

    const BYTE_OFFSET: i32 = 0;
    const CENTERED_BIAS: i32 = 0;
    const ROWS: usize = 4;
    const FLOAT_ROWS: usize = 4;
    const TILES: usize = 1;
    const WIDENS: bool = true;

    fn run<O: Operation>(self, operation: O) -> O::Output {
        operation.run(self)
    }

    fn splat_int(self, x: i32) -> [i32; 16] {
        [x; 16]
    }

    fn load_zero_points(self, zeros: &[u8; 16]) -> [i32; 16] {
        zeros.map(i32::from)
    }

    fn sub_ints(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        zip(&a, &b, i32::wrapping_sub)
    }

    fn mul_short(self, a: [i32; 16], b: i32) -> [i32; 16] {
        a.map(|a| a.wrapping_mul(b))
    }

    fn to_floats(self, x: [i32; 16]) -> [f32; 16] {
        x.map(|x| x as f32)
    }

    fn load_ints(self, x: &[i32; 16]) -> [i32; 16] {
        *x
    }

    fn store_ints(self, x: [i32; 16], out: &mut [i32; 16]) {
        *out = x;
    }

    fn splat_quad(self, x: &[i8; 4]) -> [i8; 4] {
        *x
    }

    fn load_bytes(self, x: &[u8; 64]) -> [u8; 64] {
        *x
    }

    fn load_nibbles(self, x: &[u8; 64]) -> [u8; 64] {
        *x
    }

    fn unpack_nibbles(self, x: &[u8; 64]) -> [[u8; 64]; 2] {
        [x.map(|x| x & 15), x.map(|x| x >> 4)]
    }

    fn repeat_zero_points(self, zeros: &[u8; 16]) -> [u8; 64] {
        std::array::from_fn(|i| zeros[i / 4])
    }

    fn center_nibbles(self, x: [u8; 64], zeros: [u8; 64]) -> [u8; 64] {
        std::array::from_fn(|i| x[i].wrapping_sub(zeros[i]))
    }

    fn prefetch(self, _: &[u8; 64]) {}

    fn prefetch_write(self, _: &f32) {}

    fn store_nibbles(self, x: [u8; 64], out: &mut [u8; 64]) {
        *out = x;
    }

    fn dot_bytes(self, acc: [i32; 16], weights: [u8; 64], quad: [i8; 4]) -> [i32; 16] {
        dot(acc, &weights, &quad)
    }

    fn begin_step(self, acc: [i32; 16]) -> [i32; 16] {
        acc
    }

    fn finish_step(self, _: [i32; 16], step: [i32; 16]) -> [i32; 16] {
        step
    }

    fn dot_nibbles(self, step: [i32; 16], weights: [u8; 64], quad: [i8; 4]) -> [i32; 16] {
        dot(step, &weights, &quad)
    }

    fn dot_centered(self, step: [i32; 16], weights: [u8; 64], quad: [i8; 4]) -> [i32; 16] {
        std::array::from_fn(|lane| {
            let products = (0..4).map(|i| i32::from(weights[lane * 4 + i] as i8) * i32::from(quad[i]));
            step[lane].wrapping_add(products.sum())
        })
    }

    fn splat(self, x: f32) -> [f32; 16] {
        [x; 16]
    }

    fn load(self, x: &[f32; 16]) -> [f32; 16] {
        *x
    }

    fn load_le(self, x: &[u8; 64]) -> [f32; 16] {
        let (words, _) = x.as_chunks::<4>();
        std::array::from_fn(|lane| f32::from_le_bytes(words[lane]))
    }

    fn load_f16_le(self, x: &[u8; 32]) -> [f32; 16] {
        let (words, _) = x.as_chunks::<2>();
        std::array::from_fn(|lane| f16::from_le_bytes(words[lane]).to_f32_const())
    }

    fn load_f16(self, x: &[f16; 16]) -> [f32; 16] {
        x.map(f16::to_f32_const)
    }

    fn load_i8(self, x: &[i8; 16]) -> [f32; 16] {
        x.map(f32::from)
    }

    fn store(self, x: [f32; 16], out: &mut [f32; 16]) {
        *out = x;
    }

    fn store_le(self, x: [f32; 16], out: &mut [u8; 64]) {
        for (x, out) in x.into_iter().zip(out.as_chunks_mut::<4>().0) {
            *out = x.to_le_bytes();
        }
    }

    fn add(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(&a, &b, |a, b| a + b)
    }

    fn sub(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(&a, &b, |a, b| a - b)
    }

    fn mul(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(&a, &b, |a, b| a * b)
    }

    fn div(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(&a, &b, |a, b| a / b)
    }

    fn mul_add(self, a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|lane| fused_mul_add(a[lane], b[lane], c[lane]))
    }

    fn max(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(&a, &b, |a, b| if a > b { a } else { b })
    }

    fn min(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(&a, &b, |a, b| if a < b { a } else { b })
    }

    fn zero_where_less(self, a: [f32; 16], b: [f32; 16], y: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|lane| if a[lane] < b[lane] { 0.0 } else { y[lane] })
    }

    fn pow2(self, x: [f32; 16]) -> [f32; 16] {
        x.map(|x| f32::from_bits((((x as i32).wrapping_add(127)) as u32) << 23))
    }

    fn max_magnitude(self, acc: [i32; 16], x: [f32; 16]) -> [i32; 16] {
        zip(&acc, &x, |acc, x| acc.max(x.abs().to_bits() as i32))
    }

    fn round_to_i8(self, x: [f32; 16], out: &mut [i8; 16]) {
        *out = x.map(|x| ((x + ROUNDING_CONSTANT) - ROUNDING_CONSTANT) as i8);
    }

    fn sum(self, mut x: [f32; 16]) -> f32 {
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                x[lane] += x[lane + width];
            }
            width /= 2;
        }
        x[0]
    }

    fn transpose(self, rows: [[f32; 16]; 16]) -> [[f32; 16]; 16] {
        std::array::from_fn(|lane| rows.map(|row| row[lane]))
    }

    fn max_lane(self, x: [f32; 16]) -> f32 {
        x.into_iter().fold(f32::NEG_INFINITY, |max, x| if x > max { x } else { max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_multiply_add_is_rounded_once() {
        let check = |a: f32, b: f32, c: f32, expect: f32| {
            let found = fused_mul_add(a, b, c);
            assert_eq!(found.to_bits(), expect.to_bits(), "{a:e} * {b:e} + {c:e}: {found:e}, not {expect:e}");
        };
        // The square lies in the middle of two floats, and the summand decides.
        let (a, tiny) = (1.0 + 2f32.powi(-12), 2f32.powi(-100));
        check(a, a, tiny, 1.0 + 2f32.powi(-11) + 2f32.powi(-23));
        check(a, a, -tiny, 1.0 + 2f32.powi(-11));
        check(a, a, 0.0, 1.0 + 2f32.powi(-11));
        check(-a, a, tiny, -1.0 - 2f32.powi(-11));
        check(-a, a, -tiny, -1.0 - 2f32.powi(-11) - 2f32.powi(-23));
        check(a, -a, a * a, -(2f32.powi(-24)));
        check(f32::MAX, 2.0, -f32::MAX, f32::MAX);
        check(f32::MAX, 2.0, 0.0, f32::INFINITY);
        check(f32::INFINITY, 1.0, 1.0, f32::INFINITY);
        check(-0.0, 1.0, -0.0, -0.0);
        check(-0.0, 1.0, 0.0, 0.0);
        check(2f32.powi(-100), 2f32.powi(-49), 0.0, f32::from_bits(1));
        check(2f32.powi(-100), 2f32.powi(-50), 0.0, 0.0);
        check(2f32.powi(-100), 2f32.powi(-50), f32::from_bits(1), f32::from_bits(2));
        assert!(
            fused_mul_add(f32::INFINITY, 0.0, 1.0).is_nan() && fused_mul_add(1.0, f32::NAN, 1.0).is_nan()
        );
    }

    #[test]
    #[cfg(not(all(windows, target_env = "gnu")))]
    fn a_multiply_add_is_that_of_the_processor() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f32::from_bits((state >> 32) as u32)
        };
        for _ in 0..200_000 {
            let (a, b, c) = (next(), next(), next());
            // Operands of a similar size are rounded most often.
            for c in [c, -a * b, a * b * 0.75] {
                let (found, expect) = (fused_mul_add(a, b, c), a.mul_add(b, c));
                assert!(
                    found.to_bits() == expect.to_bits() || found.is_nan() && expect.is_nan(),
                    "{a:e} {b:e} {c:e}"
                );
            }
        }
    }
}
