//! Attention of many queries: the values of each block are converted once and multiplied in register tiles.

use std::ops::Range;

use super::{
    Attend, BLOCK, Buffers,
    scores::{StridedRows, load_keys, score, store},
    visible::{load_values, sum_visible},
};
use crate::{
    float::with_rows,
    simd::{LANES, Operation, Simd},
};

#[inline(always)]
pub(super) fn run<S: Simd>(s: S, attend: &Attend<'_>, buffers: &mut Buffers) {
    let last = attend.queries.rows.rows().saturating_sub(1);
    for block in attend.blocks() {
        load_keys(s, attend, buffers, &block);
        let finite = load_values(s, attend, buffers, &block);
        let sums_all = finite || attend.see_all(0, last, &block);
        for panel in buffers.queries.panels() {
            let (first, last) = (panel.start / attend.group(), (panel.end - 1) / attend.group());
            let seen = attend.visible(first).start < block.end && block.start < attend.visible(last).end;
            let keys = if sums_all || attend.see_all(first, last, &block) {
                SummedKeys::All
            } else {
                SummedKeys::Visible
            };
            if seen {
                let (panel, block) = (&panel, &block);
                with_rows!(panel.len(), R => s.run(PanelStep::<R> { attend, buffers, panel, block, keys }));
            }
        }
    }
}

/// Keys of a block whose weighted values are added to the sums.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SummedKeys {
    /// All keys. The weights of invisible keys are 0.
    All,
    /// Only the keys that a query sees, because some values are not finite.
    Visible,
}

/// Operation that computes one panel of `R` queries with one block of keys. It is compiled as a function of its own.
struct PanelStep<'a, 'b, const R: usize> {
    attend: &'a Attend<'b>,
    buffers: &'a mut Buffers,
    panel: &'a Range<usize>,
    block: &'a Range<usize>,
    keys: SummedKeys,
}

impl<const R: usize> Operation for PanelStep<'_, '_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if R > S::FLOAT_ROWS {
            unreachable!("panels have up to {} rows, not {R}", S::FLOAT_ROWS);
        }
        step::<S, R>(s, self);
    }
}

#[inline(always)]
fn step<S: Simd, const R: usize>(s: S, step: PanelStep<'_, '_, R>) {
    let PanelStep { attend, buffers, panel, block, keys } = step;
    // Later keys are invisible to all queries of the panel.
    let last = attend.visible((panel.end - 1) / attend.group());
    let count = last.end.min(block.end) - block.start;
    score::<S, R>(s, buffers, panel, count);
    let factors = buffers.advance(s, attend, panel.clone(), block, count);
    if keys == SummedKeys::Visible {
        return sum_visible(s, attend, buffers, panel.clone(), block, &factors);
    }
    let padded = buffers.padded;
    let Some(weights) = buffers.scores.as_chunks().0.first_chunk::<R>() else { return };
    let (values, sums) =
        (&buffers.values[..count * padded], &mut buffers.part.values[panel.start * padded..]);
    let mut first = 0;
    while first < padded {
        let tile = StridedRows { rows: &values[first..], stride: padded };
        if S::TILES == 2 && padded - first >= 2 * LANES {
            accumulate::<S, R, 2>(s, weights, tile, &factors, &mut sums[first..]);
            first += 2 * LANES;
        } else {
            accumulate::<S, R, 1>(s, weights, tile, &factors, &mut sums[first..]);
            first += LANES;
        }
    }
}

/// Multiplies sums by factors, and adds the rows of a tile, weighted for each query.
#[inline(always)]
fn accumulate<S: Simd, const R: usize, const V: usize>(
    s: S,
    weights: &[[f32; BLOCK]; R],
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
    for (key, row) in tile.rows.chunks(tile.stride).take(BLOCK).enumerate() {
        let (row, _) = row.as_chunks::<LANES>();
        let row = &row[..V];
        for r in 0..R {
            let weight = s.splat(weights[r][key]);
            for v in 0..V {
                sums[r][v] = s.mul_add(s.load(&row[v]), weight, sums[r][v]);
            }
        }
    }
    store::<S, R, V>(s, &sums, tile.stride, out);
}
