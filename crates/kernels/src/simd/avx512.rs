//! AVX-512 with VNNI: one register holds all sixteen lanes.

use std::arch::x86_64::*;

use half::f16;

use super::{Operation, PREFETCH, Simd};

/// Proof that this processor has AVX-512 F, BW, VL, DQ and VNNI, and FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// Returns the proof if the processor and the operating system support the instructions.
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        found.then_some(Self(()))
    }
}

/// Runs an operation with the features of [`Avx512`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn run<O: Operation>(simd: Avx512, operation: O) -> O::Output {
    operation.run(simd)
}

/// Wraps an intrinsic without pointers.
macro_rules! instruction {
    ($($call:tt)*) => {
        // SAFETY: `Avx512` exists only where `detect` found the features.
        unsafe { $($call)* }
    };
}

impl Simd for Avx512 {
    type Ints = __m512i;
    type Floats = __m512;
    type Bytes = __m512i;
    type Nibbles = __m512i;
    type StepSums = __m512i;
    type Quad = __m512i;

    const BYTE_OFFSET: i32 = 0;
    const CENTERED_BIAS: i32 = 128;
    const ROWS: usize = 6;
    const FLOAT_ROWS: usize = 12;
    const TILES: usize = 2;

    #[inline(always)]
    fn run<O: Operation>(self, operation: O) -> O::Output {
        instruction!(run(self, operation))
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> __m512i {
        instruction!(_mm512_set1_epi32(x))
    }

    #[inline(always)]
    fn load_zero_points(self, zeros: &[u8; 16]) -> __m512i {
        // SAFETY: sixteen bytes are readable, and `self` proves the features.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(zeros.as_ptr().cast())) }
    }

    #[inline(always)]
    fn sub_ints(self, a: __m512i, b: __m512i) -> __m512i {
        instruction!(_mm512_sub_epi32(a, b))
    }

    #[inline(always)]
    fn mul_short(self, a: __m512i, b: i32) -> __m512i {
        // The upper halves of zero points are 0, so those of `b` do not matter.
        instruction!(_mm512_madd_epi16(a, _mm512_set1_epi32(b)))
    }

    #[inline(always)]
    fn to_floats(self, x: __m512i) -> __m512 {
        instruction!(_mm512_cvtepi32_ps(x))
    }

    #[inline(always)]
    fn load_ints(self, x: &[i32; 16]) -> __m512i {
        // SAFETY: 64 bytes are readable, and `self` proves the features.
        unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_ints(self, x: __m512i, out: &mut [i32; 16]) {
        // SAFETY: 64 bytes are writable, and `self` proves the features.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), x) }
    }

    #[inline(always)]
    fn splat_quad(self, x: &[i8; 4]) -> __m512i {
        instruction!(_mm512_set1_epi32(i32::from_le_bytes(x.map(|x| x as u8))))
    }

    #[inline(always)]
    fn load_bytes(self, x: &[u8; 64]) -> __m512i {
        // SAFETY: 64 bytes are readable, and `self` proves the features.
        unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
    }

    #[inline(always)]
    fn load_nibbles(self, x: &[u8; 64]) -> __m512i {
        self.load_bytes(x)
    }

    #[inline(always)]
    fn unpack_nibbles(self, x: &[u8; 64]) -> [__m512i; 2] {
        let packed = self.load_bytes(x);
        instruction!({
            let low = _mm512_set1_epi8(15);
            [_mm512_and_si512(packed, low), _mm512_and_si512(_mm512_srli_epi16::<4>(packed), low)]
        })
    }

    #[inline(always)]
    fn repeat_zero_points(self, zeros: &[u8; 16]) -> __m512i {
        let zeros = self.load_zero_points(zeros);
        instruction!(_mm512_mullo_epi32(zeros, _mm512_set1_epi32(0x0101_0101)))
    }

    #[inline(always)]
    fn center_nibbles(self, x: __m512i, zeros: __m512i) -> __m512i {
        instruction!(_mm512_sub_epi8(x, zeros))
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
    fn store_nibbles(self, x: __m512i, out: &mut [u8; 64]) {
        // SAFETY: 64 bytes are writable, and `self` proves the features.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), x) }
    }

    #[inline(always)]
    fn dot_bytes(self, acc: __m512i, weights: __m512i, quad: __m512i) -> __m512i {
        instruction!(_mm512_dpbusd_epi32(acc, weights, quad))
    }

    #[inline(always)]
    fn begin_step(self, acc: __m512i) -> __m512i {
        acc
    }

    #[inline(always)]
    fn finish_step(self, _: __m512i, step: __m512i) -> __m512i {
        step
    }

    #[inline(always)]
    fn dot_nibbles(self, step: __m512i, weights: __m512i, quad: __m512i) -> __m512i {
        self.dot_bytes(step, weights, quad)
    }

    #[inline(always)]
    fn dot_centered(self, step: __m512i, weights: __m512i, quad: __m512i) -> __m512i {
        instruction!(_mm512_dpbusd_epi32(step, quad, weights))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        instruction!(_mm512_set1_ps(x))
    }

    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> __m512 {
        // SAFETY: 64 bytes are readable, and `self` proves the features.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn load_le(self, x: &[u8; 64]) -> __m512 {
        // SAFETY: 64 bytes are readable, every bit pattern is a float, and `self` proves the features.
        unsafe { _mm512_loadu_ps(x.as_ptr().cast()) }
    }

    #[inline(always)]
    fn load_f16_le(self, x: &[u8; 32]) -> __m512 {
        // SAFETY: 32 bytes are readable, and `self` proves the features.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; 16]) -> __m512 {
        // SAFETY: 32 bytes are readable, and `self` proves the features.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; 16]) -> __m512 {
        // SAFETY: sixteen bytes are readable, and `self` proves the features.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn load_i32(self, x: &[i32; 16]) -> __m512 {
        // SAFETY: 64 bytes are readable, and `self` proves the features.
        unsafe { _mm512_cvtepi32_ps(_mm512_loadu_si512(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn store(self, x: __m512, out: &mut [f32; 16]) {
        // SAFETY: 64 bytes are writable, and `self` proves the features.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) }
    }

    #[inline(always)]
    fn store_le(self, x: __m512, out: &mut [u8; 64]) {
        // SAFETY: 64 bytes are writable, and `self` proves the features.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr().cast(), x) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        instruction!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        instruction!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        instruction!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        instruction!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        instruction!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        instruction!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        instruction!(_mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn zero_where_less(self, a: __m512, b: __m512, y: __m512) -> __m512 {
        instruction!(_mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(a, b), y))
    }

    #[inline(always)]
    fn pow2(self, x: __m512) -> __m512 {
        instruction!({
            let exponent = _mm512_add_epi32(_mm512_cvttps_epi32(x), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        })
    }

    #[inline(always)]
    fn max_magnitude(self, acc: __m512i, x: __m512) -> __m512i {
        instruction!({
            let magnitude = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(i32::MAX));
            _mm512_max_epi32(acc, magnitude)
        })
    }

    #[inline(always)]
    fn round_to_i8(self, x: __m512, out: &mut [i8; 16]) {
        // SAFETY: sixteen bytes are writable, and `self` proves the features.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x))) }
    }

    #[inline(always)]
    fn sum(self, x: __m512) -> f32 {
        instruction!({
            let eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    fn transpose(self, rows: [__m512; 16]) -> [__m512; 16] {
        instruction!({
            // Each 128-bit part of `quads[i][j]` has element `j` of that part of rows `4 i` to `4 i + 3`.
            let mut quads = [[_mm512_setzero_ps(); 4]; 4];
            for i in 0..4 {
                let [a, b, c, d] = [rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3]];
                let first = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
                let second = _mm512_castps_pd(_mm512_unpacklo_ps(c, d));
                quads[i][0] = _mm512_castpd_ps(_mm512_unpacklo_pd(first, second));
                quads[i][1] = _mm512_castpd_ps(_mm512_unpackhi_pd(first, second));
                let first = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
                let second = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
                quads[i][2] = _mm512_castpd_ps(_mm512_unpacklo_pd(first, second));
                quads[i][3] = _mm512_castpd_ps(_mm512_unpackhi_pd(first, second));
            }
            let mut out = [_mm512_setzero_ps(); 16];
            for i in 0..4 {
                let [a, b, c, d] = [quads[0][i], quads[1][i], quads[2][i], quads[3][i]];
                // The even 128-bit parts come first, then the odd ones.
                let even = [_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(c, d)];
                let odd = [_mm512_shuffle_f32x4::<0xdd>(a, b), _mm512_shuffle_f32x4::<0xdd>(c, d)];
                out[i] = _mm512_shuffle_f32x4::<0x88>(even[0], even[1]);
                out[4 + i] = _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]);
                out[8 + i] = _mm512_shuffle_f32x4::<0xdd>(even[0], even[1]);
                out[12 + i] = _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]);
            }
            out
        })
    }

    #[inline(always)]
    fn max_lane(self, x: __m512) -> f32 {
        instruction!(_mm512_reduce_max_ps(x))
    }
}
