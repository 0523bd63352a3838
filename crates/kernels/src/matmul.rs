//! Products of quantised activations and packed weights.
//!
//! Each output is `Σ blocks (Σ (q - zero) · a) · scale + (Σ a) · offset`. The inner sums are exact. The outer sum is a
//! chain of fused multiply-adds from the first block to the last, multiplied by the row's scale at the end. This order is the same for
//! any number of rows, any range of columns and any instruction set, so the results of a row do not depend on the other
//! rows and columns that are computed with it.

use std::{marker::PhantomData, mem::take, ops::Range, slice::ChunksExact};

use crate::{
    activations::{Panel, QuantizedRows, toggle_bias},
    aligned::{AlignedBytes, LINE},
    attention::Buffers,
    formats::{Bytes, CenteredNibbles, Format, Nibbles, UnpackedFormat, WideBytes},
    math::store_part,
    packed::{Bits, PackedMatrix, Tile, Tiles},
    simd::{LANES, Operation, Simd},
    tiling::Step,
    view::MatrixMut,
};

/// Buffers that kernels reuse from call to call; one for each thread.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Unpacked weights.
    pub(crate) bytes: AlignedBytes,
    /// Initial sums of blocks of unpacked weights.
    starts: Vec<[i32; LANES]>,
    /// Activations with the bias that the weights need.
    quads: Vec<[i8; 4]>,
    /// Activations in sixteen bits.
    wide: Vec<[i16; 4]>,
    pub(crate) attention: Buffers,
}

/// Rows of a register tile up to which reading the weights limits the speed.
const PREFETCH_ROWS: usize = 4;

/// Place to which weights are unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unpack {
    /// Registers, once for each panel.
    Registers,
    /// A buffer, once for all panels, which read the unpacked weights of a tile. Weights of eight bits are unpacked only if
    /// this is faster on the instruction set.
    Buffer,
}

/// Operation that multiplies activations by some columns of a matrix.
pub(crate) struct MatMul<'a> {
    pub(crate) input: &'a QuantizedRows,
    pub(crate) weights: &'a PackedMatrix,
    pub(crate) columns: Range<usize>,
    pub(crate) unpack: Unpack,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) out: MatrixMut<'a>,
}

impl Operation for MatMul<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        match (self.weights.bits(), self.unpack) {
            (Bits::Eight, Unpack::Buffer) if S::WIDENS => self.multiply_wide(s),
            (Bits::Eight, _) => self.multiply_packed::<S, Bytes>(s),
            (Bits::Four, Unpack::Registers) => self.multiply_packed::<S, Nibbles>(s),
            (Bits::Four, Unpack::Buffer) => self.multiply_centered(s),
        }
    }
}

/// Weights of sixteen columns.
#[derive(Clone, Copy)]
struct Columns<'a> {
    /// Scales and zero points, and the integers in the layout of a [`Format`].
    tile: Tile<'a>,
    /// Initial sums of blocks, if the format has them.
    starts: &'a [[i32; LANES]],
}

impl MatMul<'_> {
    #[inline(always)]
    fn multiply_packed<S: Simd, F: Format<Quad = [i8; 4]>>(&mut self, s: S) {
        let tiles = self.weights.tiles();
        let mut copy = take(&mut self.scratch.quads);
        let quads = with_bias(self.input, false, &mut copy);
        for step in Step::all(&self.columns, S::TILES) {
            let columns = load_tiles(&tiles, step).map(|tile| Columns { tile, starts: &[] });
            self.multiply::<S, F>(s, &columns, quads, step);
        }
        self.scratch.quads = copy;
    }

    #[inline(always)]
    fn multiply_centered<S: Simd>(&mut self, s: S) {
        let mut copy = take(&mut self.scratch.quads);
        let quads = with_bias(self.input, S::CENTERED_BIAS != 0, &mut copy);
        self.multiply_unpacked::<S, CenteredNibbles>(s, quads);
        self.scratch.quads = copy;
    }

    #[inline(always)]
    fn multiply_wide<S: Simd>(&mut self, s: S) {
        let mut copy = take(&mut self.scratch.wide);
        let quads = widened(self.input, &mut copy);
        self.multiply_unpacked::<S, WideBytes>(s, quads);
        self.scratch.wide = copy;
    }

    #[inline(always)]
    fn multiply_unpacked<S: Simd, F: UnpackedFormat>(&mut self, s: S, quads: &[F::Quad]) {
        let tiles = self.weights.tiles();
        let mut buffer = take(&mut self.scratch.bytes);
        let mut sums = take(&mut self.scratch.starts);
        let blocks = self.weights.inputs().div_ceil(self.weights.block());
        sums.resize(2 * blocks, [0; LANES]);
        for step in Step::all(&self.columns, S::TILES) {
            let loaded = load_tiles(&tiles, step);
            let count = loaded[0].quants.len() * 2;
            let (lines, _) = buffer.reserve(2 * count * LINE).as_chunks_mut::<LINE>();
            let lines = lines.split_at_mut(count);
            let starts = sums.split_at_mut(blocks);
            unpack::<S, F>(s, &loaded[0], lines.0, starts.0);
            if step.count == 2 {
                unpack::<S, F>(s, &loaded[1], lines.1, starts.1);
            }
            let columns = [
                Columns { tile: Tile { quants: lines.0, ..loaded[0] }, starts: starts.0 },
                Columns { tile: Tile { quants: lines.1, ..loaded[1] }, starts: starts.1 },
            ];
            self.multiply::<S, F>(s, &columns, quads, step);
        }
        (self.scratch.bytes, self.scratch.starts) = (buffer, sums);
    }

    /// Multiplies all panels by one or two tiles.
    #[inline(always)]
    fn multiply<S: Simd, F: Format>(
        &mut self,
        s: S,
        columns: &[Columns<'_>; 2],
        quads: &[F::Quad],
        step: Step,
    ) {
        let lengths = || self.input.panels().map(|rows| rows.len());
        let (Some(least), Some(most)) = (lengths().min(), lengths().max()) else { return };
        for length in least..=most {
            match length {
                1 => s.run(PanelProducts::<F, 1>::new(self, columns, quads, step)),
                2 => s.run(PanelProducts::<F, 2>::new(self, columns, quads, step)),
                3 => s.run(PanelProducts::<F, 3>::new(self, columns, quads, step)),
                4 => s.run(PanelProducts::<F, 4>::new(self, columns, quads, step)),
                5 => s.run(PanelProducts::<F, 5>::new(self, columns, quads, step)),
                6 => s.run(PanelProducts::<F, 6>::new(self, columns, quads, step)),
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
struct PanelProducts<'a, 'b, F: Format, const R: usize> {
    matmul: &'a mut MatMul<'b>,
    columns: &'a [Columns<'a>; 2],
    /// Activations of all panels.
    quads: &'a [F::Quad],
    step: Step,
    format: PhantomData<F>,
}

impl<'a, 'b, F: Format, const R: usize> PanelProducts<'a, 'b, F, R> {
    fn new(
        matmul: &'a mut MatMul<'b>,
        columns: &'a [Columns<'a>; 2],
        quads: &'a [F::Quad],
        step: Step,
    ) -> Self {
        Self { matmul, columns, quads, step, format: PhantomData }
    }
}

impl<F: Format, const R: usize> Operation for PanelProducts<'_, '_, F, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { matmul, columns, quads, step, .. } = self;
        let input = matmul.input;
        for rows in input.panels().filter(|rows| rows.len() == R) {
            let panel = input.panel(&rows, quads);
            // The rows of the output are far apart, so the processor does not prefetch them.
            for row in rows.clone() {
                let row = &matmul.out.row_mut(row)[step.tile * LANES - matmul.columns.start..];
                row.iter().step_by(LANES).take(step.count).for_each(|first| s.prefetch_write(first));
            }
            // A product of one row is bound by memory, which is fastest when it is read sequentially.
            if S::TILES == 2 && step.count == 2 && R > 1 {
                let sums = product::<S, F, R, 2>(s, columns, &panel);
                matmul.store(s, &sums, rows.start, step.tile);
            } else {
                for (at, one) in columns[..step.count].iter().enumerate() {
                    let sums = product::<S, F, R, 1>(s, &[*one], &panel);
                    matmul.store(s, &sums, rows.start, step.tile + at);
                }
            }
        }
    }
}

/// Returns the activations of all panels, biased or not. They are copied if the input has them only otherwise.
fn with_bias<'a>(input: &'a QuantizedRows, biased: bool, copy: &'a mut Vec<[i8; 4]>) -> &'a [[i8; 4]] {
    if input.biased() == biased {
        return input.quads();
    }
    copy.clear();
    copy.extend(input.quads().iter().map(|quad| toggle_bias(*quad, true)));
    copy
}

/// Returns the activations of all panels in sixteen bits. They are copied if the input does not have them.
fn widened<'a>(input: &'a QuantizedRows, copy: &'a mut Vec<[i16; 4]>) -> &'a [[i16; 4]] {
    if input.wide().len() == input.quads().len() {
        return input.wide();
    }
    copy.clear();
    copy.extend(input.quads().iter().map(|quad| toggle_bias(*quad, input.biased()).map(i16::from)));
    copy
}

/// Writes the weights of a tile in another format, and the initial sums of its blocks.
#[inline(always)]
fn unpack<S: Simd, F: UnpackedFormat>(
    s: S,
    tile: &Tile<'_>,
    lines: &mut [[u8; LINE]],
    starts: &mut [[i32; LANES]],
) {
    let Some(count) = tile.quants.len().checked_div(starts.len()) else { return };
    let blocks = tile.quants.chunks_exact(count).zip(lines.chunks_exact_mut(2 * count));
    for (block, ((packed, lines), start)) in blocks.zip(starts).enumerate() {
        let zeros = tile.zeros.map(|zeros| &zeros[block]);
        s.store_ints(F::unpack(s, packed, zeros, lines), start);
    }
}

fn load_tiles<'a>(tiles: &Tiles<'a>, step: Step) -> [Tile<'a>; 2] {
    [tiles.tile(step.tile), tiles.tile(step.tile + step.count - 1)]
}

/// Computes a register tile: `R` rows by `V` tiles of sixteen columns.
#[inline(always)]
fn product<S: Simd, F: Format, const R: usize, const V: usize>(
    s: S,
    columns: &[Columns<'_>; V],
    panel: &Panel<'_, F::Quad>,
) -> [[S::Floats; V]; R] {
    let mut sums = [[s.splat(0.0); V]; R];
    let (quads, _) = panel.quads.as_chunks::<R>();
    // A step consists of sixteen inputs.
    let mut quads = quads.as_chunks::<4>().0.iter();
    let mut lines = columns.map(|columns| columns.tile.quants.chunks_exact(F::LINES));
    let (rows_of_sums, _) = panel.sums.as_chunks::<R>();
    let (rows_of_float_sums, _) = panel.float_sums.as_chunks::<R>();
    for block in 0..panel.blocks {
        let mut acc = start::<S, F, R, V>(s, columns, block, &rows_of_sums[block]);
        for quads in quads.by_ref().take(panel.groups / 4) {
            accumulate::<S, F, R, V>(s, &mut lines, quads, &mut acc);
        }
        for v in 0..V {
            let scale = columns[v].tile.scales.load(s, block);
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
            if let Some(offset) = columns[v].tile.load_offsets(s, block) {
                for r in 0..R {
                    sums[r][v] = s.mul_add(s.splat(rows_of_float_sums[block][r]), offset, sums[r][v]);
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

/// Adds the products of a step of sixteen inputs, whose weights are the next ones of `lines`.
#[inline(always)]
fn accumulate<S: Simd, F: Format, const R: usize, const V: usize>(
    s: S,
    lines: &mut [ChunksExact<'_, [u8; LINE]>; V],
    quads: &[[F::Quad; R]; 4],
    acc: &mut [[S::Ints; V]; R],
) {
    let mut weights: [&[[u8; LINE]]; V] = [&[]; V];
    for v in 0..V {
        let Some(next) = lines[v].next() else { return };
        weights[v] = next;
    }
    if R <= PREFETCH_ROWS && !F::UNPACKED {
        for v in 0..V {
            for line in weights[v] {
                s.prefetch(line);
            }
        }
    }
    F::accumulate(s, weights, quads, acc);
}

/// Returns the initial values of a block's sums, which account for the zero points or for the bias of the activations.
#[inline(always)]
fn start<S: Simd, F: Format, const R: usize, const V: usize>(
    s: S,
    columns: &[Columns<'_>; V],
    block: usize,
    negated_sums: &[i32; R],
) -> [[S::Ints; V]; R] {
    let mut acc = [[s.splat_int(0); V]; R];
    for v in 0..V {
        if F::UNPACKED {
            let start = s.load_ints(&columns[v].starts[block]);
            for r in 0..R {
                acc[r][v] = start;
            }
            continue;
        }

        match columns[v].tile.zeros {
            None => {
                for r in 0..R {
                    acc[r][v] = s.splat_int((F::MIDDLE - F::offset::<S>()) * negated_sums[r]);
                }
            }
            Some(zeros) => {
                let mut zeros = s.load_zero_points(&zeros[block]);
                if F::offset::<S>() != 0 {
                    zeros = s.sub_ints(zeros, s.splat_int(F::offset::<S>()));
                }
                for r in 0..R {
                    acc[r][v] = s.mul_short(zeros, negated_sums[r]);
                }
            }
        }
    }
    acc
}
