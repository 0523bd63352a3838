//! NEON with dot products: four registers hold the sixteen lanes.

use std::{
    arch::{aarch64::*, asm, is_aarch64_feature_detected},
    array,
};

use half::f16;

use super::{Operation, PREFETCH, Simd};

/// Proof that this processor has NEON and its dot products.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    /// Returns the proof if the processor and the operating system support the instructions.
    pub(crate) fn detect() -> Option<Self> {
        let found = is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("dotprod");
        found.then_some(Self(()))
    }
}

/// Runs an operation with the features of [`Neon`].
#[inline(never)]
#[target_feature(enable = "neon,dotprod")]
fn run<O: Operation>(simd: Neon, operation: O) -> O::Output {
    operation.run(simd)
}

/// Computes the dot product of four signed bytes in each lane. Rust's intrinsic for it is not stable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction reads and writes these registers alone, and the function has its feature.
    unsafe {
        asm!(
            "sdot {acc:v}.4s, {a:v}.16b, {b:v}.16b",
            acc = inout(vreg) acc, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

/// Converts four half-precision numbers to single precision. Rust's types of half precision are not stable.
#[inline]
#[target_feature(enable = "neon")]
fn widen(halves: uint16x4_t) -> float32x4_t {
    let out: float32x4_t;
    // SAFETY: the instruction reads and writes these registers alone.
    unsafe {
        asm!(
            "fcvtl {out:v}.4s, {halves:v}.4h",
            out = lateout(vreg) out, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    out
}

/// Wraps an intrinsic without pointers.
macro_rules! instruction {
    ($($call:tt)*) => {
        // SAFETY: `Neon` exists only where `detect` found the features.
        unsafe { $($call)* }
    };
}

/// Applies one instruction to each of four registers.
macro_rules! each {
    ($i:ident => $call:expr) => {
        instruction!([
            {
                let $i = 0;
                $call
            },
            {
                let $i = 1;
                $call
            },
            {
                let $i = 2;
                $call
            },
            {
                let $i = 3;
                $call
            },
        ])
    };
}

impl Simd for Neon {
    type Ints = [int32x4_t; 4];
    type Floats = [float32x4_t; 4];
    type Bytes = [int8x16_t; 4];
    type Nibbles = [int8x16_t; 4];
    type StepSums = [int32x4_t; 4];
    type Quad = int8x16_t;

    const BYTE_OFFSET: i32 = 128;
    const CENTERED_BIAS: i32 = 0;
    const ROWS: usize = 3;
    const FLOAT_ROWS: usize = 6;
    const TILES: usize = 1;

    #[inline(always)]
    fn run<O: Operation>(self, operation: O) -> O::Output {
        instruction!(run(self, operation))
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> [int32x4_t; 4] {
        [instruction!(vdupq_n_s32(x)); 4]
    }

    #[inline(always)]
    fn load_zero_points(self, zeros: &[u8; 16]) -> [int32x4_t; 4] {
        // SAFETY: sixteen bytes are readable, and `self` proves the features.
        unsafe {
            let all = vld1q_u8(zeros.as_ptr());
            let low = vmovl_u8(vget_low_u8(all));
            let high = vmovl_u8(vget_high_u8(all));
            [
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
                vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
                vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high))),
            ]
        }
    }

    #[inline(always)]
    fn sub_ints(self, a: [int32x4_t; 4], b: [int32x4_t; 4]) -> [int32x4_t; 4] {
        each!(i => vsubq_s32(a[i], b[i]))
    }

    #[inline(always)]
    fn mul_short(self, a: [int32x4_t; 4], b: i32) -> [int32x4_t; 4] {
        each!(i => vmulq_n_s32(a[i], b))
    }

    #[inline(always)]
    fn to_floats(self, x: [int32x4_t; 4]) -> [float32x4_t; 4] {
        each!(i => vcvtq_f32_s32(x[i]))
    }

    #[inline(always)]
    fn load_ints(self, x: &[i32; 16]) -> [int32x4_t; 4] {
        let (parts, _) = x.as_chunks::<4>();
        // SAFETY: sixteen bytes are readable in each part, and `self` proves the features.
        array::from_fn(|i| unsafe { vld1q_s32(parts[i].as_ptr()) })
    }

    #[inline(always)]
    fn store_ints(self, x: [int32x4_t; 4], out: &mut [i32; 16]) {
        for (x, out) in x.into_iter().zip(out.as_chunks_mut::<4>().0) {
            // SAFETY: sixteen bytes are writable, and `self` proves the features.
            unsafe { vst1q_s32(out.as_mut_ptr(), x) }
        }
    }

    #[inline(always)]
    fn splat_quad(self, x: &[i8; 4]) -> int8x16_t {
        instruction!(vreinterpretq_s8_s32(vdupq_n_s32(i32::from_le_bytes(x.map(|x| x as u8)))))
    }

    #[inline(always)]
    fn load_bytes(self, x: &[u8; 64]) -> [int8x16_t; 4] {
        let raw = self.load_nibbles(x);
        each!(i => veorq_s8(raw[i], vdupq_n_s8(-128)))
    }

    #[inline(always)]
    fn load_nibbles(self, x: &[u8; 64]) -> [int8x16_t; 4] {
        let (parts, _) = x.as_chunks::<16>();
        // SAFETY: sixteen bytes are readable in each part, and `self` proves the features.
        array::from_fn(|i| unsafe { vld1q_s8(parts[i].as_ptr().cast()) })
    }

    #[inline(always)]
    fn unpack_nibbles(self, x: &[u8; 64]) -> [[int8x16_t; 4]; 2] {
        let packed = self.load_nibbles(x);
        let low = each!(i => vandq_s8(packed[i], vdupq_n_s8(15)));
        let high = each!(i => vreinterpretq_s8_u8(vshrq_n_u8::<4>(vreinterpretq_u8_s8(packed[i]))));
        [low, high]
    }

    #[inline(always)]
    fn repeat_zero_points(self, zeros: &[u8; 16]) -> [int8x16_t; 4] {
        let zeros = self.load_zero_points(zeros);
        each!(i => vreinterpretq_s8_s32(vmulq_n_s32(zeros[i], 0x0101_0101)))
    }

    #[inline(always)]
    fn center_nibbles(self, x: [int8x16_t; 4], zeros: [int8x16_t; 4]) -> [int8x16_t; 4] {
        each!(i => vsubq_s8(x[i], zeros[i]))
    }

    #[inline(always)]
    fn prefetch(self, line: &[u8; 64]) {
        let line = line.as_ptr().wrapping_add(PREFETCH);
        // SAFETY: a prefetch reads nothing, whatever its address.
        unsafe {
            asm!("prfm pldl1keep, [{line}]", line = in(reg) line, options(nostack, readonly, preserves_flags))
        }
    }

    #[inline(always)]
    fn prefetch_write(self, out: &f32) {
        let out = std::ptr::from_ref(out);
        // SAFETY: a prefetch reads nothing, whatever its address.
        unsafe {
            asm!("prfm pstl1keep, [{out}]", out = in(reg) out, options(nostack, readonly, preserves_flags))
        }
    }

    #[inline(always)]
    fn store_nibbles(self, x: [int8x16_t; 4], out: &mut [u8; 64]) {
        for (x, out) in x.into_iter().zip(out.as_chunks_mut::<16>().0) {
            // SAFETY: sixteen bytes are writable, and `self` proves the features.
            unsafe { vst1q_s8(out.as_mut_ptr().cast(), x) }
        }
    }

    #[inline(always)]
    fn dot_bytes(self, acc: [int32x4_t; 4], weights: [int8x16_t; 4], quad: int8x16_t) -> [int32x4_t; 4] {
        each!(i => sdot(acc[i], weights[i], quad))
    }

    #[inline(always)]
    fn begin_step(self, acc: [int32x4_t; 4]) -> [int32x4_t; 4] {
        acc
    }

    #[inline(always)]
    fn finish_step(self, _: [int32x4_t; 4], step: [int32x4_t; 4]) -> [int32x4_t; 4] {
        step
    }

    #[inline(always)]
    fn dot_nibbles(self, step: [int32x4_t; 4], weights: [int8x16_t; 4], quad: int8x16_t) -> [int32x4_t; 4] {
        self.dot_bytes(step, weights, quad)
    }

    #[inline(always)]
    fn dot_centered(self, step: [int32x4_t; 4], weights: [int8x16_t; 4], quad: int8x16_t) -> [int32x4_t; 4] {
        self.dot_bytes(step, weights, quad)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> [float32x4_t; 4] {
        [instruction!(vdupq_n_f32(x)); 4]
    }

    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> [float32x4_t; 4] {
        let (parts, _) = x.as_chunks::<4>();
        // SAFETY: sixteen bytes are readable in each part, and `self` proves the features.
        array::from_fn(|i| unsafe { vld1q_f32(parts[i].as_ptr()) })
    }

    #[inline(always)]
    fn load_le(self, x: &[u8; 64]) -> [float32x4_t; 4] {
        let (parts, _) = x.as_chunks::<16>();
        // SAFETY: sixteen bytes are readable in each part, and `self` proves the features.
        array::from_fn(|i| unsafe { vreinterpretq_f32_u8(vld1q_u8(parts[i].as_ptr())) })
    }

    #[inline(always)]
    fn load_f16_le(self, x: &[u8; 32]) -> [float32x4_t; 4] {
        let (parts, _) = x.as_chunks::<8>();
        // SAFETY: eight bytes are readable in each part, and `self` proves the features.
        array::from_fn(|i| unsafe { widen(vreinterpret_u16_u8(vld1_u8(parts[i].as_ptr()))) })
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; 16]) -> [float32x4_t; 4] {
        let (parts, _) = x.as_chunks::<4>();
        // SAFETY: eight bytes are readable in each part, `f16` has the layout of `u16`, and `self` proves the features.
        array::from_fn(|i| unsafe { widen(vld1_u16(parts[i].as_ptr().cast())) })
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; 16]) -> [float32x4_t; 4] {
        // SAFETY: sixteen bytes are readable, and `self` proves the features.
        unsafe {
            let all = vld1q_s8(x.as_ptr());
            let low = vmovl_s8(vget_low_s8(all));
            let high = vmovl_s8(vget_high_s8(all));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(high))),
            ]
        }
    }

    #[inline(always)]
    fn store(self, x: [float32x4_t; 4], out: &mut [f32; 16]) {
        for (x, out) in x.into_iter().zip(out.as_chunks_mut::<4>().0) {
            // SAFETY: sixteen bytes are writable, and `self` proves the features.
            unsafe { vst1q_f32(out.as_mut_ptr(), x) }
        }
    }

    #[inline(always)]
    fn store_le(self, x: [float32x4_t; 4], out: &mut [u8; 64]) {
        for (x, out) in x.into_iter().zip(out.as_chunks_mut::<16>().0) {
            // SAFETY: sixteen bytes are writable, and `self` proves the features.
            unsafe { vst1q_u8(out.as_mut_ptr(), vreinterpretq_u8_f32(x)) }
        }
    }

    #[inline(always)]
    fn add(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(i => vaddq_f32(a[i], b[i]))
    }

    #[inline(always)]
    fn sub(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(i => vsubq_f32(a[i], b[i]))
    }

    #[inline(always)]
    fn mul(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(i => vmulq_f32(a[i], b[i]))
    }

    #[inline(always)]
    fn div(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(i => vdivq_f32(a[i], b[i]))
    }

    #[inline(always)]
    fn mul_add(self, a: [float32x4_t; 4], b: [float32x4_t; 4], c: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(i => vfmaq_f32(c[i], a[i], b[i]))
    }

    #[inline(always)]
    fn max(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(i => vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i]))
    }

    #[inline(always)]
    fn min(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(i => vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i]))
    }

    #[inline(always)]
    fn zero_where_less(
        self,
        a: [float32x4_t; 4],
        b: [float32x4_t; 4],
        y: [float32x4_t; 4],
    ) -> [float32x4_t; 4] {
        each!(i => {
            let kept = vbicq_u32(vreinterpretq_u32_f32(y[i]), vcltq_f32(a[i], b[i]));
            vreinterpretq_f32_u32(kept)
        })
    }

    #[inline(always)]
    fn pow2(self, x: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(i => {
            let exponent = vaddq_s32(vcvtq_s32_f32(x[i]), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent))
        })
    }

    #[inline(always)]
    fn max_magnitude(self, acc: [int32x4_t; 4], x: [float32x4_t; 4]) -> [int32x4_t; 4] {
        each!(i => vmaxq_s32(acc[i], vandq_s32(vreinterpretq_s32_f32(x[i]), vdupq_n_s32(i32::MAX))))
    }

    #[inline(always)]
    fn round_to_i8(self, x: [float32x4_t; 4], out: &mut [i8; 16]) {
        let shorts = each!(i => vqmovn_s32(vcvtnq_s32_f32(x[i])));
        // SAFETY: sixteen bytes are writable, and `self` proves the features.
        unsafe {
            let low = vqmovn_s16(vcombine_s16(shorts[0], shorts[1]));
            let high = vqmovn_s16(vcombine_s16(shorts[2], shorts[3]));
            vst1q_s8(out.as_mut_ptr(), vcombine_s8(low, high));
        }
    }

    #[inline(always)]
    fn sum(self, x: [float32x4_t; 4]) -> f32 {
        instruction!({
            let four = vaddq_f32(vaddq_f32(x[0], x[2]), vaddq_f32(x[1], x[3]));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(vpadd_f32(two, two))
        })
    }

    #[inline(always)]
    fn transpose(self, rows: [[float32x4_t; 4]; 16]) -> [[float32x4_t; 4]; 16] {
        let mut out = rows;
        for from in 0..4 {
            for to in 0..4 {
                let [a, b] = [rows[4 * to][from], rows[4 * to + 1][from]];
                let [c, d] = [rows[4 * to + 2][from], rows[4 * to + 3][from]];
                instruction!({
                    let even = [vtrn1q_f32(a, b), vtrn1q_f32(c, d)];
                    let odd = [vtrn2q_f32(a, b), vtrn2q_f32(c, d)];
                    let [even_0, even_1] = [vreinterpretq_f64_f32(even[0]), vreinterpretq_f64_f32(even[1])];
                    let [odd_0, odd_1] = [vreinterpretq_f64_f32(odd[0]), vreinterpretq_f64_f32(odd[1])];
                    out[4 * from][to] = vreinterpretq_f32_f64(vtrn1q_f64(even_0, even_1));
                    out[4 * from + 1][to] = vreinterpretq_f32_f64(vtrn1q_f64(odd_0, odd_1));
                    out[4 * from + 2][to] = vreinterpretq_f32_f64(vtrn2q_f64(even_0, even_1));
                    out[4 * from + 3][to] = vreinterpretq_f32_f64(vtrn2q_f64(odd_0, odd_1));
                });
            }
        }
        out
    }

    #[inline(always)]
    fn max_lane(self, x: [float32x4_t; 4]) -> f32 {
        instruction!(vmaxvq_f32(vmaxq_f32(vmaxq_f32(x[0], x[1]), vmaxq_f32(x[2], x[3]))))
    }
}
