//! Sums over the values of visible keys only, for blocks with values that are not finite: a weight of 0 would not
//! cancel such a value of an invisible key.

use std::ops::Range;

use super::{Attend, BLOCK, Buffers, cache::BlockScales};
use crate::{
    math::load_part,
    simd::{LANES, Simd},
};

/// Converts the values of a block without their scales, and returns whether the values and `scales` are finite.
#[inline(always)]
pub(super) fn load_values<S: Simd>(
    s: S,
    attend: &Attend<'_>,
    buffers: &mut Buffers,
    block: &Range<usize>,
    scales: Option<&BlockScales>,
) -> bool {
    let size = attend.attention.head_size;
    let padded = buffers.padded;
    let rows = buffers.values.chunks_exact_mut(padded.max(1));
    for (row, values) in block.clone().zip(rows) {
        attend.cache.values.convert(s, row, &mut values[..size]);
    }
    are_finite(s, scales.map_or(&buffers.values[..block.len() * padded], |scales| scales.as_flattened()))
}

/// Returns whether all numbers are finite.
#[inline(always)]
pub(super) fn are_finite<S: Simd>(s: S, values: &[f32]) -> bool {
    let mut sum = s.splat(0.0);
    let zero = s.splat(0.0);
    for values in values.chunks(LANES) {
        sum = s.mul_add(load_part(s, values, 0.0), zero, sum);
    }
    s.sum(sum) == 0.0
}

/// Adds the weighted values of a block to each query's sums, for the keys that the query sees. The values must be
/// converted, and [`Buffers::advance`] must have replaced the scores by weights.
#[inline(always)]
pub(super) fn sum_visible<S: Simd>(
    s: S,
    attend: &Attend<'_>,
    buffers: &mut Buffers,
    queries: Range<usize>,
    block: &Range<usize>,
    factors: &[f32; LANES],
) {
    let group = attend.group();
    let padded = buffers.padded;
    for (at, query) in queries.enumerate() {
        let Range { start, end } = attend.visible_in(query / group, block);
        let (sums, _) = buffers.part.values[query * padded..][..padded].as_chunks_mut::<LANES>();
        for (tile, sums) in sums.iter_mut().enumerate() {
            let mut total = s.mul(s.load(sums), s.splat(factors[at]));
            for key in start..end.max(start) {
                let (values, _) = buffers.values[key * padded..][..padded].as_chunks::<LANES>();
                let weight = s.splat(buffers.scores[at * BLOCK + key]);
                total = s.mul_add(s.load(&values[tile]), weight, total);
            }
            s.store(total, sums);
        }
    }
}
