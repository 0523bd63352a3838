//! Products in single precision.
//!
//! Each output is one chain of fused multiply-adds from the first input to the last, regardless of the number of rows.

use std::ops::Range;

use half::f16;

use crate::{
    aligned::{AlignedBytes, LINE},
    error::KernelError,
    math::store_part,
    simd::{LANES, Operation, Simd},
    tiling::{Step, TilePosition, panels},
    view::{MatrixMut, MatrixRef},
};

/// Maximum number of rows in a register tile.
pub(crate) const MAX_ROWS: usize = 12;

/// Weights that are not quantised, with their precision.
#[derive(Debug, Clone, Copy)]
pub enum FloatWeights<'a> {
    /// Half precision.
    F16(&'a [f16]),
    /// Single precision.
    F32(&'a [f32]),
}

/// Weights that are not quantised, in tiles of sixteen outputs. A tile has sixteen weights for each input.
#[derive(Debug)]
pub struct FloatMatrix {
    outputs: usize,
    inputs: usize,
    half: bool,
    bytes: AlignedBytes,
}

impl FloatMatrix {
    /// Packs weights of the shape `[outputs, inputs]`.
    ///
    /// # Errors
    /// Returns an error if the number of weights contradicts the shape.
    pub fn pack(outputs: usize, inputs: usize, weights: FloatWeights<'_>) -> Result<Self, KernelError> {
        let (half, found) = match weights {
            FloatWeights::F16(weights) => (true, weights.len()),
            FloatWeights::F32(weights) => (false, weights.len()),
        };
        let expected = outputs.saturating_mul(inputs);
        if found != expected {
            return Err(KernelError::Length { what: "weights", expected, found });
        }

        let width = if half { 2 } else { 4 };
        let size = outputs
            .checked_next_multiple_of(LANES)
            .and_then(|rows| rows.checked_mul(inputs))
            .and_then(|elements| elements.checked_mul(width))
            .ok_or(KernelError::Size { outputs, inputs })?;
        let mut bytes = AlignedBytes::zeros(size);
        let all = bytes.as_mut_slice();
        for output in 0..outputs {
            for input in 0..inputs {
                let from = output * inputs + input;
                let to = (output / LANES * inputs + input) * LANES + output % LANES;
                match weights {
                    FloatWeights::F16(weights) => {
                        all[to * 2..][..2].copy_from_slice(&weights[from].to_le_bytes())
                    }
                    FloatWeights::F32(weights) => {
                        all[to * 4..][..4].copy_from_slice(&weights[from].to_le_bytes())
                    }
                }
            }
        }
        Ok(Self { outputs, inputs, half, bytes })
    }

    /// Returns the number of outputs, which are the columns of the product.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Returns the number of inputs.
    pub fn inputs(&self) -> usize {
        self.inputs
    }
}

/// Rows of activations in the order in which float products read them. The buffers are reused from call to call.
#[derive(Debug, Default)]
pub struct FloatRows {
    rows: usize,
    inputs: usize,
    panel_rows: usize,
    /// Numbers: for each panel and input, one number of each row.
    values: Vec<f32>,
}

impl FloatRows {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the length of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Sets the shape of the panels, and allocates their values.
    pub(crate) fn reset(&mut self, rows: usize, inputs: usize, panel_rows: usize) {
        (self.rows, self.inputs, self.panel_rows) = (rows, inputs, panel_rows.min(MAX_ROWS));
        self.values.clear();
        self.values.resize(rows * inputs, 0.0);
    }

    /// Writes one row, with each number multiplied by a factor.
    pub(crate) fn set_row(&mut self, panel: &Range<usize>, row: usize, values: &[f32], factor: f32) {
        let len = panel.len();
        let out = &mut self.values[panel.start * self.inputs + row - panel.start..];
        for (slot, x) in out.iter_mut().step_by(len).zip(values) {
            *slot = x * factor;
        }
    }

    /// Returns the rows of each panel.
    pub(crate) fn panels(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        panels(self.rows, self.panel_rows)
    }

    /// Returns the values of a panel.
    pub(crate) fn panel(&self, rows: &Range<usize>) -> &[f32] {
        &self.values[rows.start * self.inputs..rows.end * self.inputs]
    }
}

/// Operation that arranges rows for products.
pub(crate) struct Interleave<'a> {
    pub(crate) input: MatrixRef<'a>,
    pub(crate) out: &'a mut FloatRows,
}

impl Operation for Interleave<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.out.reset(self.input.rows(), self.input.columns(), S::FLOAT_ROWS);
        for panel in self.out.panels() {
            for row in panel.clone() {
                self.out.set_row(&panel, row, self.input.row(row), 1.0);
            }
        }
    }
}

/// Operation that multiplies activations by some columns of a matrix.
pub(crate) struct FloatMatMul<'a> {
    pub(crate) input: &'a FloatRows,
    pub(crate) weights: &'a FloatMatrix,
    pub(crate) columns: Range<usize>,
    pub(crate) out: MatrixMut<'a>,
}

/// Evaluates an expression in which a constant is the number of rows in a panel.
macro_rules! with_rows {
    ($rows:expr, $r:ident => $call:expr) => {
        match $rows {
            1 => {
                const $r: usize = 1;
                $call
            }
            2 => {
                const $r: usize = 2;
                $call
            }
            3 => {
                const $r: usize = 3;
                $call
            }
            4 => {
                const $r: usize = 4;
                $call
            }
            5 => {
                const $r: usize = 5;
                $call
            }
            6 => {
                const $r: usize = 6;
                $call
            }
            7 => {
                const $r: usize = 7;
                $call
            }
            8 => {
                const $r: usize = 8;
                $call
            }
            9 => {
                const $r: usize = 9;
                $call
            }
            10 => {
                const $r: usize = 10;
                $call
            }
            11 => {
                const $r: usize = 11;
                $call
            }
            12 => {
                const $r: usize = 12;
                $call
            }
            other => unreachable!("panels have up to 12 rows, not {other}"),
        }
    };
}
pub(crate) use with_rows;

impl Operation for FloatMatMul<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        for step in Step::all(&self.columns, S::TILES) {
            for rows in self.input.panels() {
                with_rows!(rows.len(), R => s.run(FloatPanel::<R> { matmul: &mut self, place: step.at(rows.start) }));
            }
        }
    }
}

/// Operation that multiplies a panel of `R` rows by one or two tiles, which is compiled as a function of its own.
struct FloatPanel<'a, 'b, const R: usize> {
    matmul: &'a mut FloatMatMul<'b>,
    place: TilePosition,
}

impl<const R: usize> Operation for FloatPanel<'_, '_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { matmul, place } = self;
        if R > S::FLOAT_ROWS {
            unreachable!("panels have up to {} rows, not {R}", S::FLOAT_ROWS);
        }
        let (values, _) = matmul.input.panel(&(place.row..place.row + R)).as_chunks::<R>();
        if matmul.weights.half {
            tiles::<S, 32, R>(s, matmul, values, place);
        } else {
            tiles::<S, 64, R>(s, matmul, values, place);
        }
    }
}

/// Multiplies one or two tiles whose weights have `W / 16` bytes.
#[inline(always)]
fn tiles<S: Simd, const W: usize, const R: usize>(
    s: S,
    matmul: &mut FloatMatMul<'_>,
    values: &[[f32; R]],
    place: TilePosition,
) {
    let inputs = matmul.weights.inputs;
    let (lines, _) = matmul.weights.bytes.as_slice().as_chunks::<W>();
    let first = place.step.tile;
    let count = place.step.count;
    let tile = |at: usize| &lines[(first + at) * inputs..][..inputs];
    if S::TILES == 2 && count == 2 && R > 1 {
        let sums = multiply::<S, W, R, 2>(s, values, [tile(0), tile(1)]);
        store(s, matmul, &sums, place.row, first);
    } else {
        for at in 0..count {
            let sums = multiply::<S, W, R, 1>(s, values, [tile(at)]);
            store(s, matmul, &sums, place.row, first + at);
        }
    }
}

#[inline(always)]
fn multiply<S: Simd, const W: usize, const R: usize, const V: usize>(
    s: S,
    values: &[[f32; R]],
    tiles: [&[[u8; W]]; V],
) -> [[S::Floats; V]; R] {
    let mut sums = [[s.splat(0.0); V]; R];
    for (input, values) in values.iter().enumerate() {
        let mut weights = [load_weights(s, &tiles[0][input]); V];
        for v in 1..V {
            weights[v] = load_weights(s, &tiles[v][input]);
        }
        for r in 0..R {
            let x = s.splat(values[r]);
            for v in 0..V {
                sums[r][v] = s.mul_add(weights[v], x, sums[r][v]);
            }
        }
    }
    sums
}

/// Loads sixteen weights from 32 or 64 bytes.
#[inline(always)]
fn load_weights<S: Simd, const W: usize>(s: S, bytes: &[u8; W]) -> S::Floats {
    match (bytes.first_chunk::<LINE>(), bytes.first_chunk::<32>()) {
        (Some(single), _) => s.load_le(single),
        (None, Some(half)) => s.load_f16_le(half),
        (None, None) => s.splat(0.0),
    }
}

#[inline(always)]
fn store<S: Simd, const R: usize, const V: usize>(
    s: S,
    matmul: &mut FloatMatMul<'_>,
    sums: &[[S::Floats; V]; R],
    first_row: usize,
    first_tile: usize,
) {
    for r in 0..R {
        let row = matmul.out.row_mut(first_row + r);
        for v in 0..V {
            let at = (first_tile + v) * LANES - matmul.columns.start;
            store_part(s, sums[r][v], &mut row[at..]);
        }
    }
}
