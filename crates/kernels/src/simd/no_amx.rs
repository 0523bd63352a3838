//! Stand-in for AMX where the processor or the operating system has no tiles.

use super::LANES;
use crate::aligned::LINE;

/// Number of rows in a tile.
pub(crate) const TILE_ROWS: usize = 16;

/// Proof of AMX, which cannot exist here.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Amx {}

/// Sums of products: 16 rows of 16 columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileSums(pub(crate) [[i32; LANES]; TILE_ROWS]);

/// Shapes of tiles, which cannot exist here.
#[derive(Debug)]
pub(crate) enum TileShapes {}

impl Amx {
    pub(crate) fn detect() -> Option<Self> {
        None
    }

    pub(crate) fn shapes(self, _rows: usize, _block: usize) -> TileShapes {
        match self {}
    }
}

impl TileShapes {
    pub(crate) fn multiply(
        &self,
        _activations: &[u8],
        _stride: usize,
        _weights: &[[u8; LINE]],
        _sums: &mut TileSums,
    ) {
        match *self {}
    }
}
