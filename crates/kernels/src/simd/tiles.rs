//! Units that multiply tiles of bytes: AMX, and the matrix instructions of Arm (i8mm).

#[cfg(target_arch = "aarch64")]
use super::i8mm::I8mm;
use super::{TILE_ROWS, TileSums, amx};
use crate::aligned::LINE;

/// A unit of this processor.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TileUnit {
    Amx(amx::Amx),
    #[cfg(target_arch = "aarch64")]
    I8mm(I8mm),
}

/// Products of tiles of one shape.
#[derive(Debug)]
pub(crate) enum TileProduct {
    Amx(amx::TileShapes),
    #[cfg(target_arch = "aarch64")]
    I8mm {
        unit: I8mm,
        rows: usize,
        block: usize,
    },
}

impl TileUnit {
    /// Returns the unit of this processor.
    pub(crate) fn detect() -> Option<Self> {
        #[cfg(target_arch = "aarch64")]
        if let Some(unit) = I8mm::detect() {
            return Some(Self::I8mm(unit));
        }
        amx::Amx::detect().map(Self::Amx)
    }

    /// Returns its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Amx(_) => "AMX",
            #[cfg(target_arch = "aarch64")]
            Self::I8mm(_) => "NEON i8mm",
        }
    }

    /// Returns the products of up to `rows` rows of activations with blocks of `block` inputs.
    ///
    /// # Panics
    /// Panics if there are no or more than 16 rows, or blocks have no kernel.
    pub(crate) fn product(self, rows: usize, block: usize) -> TileProduct {
        assert!((1..=TILE_ROWS).contains(&rows), "{rows} rows");
        assert!([16, 32, 64, 128].contains(&block), "blocks of {block}");
        match self {
            Self::Amx(unit) => TileProduct::Amx(unit.shapes(rows, block)),
            #[cfg(target_arch = "aarch64")]
            Self::I8mm(unit) => TileProduct::I8mm { unit, rows, block },
        }
    }
}

impl TileProduct {
    /// Multiplies one block of rows by one block of 16 columns. The rows of `activations` are `stride` bytes apart. Each
    /// line of `weights` has four inputs of each column, as signed bytes. Replaces the sums of the rows.
    ///
    /// # Panics
    /// Panics if a slice is too short.
    #[inline(always)]
    pub(crate) fn multiply(
        &self,
        activations: &[u8],
        stride: usize,
        weights: &[[u8; LINE]],
        sums: &mut TileSums,
    ) {
        match self {
            Self::Amx(shapes) => shapes.multiply(activations, stride, weights, sums),
            #[cfg(target_arch = "aarch64")]
            Self::I8mm { unit, rows, block } => {
                let lines = &weights[..block / 4];
                // The memory of a panel has all rows of a tile.
                for first in (0..*rows).step_by(I8mm::ROWS) {
                    let rows: [&[u8]; I8mm::ROWS] =
                        std::array::from_fn(|row| &activations[(first + row) * stride..][..*block]);
                    unit.multiply(rows, lines, &mut sums.0[first..]);
                }
            }
        }
    }
}
