//! Activations, rounded to eight bits at run time: the left operands of integer products.
//!
//! Rows are stored in panels. A panel has at most as many rows as a register tile, and interleaves them in groups of
//! four activations, so that a kernel reads it sequentially. Panels for AMX have up to sixteen rows, one after the other.

use std::ops::Range;

use crate::{
    aligned::AlignedBytes,
    packed::{Bits, WeightFormat},
    simd::{LANES, Operation, Simd, amx::TILE_ROWS},
    view::MatrixRef,
};

/// Maximum number of rows in a panel.
pub(crate) const MAX_PANEL: usize = 6;

/// Minimum number of rows for which four-bit weights are unpacked to memory. With fewer rows, they are unpacked in
/// registers.
pub(crate) const UNPACK_ROWS: usize = 13;

/// Largest magnitude of a rounded activation. -128 is excluded because its negation does not fit into eight bits.
const TOP: f32 = 127.0;

/// Magnitudes below this are treated as 0, because the inverse of their scale would not be finite.
const LEAST: f32 = 1e-36;

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
    /// Panels for AMX. Each has the place of sixteen rows; the contents of those after its last row are unspecified.
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
    granularity: Granularity,
    arrangement: Arrangement,
    panel_rows: usize,
    /// Interleaved activations: for each panel and group of four inputs, four activations of each row.
    quads: Vec<[i8; 4]>,
    /// The interleaved activations are unsigned bytes, to which 128 was added.
    biased: bool,
    /// Activations for AMX: for each panel, sixteen rows.
    bytes: AlignedBytes,
    /// Negated sums of activations: for each panel and block, one of each row.
    sums: Vec<i32>,
    /// Scales: for each panel, and for each block if blocks have scales, one scale of each row.
    scales: Vec<f32>,
    /// Buffer for one row before it is interleaved.
    row: Vec<[i8; 4]>,
}

/// Data of one interleaved panel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Panel<'a> {
    pub(crate) quads: &'a [[i8; 4]],
    /// Negated sums of blocks.
    pub(crate) sums: &'a [i32],
    pub(crate) row_scales: Option<&'a [f32]>,
    pub(crate) block_scales: Option<&'a [f32]>,
    /// Number of groups of four inputs in a block.
    pub(crate) groups: usize,
    pub(crate) blocks: usize,
}

/// Data of one panel for AMX.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TilePanel<'a> {
    /// Activations, `[16, stride]`.
    pub(crate) activations: &'a [u8],
    /// Number of activations in a row with its padding.
    pub(crate) stride: usize,
    /// Negated sums of blocks, `[blocks, 16]`.
    pub(crate) sums: &'a [[i32; TILE_ROWS]],
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
            granularity: Granularity::Row,
            arrangement: Arrangement::Interleaved,
            panel_rows: 1,
            quads: Vec::new(),
            biased: false,
            bytes: AlignedBytes::default(),
            sums: Vec::new(),
            scales: Vec::new(),
            row: Vec::new(),
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

    /// Returns the number of blocks in a row; the last may be padded with zeros.
    fn blocks(&self) -> usize {
        self.inputs.div_ceil(self.block)
    }

    fn scales_per_row(&self) -> usize {
        match self.granularity {
            Granularity::Row => 1,
            Granularity::Block => self.blocks(),
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

    pub(crate) fn arrangement(&self) -> Arrangement {
        self.arrangement
    }

    /// Returns the rows of each panel. The numbers of rows in two panels differ by at most one.
    pub(crate) fn panels(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (rows, count) = (self.rows, self.rows.div_ceil(self.panel_rows));
        (0..count).map(move |panel| panel * rows / count..(panel + 1) * rows / count)
    }

    /// Returns the interleaved panel of these rows. Its activations are those of `quads`, which has the order of
    /// [`Self::quads`].
    pub(crate) fn panel<'a>(&'a self, rows: &Range<usize>, quads: &'a [[i8; 4]]) -> Panel<'a> {
        let (blocks, groups, scales) = (self.blocks(), self.block / 4, self.scales_per_row());
        let part = |width: usize| rows.start * width..rows.end * width;
        let scales = &self.scales[part(scales)];
        let by_row = self.granularity == Granularity::Row;
        Panel {
            quads: &quads[part(blocks * groups)],
            sums: &self.sums[part(blocks)],
            row_scales: by_row.then_some(scales),
            block_scales: (!by_row).then_some(scales),
            groups,
            blocks,
        }
    }

    /// Returns the panel for AMX with this index.
    pub(crate) fn tile_panel(&self, index: usize) -> TilePanel<'_> {
        let (blocks, stride, scales) = (self.blocks(), self.blocks() * self.block, self.scales_per_row());
        let part = |width: usize| index * width..(index + 1) * width;
        let (sums, _) = self.sums.as_chunks();
        let scales = &self.scales.as_chunks().0[part(scales)];
        let by_row = self.granularity == Granularity::Row;
        TilePanel {
            activations: &self.bytes.as_slice()[part(TILE_ROWS * stride)],
            stride,
            sums: &sums[part(blocks)],
            row_scales: scales.first().filter(|_| by_row),
            block_scales: (!by_row).then_some(scales),
        }
    }

    /// Returns the integers and the scales of one row, without padding.
    pub fn row(&self, row: usize) -> (Vec<i8>, Vec<f32>) {
        let Some((index, rows)) = self.panels().enumerate().find(|(_, rows)| rows.contains(&row)) else {
            return Default::default();
        };
        let (at, len) = (row - rows.start, rows.len());
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
        let biased = S::CENTERED_BIAS != 0 && bits == Bits::Four && out.rows >= UNPACK_ROWS;
        out.biased = biased;
        (out.block, out.granularity, out.arrangement) = (block, granularity, arrangement);
        let (blocks, groups) = (out.blocks(), block / 4);
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
        out.sums.resize(places * blocks, 0);
        out.scales.resize(places * out.scales_per_row(), 0.0);
        out.row.clear();
        out.row.resize(blocks * groups, [0; 4]);
        for (index, rows) in out.panels().enumerate() {
            // First place of the panel, and the number of its places.
            let (first, len) = match arrangement {
                Arrangement::Interleaved => (rows.start, rows.len()),
                Arrangement::Tiles => (index * TILE_ROWS, TILE_ROWS),
            };
            for (at, row) in rows.enumerate() {
                let scales = out.scales_per_row();
                let scales = &mut out.scales[first * scales + at..];
                let values = input.row(row);
                match granularity {
                    Granularity::Row => scales[0] = round(s, values, out.row.as_flattened_mut()),
                    Granularity::Block => {
                        let integers = out.row.as_flattened_mut().chunks_exact_mut(block);
                        for (index, (values, integers)) in values.chunks(block).zip(integers).enumerate() {
                            scales[index * len] = round(s, values, integers);
                        }
                    }
                }
                match arrangement {
                    Arrangement::Interleaved => {
                        let quads = &mut out.quads[first * blocks * groups..];
                        for (slots, quad) in quads.chunks_exact_mut(len).zip(&out.row) {
                            slots[at] = toggle_bias(*quad, biased);
                        }
                    }
                    Arrangement::Tiles => {
                        let bytes = &mut out.bytes.as_mut_slice()[(first + at) * blocks * block..];
                        for (slot, integer) in bytes.iter_mut().zip(out.row.as_flattened()) {
                            *slot = *integer as u8;
                        }
                    }
                }
                let sums = &mut out.sums[first * blocks + at..];
                for (slot, block) in sums.iter_mut().step_by(len).zip(out.row.chunks_exact(groups)) {
                    *slot = block.as_flattened().iter().map(|x| -i32::from(*x)).sum();
                }
            }
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

/// Operation that rounds one row.
pub(crate) struct RoundRow<'a> {
    pub(crate) row: &'a [f32],
    pub(crate) out: &'a mut [i8],
}

impl Operation for RoundRow<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        round(s, self.row, self.out)
    }
}

/// Rounds numbers that share one scale, and returns the scale. Elements of `out` after the last number are not changed.
#[inline(always)]
fn round<S: Simd>(s: S, values: &[f32], out: &mut [i8]) -> f32 {
    let (whole, rest) = values.as_chunks::<LANES>();
    let mut peak = s.splat_int(0);
    let mut tail = [0.0; LANES];
    if !rest.is_empty() {
        tail[..rest.len()].copy_from_slice(rest);
        peak = s.max_magnitude(peak, s.load(&tail));
    }
    for x in whole {
        peak = s.max_magnitude(peak, s.load(x));
    }
    let mut lanes = [0; LANES];
    s.store_ints(peak, &mut lanes);
    let peak = f32::from_bits(lanes.into_iter().fold(0, i32::max) as u32);
    if !peak.is_finite() || peak < LEAST {
        out[..values.len()].fill(0);
        return if peak.is_finite() { 0.0 } else { f32::NAN };
    }
    let inverse = s.splat(TOP / peak);
    let (whole_out, rest_out) = out[..values.len()].as_chunks_mut::<LANES>();
    for (x, out) in whole.iter().zip(whole_out) {
        s.round_to_i8(s.mul(s.load(x), inverse), out);
    }
    if !rest.is_empty() {
        let mut integers = [0; LANES];
        s.round_to_i8(s.mul(s.load(&tail), inverse), &mut integers);
        rest_out.copy_from_slice(&integers[..rest_out.len()]);
    }
    peak / TOP
}
