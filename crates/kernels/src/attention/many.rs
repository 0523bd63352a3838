//! Many queries: each block of keys and values is converted once, and multiplied in register tiles.

use std::ops::Range;

use super::{
    Attend, BLOCK, Buffers,
    visible::{are_finite, sum_visible},
};
use crate::{
    float::with_rows,
    simd::{LANES, Simd},
};

#[inline(always)]
pub(super) fn run<S: Simd>(s: S, attend: &Attend<'_>, buffers: &mut Buffers) {
    let size = attend.attention.head_size;
    let count = attend.queries.rows.rows() * attend.group();
    buffers.queries.reset(count, size, S::FLOAT_ROWS);
    for panel in buffers.queries.panels() {
        for query in panel.clone() {
            buffers.queries.set_row(&panel, query, attend.query(query), attend.attention.scale);
        }
    }
    let last = attend.queries.rows.rows().saturating_sub(1);
    for block in attend.blocks() {
        load(s, attend, buffers, &block);
        let values = &buffers.values[..block.len() * buffers.padded];
        let sums_all = attend.see_all(0, last, &block) || are_finite(s, values);
        for panel in buffers.queries.panels() {
            let (first, last) = (panel.start / attend.group(), (panel.end - 1) / attend.group());
            let seen = attend.visible(first).start < block.end && block.start < attend.visible(last).end;
            let keys =
                if sums_all || attend.see_all(first, last, &block) { Summed::All } else { Summed::Visible };
            if seen {
                let (panel, block) = (&panel, &block);
                with_rows!(panel.len(), step::<S>(s, attend, buffers, panel, block, keys));
            }
        }
    }
}

/// Keys of a block whose weighted values are added.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Summed {
    /// All of them; the weights of invisible ones are 0.
    All,
    /// Those that a query sees, because values are not finite.
    Visible,
}

/// Converts a block: keys by element, values by key.
#[inline(always)]
fn load<S: Simd>(s: S, attend: &Attend<'_>, buffers: &mut Buffers, block: &Range<usize>) {
    let (size, padded) = (attend.attention.head_size, buffers.padded);
    for (at, row) in block.clone().enumerate() {
        // The row of values holds the key until it is spread over the elements.
        let values = &mut buffers.values[at * padded..][..size];
        attend.cache.keys.convert(s, row, values);
        for (slot, x) in buffers.keys[at..].iter_mut().step_by(BLOCK).zip(values.iter()) {
            *slot = *x;
        }
        attend.cache.values.convert(s, row, values);
    }
    for element in buffers.keys.chunks_exact_mut(BLOCK) {
        element[block.len()..].fill(0.0);
    }
}

/// One panel of queries with one block of keys.
#[inline(always)]
fn step<S: Simd, const R: usize>(
    s: S,
    attend: &Attend<'_>,
    buffers: &mut Buffers,
    panel: &Range<usize>,
    block: &Range<usize>,
    keys: Summed,
) {
    let (queries, _) = buffers.queries.panel(panel).as_chunks::<R>();
    for first in (0..BLOCK).step_by(LANES * S::TILES) {
        let (keys, scores) = (&buffers.keys[first..], &mut buffers.scores[first..]);
        if S::TILES == 2 {
            multiply::<S, R, 2>(s, queries, StridedRows { rows: keys, stride: BLOCK }, scores);
        } else {
            multiply::<S, R, 1>(s, queries, StridedRows { rows: keys, stride: BLOCK }, scores);
        }
    }
    let factors = buffers.advance(s, attend, panel.clone(), block);
    if keys == Summed::Visible {
        return sum_visible(s, attend, buffers, panel.clone(), block, &factors);
    }
    for (at, scores) in buffers.scores.chunks_exact(BLOCK).take(R).enumerate() {
        for (slot, x) in buffers.weights[at..].iter_mut().step_by(R).zip(scores) {
            *slot = *x;
        }
    }
    let padded = buffers.padded;
    let (weights, _) = buffers.weights[..block.len() * R].as_chunks::<R>();
    let sums = &mut buffers.sums[panel.start * padded..];
    let mut first = 0;
    while first < padded {
        let tile = StridedRows { rows: &buffers.values[first..], stride: padded };
        if S::TILES == 2 && padded - first >= 2 * LANES {
            accumulate::<S, R, 2>(s, weights, tile, &factors, &mut sums[first..]);
            first += 2 * LANES;
        } else {
            accumulate::<S, R, 1>(s, weights, tile, &factors, &mut sums[first..]);
            first += LANES;
        }
    }
}

/// Rows of numbers that stand so far apart; the first of each belong to the tile.
#[derive(Clone, Copy)]
struct StridedRows<'a> {
    rows: &'a [f32],
    stride: usize,
}

/// Writes the product of a panel and a tile to rows of 64 numbers.
#[inline(always)]
fn multiply<S: Simd, const R: usize, const V: usize>(
    s: S,
    panel: &[[f32; R]],
    tile: StridedRows<'_>,
    out: &mut [f32],
) {
    let sums = product(s, panel, tile, [[s.splat(0.0); V]; R]);
    store::<S, R, V>(s, &sums, BLOCK, out);
}

/// Adds the product of a panel and a tile to rows that are multiplied with factors first.
#[inline(always)]
fn accumulate<S: Simd, const R: usize, const V: usize>(
    s: S,
    panel: &[[f32; R]],
    tile: StridedRows<'_>,
    factors: &[f32; LANES],
    out: &mut [f32],
) {
    let mut sums = [[s.splat(0.0); V]; R];
    for r in 0..R {
        let (row, _) = out[r * tile.stride..].as_chunks::<LANES>();
        for v in 0..V {
            sums[r][v] = s.mul(s.load(&row[v]), s.splat(factors[r]));
        }
    }
    let sums = product(s, panel, tile, sums);
    store::<S, R, V>(s, &sums, tile.stride, out);
}

#[inline(always)]
fn product<S: Simd, const R: usize, const V: usize>(
    s: S,
    panel: &[[f32; R]],
    tile: StridedRows<'_>,
    mut sums: [[S::Floats; V]; R],
) -> [[S::Floats; V]; R] {
    for (x, row) in panel.iter().zip(tile.rows.chunks(tile.stride)) {
        let (row, _) = row.as_chunks::<LANES>();
        let row = &row[..V];
        for r in 0..R {
            let x = s.splat(x[r]);
            for v in 0..V {
                sums[r][v] = s.mul_add(s.load(&row[v]), x, sums[r][v]);
            }
        }
    }
    sums
}

#[inline(always)]
fn store<S: Simd, const R: usize, const V: usize>(
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
