//! The way through the columns of a product.

use std::ops::Range;

use crate::simd::LANES;

/// One or two tiles of sixteen columns that are computed together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// First tile.
    pub(crate) tile: usize,
    /// Number of tiles.
    pub(crate) count: usize,
}

/// Place of a register tile in the output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) row: usize,
    pub(crate) step: Step,
}

impl Step {
    /// The steps through a range of columns, of up to `tiles` tiles.
    pub(crate) fn all(columns: &Range<usize>, tiles: usize) -> impl Iterator<Item = Self> + use<> {
        let (first, end) = (columns.start / LANES, columns.end.div_ceil(LANES));
        (first..end).step_by(tiles).map(move |tile| Self { tile, count: tiles.min(end - tile) })
    }

    /// The step's tiles in the rows from this one on.
    pub(crate) fn at(self, row: usize) -> Place {
        Place { row, step: self }
    }
}
