//! The matrix instructions of Arm for bytes (`FEAT_I8MM`): products of two rows and two columns, over eight inputs.

use std::arch::{aarch64::*, asm, is_aarch64_feature_detected};

use super::LANES;
use crate::{aligned::LINE, arm};

/// Proof that this processor has NEON and its matrix instructions for bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct I8mm(());

impl I8mm {
    /// Number of rows that are multiplied at once. Their sums, for half a tile of columns, take 16 of 32 registers.
    pub(crate) const ROWS: usize = 8;

    /// Returns the proof if the processor and the operating system support the instructions.
    pub(crate) fn detect() -> Option<Self> {
        let found = is_aarch64_feature_detected!("neon") && arm::has_i8mm();
        found.then_some(Self(()))
    }

    /// Multiplies rows of signed bytes by 16 columns, and replaces the sums of the first [`Self::ROWS`] rows. Each line has
    /// four inputs of each column.
    ///
    /// # Panics
    /// Panics if there are fewer sums or inputs, or an odd number of lines.
    #[inline(always)]
    pub(crate) fn multiply(self, rows: [&[u8]; Self::ROWS], lines: &[[u8; LINE]], sums: &mut [[i32; LANES]]) {
        let inputs = 4 * lines.len();
        assert!(lines.len().is_multiple_of(2), "{} lines", lines.len());
        assert!(rows.iter().all(|row| row.len() >= inputs), "length of the rows");
        assert!(sums.len() >= Self::ROWS, "number of sums");
        // SAFETY: the value proves the features, and the lengths are checked.
        unsafe { multiply(rows.map(<[u8]>::as_ptr), lines, sums) }
    }
}

/// Adds to the sums of two rows and two columns the products of eight inputs. Rust's intrinsic is not stable.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn smmla(mut sums: int32x4_t, rows: int8x16_t, columns: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction reads and writes these registers alone, and the function has its feature.
    unsafe {
        asm!(
            "smmla {sums:v}.4s, {rows:v}.16b, {columns:v}.16b",
            sums = inout(vreg) sums, rows = in(vreg) rows, columns = in(vreg) columns,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// Multiplies as [`I8mm::multiply`] does.
///
/// # Safety
/// Each row has four bytes for each line, the number of lines is even, and there are sums for all rows.
#[target_feature(enable = "neon,i8mm")]
unsafe fn multiply(rows: [*const u8; I8mm::ROWS], lines: &[[u8; LINE]], sums: &mut [[i32; LANES]]) {
    let (pairs, _) = lines.as_chunks::<2>();
    for half in 0..2 {
        let mut products = [[vdupq_n_s32(0); 4]; I8mm::ROWS / 2];
        for (step, pair) in pairs.iter().enumerate() {
            // SAFETY: each half of a line has 32 bytes.
            let [first, second] = [0, 1].map(|line| unsafe {
                let bytes = pair[line].as_ptr().add(32 * half).cast::<i32>();
                [vld1q_s32(bytes), vld1q_s32(bytes.add(4))]
            });
            // Eight inputs of two columns in each register.
            let columns = [
                vzip1q_s32(first[0], second[0]),
                vzip2q_s32(first[0], second[0]),
                vzip1q_s32(first[1], second[1]),
                vzip2q_s32(first[1], second[1]),
            ];
            let columns = columns.map(|columns| vreinterpretq_s8_s32(columns));
            for (index, products) in products.iter_mut().enumerate() {
                // SAFETY: the caller guarantees the length of the rows.
                let two = unsafe {
                    let [upper, lower] = [rows[2 * index], rows[2 * index + 1]];
                    vcombine_s8(vld1_s8(upper.add(8 * step).cast()), vld1_s8(lower.add(8 * step).cast()))
                };
                for (product, columns) in products.iter_mut().zip(columns) {
                    *product = smmla(*product, two, columns);
                }
            }
        }

        for (index, products) in products.iter().enumerate() {
            for (quarter, pair) in products.as_chunks::<2>().0.iter().enumerate() {
                let upper = vcombine_s32(vget_low_s32(pair[0]), vget_low_s32(pair[1]));
                let lower = vcombine_s32(vget_high_s32(pair[0]), vget_high_s32(pair[1]));
                let at = 8 * half + 4 * quarter;
                // SAFETY: each row of sums has sixteen integers.
                unsafe {
                    vst1q_s32(sums[2 * index].as_mut_ptr().add(at), upper);
                    vst1q_s32(sums[2 * index + 1].as_mut_ptr().add(at), lower);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact() {
        let Some(unit) = I8mm::detect() else { return };
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for inputs in [8, 16, 32, 128] {
            let rows: [Vec<u8>; I8mm::ROWS] = std::array::from_fn(|_| (0..inputs).map(|_| next()).collect());
            let lines: Vec<[u8; LINE]> = (0..inputs / 4).map(|_| std::array::from_fn(|_| next())).collect();
            let mut sums = [[-1; LANES]; I8mm::ROWS];
            unit.multiply(std::array::from_fn(|row| rows[row].as_slice()), &lines, &mut sums);
            for (row, sums) in rows.iter().zip(sums) {
                for (column, sum) in sums.into_iter().enumerate() {
                    let products = (0..inputs).map(|input| {
                        let weight = lines[input / 4][4 * column + input % 4];
                        i32::from(row[input] as i8) * i32::from(weight as i8)
                    });
                    assert_eq!(sum, products.sum::<i32>(), "{inputs} inputs, column {column}");
                }
            }
        }
    }
}
