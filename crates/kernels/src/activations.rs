//! Activations, rounded to eight bits at run time: the left operands of integer products.
//!
//! Rows are stored in panels. A panel has at most as many rows as a register tile, and interleaves them in groups of
//! four activations, so that a kernel reads it sequentially.

use std::ops::Range;

use crate::{
    simd::{LANES, Operation, Simd},
    view::MatrixRef,
};

/// Maximum number of rows in a panel.
pub(crate) const MAX_PANEL: usize = 6;

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
    panel_rows: usize,
    /// Activations: for each panel and group of four inputs, four activations of each row.
    quads: Vec<[i8; 4]>,
    /// Sums of activations: for each panel and block, one sum of each row.
    sums: Vec<i32>,
    /// Scales: for each panel, and for each block if blocks have scales, one scale of each row.
    scales: Vec<f32>,
    /// Buffer for one row before it is interleaved.
    row: Vec<[i8; 4]>,
}

/// Data of one panel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Panel<'a> {
    pub(crate) quads: &'a [[i8; 4]],
    pub(crate) sums: &'a [i32],
    pub(crate) row_scales: Option<&'a [f32]>,
    pub(crate) block_scales: Option<&'a [f32]>,
    /// Number of groups of four inputs in a block.
    pub(crate) groups: usize,
    pub(crate) blocks: usize,
}

impl Default for QuantizedRows {
    fn default() -> Self {
        Self {
            rows: 0,
            inputs: 0,
            block: 32,
            granularity: Granularity::Row,
            panel_rows: 1,
            quads: Vec::new(),
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

    /// Returns the rows of each panel. The numbers of rows in two panels differ by at most one.
    pub(crate) fn panels(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (rows, count) = (self.rows, self.rows.div_ceil(self.panel_rows));
        (0..count).map(move |panel| panel * rows / count..(panel + 1) * rows / count)
    }

    /// Returns the panel of these rows.
    pub(crate) fn panel(&self, rows: &Range<usize>) -> Panel<'_> {
        let (blocks, groups, scales) = (self.blocks(), self.block / 4, self.scales_per_row());
        let part = |width: usize| rows.start * width..rows.end * width;
        let scales = &self.scales[part(scales)];
        let by_row = self.granularity == Granularity::Row;
        Panel {
            quads: &self.quads[part(blocks * groups)],
            sums: &self.sums[part(blocks)],
            row_scales: by_row.then_some(scales),
            block_scales: (!by_row).then_some(scales),
            groups,
            blocks,
        }
    }

    /// Returns the integers and the scales of one row, without padding.
    pub fn row(&self, row: usize) -> (Vec<i8>, Vec<f32>) {
        let Some(rows) = self.panels().find(|rows| rows.contains(&row)) else { return Default::default() };
        let (panel, at, len) = (self.panel(&rows), row - rows.start, rows.len());
        let quads = panel.quads.chunks_exact(len).flat_map(|quads| quads[at]);
        let scales = panel.row_scales.or(panel.block_scales).unwrap_or_default();
        (quads.take(self.inputs).collect(), scales.chunks_exact(len).map(|scales| scales[at]).collect())
    }
}

/// Operation that rounds a matrix.
pub(crate) struct Quantize<'a> {
    pub(crate) input: MatrixRef<'a>,
    pub(crate) block: usize,
    pub(crate) granularity: Granularity,
    pub(crate) out: &'a mut QuantizedRows,
}

impl Operation for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { input, block, granularity, out } = self;
        (out.rows, out.inputs) = (input.rows(), input.columns());
        (out.block, out.granularity, out.panel_rows) = (block, granularity, S::ROWS.min(MAX_PANEL));
        let (blocks, groups) = (out.blocks(), block / 4);
        out.quads.resize(out.rows * blocks * groups, [0; 4]);
        out.sums.resize(out.rows * blocks, 0);
        out.scales.resize(out.rows * out.scales_per_row(), 0.0);
        out.row.clear();
        out.row.resize(blocks * groups, [0; 4]);
        for rows in out.panels() {
            let len = rows.len();
            for (at, row) in rows.clone().enumerate() {
                let scales = out.scales_per_row();
                let scales = &mut out.scales[rows.start * scales + at..];
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
                let quads = &mut out.quads[rows.start * blocks * groups + at..];
                for (slot, quad) in quads.iter_mut().step_by(len).zip(&out.row) {
                    *slot = *quad;
                }
                let sums = &mut out.sums[rows.start * blocks + at..];
                for (slot, block) in sums.iter_mut().step_by(len).zip(out.row.chunks_exact(groups)) {
                    *slot = block.as_flattened().iter().map(|x| i32::from(*x)).sum();
                }
            }
        }
    }
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
    let mut tail = [0.0; LANES];
    tail[..rest.len()].copy_from_slice(rest);
    let mut peak = s.max_magnitude(s.splat_int(0), s.load(&tail));
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
    let mut integers = [0; LANES];
    s.round_to_i8(s.mul(s.load(&tail), inverse), &mut integers);
    rest_out.copy_from_slice(&integers[..rest_out.len()]);
    peak / TOP
}
