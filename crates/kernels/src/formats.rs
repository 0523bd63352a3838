//! Layouts of weights in products, and the products of sixteen inputs in each.

use crate::{
    activations::toggle_bias,
    aligned::LINE,
    simd::{LANES, Simd},
};

/// Layout of weights in lines of 64 bytes.
pub(crate) trait Format {
    /// Four activations of a row.
    type Quad: Copy;
    /// Integer that represents 0 if there are no zero points.
    const MIDDLE: i32;
    /// Number of lines that contain four groups of four inputs.
    const LINES: usize;
    /// This is an [`UnpackedFormat`].
    const UNPACKED: bool = false;

    /// Number that products subtract from each weight.
    fn offset<S: Simd>() -> i32 {
        0
    }

    /// Adds the products of four groups of four inputs.
    fn accumulate<S: Simd, const R: usize, const V: usize>(
        s: S,
        lines: [&[[u8; LINE]]; V],
        quads: &[[Self::Quad; R]; 4],
        acc: &mut [[S::Ints; V]; R],
    );
}

/// Layout of a copy of a tile's weights, relative to their zero points. The copy has two lines for each of the tile's.
pub(crate) trait UnpackedFormat: Format {
    /// Writes the copy of a block's lines, and returns the initial sums of its products.
    fn unpack<S: Simd>(
        s: S,
        packed: &[[u8; LINE]],
        zeros: Option<&[u8; LANES]>,
        lines: &mut [[u8; LINE]],
    ) -> S::Ints;
}

/// Weights of eight bits.
pub(crate) struct Bytes;

/// Weights of four bits, two in each byte.
pub(crate) struct Nibbles;

/// Weights of four bits as signed bytes, relative to their zero points.
pub(crate) struct CenteredNibbles;

/// Weights of eight bits as integers of sixteen bits, relative to their zero points.
pub(crate) struct WideBytes;

impl Format for Bytes {
    type Quad = [i8; 4];

    const MIDDLE: i32 = 128;
    const LINES: usize = 4;

    fn offset<S: Simd>() -> i32 {
        S::BYTE_OFFSET
    }

    #[inline(always)]
    fn accumulate<S: Simd, const R: usize, const V: usize>(
        s: S,
        lines: [&[[u8; LINE]]; V],
        quads: &[[Self::Quad; R]; 4],
        acc: &mut [[S::Ints; V]; R],
    ) {
        for g in 0..4 {
            let mut weights = [s.load_bytes(&lines[0][g]); V];
            for v in 1..V {
                weights[v] = s.load_bytes(&lines[v][g]);
            }
            for r in 0..R {
                let quad = s.splat_quad(&quads[g][r]);
                for v in 0..V {
                    acc[r][v] = s.dot_bytes(acc[r][v], weights[v], quad);
                }
            }
        }
    }
}

impl Format for Nibbles {
    type Quad = [i8; 4];

    const MIDDLE: i32 = 8;
    const LINES: usize = 2;

    #[inline(always)]
    fn accumulate<S: Simd, const R: usize, const V: usize>(
        s: S,
        lines: [&[[u8; LINE]]; V],
        quads: &[[Self::Quad; R]; 4],
        acc: &mut [[S::Ints; V]; R],
    ) {
        let mut sums = begin_step(s, acc);
        for l in 0..2 {
            let mut weights = [s.unpack_nibbles(&lines[0][l]); V];
            for v in 1..V {
                weights[v] = s.unpack_nibbles(&lines[v][l]);
            }
            for half in 0..2 {
                for r in 0..R {
                    let quad = s.splat_quad(&quads[l * 2 + half][r]);
                    for v in 0..V {
                        sums[r][v] = s.dot_nibbles(sums[r][v], weights[v][half], quad);
                    }
                }
            }
        }
        finish_step(s, acc, &sums);
    }
}

impl Format for CenteredNibbles {
    type Quad = [i8; 4];

    const MIDDLE: i32 = 0;
    const LINES: usize = 4;
    const UNPACKED: bool = true;

    #[inline(always)]
    fn accumulate<S: Simd, const R: usize, const V: usize>(
        s: S,
        lines: [&[[u8; LINE]]; V],
        quads: &[[Self::Quad; R]; 4],
        acc: &mut [[S::Ints; V]; R],
    ) {
        let mut sums = begin_step(s, acc);
        for g in 0..4 {
            let mut weights = [s.load_nibbles(&lines[0][g]); V];
            for v in 1..V {
                weights[v] = s.load_nibbles(&lines[v][g]);
            }
            for r in 0..R {
                let quad = s.splat_quad(&quads[g][r]);
                for v in 0..V {
                    sums[r][v] = s.dot_centered(sums[r][v], weights[v], quad);
                }
            }
        }
        finish_step(s, acc, &sums);
    }
}

impl UnpackedFormat for CenteredNibbles {
    #[inline(always)]
    fn unpack<S: Simd>(
        s: S,
        packed: &[[u8; LINE]],
        zeros: Option<&[u8; LANES]>,
        lines: &mut [[u8; LINE]],
    ) -> S::Ints {
        // It is outside the loop because the compiler must assume that the stores change the zero points.
        let zeros = s.repeat_zero_points(zeros.unwrap_or(&[Nibbles::MIDDLE as u8; LANES]));
        let mut sum = s.splat_int(0);
        for (packed, lines) in packed.iter().zip(lines.as_chunks_mut::<2>().0) {
            s.prefetch(packed);
            let mut step = s.begin_step(sum);
            for (weights, line) in s.unpack_nibbles(packed).into_iter().zip(lines) {
                let weights = s.center_nibbles(weights, zeros);
                s.store_nibbles(weights, line);
                if S::CENTERED_BIAS != 0 {
                    // The part of the products that comes from the bias.
                    step = s.dot_centered(step, weights, s.splat_quad(&toggle_bias([0; 4], true)));
                }
            }
            sum = s.finish_step(sum, step);
        }
        s.sub_ints(s.splat_int(0), sum)
    }
}

impl Format for WideBytes {
    type Quad = [i16; 4];

    const MIDDLE: i32 = 0;
    const LINES: usize = 8;
    const UNPACKED: bool = true;

    #[inline(always)]
    fn accumulate<S: Simd, const R: usize, const V: usize>(
        s: S,
        lines: [&[[u8; LINE]]; V],
        quads: &[[Self::Quad; R]; 4],
        acc: &mut [[S::Ints; V]; R],
    ) {
        for g in 0..4 {
            for v in 0..V {
                let weights = &lines[v].as_chunks().0[g];
                for r in 0..R {
                    acc[r][v] = s.dot_wide(acc[r][v], weights, &quads[g][r]);
                }
            }
        }
    }
}

impl UnpackedFormat for WideBytes {
    #[inline(always)]
    fn unpack<S: Simd>(
        s: S,
        packed: &[[u8; LINE]],
        zeros: Option<&[u8; LANES]>,
        lines: &mut [[u8; LINE]],
    ) -> S::Ints {
        let zeros = zeros.map_or(s.splat_int(Bytes::MIDDLE), |zeros| s.load_zero_points(zeros));
        for (packed, lines) in packed.iter().zip(lines.as_chunks_mut::<2>().0) {
            s.prefetch(packed);
            s.widen(packed, zeros, lines);
        }
        s.splat_int(0)
    }
}

/// Returns the initial sums of a step of sixteen inputs.
#[inline(always)]
fn begin_step<S: Simd, const R: usize, const V: usize>(
    s: S,
    acc: &[[S::Ints; V]; R],
) -> [[S::StepSums; V]; R] {
    let mut sums = [[s.begin_step(s.splat_int(0)); V]; R];
    for r in 0..R {
        for v in 0..V {
            sums[r][v] = s.begin_step(acc[r][v]);
        }
    }
    sums
}

/// Replaces the sums of all earlier steps by those after this one.
#[inline(always)]
fn finish_step<S: Simd, const R: usize, const V: usize>(
    s: S,
    acc: &mut [[S::Ints; V]; R],
    sums: &[[S::StepSums; V]; R],
) {
    for r in 0..R {
        for v in 0..V {
            acc[r][v] = s.finish_step(acc[r][v], sums[r][v]);
        }
    }
}
