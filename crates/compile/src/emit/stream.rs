//! Writes weights from the checkpoint to the weights file, in pieces of rows.
//!
//! Only one piece of a weight is decoded at a time. Scales, zero points and offsets of a quantised weight stay in memory
//! until its integers are written; they take up to a fifth of its size. This module does not add nodes to a graph.

use std::{
    io::{self, Write},
    ops::Range,
    sync::atomic::Ordering,
};

use half::f16;
use narthex_checkpoint::{CheckpointError, Encoding, IntegerBlocks, Weight, WeightSource};
use narthex_graph::onnx::external::ByteRange;
use narthex_spec::{BlockSize, DType};
use rayon::prelude::*;

use super::{Emitter, QuantizedWeight, RoundedWeights, RowScales, RowShape, encoded, size};
use crate::{
    error::{CompileError, Result, unwritable},
    package::HashedFile,
    quant::{
        Plan, Scaling, Storage,
        block::{
            CopiedForm, Factors, Form4, QuantRow, Shift, copy_blocks, quantize_w8, quantize_w8_powers,
            quantize_w8_zeros,
        },
    },
};

/// Number of elements in a piece: 16 MiB decoded. A longer row is a piece of its own.
const PIECE: usize = 4 << 20;

/// Maximum number of elements of a transposed weight in memory: 64 MiB. A larger weight is read several times.
const TRANSPOSED: usize = 16 << 20;

/// Destination of weights.
pub(crate) enum WeightSink {
    /// A file of the package.
    File(HashedFile),
    /// No file: a dry run only counts the bytes.
    Discard,
}

impl Write for WeightSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.write(bytes),
            Self::Discard => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.flush(),
            Self::Discard => Ok(()),
        }
    }
}

/// Appends the next bytes of a tensor.
type Append<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Divides a range of rows, each of `width` elements, into pieces.
pub(crate) fn pieces(range: Range<usize>, width: usize) -> impl Iterator<Item = Range<usize>> {
    cut(range, PIECE / width.max(1))
}

fn cut(range: Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    let step = step.max(1);
    range.step_by(step).map(move |start| start..(start + step).min(end))
}

impl Emitter<'_> {
    /// Returns `true` if weights are neither read nor written.
    pub(crate) fn is_dry_run(&self) -> bool {
        matches!(self.data.file(), WeightSink::Discard)
    }

    /// Writes a tensor of `length` bytes. `pieces` appends them in order; a dry run does not call it.
    pub(crate) fn stream(
        &mut self,
        length: u64,
        pieces: impl FnOnce(&mut Append<'_>) -> Result<()>,
    ) -> Result<ByteRange> {
        let file = self.data_file;
        let cancel = self.cancel;
        let dry_run = self.is_dry_run();
        let data = &mut self.data;
        let range = data.begin(length).map_err(unwritable(file))?;
        if !dry_run {
            pieces(&mut |bytes| {
                if cancel.load(Ordering::Relaxed) {
                    return Err(CompileError::Cancelled);
                }
                data.append(bytes).map_err(unwritable(file))
            })?;
            self.stage.advance(self.data.length());
        }
        Ok(range)
    }

    /// Writes some rows of a weight `[all, cols]` in the given element type, unquantised.
    pub(crate) fn rows(
        &mut self,
        name: &str,
        [all, cols]: [usize; 2],
        rows: Range<usize>,
        dtype: DType,
    ) -> Result<ByteRange> {
        let weights = self.weights;
        self.stream(size(&[rows.len(), cols], dtype), |append| {
            let weight = weights.weight(name)?;
            // A single row may be stored as a vector.
            if all != 1 || weight.shape != [cols] {
                weight.expect_shape(&[all, cols])?;
            }
            pieces(rows, cols).try_for_each(|piece| {
                let values = decoded(&weight, piece);
                weights.check_finite(name, &values)?;
                append(&encoded(&values, dtype))
            })
        })
    }

    /// Writes weights `[rows, cols]`, concatenated along their rows and transposed: `[cols, all rows]`.
    pub(crate) fn transposed(&mut self, names: &[String], cols: usize, dtype: DType) -> Result<ByteRange> {
        let plan = self.plan;
        let weights = self.weights;
        let scaling = self.scaling;
        let all = self.stacked_rows(names);
        self.stream(size(&[all, cols], dtype), |append| {
            let mut parts = Vec::new();
            for name in names {
                let rows = plan.get(name).map_or(0, |planned| planned.rows);
                parts.push(ScaledWeight::open(weights, scaling, name, [rows, cols], cols)?);
            }
            cut(0..cols, TRANSPOSED / all.max(1))
                .try_for_each(|columns| append(&encoded(&transposed(&parts, columns)?, dtype)))
        })
    }

    /// Writes weights in the given element type, unquantised.
    pub(crate) fn stacked(&mut self, stacked: StackedRows<'_>, dtype: DType) -> Result<ByteRange> {
        let StackedRows { names, cols, alternating } = stacked;
        let plan = self.plan;
        let weights = self.weights;
        let scaling = self.scaling;
        let all = self.stacked_rows(names);
        self.stream(size(&[all, cols], dtype), |append| {
            names.chunks(alternating).try_for_each(|names| {
                let mut parts = Vec::with_capacity(names.len());
                for name in names {
                    let rows = plan.get(name).map_or(0, |planned| planned.rows);
                    let weight = ScaledWeight::open(weights, scaling, name, [rows, cols], cols)?;
                    parts.push(weight.read_rows(0..rows)?);
                }
                let rows = parts.first().map_or(0, |part| part.len() / cols.max(1));
                let order =
                    (0..rows).flat_map(|row| parts.iter().map(move |part| &part[row * cols..][..cols]));
                append(&encoded(&order.collect::<Vec<_>>().concat(), dtype))
            })
        })
    }

    /// Returns the sum of the rows of linear weights.
    pub(crate) fn stacked_rows(&self, names: &[String]) -> usize {
        names.iter().filter_map(|name| self.plan.get(name)).map(|planned| planned.rows).sum()
    }

    /// Quantises weights of equal width, concatenated along their rows. Writes them unless an earlier graph did.
    pub(crate) fn quantize(
        &mut self,
        names: &[String],
        cols: usize,
        storage: Storage,
    ) -> Result<QuantizedWeight> {
        self.quantize_stacked(StackedRows { names, cols, alternating: 1 }, storage)
    }

    /// Quantises weights. Writes them unless an earlier graph did.
    pub(crate) fn quantize_stacked(
        &mut self,
        stacked: StackedRows<'_>,
        storage: Storage,
    ) -> Result<QuantizedWeight> {
        let key = stacked.names.join("+");
        if let Some(known) = self.written.quantized.get(&key) {
            return Ok(*known);
        }
        let quantized = self.write_quantized(stacked, storage)?;
        self.written.quantized.insert(key, quantized);
        Ok(quantized)
    }

    fn write_quantized(&mut self, stacked: StackedRows<'_>, storage: Storage) -> Result<QuantizedWeight> {
        let StackedRows { names, cols, alternating } = stacked;
        let block = self.recipe.block.elements(cols);
        let rows = self.stacked_rows(names) as u64;
        let blocks = cols.div_ceil(block) as u64;
        let bits = storage.bits() as u64;
        let quants_length = blocks * block as u64 * bits / 8;
        // One for each block of the operator.
        let repetitions = if self.recipe.block == BlockSize::Channel {
            cols / self.recipe.block.operator_block(cols)
        } else {
            1
        };
        let quantizer = Quantizer {
            weights: self.weights,
            plan: self.plan,
            scaling: self.scaling,
            rounded: self.rounded,
            block,
            cols,
            storage,
        };
        let mut scales = Vec::new();
        let mut zeros = Vec::new();
        let mut offsets = Vec::new();
        let quants = self.stream(rows * quants_length, |append| {
            names.chunks(alternating).try_for_each(|names| {
                quantizer.alternate(names, &mut |row| {
                    scales.extend_from_slice(&row.scales);
                    zeros.extend_from_slice(&row.zeros);
                    offsets.extend_from_slice(&row.offsets);
                    append(&row.quants)
                })
            })
        })?;

        let scales_range = self.stream(rows * blocks * repetitions as u64 * 2, |append| {
            scales.chunks(PIECE / repetitions).try_for_each(|scales| {
                let repeated = scales.iter().flat_map(|scale| std::iter::repeat_n(*scale, repetitions));
                append(bytemuck::cast_slice(&repeated.collect::<Vec<f16>>()))
            })
        })?;
        let mut weight = QuantizedWeight {
            storage,
            quants,
            scales: scales_range,
            zeros: None,
            offsets: None,
            row_scales: None,
        };
        if self.recipe.block == BlockSize::Channel && self.recipe.fixed.is_some() {
            let scales = self.stream(rows * 2, |append| append(bytemuck::cast_slice(&scales)))?;
            let length = (rows * bits).div_ceil(8);
            // The middle of the integers' range.
            let zeros = if bits == 4 { 0x88 } else { 0x80 };
            let zeros = self.stream(length, |append| append(&vec![zeros; length as usize]))?;
            weight.row_scales = Some(RowScales { scales, zeros });
        }
        match storage.shift() {
            Shift::Middle => {}
            Shift::Zeros => {
                let length = rows * (blocks * bits).div_ceil(8);
                weight.zeros = Some(self.stream(length, |append| append(&zeros))?);
            }
            Shift::Offsets => {
                weight.offsets = Some(self.stream(rows * blocks * 2, |append| {
                    // A product multiplies them from the right: `[blocks, rows]`.
                    (0..blocks as usize).try_for_each(|block| {
                        let rows = offsets.iter().skip(block).step_by(blocks as usize);
                        append(bytemuck::cast_slice(&rows.copied().collect::<Vec<f16>>()))
                    })
                })?);
            }
        }
        Ok(weight)
    }
}

/// Linear weights of equal width, concatenated along their rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StackedRows<'a> {
    /// Canonical names.
    pub(crate) names: &'a [String],
    /// Number of columns.
    pub(crate) cols: usize,
    /// Number of successive weights with equally many rows, which alternate; 1 for weights one after the other.
    pub(crate) alternating: usize,
}

/// Quantiser for the rows of linear weights of equal width.
struct Quantizer<'a> {
    weights: &'a dyn WeightSource,
    plan: &'a Plan,
    scaling: &'a Scaling,
    rounded: &'a RoundedWeights,
    block: usize,
    cols: usize,
    storage: Storage,
}

/// A weight whose rows are read with the scales of its channels.
pub(crate) struct ScaledWeight<'a> {
    weight: Weight<'a>,
    weights: &'a dyn WeightSource,
    factors: Option<Factors<'a>>,
    divisors: Option<&'a [f32]>,
}

impl<'a> ScaledWeight<'a> {
    /// Opens a weight `[rows, cols]` for blocks of `block` columns.
    pub(crate) fn open(
        weights: &'a dyn WeightSource,
        scaling: &'a Scaling,
        name: &str,
        shape: [usize; 2],
        block: usize,
    ) -> Result<Self> {
        let factors = scaling.factors(name).map(|columns| Factors::new(columns, block));
        Ok(Self { factors, divisors: scaling.divisors(name), ..Self::plain(weights, name, shape)? })
    }

    /// Opens a weight `[rows, cols]` without scales.
    pub(crate) fn plain(weights: &'a dyn WeightSource, name: &str, shape: [usize; 2]) -> Result<Self> {
        let weight = weights.weight(name)?;
        weight.expect_shape(&shape)?;
        Ok(Self { weight, weights, factors: None, divisors: None })
    }

    /// Reads some rows in parallel; fails if an element is not finite.
    pub(crate) fn read_rows(&self, rows: Range<usize>) -> Result<Vec<f32>, CheckpointError> {
        let cols = self.weight.cols();
        let mut values = vec![0.0; rows.len() * cols];
        let each = values.par_chunks_mut(cols.max(1)).zip(rows);
        each.try_for_each(|(out, row)| self.read_row(row, out))?;
        Ok(values)
    }

    /// Reads a row; fails if an element is not finite. `out` has the length of a row.
    pub(crate) fn read_row(&self, row: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        self.weight.read_row(row, out);
        self.weights.check_finite(&self.weight.name, out)?;
        if let Some(factors) = &self.factors {
            factors.multiply(out);
        }
        if let Some(divisor) = self.divisors.and_then(|all| all.get(row)) {
            out.iter_mut().for_each(|x| *x /= divisor);
        }
        Ok(())
    }
}

impl Quantizer<'_> {
    /// Passes the rows of weights to `take`, scaled and quantised: the first row of each, then the second.
    fn alternate(&self, names: &[String], take: &mut dyn FnMut(&QuantRow) -> Result<()>) -> Result<()> {
        if let [name] = names {
            return self.each_row(name, take);
        }
        let mut weights: Vec<Vec<QuantRow>> = Vec::with_capacity(names.len());
        for name in names {
            let mut rows = Vec::new();
            self.each_row(name, &mut |row| {
                rows.push(row.clone());
                Ok(())
            })?;
            weights.push(rows);
        }
        let count = weights.first().map_or(0, Vec::len);
        (0..count).flat_map(|row| weights.iter().filter_map(move |rows| rows.get(row))).try_for_each(take)
    }

    /// Passes a weight's rows to `take` in order, scaled and quantised.
    fn each_row(&self, name: &str, take: &mut dyn FnMut(&QuantRow) -> Result<()>) -> Result<()> {
        let cols = self.cols;
        let rows = self.plan.get(name).map_or(0, |planned| planned.rows);
        if self.storage.is_copied() {
            let weight = self.weights.weight(name)?;
            weight.expect_shape(&[rows, cols])?;
            return self.copy_rows(&weight, take);
        }
        if let Some(form) = self.storage.form_of_4_bits() {
            let shape = RowShape { blocks: cols.div_ceil(self.block), block: self.block, form };
            if self.rounded.each_row(name, rows, shape, take)? {
                return Ok(());
            }
        }

        let weight = ScaledWeight::open(self.weights, self.scaling, name, [rows, cols], self.block)?;
        pieces(0..rows, cols).try_for_each(|piece| {
            let quantized: Vec<QuantRow> = piece
                .into_par_iter()
                .map_init(
                    || vec![0.0; cols],
                    |buffer, row| {
                        weight.read_row(row, buffer)?;
                        Ok(self.quantize_row(&weight, buffer))
                    },
                )
                .collect::<Result<_, CheckpointError>>()?;
            quantized.iter().try_for_each(&mut *take)
        })
    }

    /// Quantises a row of a weight.
    fn quantize_row(&self, weight: &ScaledWeight<'_>, row: &[f32]) -> QuantRow {
        let is_scaled = weight.factors.is_some() || weight.divisors.is_some();
        match self.storage {
            Storage::W8 | Storage::W8Zeros if weight.weight.encoding == Encoding::Mxfp4 && !is_scaled => {
                quantize_w8_powers(row, self.block)
            }
            Storage::W4 => Form4::Zeros.quantize(row, self.block),
            Storage::W4Symmetric => Form4::Symmetric.quantize(row, self.block),
            Storage::W8Zeros => {
                quantize_w8_zeros(row, self.block, steps(weight.weight.encoding), weight.factors.as_ref())
            }
            _ => quantize_w8(row, self.block),
        }
    }

    /// Passes the rows of a weight whose integers are copied to `take` in order.
    fn copy_rows(&self, weight: &Weight<'_>, take: &mut dyn FnMut(&QuantRow) -> Result<()>) -> Result<()> {
        let name = weight.name.as_str();
        let form = CopiedForm {
            source_bits: weight.encoding.bits(),
            bits: self.storage.bits() as u8,
            shift: self.storage.shift(),
        };
        let divisors = self.scaling.divisors(name);
        pieces(0..weight.rows_len(), self.cols).try_for_each(|piece| {
            let copied: Vec<QuantRow> = piece
                .into_par_iter()
                .map_init(IntegerBlocks::default, |blocks, row| {
                    weight.read_integers(row, blocks)?;
                    self.weights.check_finite(name, &blocks.scales)?;
                    self.weights.check_finite(name, &blocks.minimums)?;
                    let divisor = divisors.and_then(|all| all.get(row)).copied().unwrap_or(1.0);
                    Ok(copy_blocks(blocks, divisor, form))
                })
                .collect::<Result<_, CheckpointError>>()?;
            copied.iter().try_for_each(&mut *take)
        })
    }
}

/// Decodes some rows in parallel.
fn decoded(weight: &Weight<'_>, rows: Range<usize>) -> Vec<f32> {
    let cols = weight.cols();
    let mut out = vec![0.0; rows.len() * cols];
    out.par_chunks_mut(cols.max(1)).zip(rows).for_each(|(out, row)| weight.read_row(row, out));
    out
}

/// Returns some columns of weights that are concatenated along their rows. The elements of each column are contiguous.
fn transposed(parts: &[ScaledWeight<'_>], columns: Range<usize>) -> Result<Vec<f32>, CheckpointError> {
    let all: usize = parts.iter().map(|part| part.weight.rows_len()).sum();
    let mut out = vec![0.0; columns.len() * all];
    let mut buffer = vec![0.0; parts.iter().map(|part| part.weight.cols()).max().unwrap_or(0)];
    let rows = parts.iter().flat_map(|part| (0..part.weight.rows_len()).map(move |row| (part, row)));
    for (at, (part, row)) in rows.enumerate() {
        part.read_row(row, &mut buffer)?;
        let values = buffer.get(columns.clone()).unwrap_or_default();
        out.iter_mut().skip(at).step_by(all).zip(values).for_each(|(out, x)| *out = *x);
    }
    Ok(out)
}

/// Returns the number of steps over a block's range, for encodings with fewer than 8 bits.
fn steps(encoding: Encoding) -> Option<u8> {
    match encoding {
        Encoding::Q4_0 | Encoding::Q4_1 | Encoding::Q4K | Encoding::Uint4 => Some(15),
        Encoding::Q5_0 | Encoding::Q5_1 | Encoding::Q5K => Some(31),
        Encoding::Q6K => Some(63),
        Encoding::F32 | Encoding::F16 | Encoding::Bf16 | Encoding::Q8_0 | Encoding::Mxfp4 => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dry_run::NoWeights;

    #[test]
    fn pieces_cover_a_range() {
        let check = |range, step, expect: &[Range<usize>]| {
            assert_eq!(cut(range, step).collect::<Vec<_>>(), expect);
        };
        check(0..5, 2, &[0..2, 2..4, 4..5]);
        check(3..4, 9, std::slice::from_ref(&(3..4)));
        check(2..4, 0, &[2..3, 3..4]);
        check(2..2, 3, &[]);
    }

    #[test]
    fn stacked_weights_are_transposed_by_columns() {
        let weight = |values: [f32; 4]| {
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            Weight::new("w", vec![2, 2], Encoding::F32, bytes).unwrap()
        };
        let part = |values, divisors, factors: Option<&'static [f32]>| ScaledWeight {
            weight: weight(values),
            weights: &NoWeights,
            factors: factors.map(|columns| Factors::new(columns, 2)),
            divisors: Some(divisors),
        };
        let parts = [
            part([1.0, 2.0, 3.0, 4.0], &[1.0, 0.5], None),
            part([5.0, 6.0, 7.0, 8.0], &[1.0, 2.0], Some(&[1.0, 3.0])),
        ];
        let transposed = |columns| transposed(&parts, columns).unwrap();
        assert_eq!(transposed(0..2), [1.0, 6.0, 5.0, 3.5, 2.0, 8.0, 18.0, 12.0]);
        assert_eq!(transposed(1..2), [2.0, 8.0, 18.0, 12.0]);
        let mut rows = decoded(&parts[1].weight, 1..2);
        rows.extend(decoded(&parts[0].weight, 0..1));
        assert_eq!(rows, [7.0, 8.0, 1.0, 2.0]);
    }
}
