//! State of the streaming softmax: the sums of each query over the keys so far.

use std::ops::Range;

use super::{
    Attend, BLOCK,
    cache::{BlockScales, CacheRows},
    split_queries::SplitQueries,
};
use crate::{
    aligned::LINE,
    elementwise::{exp_sum, greatest},
    float::FloatRows,
    math::{exp, load_part, store_part, tanh},
    simd::{LANES, Simd},
    tiling::panels,
    view::MatrixMut,
};

/// Sums of each query over some of the keys.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    /// Maximum score of each query.
    peaks: Vec<f32>,
    /// For each query, the sum of the exponentials of its scores minus the maximum.
    totals: Vec<f32>,
    /// Values weighted by these exponentials, one padded row for each query.
    pub(super) values: Vec<f32>,
    /// Number of elements of a padded row.
    padded: usize,
}

impl Sums {
    /// Clears the sums, and makes room for queries whose padded rows have `padded` elements.
    pub(super) fn reset(&mut self, queries: usize, padded: usize) {
        self.padded = padded;
        refill(&mut self.peaks, queries, f32::NEG_INFINITY);
        refill(&mut self.totals, queries, 0.0);
        refill(&mut self.values, queries * padded, 0.0);
    }

    pub(super) fn queries(&self) -> usize {
        self.peaks.len()
    }

    /// Adds the sums of the same queries over later keys.
    #[inline(always)]
    pub(super) fn merge<S: Simd>(&mut self, s: S, later: &Self) {
        for query in 0..self.queries() {
            let row = query * self.padded..(query + 1) * self.padded;
            let (values, _) = self.values[row.clone()].as_chunks_mut::<LANES>();
            let (more, _) = later.values[row].as_chunks::<LANES>();
            if later.totals[query] == 0.0 {
                continue;
            }
            if self.totals[query] == 0.0 {
                (self.peaks[query], self.totals[query]) = (later.peaks[query], later.totals[query]);
                values.copy_from_slice(more);
                continue;
            }

            // If the scores are NaN, the peak is minus infinity and the total is NaN. The result is then NaN too.
            let peak = self.peaks[query].max(later.peaks[query]);
            let mut factors = [0.0; LANES];
            (factors[0], factors[1]) = (self.peaks[query] - peak, later.peaks[query] - peak);
            s.store(exp(s, s.load(&factors)), &mut factors);
            self.peaks[query] = peak;
            self.totals[query] = self.totals[query] * factors[0] + later.totals[query] * factors[1];

            let factors = [s.splat(factors[0]), s.splat(factors[1])];
            for (values, more) in values.iter_mut().zip(more) {
                let sum = s.mul_add(s.load(more), factors[1], s.mul(s.load(values), factors[0]));
                s.store(sum, values);
            }
        }
    }

    /// Writes the results of all queries, which are heads of `size` elements. The result of a query that saw no key is
    /// zeros.
    #[inline(always)]
    pub(super) fn write<S: Simd>(&self, s: S, size: usize, sinks: &[f32], out: &mut MatrixMut<'_>) {
        let group = out.columns() / size;
        for query in 0..self.queries() {
            let out = &mut out.row_mut(query / group)[query % group * size..][..size];
            if self.totals[query] == 0.0 {
                out.fill(0.0);
                continue;
            }
            let total = s.splat(self.total(s, query, sinks.get(query % group)));
            let values = &self.values[query * self.padded..][..size];
            for (sum, out) in values.chunks(LANES).zip(out.chunks_mut(LANES)) {
                store_part(s, s.div(load_part(s, sum, 0.0), total), out);
            }
        }
    }

    /// Returns the sum of a query's exponentials, with that of its head's sink.
    #[inline(always)]
    fn total<S: Simd>(&self, s: S, query: usize, sink: Option<&f32>) -> f32 {
        let Some(sink) = sink else { return self.totals[query] };
        let mut power = [0.0; LANES];
        power[0] = sink - self.peaks[query];
        s.store(exp(s, s.load(&power)), &mut power);
        self.totals[query] + power[0]
    }
}

/// Buffers for attention, reused from call to call.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// Queries, arranged in panels and multiplied by the factor of the scores, for keys in floating point.
    pub(super) queries: FloatRows,
    /// Queries for keys of eight bits.
    pub(super) split_queries: SplitQueries,
    /// Number of queries, and their maximum number in a panel.
    count: usize,
    panel_rows: usize,
    /// Keys of a block in floating point, 64 numbers for each element.
    pub(super) keys: Vec<f32>,
    /// Keys of a block in eight bits, in lines.
    pub(super) key_lines: Vec<[u8; LINE]>,
    /// Values of a block, one padded row for each key.
    pub(super) values: Vec<f32>,
    /// Scores of a panel, then their exponentials; 64 for each query.
    pub(super) scores: Vec<f32>,
    /// Sums over the current part of the keys.
    pub(super) part: Sums,
    /// Sums over the earlier parts.
    pub(super) sums: Sums,
    /// Number of elements of a padded row.
    pub(super) padded: usize,
}

fn refill<T: Copy>(vec: &mut Vec<T>, len: usize, value: T) {
    vec.clear();
    vec.resize(len, value);
}

impl Buffers {
    /// Arranges the queries in panels of up to `panel_rows` rows, and makes room for all other data.
    #[inline(always)]
    pub(super) fn reset<S: Simd>(&mut self, s: S, attend: &Attend<'_>, padded: usize, panel_rows: usize) {
        let size = attend.attention.head_size;
        self.padded = padded;
        (self.count, self.panel_rows) = (attend.queries.rows.rows() * attend.group(), panel_rows);
        if let CacheRows::I8(_) = attend.cache.keys {
            let panels = self.panels();
            self.split_queries.fill(s, attend, panels);
            let lines = padded * BLOCK / LINE * SplitQueries::lines_per_group::<S>(padded);
            self.key_lines.resize(lines, [0; LINE]);
        } else {
            self.queries.reset(self.count, size, panel_rows);
            for panel in self.panels() {
                for query in panel.clone() {
                    self.queries.set_row(&panel, query, attend.query(query), attend.attention.scale);
                }
            }
            self.keys.resize(padded * BLOCK, 0.0);
        }
        if padded != size {
            // Rows are padded with zeros, and another size of heads may have left other numbers.
            self.values.clear();
        }
        self.values.resize(padded * BLOCK, 0.0);
        self.scores.resize(LANES * BLOCK, 0.0);
    }

    /// Returns the queries of each panel.
    pub(super) fn panels(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        panels(self.count, self.panel_rows)
    }

    /// Multiplies the first `queries` rows of scores or weights by the scales of the keys or values, if they have scales.
    #[inline(always)]
    pub(super) fn scale_scores<S: Simd>(&mut self, s: S, queries: usize, scales: Option<&BlockScales>) {
        let Some(scales) = scales else { return };
        for row in self.scores.as_chunks_mut::<BLOCK>().0.iter_mut().take(queries) {
            for (scores, scales) in row.as_chunks_mut::<LANES>().0.iter_mut().zip(scales) {
                s.store(s.mul(s.load(scores), s.load(scales)), scores);
            }
        }
    }

    /// Replaces the scores of up to sixteen queries for the first `count` keys of a block by their exponentials. The
    /// queries see no later keys. Returns the factors by which the queries' sums of values must be multiplied.
    #[inline(always)]
    pub(super) fn advance<S: Simd>(
        &mut self,
        s: S,
        attend: &Attend<'_>,
        queries: Range<usize>,
        block: &Range<usize>,
        count: usize,
    ) -> [f32; LANES] {
        let group = attend.group();
        let width = count.next_multiple_of(LANES);
        // The factor of a query that sees no key of this block is the exponential of 0.
        let mut distances = [0.0; LANES];
        for (at, query) in queries.clone().enumerate() {
            let Range { start, end } = attend.visible_in(query / group, block);
            let row = &mut self.scores[at * BLOCK..][..width];
            if start >= end {
                continue;
            }
            if let Some(cap) = attend.attention.soft_cap {
                limit(s, row, cap);
            }
            row[..start].fill(f32::NEG_INFINITY);
            row[end..].fill(f32::NEG_INFINITY);
            let peak = s.max_lane(s.max(s.splat(greatest(s, row)), s.splat(self.part.peaks[query])));
            distances[at] = self.part.peaks[query] - peak;
            self.part.peaks[query] = peak;
        }

        let mut factors = [0.0; LANES];
        s.store(exp(s, s.load(&distances)), &mut factors);
        for (at, query) in queries.enumerate() {
            let row = &mut self.scores[at * BLOCK..][..width];
            let visible = attend.visible(query / group);
            if visible.start.max(block.start) < visible.end.min(block.end) {
                self.part.totals[query] =
                    self.part.totals[query] * factors[at] + exp_sum(s, row, self.part.peaks[query]);
            } else {
                row.fill(0.0);
            }
        }
        factors
    }
}

#[inline(always)]
fn limit<S: Simd>(s: S, row: &mut [f32], cap: f32) {
    let cap = s.splat(cap);
    for x in row.as_chunks_mut::<LANES>().0 {
        s.store(s.mul(tanh(s, s.div(s.load(x), cap)), cap), x);
    }
}
