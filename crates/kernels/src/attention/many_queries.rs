//! Attention of many queries: the keys and values of each block are arranged once and multiplied in register tiles.

use std::ops::Range;

use super::{
    Attend, Buffers,
    cache::{BlockScales, CacheRows},
    integer_scores,
    scores::{load_keys, score},
    visible_keys::{load_values, sum_visible},
    weighted_sum::add_values,
};
use crate::{
    float::with_rows,
    simd::{Operation, Simd},
};

#[inline(always)]
pub(super) fn run<S: Simd>(s: S, attend: &Attend<'_>, buffers: &mut Buffers) {
    let last = attend.queries.rows.rows().saturating_sub(1);
    for block in attend.blocks() {
        let size = attend.attention.head_size;
        match attend.cache.keys {
            CacheRows::F32(keys) => load_keys(s, keys, size, &block, &mut buffers.keys),
            CacheRows::F16(keys) => load_keys(s, keys, size, &block, &mut buffers.keys),
            CacheRows::I8(keys) => integer_scores::load_keys(s, keys, size, &block, &mut buffers.key_lines),
        }

        let scales = [attend.cache.keys, attend.cache.values].map(|rows| rows.scales(size, &block));
        let finite = load_values(s, attend, buffers, &block, scales[1].as_ref());
        let sums_all = finite || attend.see_all(0, last, &block);
        for panel in buffers.panels() {
            let first = panel.start / attend.group();
            let last = (panel.end - 1) / attend.group();
            let seen = attend.visible(first).start < block.end && block.start < attend.visible(last).end;
            let keys = if sums_all || attend.see_all(first, last, &block) {
                SummedKeys::All
            } else {
                SummedKeys::Visible
            };
            if seen {
                let panel = &panel;
                let block = &block;
                let scales = &scales;
                with_rows!(panel.len(), R => {
                    s.run(PanelStep::<R> { attend, buffers, panel, block, scales, keys });
                });
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
    /// Scales of the keys and of the values.
    scales: &'a [Option<BlockScales>; 2],
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
    let PanelStep { attend, buffers, panel, block, scales: [key_scales, value_scales], keys } = step;
    // Later keys are invisible to all queries of the panel.
    let last = attend.visible((panel.end - 1) / attend.group());
    let count = last.end.min(block.end) - block.start;
    if let CacheRows::I8(_) = attend.cache.keys {
        integer_scores::score::<S, R>(s, buffers, panel, count);
    } else {
        score::<S, R>(s, buffers, panel, count);
    }
    buffers.scale_scores(s, R, key_scales.as_ref());
    let factors = buffers.advance(s, attend, panel.clone(), block, count);
    buffers.scale_scores(s, R, value_scales.as_ref());
    if keys == SummedKeys::Visible {
        return sum_visible(s, attend, buffers, panel.clone(), block, &factors);
    }
    let size = buffers.padded;
    let values = &buffers.values[..count * size];
    let scores = &buffers.scores;
    let sums = &mut buffers.part.values[panel.start * size..];
    if S::TILES == 2 {
        add_values::<S, f32, R, 2>(s, values, size, scores, &factors, sums);
    } else {
        add_values::<S, f32, R, 1>(s, values, size, scores, &factors, sums);
    }
}
