//! Attention of few queries: keys and values are read once from the cache, in the cache's precision.

use std::ops::Range;

use half::f16;

use super::{
    Attend, BLOCK, Buffers,
    cache::{CacheRows, Element},
    integer_scores,
    visible_keys::{load_values, sum_visible},
    weighted_sum::add_values,
};
use crate::simd::{LANES, Operation, Simd};

/// Maximum number of queries for which a register tile of sums of values has four tiles of sixteen elements. For more
/// queries, it has two.
const WIDE_TILE_QUERIES: usize = 4;

#[inline(always)]
pub(super) fn run<S: Simd>(s: S, attend: &Attend<'_>, buffers: &mut Buffers) {
    for block in attend.blocks() {
        match attend.queries.rows.rows() * attend.group() {
            0 => {}
            1 => s.run(AttendBlock::<1> { attend, buffers, block: &block }),
            2 => s.run(AttendBlock::<2> { attend, buffers, block: &block }),
            3 => s.run(AttendBlock::<3> { attend, buffers, block: &block }),
            4 => s.run(AttendBlock::<4> { attend, buffers, block: &block }),
            5 => s.run(AttendBlock::<5> { attend, buffers, block: &block }),
            6 => s.run(AttendBlock::<6> { attend, buffers, block: &block }),
            7 => s.run(AttendBlock::<7> { attend, buffers, block: &block }),
            8 => s.run(AttendBlock::<8> { attend, buffers, block: &block }),
            other => unreachable!("expected few queries, found {other}"),
        }
    }
}

/// Operation that computes `R` queries with one block of keys. It is compiled as a function of its own.
struct AttendBlock<'a, 'b, const R: usize> {
    attend: &'a Attend<'b>,
    buffers: &'a mut Buffers,
    block: &'a Range<usize>,
}

impl<const R: usize> Operation for AttendBlock<'_, '_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { attend, buffers, block } = self;
        let queries = 0..R;
        let size = attend.attention.head_size;
        match attend.cache.keys {
            CacheRows::F32(keys) => score::<S, f32, R>(s, keys, block, buffers),
            CacheRows::F16(keys) => score::<S, f16, R>(s, keys, block, buffers),
            CacheRows::I8(keys) => {
                integer_scores::load_keys(s, keys, size, block, &mut buffers.key_lines);
                integer_scores::score::<S, R>(s, buffers, &queries, block.len());
            }
        }
        buffers.scale_scores(s, R, attend.cache.keys.scales(size, block).as_ref());
        let factors = buffers.advance(s, attend, queries.clone(), block, block.len());
        let scales = attend.cache.values.scales(size, block);
        buffers.scale_scores(s, R, scales.as_ref());
        let all = attend.see_all(0, attend.queries.rows.rows() - 1, block);
        match attend.cache.values {
            _ if !all && !load_values(s, attend, buffers, block, scales.as_ref()) => {
                sum_visible(s, attend, buffers, queries, block, &factors);
            }
            CacheRows::F32(values) => sum::<S, f32, R>(s, values, block, &factors, buffers),
            CacheRows::F16(values) => sum::<S, f16, R>(s, values, block, &factors, buffers),
            CacheRows::I8(values) => sum::<S, i8, R>(s, values, block, &factors, buffers),
        }
    }
}

/// Computes the products of all queries with keys in floating point, at a distance of 64 for each query. Sixteen keys
/// at a time are transposed in registers. The products have the bits of [`super::scores`].
#[inline(always)]
fn score<S: Simd, T: Element, const R: usize>(s: S, keys: &[T], block: &Range<usize>, buffers: &mut Buffers) {
    let width = buffers.padded;
    let (queries, _) = buffers.queries.panel(&(0..R)).as_chunks::<R>();
    for first in block.clone().step_by(LANES) {
        let keys = &keys[first * width..block.end.min(first + LANES) * width];
        let mut sums = [s.splat(0.0); R];
        for (tile, queries) in queries.as_chunks::<LANES>().0.iter().enumerate() {
            let mut rows = [s.splat(0.0); LANES];
            for (key, row) in keys.chunks_exact(width).zip(&mut rows) {
                *row = T::load(s, &key.as_chunks().0[tile]);
            }
            for (elements, query) in s.transpose(rows).into_iter().zip(queries) {
                for r in 0..R {
                    sums[r] = s.mul_add(elements, s.splat(query[r]), sums[r]);
                }
            }
        }
        for r in 0..R {
            let (scores, _) = buffers.scores[r * BLOCK..][..BLOCK].as_chunks_mut::<LANES>();
            s.store(sums[r], &mut scores[(first - block.start) / LANES]);
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
    let width = size + T::AFTER_ROW;
    let values = &values[block.start * width..block.end * width];
    let weights = &buffers.scores;
    let sums = &mut buffers.part.values;
    if R <= WIDE_TILE_QUERIES {
        add_values::<S, T, R, 4>(s, values, size, weights, factors, sums);
    } else {
        add_values::<S, T, R, 2>(s, values, size, weights, factors, sums);
    }
}
