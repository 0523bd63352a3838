//! Products of queries with keys in floating point. Each product is one chain of fused multiply-adds from the first
//! element to the last, regardless of the number of queries.

use std::ops::Range;

use super::{BLOCK, Buffers, cache::Element};
use crate::simd::{LANES, Simd};

/// Converts the keys of a block to 64 numbers for each element. The numbers after the last key are zeros.
#[inline(always)]
pub(super) fn load_keys<S: Simd, T: Element>(
    s: S,
    keys: &[T],
    size: usize,
    block: &Range<usize>,
    out: &mut [f32],
) {
    for first in block.clone().step_by(LANES) {
        let rows = first..block.end.min(first + LANES);
        transpose(s, keys, size, &rows, &mut out[first - block.start..]);
    }
    let end = block.len().next_multiple_of(LANES);
    for element in out.chunks_exact_mut(BLOCK) {
        element[end..].fill(0.0);
    }
}

/// Writes sixteen numbers for each element of up to sixteen rows. The elements are at a distance of 64 numbers.
#[inline(always)]
fn transpose<S: Simd, T: Element>(s: S, keys: &[T], size: usize, rows: &Range<usize>, out: &mut [f32]) {
    for first in (0..size).step_by(LANES) {
        let mut tile = [s.splat(0.0); LANES];
        for (row, out) in rows.clone().zip(&mut tile) {
            let elements = &keys[row * size + first..(row + 1) * size];
            *out = match elements.first_chunk() {
                Some(elements) => T::load(s, elements),
                None => {
                    let mut lanes = [T::ZERO; LANES];
                    lanes[..elements.len()].copy_from_slice(elements);
                    T::load(s, &lanes)
                }
            };
        }
        let columns = s.transpose(tile);
        for (column, out) in columns.into_iter().zip(out[first * BLOCK..].chunks_mut(BLOCK)) {
            if let Some(out) = out.first_chunk_mut() {
                s.store(column, out);
            }
        }
    }
}

/// Computes the products of a panel with the first `count` keys of a block, at a distance of 64 for each query. The
/// numbers after them are unspecified.
#[inline(always)]
pub(super) fn score<S: Simd, const R: usize>(
    s: S,
    buffers: &mut Buffers,
    panel: &Range<usize>,
    count: usize,
) {
    let (queries, _) = buffers.queries.panel(panel).as_chunks::<R>();
    for first in (0..count).step_by(LANES * S::TILES) {
        let keys = &buffers.keys[first..];
        let scores = &mut buffers.scores[first..];
        if S::TILES == 2 {
            multiply::<S, R, 2>(s, queries, keys, scores);
        } else {
            multiply::<S, R, 1>(s, queries, keys, scores);
        }
    }
}

/// Writes the products of a panel with the first `V` tiles of keys to rows of 64 numbers. `keys` has 64 numbers for each
/// element.
#[inline(always)]
fn multiply<S: Simd, const R: usize, const V: usize>(
    s: S,
    panel: &[[f32; R]],
    keys: &[f32],
    out: &mut [f32],
) {
    let mut sums = [[s.splat(0.0); V]; R];
    for (x, row) in panel.iter().zip(keys.chunks(BLOCK)) {
        let (row, _) = row.as_chunks::<LANES>();
        let row = &row[..V];
        for r in 0..R {
            let x = s.splat(x[r]);
            for v in 0..V {
                sums[r][v] = s.mul_add(s.load(&row[v]), x, sums[r][v]);
            }
        }
    }
    store::<S, R, V>(s, &sums, BLOCK, out);
}

/// Stores a register tile in rows at a distance of `stride` numbers.
#[inline(always)]
pub(super) fn store<S: Simd, const R: usize, const V: usize>(
    s: S,
    sums: &[[S::Floats; V]; R],
    stride: usize,
    out: &mut [f32],
) {
    for r in 0..R {
        let (row, _) = out[r * stride..].as_chunks_mut::<LANES>();
        for v in 0..V {
            s.store(sums[r][v], &mut row[v]);
        }
    }
}
