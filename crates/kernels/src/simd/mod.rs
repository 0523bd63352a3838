//! Vector instruction sets of the kernels.
//!
//! A kernel is one function that is generic over [`Simd`]; each instruction set implements that trait. A value of an
//! implementing type proves that this processor has the instructions, so every method is safe. All implementations give
//! the same bits: integer results are exact, every multiply-add is fused, and sums across lanes have a fixed order.
//! [`portable`] uses no instruction set and no `unsafe` code; it is the reference. `cargo xtask sanitize` runs the
//! tests of this crate under AddressSanitizer, on the instruction sets of that machine.

pub(crate) mod portable;

#[cfg(target_arch = "aarch64")]
#[allow(unsafe_code, reason = "vector instructions need pointers and processor features")]
pub(crate) mod neon;

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "vector instructions need pointers and processor features")]
pub(crate) mod avx2;

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "vector instructions need pointers and processor features")]
pub(crate) mod avx512;

#[cfg(target_arch = "aarch64")]
#[allow(unsafe_code, reason = "vector instructions need pointers and processor features")]
pub(crate) mod i8mm;

#[allow(unsafe_code, reason = "AMX is available as inline assembly only")]
pub(crate) mod amx;

pub(crate) mod tiles;

/// A small number is rounded to the nearest integer, ties to even, if this is added and then subtracted.
pub(crate) const ROUNDING_CONSTANT: f32 = 12_582_912.0;

/// Number of 32-bit lanes in a vector, for registers of any width.
pub(crate) const LANES: usize = 16;

/// Number of rows in a tile.
pub(crate) const TILE_ROWS: usize = 16;

/// Sums of products of tiles: 16 rows of 16 columns.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct TileSums(pub(crate) [[i32; LANES]; TILE_ROWS]);

/// Distance in bytes between weights that are read and those whose load starts. Processors do not look as far ahead,
/// and not beyond a page.
pub(crate) const PREFETCH: usize = 4096;

/// Computation that can run on any instruction set.
pub(crate) trait Operation {
    /// Result of the computation.
    type Output;

    /// Runs the computation. Implementations are `#[inline(always)]`, so that they are compiled for the instruction set
    /// of their caller.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Vector instruction set with vectors of sixteen lanes of 32 bits, each in as many registers as needed.
pub(crate) trait Simd: Copy {
    /// Sixteen `i32`.
    type Ints: Copy;
    /// Sixteen `f32`.
    type Floats: Copy;
    /// 64 weights of eight bits, four for each lane.
    type Bytes: Copy;
    /// 64 weights of four bits, four for each lane.
    type Nibbles: Copy;
    /// Sums of the products of up to sixteen inputs with weights of four bits, which may have fewer bits than
    /// [`Self::Ints`].
    type StepSums: Copy;
    /// Four activations, repeated for each lane.
    type Quad: Copy;

    /// Number that [`Self::dot_bytes`] subtracts from each weight.
    const BYTE_OFFSET: i32;
    /// Number that [`Self::dot_centered`] expects to be added to each activation, 128 or 0.
    const CENTERED_BIAS: i32;
    /// Number of rows in the register tile of integer products.
    const ROWS: usize;
    /// Number of rows in the register tile of float products, which needs half as many registers for a row.
    const FLOAT_ROWS: usize;
    /// Number of tiles of sixteen columns in a register tile, 1 or 2.
    const TILES: usize;
    /// Products of many rows are faster if weights of eight bits are converted to sixteen bits first, with
    /// [`Self::widen`] and [`Self::dot_wide`].
    const WIDENS: bool = false;

    /// Runs an operation, which is compiled for this instruction set as a function of its own.
    fn run<O: Operation>(self, operation: O) -> O::Output;

    /// Returns a vector with the same integer in every lane.
    fn splat_int(self, x: i32) -> Self::Ints;
    /// Loads sixteen zero points as integers.
    fn load_zero_points(self, zeros: &[u8; 16]) -> Self::Ints;
    /// Lane-wise difference.
    fn sub_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Lane-wise product of zero points, from which [`Self::BYTE_OFFSET`] may have been subtracted, and one 16-bit
    /// integer.
    fn mul_short(self, a: Self::Ints, b: i32) -> Self::Ints;
    /// Nearest floats. The conversion is exact below 2^24.
    fn to_floats(self, x: Self::Ints) -> Self::Floats;
    /// Loads sixteen integers.
    fn load_ints(self, x: &[i32; 16]) -> Self::Ints;
    /// Stores all lanes.
    fn store_ints(self, x: Self::Ints, out: &mut [i32; 16]);

    /// Returns four activations, repeated for each lane.
    fn splat_quad(self, x: &[i8; 4]) -> Self::Quad;
    /// Loads 64 weights of eight bits.
    fn load_bytes(self, x: &[u8; 64]) -> Self::Bytes;
    /// Loads 64 weights of four bits, one in each byte.
    fn load_nibbles(self, x: &[u8; 64]) -> Self::Nibbles;
    /// Loads 128 weights of four bits. The first vector has those of the low halves, the second those of the high
    /// halves.
    fn unpack_nibbles(self, x: &[u8; 64]) -> [Self::Nibbles; 2];
    /// Loads sixteen zero points, and repeats each for the four weights of its lane.
    fn repeat_zero_points(self, zeros: &[u8; 16]) -> Self::Nibbles;
    /// Subtracts from each weight its zero point.
    fn center_nibbles(self, x: Self::Nibbles, zeros: Self::Nibbles) -> Self::Nibbles;
    /// Starts to load the cache line [`PREFETCH`] bytes after `line`, which need not be readable.
    fn prefetch(self, line: &[u8; 64]);
    /// Starts to load the cache line of a number that will be written.
    fn prefetch_write(self, out: &f32);
    /// Stores 64 weights, one in each byte.
    fn store_nibbles(self, x: Self::Nibbles, out: &mut [u8; 64]);
    /// Adds to each lane the exact product of its four weights, less [`Self::BYTE_OFFSET`], with four activations.
    /// Activations are at least -127.
    fn dot_bytes(self, acc: Self::Ints, weights: Self::Bytes, quad: Self::Quad) -> Self::Ints;
    /// Returns the initial sums of a step of up to sixteen inputs. `acc` has the sums of all earlier steps.
    fn begin_step(self, acc: Self::Ints) -> Self::StepSums;
    /// Returns the sums of all steps up to one that began with `acc` and ended with the sums `step`.
    fn finish_step(self, acc: Self::Ints, step: Self::StepSums) -> Self::Ints;
    /// Adds to each lane the exact product of its four weights with four activations.
    fn dot_nibbles(self, step: Self::StepSums, weights: Self::Nibbles, quad: Self::Quad) -> Self::StepSums;
    /// Adds to each lane the exact product of its four weights of [`Self::center_nibbles`] with four activations, to
    /// each of which [`Self::CENTERED_BIAS`] was added.
    fn dot_centered(self, step: Self::StepSums, weights: Self::Nibbles, quad: Self::Quad) -> Self::StepSums;

    /// Writes 64 weights of eight bits, from which the zero points of their lanes are subtracted, in sixteen bits: two
    /// weights of each lane, then the other two of each lane.
    #[inline(always)]
    fn widen(self, x: &[u8; 64], zeros: Self::Ints, out: &mut [[u8; 64]; 2]) {
        let mut lanes = [0; LANES];
        self.store_ints(zeros, &mut lanes);
        for (at, x) in x.iter().enumerate() {
            let weight = i16::from(*x) - lanes[at / 4] as i16;
            out[at % 4 / 2][at / 4 * 4 + at % 2 * 2..][..2].copy_from_slice(&weight.to_ne_bytes());
        }
    }

    /// Adds to each lane the exact product of its four weights, which [`Self::widen`] has written, with four activations.
    #[inline(always)]
    fn dot_wide(self, acc: Self::Ints, weights: &[[u8; 64]; 2], quad: &[i16; 4]) -> Self::Ints {
        let mut sums = [0; LANES];
        self.store_ints(acc, &mut sums);
        for (weights, pair) in weights.iter().zip(quad.as_chunks::<2>().0) {
            for (sum, weights) in sums.iter_mut().zip(weights.as_chunks::<4>().0) {
                let [a, b, c, d] = *weights;
                let weights = [i16::from_ne_bytes([a, b]), i16::from_ne_bytes([c, d])];
                for (weight, activation) in weights.into_iter().zip(pair) {
                    *sum = sum.wrapping_add(i32::from(weight) * i32::from(*activation));
                }
            }
        }
        self.load_ints(&sums)
    }

    /// Returns a vector with the same number in every lane.
    fn splat(self, x: f32) -> Self::Floats;
    /// Loads sixteen numbers.
    fn load(self, x: &[f32; 16]) -> Self::Floats;
    /// Loads sixteen numbers in little-endian bytes.
    fn load_le(self, x: &[u8; 64]) -> Self::Floats;
    /// Loads sixteen half-precision numbers in little-endian bytes.
    fn load_f16_le(self, x: &[u8; 32]) -> Self::Floats;
    /// Loads sixteen half-precision numbers.
    fn load_f16(self, x: &[half::f16; 16]) -> Self::Floats;
    /// Loads sixteen integers and converts them to floats.
    fn load_i8(self, x: &[i8; 16]) -> Self::Floats;
    /// Loads sixteen integers and converts them to the nearest floats.
    #[inline(always)]
    fn load_i32(self, x: &[i32; 16]) -> Self::Floats {
        self.load(&x.map(|x| x as f32))
    }
    /// Stores all lanes.
    fn store(self, x: Self::Floats, out: &mut [f32; 16]);
    /// Stores the bits of all lanes in little-endian bytes.
    fn store_le(self, x: Self::Floats, out: &mut [u8; 64]);
    /// Lane-wise sum.
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Lane-wise difference.
    fn sub(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Lane-wise product.
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Lane-wise quotient.
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Lane-wise `a * b + c`, rounded once.
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Lane-wise maximum. The result is `b` if `a` is not greater, and so if either is NaN.
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Lane-wise minimum. The result is `b` if `a` is not less, and so if either is NaN.
    fn min(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `y` where `a` is not less than `b`, 0 elsewhere.
    fn zero_where_less(self, a: Self::Floats, b: Self::Floats, y: Self::Floats) -> Self::Floats;
    /// 2 to the power of the integer in each lane, which must be from -126 to 127; otherwise the result is unspecified.
    fn pow2(self, x: Self::Floats) -> Self::Floats;
    /// Lane-wise maximum of `acc` and the bits of the magnitudes of `x`, compared as integers. In this order NaN is
    /// above infinity, and infinity above all other numbers.
    fn max_magnitude(self, acc: Self::Ints, x: Self::Floats) -> Self::Ints;
    /// Nearest integers of numbers from -127 to 127, ties to even.
    fn round_to_i8(self, x: Self::Floats, out: &mut [i8; 16]);
    /// Sum of all lanes. Lanes at a distance of 8 are added first, then those at 4, 2 and 1.
    fn sum(self, x: Self::Floats) -> f32;
    /// Transposes sixteen vectors: lane `i` of vector `j` becomes lane `j` of vector `i`.
    fn transpose(self, rows: [Self::Floats; 16]) -> [Self::Floats; 16];
    /// Greatest of all lanes, none of which is NaN.
    fn max_lane(self, x: Self::Floats) -> f32;
}
