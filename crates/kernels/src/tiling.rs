//! Division of the rows and columns of a product.

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

/// Divides rows into panels of up to `panel_rows` rows. The numbers of rows in two panels differ by at most one.
#[inline]
pub(crate) fn panels(rows: usize, panel_rows: usize) -> impl Iterator<Item = Range<usize>> {
    let count = rows.div_ceil(panel_rows.max(1));
    // The first panels have one row more. A division for each panel would take too much of the time.
    let least = rows / count.max(1);
    let longer = rows % count.max(1);
    (0..count).map(move |panel| {
        let start = panel * least + panel.min(longer);
        let length = least + usize::from(panel < longer);
        start..start + length
    })
}

/// Position of a register tile in the output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TilePosition {
    pub(crate) row: usize,
    pub(crate) step: Step,
}

impl Step {
    /// Divides a range of columns into steps of up to `tiles` tiles.
    pub(crate) fn all(columns: &Range<usize>, tiles: usize) -> impl Iterator<Item = Self> + use<> {
        let first = columns.start / LANES;
        let end = columns.end.div_ceil(LANES);
        (first..end).step_by(tiles).map(move |tile| Self { tile, count: tiles.min(end - tile) })
    }

    /// Returns the position of the step's tiles in the rows that start at `row`.
    pub(crate) fn at(self, row: usize) -> TilePosition {
        TilePosition { row, step: self }
    }
}
