//! GPTQ (Frantar et al. 2022, arXiv:2210.17323): rounds the columns of a weight one after the other. Columns that are not
//! yet rounded compensate the error of each column, so that the outputs of the layer for a text change least.
//!
//! Columns with the largest inputs are rounded first ("activation order"). Scales and zero points are chosen before, for
//! blocks of columns in the order of storage ("static groups"), so the weight needs no permutation when the model runs.
//!
//! This module computes on matrices. It does not run models: see [`crate::calibration`].

use std::ops::{Add, Mul, Range, Sub};

use rayon::prelude::*;

use super::block::{Block, Form4, Grid, QuantRow};

/// Addition to the diagonal of the moments, as a share of its mean. A text has fewer tokens than some layers have
/// channels, and the addition keeps the compensation in proportion.
const DAMPING: f64 = 0.01;

/// Number of columns that are rounded before their errors reach the later columns. A square of this size stays in the
/// first cache.
const PANEL: usize = 64;

/// Number of rows that are rounded together, so that they share what is read of the factor.
const ROWS: usize = 16;

/// Least importance of a channel's errors when scales are chosen, as a share of the mean. Other texts use channels that
/// the calibration text does not.
const LEAST_IMPORTANCE: f32 = 0.01;

/// Number of columns of the inverse that are computed together.
const COLUMNS: usize = 32;

/// Second moments of a layer's inputs: the sum of `x · xᵀ` over the tokens of a text, for inputs `x` of `channels`
/// elements.
#[derive(Debug, Clone, PartialEq)]
pub struct Moments {
    channels: usize,
    /// `[channels, channels]`, symmetric.
    values: Vec<f32>,
}

impl Moments {
    /// Creates the moments; `None` unless there are `channels²` finite values and none on the diagonal is negative.
    pub fn new(channels: usize, values: Vec<f32>) -> Option<Self> {
        let is_valid = channels.checked_mul(channels) == Some(values.len())
            && values.iter().all(|value| value.is_finite())
            && values.iter().step_by(channels + 1).all(|square| *square >= 0.0);
        is_valid.then_some(Self { channels, values })
    }

    /// Returns the sum of the squares of each channel.
    fn squares(&self) -> impl Iterator<Item = f32> {
        self.values.iter().step_by(self.channels + 1).copied()
    }
}

/// Compensation of the rounding error of each column by the columns after it.
#[derive(Debug, Clone)]
pub struct Compensation {
    /// The column of each step.
    order: Vec<usize>,
    /// Weight of the squared error of each column when scales are chosen, in the order of storage.
    importance: Vec<f32>,
    /// Upper triangular factor `U` of the inverse of the moments, `UᵀU`, with rows and columns in the order of the steps.
    factor: Vec<f32>,
}

/// A rounded row of a weight.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundedRow {
    /// Its integers, scales and zero points.
    pub row: QuantRow,
    /// Sum of the squares by which the layer's output differs over the text, including the damping.
    pub error: f64,
}

impl Compensation {
    /// Creates the compensation for a layer with these inputs; `None` if rounding errors make the moments indefinite.
    ///
    /// A channel that is always 0 gets and gives no compensation.
    pub fn new(moments: &Moments) -> Option<Self> {
        let channels = moments.channels;
        let squares: Vec<f32> = moments.squares().collect();
        let mut order: Vec<usize> = (0..channels).collect();
        order.sort_by(|&a, &b| squares[b].total_cmp(&squares[a]));
        let mean = squares.iter().copied().map(f64::from).sum::<f64>() / channels.max(1) as f64;
        let importance = match mean as f32 {
            mean if mean > 0.0 => squares.iter().map(|x| (x / mean).max(LEAST_IMPORTANCE)).collect(),
            _ => vec![1.0; channels],
        };
        // Without any input, all weights are as good.
        let damping = if mean > 0.0 { DAMPING * mean } else { 1.0 };

        // With the steps in reverse, the inverse of the lower factor is the reversed upper factor of the inverse.
        let mut matrix = vec![0.0f64; channels * channels];
        matrix.par_chunks_mut(channels.max(1)).zip(order.par_iter().rev()).enumerate().for_each(
            |(index, (row, &channel))| {
                let values = &moments.values[channel * channels..];
                for (x, &other) in row.iter_mut().zip(order.iter().rev()).take(index + 1) {
                    *x = f64::from(values[other]);
                }
                row[index] += damping;
            },
        );
        cholesky(&mut matrix, channels)?;
        let inverse = LowerInverse::new(&matrix, channels);
        drop(matrix);

        let mut factor = vec![0.0f32; channels * channels];
        factor.par_chunks_mut(channels.max(1)).enumerate().for_each(|(step, row)| {
            let reversed = channels - 1 - step;
            row.iter_mut().rev().enumerate().take(reversed + 1).for_each(|(column, x)| {
                *x = inverse.element(reversed, column);
            });
        });
        Some(Self { order, importance, factor })
    }

    /// Rounds rows of the layer's weight to 4 bits, in blocks of `block` columns. `rows` are overwritten.
    pub fn round(&self, rows: &mut [f32], block: usize, form: Form4) -> Vec<RoundedRow> {
        let channels = self.order.len().max(1);
        rows.par_chunks_mut(ROWS * channels)
            .flat_map_iter(|rows| self.round_some(rows, block, form))
            .collect()
    }

    /// Rounds a few rows.
    fn round_some(&self, rows: &mut [f32], block: usize, form: Form4) -> Vec<RoundedRow> {
        let channels = self.order.len().max(1);
        let mut states: Vec<RowState> =
            rows.chunks(channels).map(|row| RowState::new(row, self, block, form)).collect();
        self.round_states(&mut states, block);
        states.into_iter().map(|state| state.finish(block, form)).collect()
    }

    /// Rounds all columns of some rows.
    fn round_states(&self, states: &mut [RowState], block: usize) {
        let channels = self.order.len();
        for start in (0..channels).step_by(PANEL) {
            let end = (start + PANEL).min(channels);
            for state in &mut *states {
                state.round_panel(self, start..end, block);
            }
            let panel = &self.factor[start * channels + end..];
            for state in &mut *states {
                subtract_rows(&mut state.values[end..], &state.errors[..end - start], panel, channels);
            }
        }
    }
}

/// A row of a weight that is being rounded.
struct RowState {
    /// Grid of each block.
    grids: Vec<Grid>,
    /// Elements with the compensation so far, in the order of the steps.
    values: Vec<f32>,
    /// Integers in the order of storage.
    quants: Vec<u8>,
    /// Errors of the columns of the current panel, each divided by the diagonal of the factor.
    errors: [f32; PANEL],
    /// Sum of the squares of all such errors.
    error: f64,
}

impl RowState {
    fn new(row: &[f32], compensation: &Compensation, block: usize, form: Form4) -> Self {
        let Compensation { order, importance, .. } = compensation;
        let blocks = row.chunks(block).zip(importance.chunks(block));
        let blocks = blocks.map(|(values, importance)| Block { values, importance: Some(importance) });
        Self {
            grids: blocks.map(|block| form.grid(block)).collect(),
            values: order.iter().map(|&column| row[column]).collect(),
            quants: vec![0; row.len()],
            errors: [0.0; PANEL],
            error: 0.0,
        }
    }

    /// Rounds the columns of some steps, and compensates their errors within these columns.
    fn round_panel(&mut self, compensation: &Compensation, steps: Range<usize>, block: usize) {
        let channels = compensation.order.len();
        for (step, error) in steps.clone().zip(&mut self.errors) {
            let column = compensation.order[step];
            let grid = &self.grids[column / block];
            let value = self.values[step];
            let quant = grid.quant(value);
            self.quants[column] = quant as u8;

            let factors = &compensation.factor[step * channels..(step + 1) * channels];
            *error = (value - grid.value(quant)) / factors[step];
            self.error += f64::from(*error).powi(2);
            let later = self.values[step + 1..steps.end].iter_mut().zip(&factors[step + 1..]);
            later.for_each(|(x, factor)| *x -= *error * factor);
        }
    }

    fn finish(self, block: usize, form: Form4) -> RoundedRow {
        RoundedRow { row: form.pack(&self.quants, &self.grids, block), error: self.error }
    }
}

/// Subtracts a combination of the rows of a matrix: `target[j] -= Σ factors[k] · rows[k · stride + j]`.
pub(super) fn subtract_rows<T>(target: &mut [T], factors: &[T], rows: &[T], stride: usize)
where
    T: Copy + Add<Output = T> + Mul<Output = T> + Sub<Output = T>,
{
    let row = |index: usize| rows.get(index * stride..).unwrap_or_default();
    let (quads, rest) = factors.as_chunks::<4>();
    for (index, &[a, b, c, d]) in quads.iter().enumerate() {
        let [p, q, r, s] = [0, 1, 2, 3].map(|part| row(4 * index + part));
        let terms = p.iter().zip(q).zip(r.iter().zip(s));
        for (x, ((&p, &q), (&r, &s))) in target.iter_mut().zip(terms) {
            *x = *x - ((a * p + b * q) + (c * r + d * s));
        }
    }
    for (index, &factor) in rest.iter().enumerate() {
        let terms = row(4 * quads.len() + index);
        target.iter_mut().zip(terms).for_each(|(x, &term)| *x = *x - factor * term);
    }
}

/// Replaces the lower triangle of a symmetric matrix `[n, n]` by its Cholesky factor. Only that triangle is read.
/// Returns `None` if the matrix is not positive definite.
fn cholesky(matrix: &mut [f64], n: usize) -> Option<()> {
    for start in (0..n).step_by(PANEL) {
        let end = (start + PANEL).min(n);
        let (above, below) = matrix.split_at_mut(end * n);
        factor_square(&mut above[start * n..], n, start)?;
        let square = &above[start * n..];

        // The rows below the square, and the same transposed.
        below.par_chunks_mut(n).for_each(|row| {
            for column in start..end {
                let factors = &square[(column - start) * n..][start..=column];
                let (known, rest) = row[start..].split_at_mut(column - start);
                rest[0] = (rest[0] - dot(known, factors)) / factors[column - start];
            }
        });
        let width = n - end;
        let mut transposed = vec![0.0; (end - start) * width];
        for (index, row) in below.chunks(n).enumerate() {
            for (k, &x) in row[start..end].iter().enumerate() {
                transposed[k * width + index] = x;
            }
        }
        below.par_chunks_mut(n).enumerate().for_each(|(index, row)| {
            let (left, right) = row.split_at_mut(end);
            subtract_rows(&mut right[..=index], &left[start..], &transposed, width);
        });
    }
    Some(())
}

/// Factors the square of a panel that begins at column `start`.
fn factor_square(rows: &mut [f64], n: usize, start: usize) -> Option<()> {
    let count = rows.len() / n;
    for index in 0..count {
        let (above, rest) = rows.split_at_mut(index * n);
        let row = &mut rest[start..n];
        for (column, other) in above.chunks(n).enumerate() {
            let factors = &other[start..=start + column];
            row[column] = (row[column] - dot(&row[..column], factors)) / factors[column];
        }
        let pivot = row[index] - dot(&row[..index], &row[..index]);
        if !(pivot > 0.0 && pivot.is_finite()) {
            return None;
        }
        row[index] = pivot.sqrt();
    }
    Some(())
}

/// Returns the product of two vectors; the longer one is cut.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// Inverse of a lower triangular matrix `[n, n]`.
struct LowerInverse {
    /// Groups of [`COLUMNS`] columns, each from the row on in which it begins.
    groups: Vec<Vec<f32>>,
}

impl LowerInverse {
    fn new(matrix: &[f64], n: usize) -> Self {
        let starts: Vec<usize> = (0..n).step_by(COLUMNS).collect();
        let groups = starts.into_par_iter().map(|start| inverse_columns(matrix, n, start)).collect();
        Self { groups }
    }

    /// Returns an element of the lower triangle.
    fn element(&self, row: usize, column: usize) -> f32 {
        let group = column / COLUMNS;
        self.groups[group][(row - group * COLUMNS) * COLUMNS + column % COLUMNS]
    }
}

/// Returns [`COLUMNS`] columns of the inverse of a lower triangular matrix from row `start` on, where they begin.
fn inverse_columns(matrix: &[f64], n: usize, start: usize) -> Vec<f32> {
    let mut columns = vec![0.0f64; (n - start) * COLUMNS];
    for index in 0..n - start {
        let (known, rest) = columns.split_at_mut(index * COLUMNS);
        let row = &mut rest[..COLUMNS];
        let factors = &matrix[(start + index) * n + start..][..=index];
        if let Some(unit) = row.get_mut(index) {
            *unit = 1.0;
        }
        subtract_rows(row, &factors[..index], known, COLUMNS);
        let pivot = factors[index];
        row.iter_mut().for_each(|x| *x /= pivot);
    }
    columns.into_iter().map(|x| x as f32).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod tests {
    use serde::Deserialize;

    use super::*;

    /// Weights rounded by an independent program, `tests/goldens/gptq/make.py`.
    #[derive(Deserialize)]
    struct Golden {
        channels: usize,
        block: usize,
        moments: Vec<f32>,
        weight: Vec<f32>,
        scales: Vec<f32>,
        zeros: Vec<f32>,
        quants: Vec<u8>,
        errors: Vec<f64>,
        errors_of_nearest: Vec<f64>,
    }

    fn golden() -> Golden {
        serde_json::from_str(include_str!("../../tests/goldens/gptq/expected.json")).unwrap()
    }

    /// Returns the squared change of a row's output.
    fn error(moments: &Moments, row: &[f32], decoded: &[f32]) -> f64 {
        let difference: Vec<f64> = row.iter().zip(decoded).map(|(x, y)| f64::from(x - y)).collect();
        let rows = moments.values.chunks(moments.channels).zip(&difference);
        rows.map(|(values, x)| {
            x * values.iter().zip(&difference).map(|(value, y)| f64::from(*value) * y).sum::<f64>()
        })
        .sum()
    }

    /// Returns the elements of a row with zero points.
    fn decode(row: &QuantRow, block: usize, length: usize) -> Vec<f32> {
        let nibble = |bytes: &[u8], i: usize| f32::from(bytes[i / 2] >> (4 * (i % 2)) & 15);
        let element =
            |i| (nibble(&row.quants, i) - nibble(&row.zeros, i / block)) * row.scales[i / block].to_f32();
        (0..length).map(element).collect()
    }

    #[test]
    fn integers_are_those_of_an_independent_program() {
        let golden = golden();
        let moments = Moments::new(golden.channels, golden.moments).unwrap();
        let compensation = Compensation::new(&moments).unwrap();
        let blocks = golden.channels.div_ceil(golden.block);
        for (index, row) in golden.weight.chunks(golden.channels).enumerate() {
            let of_row = index * blocks..(index + 1) * blocks;
            let grids = golden.scales[of_row.clone()].iter().zip(&golden.zeros[of_row]);
            let mut state = RowState {
                grids: grids.map(|(scale, zero)| Grid::new(*scale, *zero, 15.0)).collect(),
                ..RowState::new(row, &compensation, golden.block, Form4::Zeros)
            };
            compensation.round_states(std::slice::from_mut(&mut state), golden.block);
            assert_eq!(state.quants, golden.quants[index * golden.channels..][..golden.channels], "{index}");
            let expected = golden.errors[index];
            assert!((state.error / expected - 1.0).abs() < 1e-3, "{index}: {} {expected}", state.error);
            assert!(expected < 0.2 * golden.errors_of_nearest[index]);
        }
    }

    #[test]
    fn outputs_change_less_than_by_rounding_to_nearest() {
        let Golden { channels, block, moments, mut weight, .. } = golden();
        let moments = Moments::new(channels, moments).unwrap();
        let original = weight.clone();
        let rounded = Compensation::new(&moments).unwrap().round(&mut weight, block, Form4::Zeros);
        for (row, rounded) in original.chunks(channels).zip(&rounded) {
            let nearest = Form4::Zeros.quantize(row, block);
            let [compensated, nearest] =
                [&rounded.row, &nearest].map(|found| error(&moments, row, &decode(found, block, channels)));
            assert!(compensated < 0.3 * nearest, "{compensated} {nearest}");
            assert!(compensated <= rounded.error);
        }
    }

    #[test]
    fn without_correlation_weights_are_rounded_to_nearest() {
        let Golden { channels, block, mut weight, .. } = golden();
        for form in [Form4::Zeros, Form4::Symmetric] {
            let expected: Vec<QuantRow> =
                weight.chunks(channels).map(|row| form.quantize(row, block)).collect();
            for size in [1.0, 0.0] {
                let unit = (0..channels * channels).map(|i| if i % (channels + 1) == 0 { size } else { 0.0 });
                let moments = Moments::new(channels, unit.collect()).unwrap();
                let rows = Compensation::new(&moments).unwrap().round(&mut weight.clone(), block, form);
                assert_eq!(
                    rows.into_iter().map(|row| row.row).collect::<Vec<_>>(),
                    expected,
                    "{form:?} {size}"
                );
            }
        }
        weight.clear();
        let none = Moments::new(0, Vec::new()).unwrap();
        assert!(Compensation::new(&none).unwrap().round(&mut weight, block, Form4::Zeros).is_empty());
    }

    #[test]
    fn wide_layers_are_factored_in_panels() {
        // One token for every two channels, and more channels than two panels.
        let channels: usize = 2 * PANEL + 37;
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
        };
        let tokens: Vec<f32> = (0..channels / 2 * channels).map(|_| next()).collect();
        let mut values = vec![0.0; channels * channels];
        for token in tokens.chunks(channels) {
            for (row, x) in values.chunks_mut(channels).zip(token) {
                row.iter_mut().zip(token).for_each(|(sum, y)| *sum += x * y);
            }
        }
        let moments = Moments::new(channels, values).unwrap();
        let compensation = Compensation::new(&moments).unwrap();

        // `UᵀU` times the damped moments is the unit matrix.
        let factor: Vec<&[f32]> = compensation.factor.chunks(channels).collect();
        let damping = DAMPING * moments.squares().map(f64::from).sum::<f64>() / channels as f64;
        let damped = |row: usize, column: usize| {
            let [row, column] = [row, column].map(|step| compensation.order[step]);
            f64::from(moments.values[row * channels + column]) + if row == column { damping } else { 0.0 }
        };
        for row in (0..channels).step_by(29) {
            let inverse: Vec<f64> = (0..channels)
                .map(|column| factor.iter().map(|u| f64::from(u[row]) * f64::from(u[column])).sum())
                .collect();
            for column in 0..channels {
                let product: f64 = inverse.iter().enumerate().map(|(k, x)| x * damped(k, column)).sum();
                let expected = if row == column { 1.0 } else { 0.0 };
                assert!((product - expected).abs() < 1e-3, "{row} {column}: {product}");
            }
        }

        let weight: Vec<f32> = (0..40 * channels).map(|_| next()).collect();
        let together = compensation.round(&mut weight.clone(), 32, Form4::Zeros);
        let alone =
            weight.chunks(channels).flat_map(|row| compensation.round(&mut row.to_vec(), 32, Form4::Zeros));
        assert_eq!(together, alone.collect::<Vec<_>>());
        for (row, rounded) in weight.chunks(channels).zip(&together) {
            let nearest = Form4::Zeros.quantize(row, 32);
            let nearest = error(&moments, row, &decode(&nearest, 32, channels));
            assert!(error(&moments, row, &decode(&rounded.row, 32, channels)) < 0.7 * nearest);
        }
    }

    #[test]
    fn moments_that_no_input_has_are_refused() {
        for value in [f32::NAN, f32::INFINITY, -1.0] {
            assert_eq!(Moments::new(2, vec![1.0, 0.0, 0.0, value]), None);
        }
        assert_eq!(Moments::new(2, vec![1.0; 3]), None);
        assert_eq!(Moments::new(usize::MAX, Vec::new()), None);
        // Larger off the diagonal than on it.
        let indefinite = Moments::new(2, vec![1.0, 2.0, 2.0, 1.0]).unwrap();
        assert!(Compensation::new(&indefinite).is_none());
    }
}
