//! Products of rounded activations and packed weights.

use half::f16;

use super::{
    input::{Input, TooShort},
    output::{agree, assert_same, written},
};
use crate::{
    activations::{Granularity, QuantizedRows},
    kernels::Kernels,
    matmul::Scratch,
    packed::{Bits, BlockedWeights, PackedMatrix, Scales, WeightFormat},
    simd::LANES,
    view::MatrixRef,
};

/// Owned weights.
struct Weights {
    outputs: usize,
    inputs: usize,
    format: WeightFormat,
    quants: Vec<u8>,
    half: Vec<f16>,
    single: Option<Vec<f32>>,
    zeros: Option<Vec<u8>>,
    offsets: Option<Vec<f16>>,
}

impl Weights {
    fn read(input: &mut Input<'_>) -> Result<Self, TooShort> {
        let (outputs, inputs) = (input.number(1, 80)?, input.number(1, 320)?);
        let (block, bits) = (input.pick(&[16, 32, 64, 128])?, input.pick(&[Bits::Four, Bits::Eight])?);
        let blocks = inputs.div_ceil(block);
        let zeros = input.pick(&[true, false])?;
        let offsets = input.pick(&[true, false])?;
        let single = input.pick(&[true, false])?;
        let single = if single { Some(input.floats(outputs * blocks)?) } else { None };
        Ok(Self {
            outputs,
            inputs,
            format: WeightFormat { block, bits },
            half: input.halves(outputs * blocks),
            offsets: offsets.then(|| input.halves(outputs * blocks)),
            single,
            quants: input.bytes(outputs * blocks * block * bits.count() / 8),
            zeros: zeros.then(|| input.bytes(outputs * (blocks * bits.count()).div_ceil(8))),
        })
    }

    fn pack(&self) -> PackedMatrix {
        let weights = BlockedWeights {
            outputs: self.outputs,
            inputs: self.inputs,
            block: self.format.block,
            bits: self.format.bits,
            quants: &self.quants,
            scales: self.single.as_deref().map_or(Scales::F16(&self.half), Scales::F32),
            zeros: self.zeros.as_deref(),
            offsets: self.offsets.as_deref(),
        };
        PackedMatrix::pack(&weights).unwrap_or_else(|error| panic!("weights of a valid shape: {error}"))
    }
}

/// Activations that are multiplied by packed weights.
pub(super) struct QuantizedProduct<'a> {
    pub(super) weights: &'a PackedMatrix,
    pub(super) granularity: Granularity,
    pub(super) activations: &'a [f32],
}

impl QuantizedProduct<'_> {
    /// Rounds the first rows for weights of a format.
    fn quantize(&self, kernels: &Kernels, rows: usize, format: WeightFormat) -> QuantizedRows {
        let inputs = self.weights.inputs();
        let (mut out, input) = (QuantizedRows::default(), &self.activations[..rows * inputs]);
        kernels.quantize(MatrixRef::new(input, inputs), format, self.granularity, &mut out);
        out
    }

    fn multiply(&self, kernels: &Kernels, rows: &QuantizedRows, scratch: &mut Scratch) -> Vec<f32> {
        let outputs = self.weights.outputs();
        written(rows.rows(), outputs, |out| kernels.matmul(rows, self.weights, 0..outputs, scratch, out))
    }

    /// Compares the products of all rows, of the first row, of activations that other kernels rounded, and of columns up
    /// to a tile and from it on. They use the same buffers.
    pub(super) fn compare(&self, tile: usize) {
        let (outputs, rows) = (self.weights.outputs(), self.activations.len() / self.weights.inputs());
        let format = self.weights.format();
        let bits = if format.bits == Bits::Four { Bits::Eight } else { Bits::Four };
        let portable = self.quantize(&Kernels::portable(), rows, format);
        agree("rounding", |kernels| {
            let rounded = self.quantize(kernels, rows, format);
            let row = |row| {
                let (integers, scales) = rounded.row(row);
                integers.into_iter().map(f32::from).chain(scales).collect::<Vec<_>>()
            };
            (0..rows).flat_map(row).collect()
        });
        agree("product", |kernels| {
            let mut scratch = Scratch::default();
            let own = self.quantize(kernels, rows, format);
            let whole = self.multiply(kernels, &own, &mut scratch);
            assert_same("product of rounded rows", &self.multiply(kernels, &portable, &mut scratch), &whole);
            let other = self.quantize(kernels, rows, WeightFormat { bits, ..format });
            assert_same("product for other bits", &self.multiply(kernels, &other, &mut scratch), &whole);
            let first = self.quantize(kernels, rows.min(1), format);
            let row = &whole[..rows.min(1) * outputs];
            assert_same("product of one row", &self.multiply(kernels, &first, &mut scratch), row);
            for columns in [0..tile * LANES, tile * LANES..outputs] {
                let part = written(rows, columns.len(), |out| {
                    kernels.matmul(&own, self.weights, columns.clone(), &mut scratch, out);
                });
                let rows = whole.chunks(outputs);
                let expected: Vec<f32> = rows.flat_map(|row| row[columns.clone()].to_vec()).collect();
                assert_same("product of some columns", &part, &expected);
            }
            whole
        });
    }
}

/// Compares quantised products.
pub(super) fn compare(input: &mut Input<'_>) -> Result<(), TooShort> {
    let rows = input.number(0, 50)?;
    let granularity = input.pick(&[Granularity::Row, Granularity::Block])?;
    let tile = input.number(0, 5)?;
    let weights = Weights::read(input)?;
    let activations = input.floats(rows * weights.inputs)?;
    let packed = weights.pack();
    let product = QuantizedProduct { weights: &packed, granularity, activations: &activations };
    product.compare(tile.min(weights.outputs / LANES));
    Ok(())
}
