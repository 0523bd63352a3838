//! Few queries: keys and values are read once from the cache, in the cache's precision.

use std::ops::Range;

use half::f16;

use super::{
    Attend, BLOCK, Buffers, FEW,
    cache::{CacheRows, Element},
    visible::{load_values, sum_visible},
};
use crate::simd::{LANES, Simd};

/// Tiles of sixteen elements for which a register tile holds sums of values.
const TILES: usize = 2;

#[inline(always)]
pub(super) fn run<S: Simd>(s: S, attend: &Attend<'_>, buffers: &mut Buffers) {
    match attend.queries.rows.rows() * attend.group() {
        0 => {}
        1 => walk::<S, 1>(s, attend, buffers),
        2 => walk::<S, 2>(s, attend, buffers),
        3 => walk::<S, 3>(s, attend, buffers),
        4 => walk::<S, 4>(s, attend, buffers),
        5 => walk::<S, 5>(s, attend, buffers),
        6 => walk::<S, 6>(s, attend, buffers),
        7 => walk::<S, 7>(s, attend, buffers),
        FEW => walk::<S, FEW>(s, attend, buffers),
        other => unreachable!("{other} queries are not few"),
    }
}

#[inline(always)]
fn walk<S: Simd, const R: usize>(s: S, attend: &Attend<'_>, buffers: &mut Buffers) {
    let queries: [&[f32]; R] = std::array::from_fn(|query| attend.query(query));
    for block in attend.blocks() {
        match attend.cache.keys {
            CacheRows::F32(keys) => score::<S, f32, R>(s, keys, queries, &block, &mut buffers.scores),
            CacheRows::F16(keys) => score::<S, f16, R>(s, keys, queries, &block, &mut buffers.scores),
            CacheRows::I8 { integers, .. } => {
                score::<S, i8, R>(s, integers, queries, &block, &mut buffers.scores);
            }
        }
        for (at, row) in block.clone().enumerate() {
            let scale = attend.cache.keys.scale(row) * attend.attention.scale;
            for r in 0..R {
                buffers.scores[r * BLOCK + at] *= scale;
            }
        }
        let factors = buffers.advance(s, attend, 0..R, &block);
        let whole = attend.see_all(0, attend.queries.rows.rows() - 1, &block);
        if !whole && !load_values(s, attend, buffers, &block) {
            sum_visible(s, attend, buffers, 0..R, &block, &factors);
            continue;
        }
        if let CacheRows::I8 { scales, .. } = attend.cache.values {
            for r in 0..R {
                for (x, scale) in buffers.scores[r * BLOCK..].iter_mut().zip(&scales[block.clone()]) {
                    *x *= scale;
                }
            }
        }
        match attend.cache.values {
            CacheRows::F32(values) => sum::<S, f32, R>(s, values, &block, &factors, buffers),
            CacheRows::F16(values) => sum::<S, f16, R>(s, values, &block, &factors, buffers),
            CacheRows::I8 { integers, .. } => sum::<S, i8, R>(s, integers, &block, &factors, buffers),
        }
    }
}

/// Products of all queries with the keys of a block.
#[inline(always)]
fn score<S: Simd, T: Element, const R: usize>(
    s: S,
    keys: &[T],
    queries: [&[f32]; R],
    block: &Range<usize>,
    scores: &mut [f32],
) {
    let size = queries[0].len();
    let keys = &keys[block.start * size..block.end * size];
    let mut lanes = [queries[0].as_chunks::<LANES>().0; R];
    for r in 1..R {
        lanes[r] = &queries[r].as_chunks::<LANES>().0[..lanes[0].len()];
    }
    for (at, key) in keys.chunks_exact(size).enumerate() {
        let mut sums = [s.splat(0.0); R];
        for (i, key) in key.as_chunks::<LANES>().0.iter().enumerate() {
            let key = T::load(s, key);
            for r in 0..R {
                sums[r] = s.mul_add(key, s.load(&lanes[r][i]), sums[r]);
            }
        }
        for r in 0..R {
            scores[r * BLOCK + at] = s.sum(sums[r]);
        }
    }
}

/// Adds the weighted values of a block to the sums of all queries.
#[inline(always)]
fn sum<S: Simd, T: Element, const R: usize>(
    s: S,
    values: &[T],
    block: &Range<usize>,
    factors: &[f32; LANES],
    buffers: &mut Buffers,
) {
    let size = buffers.padded;
    let values = &values[block.start * size..block.end * size];
    let mut first = 0;
    while first < size {
        if size - first >= TILES * LANES {
            sum_tiles::<S, T, R, TILES>(s, values, first, factors, buffers);
            first += TILES * LANES;
        } else {
            sum_tiles::<S, T, R, 1>(s, values, first, factors, buffers);
            first += LANES;
        }
    }
}

#[inline(always)]
fn sum_tiles<S: Simd, T: Element, const R: usize, const V: usize>(
    s: S,
    values: &[T],
    first: usize,
    factors: &[f32; LANES],
    buffers: &mut Buffers,
) {
    let size = buffers.padded;
    let mut sums = [[s.splat(0.0); V]; R];
    for r in 0..R {
        let (row, _) = buffers.sums[r * size + first..].as_chunks::<LANES>();
        for v in 0..V {
            sums[r][v] = s.mul(s.load(&row[v]), s.splat(factors[r]));
        }
    }
    for (at, row) in values.chunks_exact(size).enumerate() {
        let (row, _) = row[first..].as_chunks::<LANES>();
        let row = &row[..V];
        for v in 0..V {
            let value = T::load(s, &row[v]);
            for r in 0..R {
                sums[r][v] = s.mul_add(value, s.splat(buffers.scores[r * BLOCK + at]), sums[r][v]);
            }
        }
    }
    for r in 0..R {
        let (row, _) = buffers.sums[r * size + first..].as_chunks_mut::<LANES>();
        for v in 0..V {
            s.store(sums[r][v], &mut row[v]);
        }
    }
}
