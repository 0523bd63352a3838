//! Sums of values, weighted by the exponentials of the scores.

use super::{BLOCK, cache::Element, scores::store};
use crate::simd::{LANES, Simd};

/// Multiplies the sums of `R` queries by factors, and adds rows of values, weighted for each query. `exponentials` has 64
/// numbers for each query. Rows have `size` elements, a multiple of sixteen. The scales of values must be part of their
/// weights. Up to `V` tiles of sixteen elements are summed at once.
#[inline(always)]
pub(super) fn add_values<S: Simd, T: Element, const R: usize, const V: usize>(
    s: S,
    values: &[T],
    size: usize,
    exponentials: &[f32],
    factors: &[f32; LANES],
    sums: &mut [f32],
) {
    let mut first = 0;
    while first < size {
        let columns = TileColumns { first, size };
        if size - first >= V * LANES {
            add_tile::<S, T, R, V>(s, values, columns, exponentials, factors, sums);
            first += V * LANES;
        } else if V > 2 && size - first >= 2 * LANES {
            add_tile::<S, T, R, 2>(s, values, columns, exponentials, factors, sums);
            first += 2 * LANES;
        } else {
            add_tile::<S, T, R, 1>(s, values, columns, exponentials, factors, sums);
            first += LANES;
        }
    }
}

/// Columns of a tile: those from `first` on, in rows of `size` elements.
#[derive(Clone, Copy)]
struct TileColumns {
    first: usize,
    size: usize,
}

#[inline(always)]
fn add_tile<S: Simd, T: Element, const R: usize, const V: usize>(
    s: S,
    values: &[T],
    TileColumns { first, size }: TileColumns,
    exponentials: &[f32],
    factors: &[f32; LANES],
    out: &mut [f32],
) {
    let weights = &exponentials.as_chunks::<BLOCK>().0[..R];
    let mut sums = [[s.splat(0.0); V]; R];
    for r in 0..R {
        let (row, _) = out[r * size + first..].as_chunks::<LANES>();
        for v in 0..V {
            sums[r][v] = s.mul(s.load(&row[v]), s.splat(factors[r]));
        }
    }

    for (key, row) in values.chunks_exact(size + T::AFTER_ROW).take(BLOCK).enumerate() {
        let (row, _) = row[first..].as_chunks::<LANES>();
        let row = &row[..V];
        let mut elements = [s.splat(0.0); V];
        for v in 0..V {
            elements[v] = T::load(s, &row[v]);
        }
        for r in 0..R {
            let weight = s.splat(weights[r][key]);
            for v in 0..V {
                sums[r][v] = s.mul_add(elements[v], weight, sums[r][v]);
            }
        }
    }
    store::<S, R, V>(s, &sums, size, &mut out[first..]);
}
