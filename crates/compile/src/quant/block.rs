//! Block quantisation in the form that ONNX Runtime's `MatMulNBits` reads: integers, one f16 scale per block of a row,
//! and optionally a zero point per block.
//!
//! A block of `w8` is `x ≈ (q - 128) · s`; a block with zero points is `x ≈ (q - z) · s`, with as many bits for `z` as
//! for `q`. Blocks that are copied from a checkpoint may have an f16 offset, `x = (q - 8) · s + o`, or with 128 for 8 bits.
//! The last block of a row is padded with the zero point. Two 4-bit values share a byte, the first in its low half. This
//! module does not choose the form of a weight: see [`super::plan`].

use half::f16;
use narthex_checkpoint::IntegerBlocks;

/// One row of quantised blocks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuantRow {
    /// Packed quantised values.
    pub quants: Vec<u8>,
    /// One scale per block.
    pub scales: Vec<f16>,
    /// Packed zero points, one per block; empty for symmetric rows.
    pub zeros: Vec<u8>,
    /// Offsets, one per block, or none.
    pub offsets: Vec<f16>,
}

/// 8-bit zero point that `MatMulNBits` assumes by default.
const ZERO_8: f32 = 128.0;

/// Maximum magnitude of a symmetric 8-bit value.
const MAX_8: f32 = 127.0;

/// Maximum 8-bit value.
const TOP_8: f32 = 255.0;

/// Maximum 4-bit value.
const TOP_4: f32 = 15.0;

/// 4-bit zero point that `MatMulNBits` assumes by default.
const ZERO_4: f32 = 8.0;

/// Smallest fraction of a block's range that is tried as the 4-bit range without zero points, and the distance of two
/// tried fractions. A long block, such as a whole row, has larger outliers than a short one.
const LEAST_SHARE_4: f32 = 0.45;
const SHARE_STEP_4: f32 = 0.05;

/// Fractions of a block's range that are tried as the 4-bit range. A narrower range clips outliers and increases the
/// resolution.
const RANGES_4: [f32; 5] = [1.0, 1.05, 0.93, 0.86, 0.79];

/// Constant whose addition and subtraction rounds a number of small magnitude to the nearest integer. Unlike
/// `f32::round`, it compiles to vector instructions on every x86-64 CPU.
const ROUNDING_CONSTANT: f32 = 12_582_912.0;

/// Factors by which a weight's columns were multiplied. By powers of two, values on an evenly spaced grid (lattice) stay on
/// one.
#[derive(Debug, Clone)]
pub struct Factors<'a> {
    columns: &'a [f32],
    /// Median of the factors of each block.
    typical: Vec<f32>,
}

impl<'a> Factors<'a> {
    /// Creates the factors of all columns, for blocks of `block` columns.
    pub fn new(columns: &'a [f32], block: usize) -> Self {
        Self {
            columns,
            typical: columns
                .chunks(block)
                .map(|factors| {
                    let mut sorted = factors.to_vec();
                    sorted.sort_by(f32::total_cmp);
                    sorted[sorted.len() / 2]
                })
                .collect(),
        }
    }

    /// Multiplies the columns of a row.
    pub fn multiply(&self, row: &mut [f32]) {
        row.iter_mut().zip(self.columns).for_each(|(x, factor)| *x *= factor);
    }

    /// Returns the factors of one block's columns, and their median.
    fn block(&self, index: usize, block: usize) -> (&[f32], f32) {
        let start = (index * block).min(self.columns.len());
        let end = (start + block).min(self.columns.len());
        (&self.columns[start..end], self.typical.get(index).copied().unwrap_or(1.0))
    }
}

/// Values of a block, and how much the error of each counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block<'a> {
    pub(super) values: &'a [f32],
    /// Weight of each value's squared error; `None` if all count the same.
    pub(super) importance: Option<&'a [f32]>,
}

impl<'a> From<&'a [f32]> for Block<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self { values, importance: None }
    }
}

impl Block<'_> {
    /// Returns the weighted sum of a function of the values.
    fn sum(&self, term: impl Fn(f32) -> f32) -> f32 {
        match self.importance {
            None => self.values.iter().map(|x| term(*x)).sum(),
            Some(importance) => {
                self.values.iter().zip(importance).map(|(x, importance)| importance * term(*x)).sum()
            }
        }
    }
}

/// Quantisation grid of a block: range of the integers, scale and zero point.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    /// Distance between two adjacent values; representable in f16.
    scale: f32,
    inverse: f32,
    /// Quantised value of 0.
    zero: f32,
    /// Maximum quantised value; the minimum is 0.
    top: f32,
}

impl Grid {
    pub(super) fn new(scale: f32, zero: f32, top: f32) -> Self {
        let scale = finite_half(scale.abs()).to_f32();
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        Self { scale, inverse, zero: zero.clamp(0.0, top), top }
    }

    /// Returns the grid with this scale whose quantised value 0 represents `low`, which is not positive.
    fn from_low(scale: f32, low: f32, top: f32) -> Self {
        let grid = Self::new(scale, 0.0, top);
        Self { zero: round(-low * grid.inverse).clamp(0.0, top), ..grid }
    }

    /// Returns the quantised value nearest to a number.
    pub(super) fn quant(&self, x: f32) -> f32 {
        round((x * self.inverse + self.zero).clamp(0.0, self.top))
    }

    /// Returns the number that a quantised value represents.
    pub(super) fn value(&self, quant: f32) -> f32 {
        (quant - self.zero) * self.scale
    }

    /// Returns the squared error over a block.
    fn error(&self, block: Block<'_>) -> f32 {
        block.sum(|x| (self.value(self.quant(x)) - x).powi(2))
    }

    /// Returns the grid whose scale has the least squared error for the quantised values of this grid.
    fn refitted(&self, block: Block<'_>) -> Self {
        let products = block.sum(|x| (self.quant(x) - self.zero) * x);
        let squares = block.sum(|x| (self.quant(x) - self.zero).powi(2));
        if squares > 0.0 { Self::new(products / squares, self.zero, self.top) } else { *self }
    }
}

/// Returns the nearest finite number in half precision. A scale beyond the range of f16 would decode the whole block to
/// infinities.
fn finite_half(x: f32) -> f16 {
    f16::from_f32(x.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()))
}

fn round(x: f32) -> f32 {
    (x + ROUNDING_CONSTANT) - ROUNDING_CONSTANT
}

/// Returns the better of two grids for a block, with its error.
fn better(best: (Grid, f32), grid: Grid, block: Block<'_>) -> (Grid, f32) {
    let error = grid.error(block);
    if error < best.1 { (grid, error) } else { best }
}

/// Returns the minimum and the maximum of a block's values and 0.
fn range(values: &[f32]) -> (f32, f32) {
    values.iter().fold((0.0f32, 0.0f32), |(low, high), x| (low.min(*x), high.max(*x)))
}

/// Quantises a row to 8 bits without zero points. Values from an 8-bit block format are reproduced exactly.
pub fn quantize_w8(row: &[f32], block: usize) -> QuantRow {
    let mut out = QuantRow::default();
    for values in row.chunks(block) {
        push_8(&mut out, values, block, &symmetric(values));
    }
    out
}

/// Quantises a row to 8 bits with zero points.
///
/// `steps` is the number of steps over a block's range in the source, if the source has fewer than 8 bits: its values
/// are then on a lattice that an 8-bit grid can represent almost exactly. `factors` are the factors by which the
/// columns were multiplied, if any.
pub fn quantize_w8_zeros(
    row: &[f32],
    block: usize,
    steps: Option<u8>,
    factors: Option<&Factors<'_>>,
) -> QuantRow {
    let mut out = QuantRow::default();
    for (index, values) in row.chunks(block).enumerate() {
        let factors = factors.map(|factors| factors.block(index, block));
        let step = steps.and_then(|steps| lattice_step(values, factors, steps));
        let grid = best_8(values, step);
        push_8(&mut out, values, block, &grid);
        out.zeros.push(grid.zero as u8);
    }
    out
}

/// Quantises a row to 8 bits with powers of two as scales and the middle of the range as zero points.
///
/// The values of MXFP4 are integers from -12 to 12 times a power of two, so that this is exact, also where blocks of
/// exponents up to three apart share a scale. Halves represent scales from 2^-24 on.
pub fn quantize_w8_powers(row: &[f32], block: usize) -> QuantRow {
    let mut out = QuantRow::default();
    for values in row.chunks(block) {
        let peak = values.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
        let exponent = (peak.log2().floor() - 6.0).max(-24.0);
        let scale = if peak > 0.0 { exponent.exp2() } else { 0.0 };
        push_8(&mut out, values, block, &Grid::new(scale, ZERO_8, TOP_8));
        out.zeros.push(ZERO_8 as u8);
    }
    out
}

fn push_8(out: &mut QuantRow, values: &[f32], block: usize, grid: &Grid) {
    out.scales.push(f16::from_f32(grid.scale));
    out.quants.extend(values.iter().map(|x| grid.quant(*x) as u8));
    out.quants.resize(out.quants.len().next_multiple_of(block), grid.zero as u8);
}

fn symmetric(values: &[f32]) -> Grid {
    let peak = values.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
    Grid::new(peak / MAX_8, ZERO_8, TOP_8)
}

/// Returns the minimum and the maximum of a block's values.
fn extremes(values: impl Iterator<Item = f32>) -> (f32, f32) {
    values.fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)))
}

/// Returns the lattice's step for the median factor, if the source's values spanned `steps` steps.
fn lattice_step(values: &[f32], factors: Option<(&[f32], f32)>, steps: u8) -> Option<f32> {
    let (least, greatest, typical) = match factors {
        Some((factors, typical)) => {
            let (least, greatest) = extremes(values.iter().zip(factors).map(|(x, factor)| x / factor));
            (least, greatest, typical)
        }
        None => {
            let (least, greatest) = extremes(values.iter().copied());
            (least, greatest, 1.0)
        }
    };
    let step = (greatest - least) / f32::from(steps) * typical;
    (step > 0.0 && step.is_finite()).then_some(step)
}

fn best_8(values: &[f32], step: Option<f32>) -> Grid {
    let grid = symmetric(values);
    let block = Block::from(values);
    let mut best = (grid, grid.error(block));
    if best.1 == 0.0 {
        return grid;
    }
    let (low, high) = range(values);
    best = better(best, Grid::from_low((high - low) / TOP_8, low, TOP_8), block);
    if let Some(step) = step {
        let (least, greatest) = extremes(values.iter().copied());
        // The addend keeps a quotient that rounding put just below an integer.
        let finest = (TOP_8 * step / (greatest - least) + 1e-3).floor().min(TOP_8);
        // Each step of the lattice becomes `parts` steps of the grid. The number that brings 0 nearest to an integer
        // varies.
        let mut parts = (finest / 2.0).floor().max(1.0);
        while parts <= finest {
            best = better(best, Grid::from_low(step / parts, low, TOP_8), block);
            parts += 1.0;
        }
    }
    best.0
}

/// Form of 4-bit blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form4 {
    /// With an integer zero point per block.
    Zeros,
    /// Symmetric around 8.
    Symmetric,
}

impl Form4 {
    /// Quantises a row. Each block gets the scale, and the zero point if it has one, of least squared error among several
    /// candidates; scales are fitted by least squares.
    pub fn quantize(self, row: &[f32], block: usize) -> QuantRow {
        let grids: Vec<Grid> = row.chunks(block).map(|values| self.grid(values.into())).collect();
        let blocks = row.chunks(block).zip(&grids);
        let quants: Vec<u8> =
            blocks.flat_map(|(values, grid)| values.iter().map(|x| grid.quant(*x) as u8)).collect();
        self.pack(&quants, &grids, block)
    }

    /// Returns the squared error of a quantised row. The error of each column counts by its importance.
    pub(crate) fn error(self, row: &[f32], block: usize, importance: &[f32]) -> f64 {
        let blocks = row.chunks(block).zip(importance.chunks(block));
        blocks
            .map(|(values, importance)| {
                let weighted = Block { values, importance: Some(importance) };
                f64::from(self.grid(values.into()).error(weighted))
            })
            .sum()
    }

    /// Replaces the elements of a row by what their integers represent.
    pub(crate) fn round(self, row: &mut [f32], block: usize) {
        for values in row.chunks_mut(block) {
            let grid = self.grid((&*values).into());
            values.iter_mut().for_each(|x| *x = grid.value(grid.quant(*x)));
        }
    }

    /// Returns the best grid for a block.
    pub(super) fn grid(self, block: Block<'_>) -> Grid {
        match self {
            Self::Zeros => best_4(block),
            Self::Symmetric => best_4_symmetric(block),
        }
    }

    /// Packs the integers of a row whose blocks have these grids.
    pub(super) fn pack(self, quants: &[u8], grids: &[Grid], block: usize) -> QuantRow {
        let mut out = QuantRow::default();
        for (quants, grid) in quants.chunks(block).zip(grids) {
            let mut padded = quants.to_vec();
            padded.resize(block, grid.zero as u8);
            out.quants.extend(padded.chunks(2).map(pack_pair));
            out.scales.push(f16::from_f32(grid.scale));
        }
        if self == Self::Zeros {
            let zeros: Vec<u8> = grids.iter().map(|grid| grid.zero as u8).collect();
            out.zeros = zeros.chunks(2).map(pack_pair).collect();
        }
        out
    }
}

fn best_4_symmetric(block: Block<'_>) -> Grid {
    let (low, high) = range(block.values);
    // The integers reach from -8 to 7.
    let peak = (-low / ZERO_4).max(high / (TOP_4 - ZERO_4));
    let mut best = (Grid::new(0.0, ZERO_4, TOP_4), f32::INFINITY);
    let mut share = 1.0;
    while share >= LEAST_SHARE_4 {
        let grid = Grid::new(peak * share, ZERO_4, TOP_4);
        best = better(best, grid, block);
        best = better(best, grid.refitted(block), block);
        share -= SHARE_STEP_4;
    }
    best.0
}

/// Form of blocks that are copied from a checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct CopiedForm {
    /// Width of the checkpoint's integers.
    pub source_bits: u8,
    /// Width of the package's integers, 4 or 8.
    pub bits: u8,
    /// The value that represents 0.
    pub shift: Shift,
}

/// The value that represents 0 in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shift {
    /// The middle of the integers' range.
    Middle,
    /// An integer zero point.
    Zeros,
    /// The middle of the integers' range represents an offset in half precision.
    Offsets,
}

/// Copies the integers of a row, whose elements are divided by `divisor`. Scales and offsets are rounded to half precision,
/// in which most GGUF blocks store their scales.
pub fn copy_blocks(row: &IntegerBlocks, divisor: f32, form: CopiedForm) -> QuantRow {
    let middle = 1u8 << (form.bits - 1);
    let source_middle = 1u8 << (form.source_bits - 1);
    // Zero points need the integers themselves.
    let added = if form.shift == Shift::Zeros { 0 } else { middle - source_middle };
    let mut out = QuantRow {
        scales: row.scales.iter().map(|s| finite_half(s / divisor)).collect(),
        ..QuantRow::default()
    };
    match form.bits {
        4 => out.quants.extend(row.quants.chunks(2).map(pack_pair)),
        _ => out.quants.extend(row.quants.iter().map(|q| q + added)),
    }

    let blocks = row.scales.iter().zip(&row.minimums);
    match form.shift {
        Shift::Middle => {}
        Shift::Zeros => {
            let top = if form.bits == 4 { TOP_4 } else { TOP_8 };
            let zeros: Vec<u8> =
                blocks.map(|(scale, minimum)| round(-minimum / scale).clamp(0.0, top) as u8).collect();
            out.zeros = if form.bits == 4 { zeros.chunks(2).map(pack_pair).collect() } else { zeros };
        }
        Shift::Offsets => {
            out.offsets.extend(
                blocks.map(|(scale, minimum)| {
                    finite_half((f32::from(source_middle) * scale + minimum) / divisor)
                }),
            );
        }
    }
    out
}

fn pack_pair(pair: &[u8]) -> u8 {
    pair[0] | pair.get(1).copied().unwrap_or(0) << 4
}

fn best_4(block: Block<'_>) -> Grid {
    let (low, high) = range(block.values);
    let mut best = (Grid::new(0.0, ZERO_4, TOP_4), f32::INFINITY);
    for share in RANGES_4 {
        let ideal = Grid::from_low((high - low) * share / TOP_4, low * share, TOP_4);
        for shift in [-1.0, 0.0, 1.0] {
            let grid = Grid { zero: (ideal.zero + shift).clamp(0.0, TOP_4), ..ideal };
            best = better(best, grid, block);
            best = better(best, grid.refitted(block), block);
        }
    }
    for _ in 0..2 {
        best = better(best, best.0.refitted(block), block);
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize) -> Vec<f32> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next() + 0.1).collect()
    }

    /// Decodes a row by the definition of `MatMulNBits`.
    fn decode(row: &QuantRow, block: usize, n: usize) -> Vec<f32> {
        let eight_bits = row.quants.len() == row.scales.len() * block;
        let nibble = |bytes: &[u8], i: usize| bytes[i / 2] >> (4 * (i % 2)) & 15;
        (0..n)
            .map(|i| {
                let (q, zero) = match (eight_bits, row.zeros.is_empty()) {
                    (true, true) => (row.quants[i], 128),
                    (true, false) => (row.quants[i], row.zeros[i / block]),
                    (false, true) => (nibble(&row.quants, i), 8),
                    (false, false) => (nibble(&row.quants, i), nibble(&row.zeros, i / block)),
                };
                let offset = row.offsets.get(i / block).map_or(0.0, |offset| offset.to_f32());
                (f32::from(q) - f32::from(zero)) * row.scales[i / block].to_f32() + offset
            })
            .collect()
    }

    #[test]
    fn four_bits_without_zero_points_are_near_the_values() {
        for block in [64, 256] {
            let row = noise(256);
            let found = Form4::Symmetric.quantize(&row, block);
            assert_eq!((found.scales.len(), found.zeros.len(), found.quants.len()), (256 / block, 0, 128));
            let error: f32 = row.iter().zip(decode(&found, block, 256)).map(|(x, y)| (x - y).powi(2)).sum();
            // A sixteenth of the range is the distance of two values; errors are up to half of it.
            assert!(error / 256.0 < (2.2f32 / 15.0).powi(2) / 10.0, "{error}");
        }
        // The sum of squared errors decides whether an outlier is clipped.
        let mut row = noise(64);
        row[9] = 3.0;
        let found = Form4::Symmetric.quantize(&row, 64);
        assert!(found.scales[0].to_f32() < 3.0 / 7.0, "{}", found.scales[0]);
        let empty = Form4::Symmetric.quantize(&[0.0; 16], 16);
        assert_eq!((decode(&empty, 16, 16), empty.scales[0].to_f32()), (vec![0.0; 16], 0.0));
        // Values on the grid are kept.
        let grid: Vec<f32> = (0..16).map(|i| (i as f32 - 8.0) * 0.25).collect();
        assert_eq!(decode(&Form4::Symmetric.quantize(&grid, 16), 16, 16), grid);
    }

    #[test]
    fn errors_are_those_of_the_decoded_row() {
        let row = noise(80);
        let importance: Vec<f32> = (0..80).map(|i| (i % 7) as f32).collect();
        for form in [Form4::Zeros, Form4::Symmetric] {
            let decoded = decode(&form.quantize(&row, 32), 32, 80);
            let terms = row.iter().zip(&decoded).zip(&importance);
            let expected: f32 = terms.map(|((x, y), importance)| importance * (x - y).powi(2)).sum();
            let found = form.error(&row, 32, &importance);
            assert!(expected > 0.0 && (found as f32 / expected - 1.0).abs() < 1e-4, "{found} {expected}");
        }
    }

    #[test]
    fn copied_blocks_are_those_of_the_source() {
        let half = |x: f32| f16::from_f32(x).to_f32();
        let (scale, minimum) = (half(0.0123), half(-0.0821));
        let row = |top: u8| IntegerBlocks {
            quants: (0..64).map(|i| ((i * 7 + 3) % (u32::from(top) + 1)) as u8).collect(),
            scales: vec![scale, 0.0],
            minimums: vec![minimum, half(0.25)],
        };
        for (source_bits, bits) in [(4, 4), (5, 8), (8, 8)] {
            let row = row(if source_bits == 8 { 255 } else { (1 << source_bits) - 1 });
            let elements = |middle: Option<u8>| -> Vec<f32> {
                let element = |(i, &q): (usize, &u8)| {
                    let scale = row.scales[i / 32];
                    let minimum = middle.map_or(row.minimums[i / 32], |middle| -f32::from(middle) * scale);
                    f32::from(q) * scale + minimum
                };
                row.quants.iter().enumerate().map(element).collect()
            };
            let found = copy_blocks(&row, 0.5, CopiedForm { source_bits, bits, shift: Shift::Offsets });
            assert_eq!(found.scales[0].to_f32(), 2.0 * scale);
            let most = found.offsets[0].to_f32().abs() / 2048.0;
            for (i, (x, y)) in elements(None).iter().zip(decode(&found, 32, 64)).enumerate() {
                assert!((2.0 * x - y).abs() <= most, "{source_bits} bits, {i}: {x} {y}");
            }
            let found = copy_blocks(&row, 1.0, CopiedForm { source_bits, bits, shift: Shift::Middle });
            assert_eq!(found.offsets, []);
            let middle = Some(1 << (source_bits - 1));
            assert!(elements(middle).iter().zip(decode(&found, 32, 64)).all(|(x, y)| (x - y).abs() <= 1e-6));
        }
        let groups = IntegerBlocks { scales: vec![scale, 0.0], minimums: vec![-3.0 * scale, 0.0], ..row(15) };
        let found = copy_blocks(&groups, 1.0, CopiedForm { source_bits: 4, bits: 4, shift: Shift::Zeros });
        assert_eq!(
            (&found.zeros[..], found.quants[0]),
            (&[3][..], row(15).quants[0] | row(15).quants[1] << 4)
        );
        let huge = IntegerBlocks { scales: vec![1e9; 2], minimums: vec![-1e9; 2], ..row(15) };
        let found = copy_blocks(&huge, 1.0, CopiedForm { source_bits: 4, bits: 4, shift: Shift::Offsets });
        assert!(found.scales.iter().chain(&found.offsets).all(|x| x.is_finite()));
    }

    fn relative_error(values: &[f32], row: &QuantRow, block: usize) -> f32 {
        let decoded = decode(row, block, values.len());
        let error: f32 = values.iter().zip(decoded).map(|(x, y)| (x - y).powi(2)).sum();
        (error / values.iter().map(|x| x * x).sum::<f32>()).sqrt()
    }

    #[test]
    fn rows_have_the_layout_of_the_operator() {
        let check = |row: QuantRow, expect: (usize, usize, usize)| {
            assert_eq!((row.quants.len(), row.scales.len(), row.zeros.len()), expect);
        };
        let values = noise(32 * 4 + 7);
        check(quantize_w8(&values, 32), (160, 5, 0));
        check(quantize_w8_zeros(&values, 32, None, None), (160, 5, 5));
        check(Form4::Zeros.quantize(&values, 32), (80, 5, 3));
        // The padding decodes to 0.
        assert_eq!(quantize_w8(&values, 32).quants[135..], [128; 25]);
        let w8 = quantize_w8_zeros(&values, 32, None, None);
        assert!(w8.quants[135..].iter().all(|q| *q == w8.zeros[4]));
    }

    #[test]
    fn errors_stay_within_half_a_step() {
        let values = noise(32 * 5 + 7);
        for row in [quantize_w8(&values, 32), quantize_w8_zeros(&values, 32, None, None)] {
            for (i, (x, y)) in values.iter().zip(decode(&row, 32, values.len())).enumerate() {
                assert!((x - y).abs() <= row.scales[i / 32].to_f32() * 0.57, "{i}: {x} {y}");
            }
        }
        let symmetric = relative_error(&values, &quantize_w8(&values, 32), 32);
        assert!(relative_error(&values, &quantize_w8_zeros(&values, 32, None, None), 32) <= symmetric);
        let w4 = relative_error(&values, &Form4::Zeros.quantize(&values, 32), 32);
        assert!((0.01..0.075).contains(&w4), "{w4}");
    }

    #[test]
    fn four_bits_lose_less_than_rounding_to_nearest() {
        let values: Vec<f32> = noise(32 * 64).iter().map(|x| x.powi(3)).collect();
        let nearest: f32 = values
            .chunks(32)
            .map(|block| {
                let (low, high) = range(block);
                Grid::from_low((high - low) / TOP_4, low, TOP_4).error(block.into())
            })
            .sum();
        let power: f32 = values.iter().map(|x| x * x).sum();
        assert!(
            relative_error(&values, &Form4::Zeros.quantize(&values, 32), 32)
                < 0.97 * (nearest / power).sqrt()
        );
    }

    #[test]
    fn representable_rows_are_exact() {
        // Values of a Q8_0 block are reproduced exactly: its scale is f16 and some value reaches 127.
        let scale = f16::from_f32(0.0123).to_f32();
        let q8: Vec<f32> = (0..32).map(|i| (i as f32 * 8.0 - 121.0) * scale).collect();
        assert_eq!(decode(&quantize_w8(&q8, 32), 32, 32), q8);
        assert_eq!(decode(&quantize_w8_zeros(&q8, 32, None, None), 32, 32), q8);
        let q4: Vec<f32> = (0..32).map(|i| ((i % 16) as f32 - 5.0) * 0.25).collect();
        assert_eq!(decode(&Form4::Zeros.quantize(&q4, 32), 32, 32), q4);
        // MXFP4: integers from -12 to 12 times a power of two.
        let magnitudes = [0.0, 1.0, -2.0, 3.0, -4.0, 6.0, -8.0, 12.0];
        for (exponent, largest) in [(-3, 8), (0, 8), (-24, 8), (4, 7), (9, 2)] {
            let mxfp4: Vec<f32> = (0..32).map(|i| magnitudes[i % largest] * 2.0f32.powi(exponent)).collect();
            assert_eq!(decode(&quantize_w8_powers(&mxfp4, 32), 32, 32), mxfp4, "2^{exponent}");
        }
        let zeros = [0.0; 32];
        for row in [
            quantize_w8_powers(&zeros, 32),
            quantize_w8(&zeros, 32),
            quantize_w8_zeros(&zeros, 32, Some(15), None),
            Form4::Zeros.quantize(&zeros, 32),
        ] {
            assert_eq!(decode(&row, 32, 32), zeros);
        }
    }

    #[test]
    fn a_lattice_of_a_narrower_source_is_kept() {
        // Q4_1: sixteen values with any step and any minimum.
        let values: Vec<f32> = noise(32 * 32)
            .chunks(32)
            .flat_map(|block| {
                let (step, least) = (0.01 + block[0].abs(), -4.0 * (0.3 + block[1].abs()));
                (0..32).map(move |i| ((i * 7) % 16) as f32 * step + least * step)
            })
            .collect();
        let blind = relative_error(&values, &quantize_w8_zeros(&values, 32, None, None), 32);
        let aware = relative_error(&values, &quantize_w8_zeros(&values, 32, Some(15), None), 32);
        assert!(aware < 0.6 * blind, "{aware} {blind}");
    }

    #[test]
    fn values_from_broken_files_do_not_panic() {
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE] {
            let mut values = noise(40);
            values[3] = x;
            for row in [
                quantize_w8(&values, 32),
                quantize_w8_powers(&values, 32),
                quantize_w8_zeros(&values, 32, Some(15), None),
                Form4::Zeros.quantize(&values, 32),
            ] {
                assert_eq!(row.scales.len(), 2);
                assert!(row.scales.iter().all(|scale| scale.is_finite()));
            }
        }
    }
}
