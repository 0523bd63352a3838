//! Activations, rounded to eight bits at run time: the left operands of integer products.
//!
//! Rows are stored in panels. A panel has at most as many rows as a register tile, and interleaves them in groups of
//! four activations, so that a kernel reads it sequentially. Panels for tiles have up to sixteen rows, one after the other.

use std::ops::Range;

use crate::{
    aligned::AlignedBytes,
    float::with_rows,
    packed::{Bits, WeightFormat},
    rounding::{RoundBlocks, round},
    simd::{Operation, Simd, TILE_ROWS},
    tiling::panels,
    view::MatrixRef,
};

/// Maximum number of rows in a panel.
pub(crate) const MAX_PANEL: usize = 6;

/// Minimum number of rows for which weights are unpacked to memory. With fewer rows, they are unpacked in registers.
pub(crate) const UNPACK_ROWS: usize = 13;

/// Activations that share one scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granularity {
    /// A whole row. This is the fastest choice.
    Row,
    /// Each block of a row; the blocks are those of the weights. This is more accurate if a few channels are large.
    Block,
}

/// Order of activations in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrangement {
    /// Panels for vector instructions.
    Interleaved,
    /// Panels for tiles. Each has the place of sixteen rows; the contents of those after its last row are unspecified.
    Tiles,
}

/// Rows of activations as integers from -127 to 127, with their scales and sums. The buffers are reused from call to
/// call.
///
/// The scale of a row or block is NaN if one of its numbers is not finite, so that all of its products are NaN.
#[derive(Debug)]
pub struct QuantizedRows {
    rows: usize,
    inputs: usize,
    block: usize,
    /// Number of blocks in a row; the last may be padded with zeros.
    blocks: usize,
    granularity: Granularity,
    arrangement: Arrangement,
    panel_rows: usize,
    /// Interleaved activations: for each panel and group of four inputs, four activations of each row.
    quads: Vec<[i8; 4]>,
    /// The interleaved activations are unsigned bytes, to which 128 was added.
    biased: bool,
    /// The interleaved activations in sixteen bits, if products need them.
    wide: Vec<[i16; 4]>,
    /// Activations for tiles: for each panel, sixteen rows.
    bytes: AlignedBytes,
    /// Negated sums of activations: for each panel and block, one of each row.
    sums: Vec<i32>,
    /// Scales: for each panel, and for each block if blocks have scales, one scale of each row.
    scales: Vec<f32>,
    /// Sums of activations, multiplied by the scales of blocks if blocks have scales: in the order of `sums`.
    float_sums: Vec<f32>,
    /// Buffer for the rows of a panel before they are interleaved.
    panel: Vec<[i8; 4]>,
}

/// Data of one interleaved panel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Panel<'a, Q> {
    /// Groups of four activations.
    pub(crate) quads: &'a [Q],
    /// Negated sums of blocks.
    pub(crate) sums: &'a [i32],
    /// Sums of blocks, multiplied by the scales of blocks if there are any.
    pub(crate) float_sums: &'a [f32],
    pub(crate) row_scales: Option<&'a [f32]>,
    pub(crate) block_scales: Option<&'a [f32]>,
    /// Number of groups of four inputs in a block.
    pub(crate) groups: usize,
    pub(crate) blocks: usize,
}

/// Data of one panel for tiles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TilePanel<'a> {
    /// Activations, `[16, stride]`.
    pub(crate) activations: &'a [u8],
    /// Number of activations in a row with its padding.
    pub(crate) stride: usize,
    /// Negated sums of blocks, `[blocks, 16]`.
    pub(crate) sums: &'a [[i32; TILE_ROWS]],
    /// Sums of blocks, multiplied by the scales of blocks if there are any, `[blocks, 16]`.
    pub(crate) float_sums: &'a [[f32; TILE_ROWS]],
    pub(crate) row_scales: Option<&'a [f32; TILE_ROWS]>,
    /// Scales of blocks, `[blocks, 16]`.
    pub(crate) block_scales: Option<&'a [[f32; TILE_ROWS]]>,
}

impl Default for QuantizedRows {
    fn default() -> Self {
        Self {
            rows: 0,
            inputs: 0,
            block: 32,
            blocks: 0,
            granularity: Granularity::Row,
            arrangement: Arrangement::Interleaved,
            panel_rows: 1,
            quads: Vec::new(),
            biased: false,
            wide: Vec::new(),
            bytes: AlignedBytes::default(),
            sums: Vec::new(),
            scales: Vec::new(),
            float_sums: Vec::new(),
            panel: Vec::new(),
        }
    }
}

impl QuantizedRows {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of activations in a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Returns the number of activations in a block. Each block has a sum.
    pub fn block(&self) -> usize {
        self.block
    }

    fn scales_per_row(&self) -> usize {
        match self.granularity {
            Granularity::Row => 1,
            Granularity::Block => self.blocks,
        }
    }

    /// Returns whether the interleaved activations are unsigned bytes, to which 128 was added.
    pub(crate) fn biased(&self) -> bool {
        self.biased
    }

    /// Returns the interleaved activations of all panels.
    pub(crate) fn quads(&self) -> &[[i8; 4]] {
        &self.quads
    }

    /// Returns the interleaved activations of all panels in sixteen bits, if products need them.
    pub(crate) fn wide(&self) -> &[[i16; 4]] {
        &self.wide
    }

    pub(crate) fn arrangement(&self) -> Arrangement {
        self.arrangement
    }

    /// Returns the rows of each panel.
    pub(crate) fn panels(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        panels(self.rows, self.panel_rows)
    }

    /// Returns the interleaved panel of these rows. Its activations are those of `quads`, which has the order of
    /// [`Self::quads`].
    #[inline]
    pub(crate) fn panel<'a, Q>(&'a self, rows: &Range<usize>, quads: &'a [Q]) -> Panel<'a, Q> {
        let blocks = self.blocks;
        let groups = self.block / 4;
        let scales = self.scales_per_row();
        let part = |width: usize| rows.start * width..rows.end * width;
        let scales = &self.scales[part(scales)];
        let by_row = self.granularity == Granularity::Row;
        Panel {
            quads: &quads[part(blocks * groups)],
            sums: &self.sums[part(blocks)],
            float_sums: &self.float_sums[part(blocks)],
            row_scales: by_row.then_some(scales),
            block_scales: (!by_row).then_some(scales),
            groups,
            blocks,
        }
    }

    /// Returns the panel for tiles with this index.
    pub(crate) fn tile_panel(&self, index: usize) -> TilePanel<'_> {
        let scales = self.scales_per_row();
        let stride = self.blocks * self.block;
        let blocks = self.blocks;
        let part = |width: usize| index * width..(index + 1) * width;
        let (sums, _) = self.sums.as_chunks();
        let (float_sums, _) = self.float_sums.as_chunks();
        let scales = &self.scales.as_chunks().0[part(scales)];
        let by_row = self.granularity == Granularity::Row;
        TilePanel {
            activations: &self.bytes.as_slice()[part(TILE_ROWS * stride)],
            stride,
            sums: &sums[part(blocks)],
            float_sums: &float_sums[part(blocks)],
            row_scales: scales.first().filter(|_| by_row),
            block_scales: (!by_row).then_some(scales),
        }
    }

    /// Returns the integers and the scales of one row, without padding.
    pub fn row(&self, row: usize) -> (Vec<i8>, Vec<f32>) {
        let Some((index, rows)) = self.panels().enumerate().find(|(_, rows)| rows.contains(&row)) else {
            return Default::default();
        };
        let at = row - rows.start;
        let len = rows.len();
        if self.arrangement == Arrangement::Tiles {
            let panel = self.tile_panel(index);
            let integers = panel.activations[at * panel.stride..][..self.inputs].iter().map(|x| *x as i8);
            let scales =
                panel.row_scales.map(std::slice::from_ref).or(panel.block_scales).unwrap_or_default();
            return (integers.collect(), scales.iter().map(|scales| scales[at]).collect());
        }
        let panel = self.panel(&rows, &self.quads);
        let quads = panel.quads.chunks_exact(len).flat_map(|quads| toggle_bias(quads[at], self.biased));
        let scales = panel.row_scales.or(panel.block_scales).unwrap_or_default();
        (quads.take(self.inputs).collect(), scales.chunks_exact(len).map(|scales| scales[at]).collect())
    }
}

/// Operation that rounds a matrix.
pub(crate) struct Quantize<'a> {
    pub(crate) input: MatrixRef<'a>,
    pub(crate) weights: WeightFormat,
    pub(crate) granularity: Granularity,
    pub(crate) arrangement: Arrangement,
    pub(crate) out: &'a mut QuantizedRows,
}

impl Operation for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { input, weights: WeightFormat { block, bits }, granularity, arrangement, out } = self;
        (out.rows, out.inputs) = (input.rows(), input.columns());
        let unpack = out.rows >= UNPACK_ROWS;
        let biased = S::CENTERED_BIAS != 0 && bits == Bits::Four && unpack;
        out.biased = biased;
        (out.block, out.granularity, out.arrangement) = (block, granularity, arrangement);
        let blocks = out.inputs.div_ceil(block);
        let groups = block / 4;
        out.blocks = blocks;
        let places = match arrangement {
            Arrangement::Interleaved => {
                out.panel_rows = S::ROWS.min(MAX_PANEL);
                out.quads.resize(out.rows * blocks * groups, [0; 4]);
                out.rows
            }
            Arrangement::Tiles => {
                out.panel_rows = TILE_ROWS;
                let places = out.rows.next_multiple_of(TILE_ROWS);
                out.bytes.reserve(places * blocks * block);
                places
            }
        };

        let scales_per_row = out.scales_per_row();
        out.sums.resize(places * blocks, 0);
        out.scales.resize(places * scales_per_row, 0.0);
        out.float_sums.resize(places * blocks, 0.0);
        let width = blocks * groups;
        out.panel.resize(out.panel_rows.min(out.rows) * width, [0; 4]);

        for (index, rows) in out.panels().enumerate() {
            // First place of the panel, and the number of its places.
            let (first, len) = match arrangement {
                Arrangement::Interleaved => (rows.start, rows.len()),
                Arrangement::Tiles => (index * TILE_ROWS, TILE_ROWS),
            };
            for (at, row) in rows.clone().enumerate() {
                let values = input.row(row);
                let integers = out.panel[at * width..(at + 1) * width].as_flattened_mut();
                integers[values.len()..].fill(0);
                let scales = out.scales[first * scales_per_row + at..].iter_mut().step_by(len);
                let scales = scales.take(scales_per_row);
                match (granularity, block) {
                    (Granularity::Row, _) => {
                        for scale in scales {
                            *scale = round(s, values, integers);
                        }
                    }
                    (Granularity::Block, 16) => s.run(RoundBlocks::<_, 1> { values, integers, scales }),
                    (Granularity::Block, 32) => s.run(RoundBlocks::<_, 2> { values, integers, scales }),
                    (Granularity::Block, 64) => s.run(RoundBlocks::<_, 4> { values, integers, scales }),
                    (Granularity::Block, 128) => s.run(RoundBlocks::<_, 8> { values, integers, scales }),
                    (_, other) => unreachable!("weights in blocks of {other} cannot be packed"),
                }
                let sums = &mut out.sums[first * blocks + at..];
                for (slot, block) in sums.iter_mut().step_by(len).zip(integers.chunks_exact(block)) {
                    *slot = block.iter().map(|x| -i32::from(*x)).sum();
                }
            }
            let part = first * blocks..(first + len) * blocks;
            let scales = (granularity == Granularity::Block).then(|| &out.scales[part.clone()]);
            convert_sums(&out.sums[part.clone()], scales, &mut out.float_sums[part]);
            let panel = &out.panel[..rows.len() * width];
            match arrangement {
                Arrangement::Interleaved => {
                    let quads = &mut out.quads[first * width..(first + len) * width];
                    with_rows!(len, R => interleave::<R>(panel, biased, quads));
                }
                Arrangement::Tiles => {
                    let bytes = &mut out.bytes.as_mut_slice()[first * blocks * block..];
                    for (slot, integer) in bytes.iter_mut().zip(panel.as_flattened()) {
                        *slot = *integer as u8;
                    }
                }
            }
        }

        out.wide.clear();
        if S::WIDENS && bits == Bits::Eight && unpack {
            out.wide.extend(out.quads.iter().map(|quad| quad.map(i16::from)));
        }
    }
}

/// Converts negated sums to sums in single precision, multiplied by scales if there are any.
#[inline(always)]
fn convert_sums(negated: &[i32], scales: Option<&[f32]>, out: &mut [f32]) {
    out.iter_mut().zip(negated).for_each(|(slot, negated)| *slot = -*negated as f32);
    if let Some(scales) = scales {
        out.iter_mut().zip(scales).for_each(|(slot, scale)| *slot *= scale);
    }
}

/// Interleaves `R` rows in groups of four activations.
#[inline(always)]
fn interleave<const R: usize>(rows: &[[i8; 4]], biased: bool, out: &mut [[i8; 4]]) {
    let width = rows.len() / R;
    let rows: [&[[i8; 4]]; R] = std::array::from_fn(|row| &rows[row * width..(row + 1) * width]);
    // Separate loads and stores are faster than the scattered stores that a loop over one row compiles to.
    for (group, slots) in out.as_chunks_mut::<R>().0.iter_mut().take(width).enumerate() {
        for row in 0..R {
            slots[row] = toggle_bias(rows[row][group], biased);
        }
    }
}

/// Changes activations to biased ones or back if `toggle` is set.
#[inline(always)]
pub(crate) fn toggle_bias(quad: [i8; 4], toggle: bool) -> [i8; 4] {
    // One operation on a word is faster than four on bytes.
    let mask = if toggle { 0x8080_8080 } else { 0 };
    (u32::from_ne_bytes(quad.map(|x| x as u8)) ^ mask).to_ne_bytes().map(|x| x as i8)
}
