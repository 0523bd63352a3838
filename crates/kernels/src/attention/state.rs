//! The streaming softmax: what is known of each query after some blocks of keys.

use std::ops::Range;

use super::{Attend, BLOCK};
use crate::{
    elementwise::{exp_sum, greatest},
    float::FloatRows,
    math::{exp, load_part, store_part, tanh},
    simd::{LANES, Simd},
};

/// Buffers of attention, reusable from call to call.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// Queries in panels.
    pub(super) queries: FloatRows,
    /// Keys of a block: 64 numbers for each element.
    pub(super) keys: Vec<f32>,
    /// Values of a block: a padded row for each key.
    pub(super) values: Vec<f32>,
    /// Scores of a panel, then their exponentials: 64 for each query.
    pub(super) scores: Vec<f32>,
    /// Exponentials of a panel: one of each query for each key.
    pub(super) weights: Vec<f32>,
    /// Weighted sums of values: a padded row for each query.
    pub(super) sums: Vec<f32>,
    /// Number of elements of a padded row.
    pub(super) padded: usize,
    /// Greatest score of each query.
    peaks: Vec<f32>,
    /// Sum of the exponentials of each query's distances to its greatest score.
    totals: Vec<f32>,
}

fn refill<T: Copy>(vec: &mut Vec<T>, len: usize, value: T) {
    vec.clear();
    vec.resize(len, value);
}

impl Buffers {
    /// Makes room for queries with padded rows of so many elements, and forgets all keys.
    pub(super) fn reset(&mut self, queries: usize, padded: usize) {
        self.padded = padded;
        refill(&mut self.keys, padded * BLOCK, 0.0);
        refill(&mut self.values, padded * BLOCK, 0.0);
        refill(&mut self.scores, LANES * BLOCK, 0.0);
        refill(&mut self.weights, LANES * BLOCK, 0.0);
        refill(&mut self.sums, queries * padded, 0.0);
        refill(&mut self.peaks, queries, f32::NEG_INFINITY);
        refill(&mut self.totals, queries, 0.0);
    }

    /// Replaces the scores of up to sixteen queries with a block of keys by their exponentials, and returns the factors
    /// that the queries' sums of values need.
    #[inline(always)]
    pub(super) fn advance<S: Simd>(
        &mut self,
        s: S,
        attend: &Attend<'_>,
        queries: Range<usize>,
        block: &Range<usize>,
    ) -> [f32; LANES] {
        let group = attend.group();
        // The factor of a query that sees nothing here is the exponential of 0.
        let mut distances = [0.0; LANES];
        for (at, query) in queries.clone().enumerate() {
            let visible = attend.visible(query / group);
            let start = visible.start.clamp(block.start, block.end) - block.start;
            let end = visible.end.clamp(block.start, block.end) - block.start;
            let row = &mut self.scores[at * BLOCK..][..BLOCK];
            if start >= end {
                continue;
            }
            if let Some(cap) = attend.attention.soft_cap {
                limit(s, row, cap);
            }
            row[..start].fill(f32::NEG_INFINITY);
            row[end..].fill(f32::NEG_INFINITY);
            let peak = s.max_lane(s.max(s.splat(greatest(s, row)), s.splat(self.peaks[query])));
            distances[at] = self.peaks[query] - peak;
            self.peaks[query] = peak;
        }
        let mut factors = [0.0; LANES];
        s.store(exp(s, s.load(&distances)), &mut factors);
        for (at, query) in queries.enumerate() {
            let row = &mut self.scores[at * BLOCK..][..BLOCK];
            let visible = attend.visible(query / group);
            if visible.start.max(block.start) < visible.end.min(block.end) {
                self.totals[query] = self.totals[query] * factors[at] + exp_sum(s, row, self.peaks[query]);
            } else {
                row.fill(0.0);
            }
        }
        factors
    }

    /// Greatest score of each query, and the sum of the exponentials of its distances to it.
    pub(super) fn peaks_and_totals(&self) -> (&[f32], &[f32]) {
        (&self.peaks, &self.totals)
    }

    /// Writes a query's result; zeros where it saw no key.
    #[inline(always)]
    pub(super) fn write<S: Simd>(&self, s: S, query: usize, out: &mut [f32]) {
        let sums = &self.sums[query * self.padded..][..out.len()];
        if self.totals[query] == 0.0 {
            return out.fill(0.0);
        }
        let total = s.splat(self.totals[query]);
        for (sum, out) in sums.chunks(LANES).zip(out.chunks_mut(LANES)) {
            store_part(s, s.div(load_part(s, sum, 0.0), total), out);
        }
    }
}

#[inline(always)]
fn limit<S: Simd>(s: S, row: &mut [f32], cap: f32) {
    let cap = s.splat(cap);
    for x in row.as_chunks_mut::<LANES>().0 {
        s.store(s.mul(tanh(s, s.div(s.load(x), cap)), cap), x);
    }
}
