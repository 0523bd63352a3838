//! Layouts of weights in products, and the products of sixteen inputs in each.

use crate::{aligned::LINE, simd::Simd};

/// Layout of weights in lines of 64 bytes.
pub(crate) trait Format {
    /// Integer that represents 0 if there are no zero points.
    const MIDDLE: i32;
    /// Number of lines that contain four groups of four inputs.
    const LINES: usize;
    /// The lines are a copy of the matrix's, relative to the zero points, and blocks have initial sums.
    const UNPACKED: bool = false;

    /// Number that products subtract from each weight.
    fn offset<S: Simd>() -> i32 {
        0
    }

    /// Adds the products of four groups of four inputs.
    fn accumulate<S: Simd, const R: usize, const V: usize>(
        s: S,
        lines: [&[[u8; LINE]]; V],
        quads: &[[[i8; 4]; R]; 4],
        acc: &mut [[S::Ints; V]; R],
    );
}

/// Weights of eight bits.
pub(crate) struct Bytes;

/// Weights of four bits, two in each byte.
pub(crate) struct Nibbles;

/// Weights of four bits as signed bytes, relative to their zero points.
pub(crate) struct CenteredNibbles;

impl Format for Bytes {
    const MIDDLE: i32 = 128;
    const LINES: usize = 4;

    fn offset<S: Simd>() -> i32 {
        S::BYTE_OFFSET
    }

    #[inline(always)]
    fn accumulate<S: Simd, const R: usize, const V: usize>(
        s: S,
        lines: [&[[u8; LINE]]; V],
        quads: &[[[i8; 4]; R]; 4],
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
    const MIDDLE: i32 = 8;
    const LINES: usize = 2;

    #[inline(always)]
    fn accumulate<S: Simd, const R: usize, const V: usize>(
        s: S,
        lines: [&[[u8; LINE]]; V],
        quads: &[[[i8; 4]; R]; 4],
        acc: &mut [[S::Ints; V]; R],
    ) {
        for l in 0..2 {
            let mut weights = [s.unpack_nibbles(&lines[0][l]); V];
            for v in 1..V {
                weights[v] = s.unpack_nibbles(&lines[v][l]);
            }
            for half in 0..2 {
                for r in 0..R {
                    let quad = s.splat_quad(&quads[l * 2 + half][r]);
                    for v in 0..V {
                        acc[r][v] = s.dot_nibbles(acc[r][v], weights[v][half], quad);
                    }
                }
            }
        }
    }
}

impl Format for CenteredNibbles {
    const MIDDLE: i32 = 0;
    const LINES: usize = 4;
    const UNPACKED: bool = true;

    #[inline(always)]
    fn accumulate<S: Simd, const R: usize, const V: usize>(
        s: S,
        lines: [&[[u8; LINE]]; V],
        quads: &[[[i8; 4]; R]; 4],
        acc: &mut [[S::Ints; V]; R],
    ) {
        for g in 0..4 {
            let mut weights = [s.load_nibbles(&lines[0][g]); V];
            for v in 1..V {
                weights[v] = s.load_nibbles(&lines[v][g]);
            }
            for r in 0..R {
                let quad = s.splat_quad(&quads[g][r]);
                for v in 0..V {
                    acc[r][v] = s.dot_centered(acc[r][v], weights[v], quad);
                }
            }
        }
    }
}
