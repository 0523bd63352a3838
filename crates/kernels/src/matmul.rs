//! Products of quantised activations and packed weights.
//!
//! Each output is `Σ blocks (Σ (q - zero) · a) · scale`. The inner sum is exact. The outer sum is a chain of fused
//! multiply-adds from the first block to the last, multiplied by the row's scale at the end. This order is the same for
//! any number of rows, any range of columns and any instruction set, so the results of a row do not depend on the other
//! rows and columns that are computed with it.

use std::{marker::PhantomData, ops::Range};

use crate::{
    activations::{Panel, QuantizedRows},
    aligned::{AlignedBytes, LINE},
    attention::Buffers,
    math::store_part,
    packed::{Bits, PackedMatrix, Tile, Tiles},
    simd::{LANES, Operation, Simd},
    tiling::Step,
    view::MatrixMut,
};

/// Buffers that kernels reuse from call to call; one for each thread.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) bytes: AlignedBytes,
    pub(crate) attention: Buffers,
}

/// Rows of a register tile up to which reading the weights limits the speed.
const PREFETCH_ROWS: usize = 4;

/// Method of reading four-bit weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FourBit {
    /// Nibbles are separated in registers, once for each panel.
    InRegisters,
    /// A tile is unpacked to bytes once, and all panels read the bytes.
    AsBytes,
}

/// Operation that multiplies activations by some columns of a matrix.
pub(crate) struct MatMul<'a> {
    pub(crate) input: &'a QuantizedRows,
    pub(crate) weights: &'a PackedMatrix,
    pub(crate) columns: Range<usize>,
    pub(crate) four_bit: FourBit,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) out: MatrixMut<'a>,
}

impl Operation for MatMul<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        match (self.weights.bits(), self.four_bit) {
            (Bits::Eight, _) => self.walk::<S, Bytes>(s),
            (Bits::Four, FourBit::InRegisters) => self.walk::<S, Nibbles>(s),
            (Bits::Four, FourBit::AsBytes) => self.walk_unpacked(s),
        }
    }
}

impl MatMul<'_> {
    #[inline(always)]
    fn walk<S: Simd, F: Format>(&mut self, s: S) {
        let tiles = self.weights.tiles();
        for step in Step::all(&self.columns, S::TILES) {
            self.multiply::<S, F>(s, &load_tiles(&tiles, step), step);
        }
    }

    #[inline(always)]
    fn walk_unpacked<S: Simd>(&mut self, s: S) {
        let tiles = self.weights.tiles();
        let mut buffer = std::mem::take(&mut self.scratch.bytes);
        for step in Step::all(&self.columns, S::TILES) {
            let mut loaded = load_tiles(&tiles, step);
            let lines = loaded[0].quants.len() * 2;
            let (unpacked, _) = buffer.reserve(2 * lines * LINE).as_chunks_mut::<LINE>();
            for (tile, out) in loaded[..step.count].iter().zip(unpacked.chunks_exact_mut(lines)) {
                for (packed, out) in tile.quants.iter().zip(out.as_chunks_mut::<2>().0) {
                    s.prefetch(packed);
                    let [low, high] = s.unpack_nibbles(packed);
                    s.store_nibbles(low, &mut out[0]);
                    s.store_nibbles(high, &mut out[1]);
                }
            }
            let (first, second) = unpacked.split_at(lines);
            loaded[0].quants = first;
            loaded[1].quants = second;
            self.multiply::<S, UnpackedNibbles>(s, &loaded, step);
        }
        self.scratch.bytes = buffer;
    }

    /// Multiplies all panels by one or two tiles.
    #[inline(always)]
    fn multiply<S: Simd, F: Format>(&mut self, s: S, tiles: &[Tile<'_>; 2], step: Step) {
        let lengths = || self.input.panels().map(|rows| rows.len());
        let (Some(least), Some(most)) = (lengths().min(), lengths().max()) else { return };
        for length in least..=most {
            match length {
                1 => s.run(PanelProducts::<F, 1>::new(self, tiles, step)),
                2 => s.run(PanelProducts::<F, 2>::new(self, tiles, step)),
                3 => s.run(PanelProducts::<F, 3>::new(self, tiles, step)),
                4 => s.run(PanelProducts::<F, 4>::new(self, tiles, step)),
                5 => s.run(PanelProducts::<F, 5>::new(self, tiles, step)),
                6 => s.run(PanelProducts::<F, 6>::new(self, tiles, step)),
                other => unreachable!("panels have up to 6 rows, not {other}"),
            }
        }
    }

    #[inline(always)]
    fn store<S: Simd, const R: usize, const V: usize>(
        &mut self,
        s: S,
        sums: &[[S::Floats; V]; R],
        first_row: usize,
        first_tile: usize,
    ) {
        for r in 0..R {
            let row = self.out.row_mut(first_row + r);
            for v in 0..V {
                let at = (first_tile + v) * LANES - self.columns.start;
                store_part(s, sums[r][v], &mut row[at..]);
            }
        }
    }
}

/// Operation that multiplies the panels of `R` rows by one or two tiles. Each number of rows is compiled as a function of
/// its own; one function for all takes the compiler several times as long.
struct PanelProducts<'a, 'b, F, const R: usize> {
    matmul: &'a mut MatMul<'b>,
    tiles: &'a [Tile<'a>; 2],
    step: Step,
    format: PhantomData<F>,
}

impl<'a, 'b, F: Format, const R: usize> PanelProducts<'a, 'b, F, R> {
    fn new(matmul: &'a mut MatMul<'b>, tiles: &'a [Tile<'a>; 2], step: Step) -> Self {
        Self { matmul, tiles, step, format: PhantomData }
    }
}

impl<F: Format, const R: usize> Operation for PanelProducts<'_, '_, F, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { matmul, tiles, step, .. } = self;
        let input = matmul.input;
        for rows in input.panels().filter(|rows| rows.len() == R) {
            let panel = input.panel(&rows);
            // A product of one row is bound by memory, which is fastest when it is read sequentially.
            if S::TILES == 2 && step.count == 2 && R > 1 {
                let sums = product::<S, F, R, 2>(s, tiles, &panel);
                matmul.store(s, &sums, rows.start, step.tile);
            } else {
                for (at, one) in tiles[..step.count].iter().enumerate() {
                    let sums = product::<S, F, R, 1>(s, &[*one], &panel);
                    matmul.store(s, &sums, rows.start, step.tile + at);
                }
            }
        }
    }
}

fn load_tiles<'a>(tiles: &Tiles<'a>, step: Step) -> [Tile<'a>; 2] {
    [tiles.tile(step.tile), tiles.tile(step.tile + step.count - 1)]
}

/// Layout of weights in lines of 64 bytes.
trait Format {
    /// Integer that represents 0 if there are no zero points.
    const MIDDLE: i32;
    /// Number of lines that contain four groups of four inputs.
    const LINES: usize;
    /// The lines are those of the matrix and not of a copy.
    const STORED: bool = true;

    /// Number that products subtract from each weight.
    fn offset<S: Simd>() -> i32 {
        0
    }

    /// Adds the products of four groups of four inputs.
    fn accumulate<S: Simd, const R: usize, const V: usize>(
        s: S,
        lines: [&[[u8; LINE]]; V],
        quads: &[[[i8; 4]; R]; 4],
        acc: &mut [[S::Ints; V]; R],
    );
}

/// Weights of eight bits.
struct Bytes;

/// Weights of four bits, two in each byte.
struct Nibbles;

/// Weights of four bits, one in each byte.
struct UnpackedNibbles;

impl Format for Bytes {
    const MIDDLE: i32 = 128;
    const LINES: usize = 4;

    fn offset<S: Simd>() -> i32 {
        S::BYTE_OFFSET
    }

    #[inline(always)]
    fn accumulate<S: Simd, const R: usize, const V: usize>(
        s: S,
        lines: [&[[u8; LINE]]; V],
        quads: &[[[i8; 4]; R]; 4],
        acc: &mut [[S::Ints; V]; R],
    ) {
        for g in 0..4 {
            let mut weights = [s.load_bytes(&lines[0][g]); V];
            for v in 1..V {
                weights[v] = s.load_bytes(&lines[v][g]);
            }
            for r in 0..R {
                let quad = s.splat_quad(&quads[g][r]);
                for v in 0..V {
                    acc[r][v] = s.dot_bytes(acc[r][v], weights[v], quad);
                }
            }
        }
    }
}

impl Format for Nibbles {
    const MIDDLE: i32 = 8;
    const LINES: usize = 2;

    #[inline(always)]
    fn accumulate<S: Simd, const R: usize, const V: usize>(
        s: S,
        lines: [&[[u8; LINE]]; V],
        quads: &[[[i8; 4]; R]; 4],
        acc: &mut [[S::Ints; V]; R],
    ) {
        for l in 0..2 {
            let mut weights = [s.unpack_nibbles(&lines[0][l]); V];
            for v in 1..V {
                weights[v] = s.unpack_nibbles(&lines[v][l]);
            }
            for half in 0..2 {
                for r in 0..R {
                    let quad = s.splat_quad(&quads[l * 2 + half][r]);
                    for v in 0..V {
                        acc[r][v] = s.dot_nibbles(acc[r][v], weights[v][half], quad);
                    }
                }
            }
        }
    }
}

impl Format for UnpackedNibbles {
    const MIDDLE: i32 = 8;
    const LINES: usize = 4;
    const STORED: bool = false;

    #[inline(always)]
    fn accumulate<S: Simd, const R: usize, const V: usize>(
        s: S,
        lines: [&[[u8; LINE]]; V],
        quads: &[[[i8; 4]; R]; 4],
        acc: &mut [[S::Ints; V]; R],
    ) {
        for g in 0..4 {
            let mut weights = [s.load_nibbles(&lines[0][g]); V];
            for v in 1..V {
                weights[v] = s.load_nibbles(&lines[v][g]);
            }
            for r in 0..R {
                let quad = s.splat_quad(&quads[g][r]);
                for v in 0..V {
                    acc[r][v] = s.dot_nibbles(acc[r][v], weights[v], quad);
                }
            }
        }
    }
}

/// Computes a register tile: `R` rows by `V` tiles of sixteen columns.
#[inline(always)]
fn product<S: Simd, F: Format, const R: usize, const V: usize>(
    s: S,
    tiles: &[Tile<'_>; V],
    panel: &Panel<'_>,
) -> [[S::Floats; V]; R] {
    let mut sums = [[s.splat(0.0); V]; R];
    let (rows_of_quads, _) = panel.quads.as_chunks::<R>();
    let (rows_of_quads, _) = rows_of_quads.as_chunks::<4>();
    let (rows_of_sums, _) = panel.sums.as_chunks::<R>();
    // A step consists of sixteen inputs.
    let steps = panel.groups / 4;
    for block in 0..panel.blocks {
        let mut acc = start::<S, F, R, V>(s, tiles, block, &rows_of_sums[block]);
        for (step, quads) in rows_of_quads[block * steps..][..steps].iter().enumerate() {
            let line = (block * steps + step) * F::LINES;
            let mut lines = [&tiles[0].quants[line..][..F::LINES]; V];
            for v in 1..V {
                lines[v] = &tiles[v].quants[line..][..F::LINES];
            }
            if R <= PREFETCH_ROWS && F::STORED {
                for v in 0..V {
                    for line in lines[v] {
                        s.prefetch(line);
                    }
                }
            }
            F::accumulate(s, lines, quads, &mut acc);
        }
        for v in 0..V {
            let scale = tiles[v].scales.load(s, block);
            match panel.block_scales {
                None => {
                    for r in 0..R {
                        sums[r][v] = s.mul_add(s.to_floats(acc[r][v]), scale, sums[r][v]);
                    }
                }
                Some(scales) => {
                    let scales = &scales[block * R..][..R];
                    for r in 0..R {
                        let scale = s.mul(scale, s.splat(scales[r]));
                        sums[r][v] = s.mul_add(s.to_floats(acc[r][v]), scale, sums[r][v]);
                    }
                }
            }
        }
    }
    if let Some(scales) = panel.row_scales {
        for r in 0..R {
            let scale = s.splat(scales[r]);
            for v in 0..V {
                sums[r][v] = s.mul(sums[r][v], scale);
            }
        }
    }
    sums
}

/// Returns the initial values of a block's sums, which account for the zero points.
#[inline(always)]
fn start<S: Simd, F: Format, const R: usize, const V: usize>(
    s: S,
    tiles: &[Tile<'_>; V],
    block: usize,
    row_sums: &[i32; R],
) -> [[S::Ints; V]; R] {
    let mut acc = [[s.splat_int(0); V]; R];
    for v in 0..V {
        match tiles[v].zeros {
            None => {
                for r in 0..R {
                    acc[r][v] = s.splat_int((F::offset::<S>() - F::MIDDLE) * row_sums[r]);
                }
            }
            Some(zeros) => {
                let mut zeros = s.load_zero_points(&zeros[block]);
                if F::offset::<S>() != 0 {
                    zeros = s.sub_ints(zeros, s.splat_int(F::offset::<S>()));
                }
                for r in 0..R {
                    acc[r][v] = s.mul_short(zeros, -row_sums[r]);
                }
            }
        }
    }
    acc
}
