//! Products of many rows by a unit that multiplies tiles.
//!
//! The results have the bits of [`MatMul`](crate::matmul::MatMul): the sums of blocks are exact, and the same chain of
//! multiply-adds combines them.

use std::ops::Range;

use crate::{
    activations::{QuantizedRows, TilePanel},
    aligned::{AlignedBytes, LINE},
    math::store_part,
    packed::{Bits, PackedMatrix, Tile},
    simd::{
        LANES, Operation, Simd, TILE_ROWS, TileSums,
        tiles::{TileProduct, TileUnit},
    },
    view::MatrixMut,
};

/// Operation that multiplies activations by some columns of a matrix.
pub(crate) struct TileMatMul<'a> {
    pub(crate) unit: TileUnit,
    pub(crate) input: &'a QuantizedRows,
    pub(crate) weights: &'a PackedMatrix,
    pub(crate) columns: Range<usize>,
    /// Buffer for unpacked weights.
    pub(crate) buffer: &'a mut AlignedBytes,
    pub(crate) out: MatrixMut<'a>,
}

impl Operation for TileMatMul<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { unit, input, weights, columns, buffer, mut out } = self;
        let Some(rows) = input.panels().map(|rows| rows.len()).max() else { return };
        let tiles = weights.tiles();
        let block = weights.block();
        let bits = weights.bits();
        let mut product = Product { tiles: unit.product(rows, block), lines: block / 4, sums: SUMS };
        // Number of lines of unpacked weights of sixteen columns, and one even if there are no inputs.
        let count = (weights.inputs().div_ceil(block) * block / 4).max(1);
        let (lines, _) = buffer.reserve(GROUP * count * LINE).as_chunks_mut::<LINE>();
        let end = columns.end.div_ceil(LANES);

        for first in (columns.start / LANES..end).step_by(GROUP) {
            let group = first..end.min(first + GROUP);
            for (index, lines) in group.clone().zip(lines.chunks_exact_mut(count)) {
                unpack(&tiles.tile(index), bits, block, lines);
            }
            for (panel, rows) in input.panels().enumerate() {
                let panel = input.tile_panel(panel);
                for (index, lines) in group.clone().zip(lines.chunks_exact(count)) {
                    let tile = tiles.tile(index);
                    // Unpacked weights of four bits are relative to their zero points.
                    let zeros = tile.zeros.filter(|_| bits == Bits::Eight);
                    let results = product.run(s, &panel, &Tile { zeros, ..tile }, lines);
                    let column = index * LANES - columns.start;
                    for (row, result) in rows.clone().zip(results) {
                        store_part(s, result, &mut out.row_mut(row)[column..]);
                    }
                }
            }
        }
    }
}

/// Number of tiles of sixteen columns that are multiplied by a panel before the next one, which then remains in the
/// fastest cache.
const GROUP: usize = 8;

const SUMS: [TileSums; 2] = [TileSums([[0; LANES]; TILE_ROWS]); 2];

/// Integer that represents 0 in weights of eight bits without zero points.
const MIDDLE: u8 = 128;

/// Writes the weights of sixteen columns as signed bytes. Those of four bits are relative to their zero points, those of
/// eight bits to [`MIDDLE`].
#[inline(always)]
fn unpack(tile: &Tile<'_>, bits: Bits, block: usize, lines: &mut [[u8; LINE]]) {
    if bits == Bits::Eight {
        for (packed, line) in tile.quants.iter().zip(lines) {
            *line = packed.map(|x| x.wrapping_sub(MIDDLE));
        }
        return;
    }
    let per_block = block / 8;
    let blocks = tile.quants.chunks_exact(per_block).zip(lines.chunks_exact_mut(2 * per_block));
    for (block, (packed, lines)) in blocks.enumerate() {
        let zeros = tile.zeros.map_or([8; LINE], |zeros| std::array::from_fn(|i| zeros[block][i / 4]));
        for (packed, lines) in packed.iter().zip(lines.as_chunks_mut::<2>().0) {
            for i in 0..LINE {
                lines[0][i] = (packed[i] & 15).wrapping_sub(zeros[i]);
                lines[1][i] = (packed[i] >> 4).wrapping_sub(zeros[i]);
            }
        }
    }
}

/// Product of a panel and sixteen columns.
struct Product {
    tiles: TileProduct,
    /// Number of lines of weights in a block.
    lines: usize,
    /// Sums of two blocks: while those of one are combined, the unit computes those of the next.
    sums: [TileSums; 2],
}

impl Product {
    /// Returns the results of sixteen rows. `tile` has the scales, and the zero points for which `lines` do not account.
    #[inline(always)]
    fn run<S: Simd>(
        &mut self,
        s: S,
        panel: &TilePanel<'_>,
        tile: &Tile<'_>,
        lines: &[[u8; LINE]],
    ) -> [S::Floats; TILE_ROWS] {
        let mut results = [s.splat(0.0); TILE_ROWS];
        let blocks = panel.sums.len();
        if blocks > 0 {
            self.start(panel, lines, 0);
        }

        for block in 0..blocks {
            if block + 1 < blocks {
                self.start(panel, lines, block + 1);
            }
            let sums = &self.sums[block % 2].0;
            let scale = tile.scales.load(s, block);
            let row_sums = &panel.sums[block];
            let zeros = tile.zeros.map(|zeros| zero_factors(s, &zeros[block]));
            for r in 0..TILE_ROWS {
                let mut sum = s.load_i32(&sums[r]);
                if let Some(zeros) = zeros {
                    // Integers of this size are exact in single precision.
                    sum = s.mul_add(zeros, s.splat(row_sums[r] as f32), sum);
                }
                let scale = match panel.block_scales {
                    None => scale,
                    Some(scales) => s.mul(scale, s.splat(scales[block][r])),
                };
                results[r] = s.mul_add(sum, scale, results[r]);
            }
            if let Some(offset) = tile.load_offsets(s, block) {
                for r in 0..TILE_ROWS {
                    results[r] = s.mul_add(s.splat(panel.float_sums[block][r]), offset, results[r]);
                }
            }
        }

        if let Some(scales) = panel.row_scales {
            for r in 0..TILE_ROWS {
                results[r] = s.mul(results[r], s.splat(scales[r]));
            }
        }
        results
    }

    /// Computes the sums of a block.
    #[inline(always)]
    fn start(&mut self, panel: &TilePanel<'_>, lines: &[[u8; LINE]], block: usize) {
        let activations = &panel.activations[block * self.lines * 4..];
        let weights = &lines[block * self.lines..][..self.lines];
        self.tiles.multiply(activations, panel.stride, weights, &mut self.sums[block % 2]);
    }
}

/// Returns the factors of a row's negated sum of activations that account for zero points other than [`MIDDLE`].
#[inline(always)]
fn zero_factors<S: Simd>(s: S, zeros: &[u8; LANES]) -> S::Floats {
    s.sub(s.to_floats(s.load_zero_points(zeros)), s.splat(f32::from(MIDDLE)))
}
