//! AVX2, with or without AVX-VNNI: two registers hold the sixteen lanes.

use std::arch::{asm, x86_64::*};

use half::f16;

use super::{Operation, PREFETCH, Simd};

/// Proof that this processor has AVX2, FMA and F16C, and AVX-VNNI where `VNNI` is set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2<const VNNI: bool>(());

impl<const VNNI: bool> Avx2<VNNI> {
    /// Returns the proof if the processor and the operating system support the instructions.
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && (!VNNI || is_x86_feature_detected!("avxvnni"));
        found.then_some(Self(()))
    }
}

/// Weights of eight bits. Without VNNI, 128 is subtracted from each, and their magnitudes are stored too.
#[derive(Clone, Copy)]
pub(crate) struct SignedBytes {
    weights: [__m256i; 2],
    magnitudes: [__m256i; 2],
}

/// Runs an operation with the features of `Avx2<false>`.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn run<const VNNI: bool, O: Operation>(simd: Avx2<VNNI>, operation: O) -> O::Output {
    operation.run(simd)
}

/// Runs an operation with the features of `Avx2<true>`.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn run_vnni<const VNNI: bool, O: Operation>(simd: Avx2<VNNI>, operation: O) -> O::Output {
    operation.run(simd)
}

/// Wraps an intrinsic without pointers.
macro_rules! instruction {
    ($($call:tt)*) => {
        // SAFETY: `Avx2` exists only where `detect` found the features.
        unsafe { $($call)* }
    };
}

/// Adds the products of unsigned and signed bytes to sums of sixteen bits, which must not overflow.
#[inline(always)]
fn dot_in_shorts(acc: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
    // SAFETY: only methods of `Avx2` call this, which exists only where `detect` found the features.
    unsafe { in_order(_mm256_add_epi16(acc, _mm256_maddubs_epi16(unsigned, signed))) }
}

/// Returns its argument. Without this, the compiler changes the order of additions and computes all products before them,
/// for which there are not enough registers.
#[inline]
#[target_feature(enable = "avx2")]
fn in_order(mut sum: __m256i) -> __m256i {
    // SAFETY: this has no instructions.
    unsafe { asm!("/* {0} */", inout(ymm_reg) sum, options(pure, nomem, nostack, preserves_flags)) };
    sum
}

/// Adds pairs of sums of sixteen bits to sums of 32 bits.
#[inline(always)]
fn add_shorts(acc: __m256i, shorts: __m256i) -> __m256i {
    // SAFETY: only methods of `Avx2` call this, which exists only where `detect` found the features.
    unsafe { _mm256_add_epi32(acc, _mm256_madd_epi16(shorts, _mm256_set1_epi16(1))) }
}

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type Ints = [__m256i; 2];
    type Floats = [__m256; 2];
    type Bytes = SignedBytes;
    type Nibbles = [__m256i; 2];
    /// Pairs of sums of sixteen bits, or sums of 32 bits with VNNI.
    type StepSums = [__m256i; 2];
    type Quad = __m256i;

    const BYTE_OFFSET: i32 = if VNNI { 0 } else { 128 };
    const CENTERED_BIAS: i32 = 128;
    const ROWS: usize = if VNNI { 3 } else { 4 };
    const FLOAT_ROWS: usize = 6;
    const TILES: usize = 1;
    const WIDENS: bool = !VNNI;

    #[inline(always)]
    fn run<O: Operation>(self, operation: O) -> O::Output {
        if VNNI { instruction!(run_vnni(self, operation)) } else { instruction!(run(self, operation)) }
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> [__m256i; 2] {
        [instruction!(_mm256_set1_epi32(x)); 2]
    }

    #[inline(always)]
    fn load_zero_points(self, zeros: &[u8; 16]) -> [__m256i; 2] {
        // SAFETY: sixteen bytes are readable, and `self` proves the features.
        unsafe {
            let all = _mm_loadu_si128(zeros.as_ptr().cast());
            [_mm256_cvtepu8_epi32(all), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(all))]
        }
    }

    #[inline(always)]
    fn sub_ints(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        instruction!([_mm256_sub_epi32(a[0], b[0]), _mm256_sub_epi32(a[1], b[1])])
    }

    #[inline(always)]
    fn mul_short(self, a: [__m256i; 2], b: i32) -> [__m256i; 2] {
        instruction!({
            let b = _mm256_set1_epi32(b & 0xffff);
            [_mm256_madd_epi16(a[0], b), _mm256_madd_epi16(a[1], b)]
        })
    }

    #[inline(always)]
    fn to_floats(self, x: [__m256i; 2]) -> [__m256; 2] {
        instruction!([_mm256_cvtepi32_ps(x[0]), _mm256_cvtepi32_ps(x[1])])
    }

    #[inline(always)]
    fn load_ints(self, x: &[i32; 16]) -> [__m256i; 2] {
        // SAFETY: 64 bytes are readable, and `self` proves the features.
        unsafe { [_mm256_loadu_si256(x.as_ptr().cast()), _mm256_loadu_si256(x.as_ptr().add(8).cast())] }
    }

    #[inline(always)]
    fn store_ints(self, x: [__m256i; 2], out: &mut [i32; 16]) {
        // SAFETY: 64 bytes are writable, and `self` proves the features.
        unsafe {
            _mm256_storeu_si256(out.as_mut_ptr().cast(), x[0]);
            _mm256_storeu_si256(out.as_mut_ptr().add(8).cast(), x[1]);
        }
    }

    #[inline(always)]
    fn splat_quad(self, x: &[i8; 4]) -> __m256i {
        instruction!(_mm256_set1_epi32(i32::from_le_bytes(x.map(|x| x as u8))))
    }

    #[inline(always)]
    fn load_bytes(self, x: &[u8; 64]) -> SignedBytes {
        let raw = self.load_nibbles(x);
        if VNNI {
            return SignedBytes { weights: raw, magnitudes: raw };
        }
        instruction!({
            let middle = _mm256_set1_epi8(-128);
            let weights = [_mm256_xor_si256(raw[0], middle), _mm256_xor_si256(raw[1], middle)];
            SignedBytes { weights, magnitudes: [_mm256_abs_epi8(weights[0]), _mm256_abs_epi8(weights[1])] }
        })
    }

    #[inline(always)]
    fn load_nibbles(self, x: &[u8; 64]) -> [__m256i; 2] {
        // SAFETY: 64 bytes are readable, and `self` proves the features.
        unsafe { [_mm256_loadu_si256(x.as_ptr().cast()), _mm256_loadu_si256(x.as_ptr().add(32).cast())] }
    }

    #[inline(always)]
    fn unpack_nibbles(self, x: &[u8; 64]) -> [[__m256i; 2]; 2] {
        let packed = self.load_nibbles(x);
        instruction!({
            let low = _mm256_set1_epi8(15);
            let high = |x| _mm256_and_si256(_mm256_srli_epi16::<4>(x), low);
            [
                [_mm256_and_si256(packed[0], low), _mm256_and_si256(packed[1], low)],
                [high(packed[0]), high(packed[1])],
            ]
        })
    }

    #[inline(always)]
    fn repeat_zero_points(self, zeros: &[u8; 16]) -> [__m256i; 2] {
        let zeros = self.load_zero_points(zeros);
        instruction!({
            let repeated = _mm256_set1_epi32(0x0101_0101);
            [_mm256_mullo_epi32(zeros[0], repeated), _mm256_mullo_epi32(zeros[1], repeated)]
        })
    }

    #[inline(always)]
    fn center_nibbles(self, x: [__m256i; 2], zeros: [__m256i; 2]) -> [__m256i; 2] {
        instruction!([_mm256_sub_epi8(x[0], zeros[0]), _mm256_sub_epi8(x[1], zeros[1])])
    }

    #[inline(always)]
    fn prefetch(self, line: &[u8; 64]) {
        // SAFETY: a prefetch reads nothing, whatever its address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(PREFETCH).cast()) }
    }

    #[inline(always)]
    fn prefetch_write(self, out: &f32) {
        // SAFETY: a prefetch reads nothing, whatever its address.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(std::ptr::from_ref(out).cast()) }
    }

    #[inline(always)]
    fn store_nibbles(self, x: [__m256i; 2], out: &mut [u8; 64]) {
        // SAFETY: 64 bytes are writable, and `self` proves the features.
        unsafe {
            _mm256_storeu_si256(out.as_mut_ptr().cast(), x[0]);
            _mm256_storeu_si256(out.as_mut_ptr().add(32).cast(), x[1]);
        }
    }

    #[inline(always)]
    fn dot_bytes(self, acc: [__m256i; 2], weights: SignedBytes, quad: __m256i) -> [__m256i; 2] {
        if VNNI {
            return self.dot_nibbles(acc, weights.weights, quad);
        }
        // The sum of two products of a magnitude up to 128 and an activation up to 127 fits into sixteen bits; with
        // unsigned weights up to 255 it would not. The sign of the weight is applied to the activation.
        let dot = |acc, half: usize| {
            instruction!({
                let signed = _mm256_sign_epi8(quad, weights.weights[half]);
                add_shorts(acc, _mm256_maddubs_epi16(weights.magnitudes[half], signed))
            })
        };
        [dot(acc[0], 0), dot(acc[1], 1)]
    }

    #[inline(always)]
    fn begin_step(self, acc: [__m256i; 2]) -> [__m256i; 2] {
        if VNNI { acc } else { [instruction!(_mm256_setzero_si256()); 2] }
    }

    #[inline(always)]
    fn finish_step(self, acc: [__m256i; 2], step: [__m256i; 2]) -> [__m256i; 2] {
        if VNNI { step } else { [add_shorts(acc[0], step[0]), add_shorts(acc[1], step[1])] }
    }

    #[inline(always)]
    fn dot_nibbles(self, step: [__m256i; 2], weights: [__m256i; 2], quad: __m256i) -> [__m256i; 2] {
        if VNNI {
            instruction!([
                _mm256_dpbusd_avx_epi32(step[0], weights[0], quad),
                _mm256_dpbusd_avx_epi32(step[1], weights[1], quad)
            ])
        } else {
            // Sums of eight products of a weight up to 15 and an activation up to 127 fit into sixteen bits.
            [dot_in_shorts(step[0], weights[0], quad), dot_in_shorts(step[1], weights[1], quad)]
        }
    }

    #[inline(always)]
    fn dot_centered(self, step: [__m256i; 2], weights: [__m256i; 2], quad: __m256i) -> [__m256i; 2] {
        if VNNI {
            instruction!([
                _mm256_dpbusd_avx_epi32(step[0], quad, weights[0]),
                _mm256_dpbusd_avx_epi32(step[1], quad, weights[1])
            ])
        } else {
            // Sums of eight products of an activation up to 255 and a magnitude up to 15 fit into sixteen bits.
            [dot_in_shorts(step[0], quad, weights[0]), dot_in_shorts(step[1], quad, weights[1])]
        }
    }

    #[inline(always)]
    fn widen(self, x: &[u8; 64], zeros: [__m256i; 2], out: &mut [[u8; 64]; 2]) {
        let bytes = self.load_nibbles(x);
        // SAFETY: 64 bytes of each line are writable, and `self` proves the features.
        unsafe {
            // Positions of the first two bytes of each lane. Those with the upper bit yield 0.
            let first = _mm_setr_epi32(
                0x8001_8000_u32 as i32,
                0x8005_8004_u32 as i32,
                0x8009_8008_u32 as i32,
                0x800d_800c_u32 as i32,
            );
            let first = _mm256_broadcastsi128_si256(first);
            let orders = [first, _mm256_add_epi32(first, _mm256_set1_epi32(0x0002_0002))];
            for half in 0..2 {
                let zeros = _mm256_or_si256(zeros[half], _mm256_slli_epi32::<16>(zeros[half]));
                for (order, out) in orders.into_iter().zip(&mut *out) {
                    let wide = _mm256_sub_epi16(_mm256_shuffle_epi8(bytes[half], order), zeros);
                    _mm256_storeu_si256(out.as_mut_ptr().add(32 * half).cast(), wide);
                }
            }
        }
    }

    #[inline(always)]
    fn dot_wide(self, acc: [__m256i; 2], weights: &[[u8; 64]; 2], quad: &[i16; 4]) -> [__m256i; 2] {
        let mut sums = acc;
        for pair in 0..2 {
            let weights = self.load_nibbles(&weights[pair]);
            // SAFETY: `pair` is at most 1, so two activations are readable, and `self` proves the features.
            unsafe {
                let pair = _mm256_set1_epi32(quad.as_ptr().cast::<i32>().add(pair).read_unaligned());
                sums[0] = in_order(_mm256_add_epi32(sums[0], _mm256_madd_epi16(weights[0], pair)));
                sums[1] = in_order(_mm256_add_epi32(sums[1], _mm256_madd_epi16(weights[1], pair)));
            }
        }
        sums
    }

    #[inline(always)]
    fn splat(self, x: f32) -> [__m256; 2] {
        [instruction!(_mm256_set1_ps(x)); 2]
    }

    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> [__m256; 2] {
        // SAFETY: 64 bytes are readable, and `self` proves the features.
        unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] }
    }

    #[inline(always)]
    fn load_le(self, x: &[u8; 64]) -> [__m256; 2] {
        // SAFETY: 64 bytes are readable, every bit pattern is a float, and `self` proves the features.
        unsafe { [_mm256_loadu_ps(x.as_ptr().cast()), _mm256_loadu_ps(x.as_ptr().add(32).cast())] }
    }

    #[inline(always)]
    fn load_f16_le(self, x: &[u8; 32]) -> [__m256; 2] {
        // SAFETY: 32 bytes are readable, and `self` proves the features.
        unsafe {
            let halves = _mm256_loadu_si256(x.as_ptr().cast());
            [
                _mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves)),
            ]
        }
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; 16]) -> [__m256; 2] {
        // SAFETY: 32 bytes are readable, and `self` proves the features.
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().add(8).cast())),
            ]
        }
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; 16]) -> [__m256; 2] {
        // SAFETY: sixteen bytes are readable, and `self` proves the features.
        unsafe {
            let all = _mm_loadu_si128(x.as_ptr().cast());
            [
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(all)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(all))),
            ]
        }
    }

    #[inline(always)]
    fn store(self, x: [__m256; 2], out: &mut [f32; 16]) {
        // SAFETY: 64 bytes are writable, and `self` proves the features.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), x[1]);
        }
    }

    #[inline(always)]
    fn store_le(self, x: [__m256; 2], out: &mut [u8; 64]) {
        // SAFETY: 64 bytes are writable, and `self` proves the features.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr().cast(), x[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(32).cast(), x[1]);
        }
    }

    #[inline(always)]
    fn add(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        instruction!([_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn sub(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        instruction!([_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn mul(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        instruction!([_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn div(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        instruction!([_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn mul_add(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        instruction!([_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])])
    }

    #[inline(always)]
    fn max(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        instruction!([_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn min(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        instruction!([_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn zero_where_less(self, a: [__m256; 2], b: [__m256; 2], y: [__m256; 2]) -> [__m256; 2] {
        instruction!([
            _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0]), y[0]),
            _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1]), y[1])
        ])
    }

    #[inline(always)]
    fn pow2(self, x: [__m256; 2]) -> [__m256; 2] {
        instruction!({
            let power = |x| {
                let exponent = _mm256_add_epi32(_mm256_cvttps_epi32(x), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
            };
            [power(x[0]), power(x[1])]
        })
    }

    #[inline(always)]
    fn max_magnitude(self, acc: [__m256i; 2], x: [__m256; 2]) -> [__m256i; 2] {
        instruction!({
            let sign = _mm256_set1_epi32(i32::MAX);
            [
                _mm256_max_epi32(acc[0], _mm256_and_si256(_mm256_castps_si256(x[0]), sign)),
                _mm256_max_epi32(acc[1], _mm256_and_si256(_mm256_castps_si256(x[1]), sign)),
            ]
        })
    }

    #[inline(always)]
    fn round_to_i8(self, x: [__m256; 2], out: &mut [i8; 16]) {
        // SAFETY: sixteen bytes are writable, and `self` proves the features.
        unsafe {
            let packed = _mm256_packs_epi32(_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1]));
            let shorts = _mm256_permute4x64_epi64::<0b1101_1000>(packed);
            let bytes =
                _mm_packs_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256::<1>(shorts));
            _mm_storeu_si128(out.as_mut_ptr().cast(), bytes);
        }
    }

    #[inline(always)]
    fn sum(self, x: [__m256; 2]) -> f32 {
        instruction!({
            let eight = _mm256_add_ps(x[0], x[1]);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    fn transpose(self, rows: [[__m256; 2]; 16]) -> [[__m256; 2]; 16] {
        let mut out = [[self.splat(0.0)[0]; 2]; 16];
        for (from, to) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut square = [out[0][0]; 8];
            for i in 0..8 {
                square[i] = rows[8 * to + i][from];
            }
            square = transpose(self, square);
            for i in 0..8 {
                out[8 * from + i][to] = square[i];
            }
        }
        out
    }

    #[inline(always)]
    fn max_lane(self, x: [__m256; 2]) -> f32 {
        instruction!({
            let eight = _mm256_max_ps(x[0], x[1]);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        })
    }
}

/// Transposes eight rows of eight numbers.
#[inline(always)]
fn transpose<const VNNI: bool>(_: Avx2<VNNI>, rows: [__m256; 8]) -> [__m256; 8] {
    instruction!({
        // Each half of `quads[i][j]` has element `j` of that half of rows `4 i` to `4 i + 3`.
        let mut quads = [[_mm256_setzero_ps(); 4]; 2];
        for i in 0..2 {
            let [a, b, c, d] = [rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3]];
            let first = _mm256_castps_pd(_mm256_unpacklo_ps(a, b));
            let second = _mm256_castps_pd(_mm256_unpacklo_ps(c, d));
            quads[i][0] = _mm256_castpd_ps(_mm256_unpacklo_pd(first, second));
            quads[i][1] = _mm256_castpd_ps(_mm256_unpackhi_pd(first, second));
            let first = _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
            let second = _mm256_castps_pd(_mm256_unpackhi_ps(c, d));
            quads[i][2] = _mm256_castpd_ps(_mm256_unpacklo_pd(first, second));
            quads[i][3] = _mm256_castpd_ps(_mm256_unpackhi_pd(first, second));
        }
        let mut out = [_mm256_setzero_ps(); 8];
        for i in 0..4 {
            out[i] = _mm256_permute2f128_ps::<0x20>(quads[0][i], quads[1][i]);
            out[4 + i] = _mm256_permute2f128_ps::<0x31>(quads[0][i], quads[1][i]);
        }
        out
    })
}
