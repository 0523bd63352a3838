//! Kernels on rows: norms, rotary positions, activation functions, softmax, and rounding for a cache.

use super::{
    input::{Input, TooShort},
    output::{agree, written},
};
use crate::{
    activation::Activation,
    attention::CacheRows,
    elementwise::{GateClamp, ResidualSum},
    kernels::Kernels,
    layer_norm::LayerNorm,
    view::{MatrixMut, MatrixRef},
};

const ACTIVATIONS: [Activation; 5] =
    [Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Silu, Activation::Tanh];

/// Operands of the kernels on rows.
struct RowOperands {
    rows: usize,
    columns: usize,
    angles: usize,
    epsilon: f32,
    first: Vec<f32>,
    second: Vec<f32>,
    gain: Vec<f32>,
    bias: Vec<f32>,
}

impl RowOperands {
    fn read(input: &mut Input<'_>) -> Result<Self, TooShort> {
        let (rows, columns) = (input.number(0, 4)?, input.number(1, 300)?);
        Ok(Self {
            rows,
            columns,
            angles: input.number(0, columns / 2)?,
            epsilon: input.pick(&[1e-5, 0.0, 1e-12])?,
            first: input.floats(rows * columns)?,
            second: input.floats(rows * columns)?,
            gain: input.floats(columns)?,
            bias: input.floats(columns)?,
        })
    }

    fn norms(&self, kernels: &Kernels) -> Vec<f32> {
        let (input, mut stream) =
            (MatrixRef::new(&self.first, self.columns), vec![f32::NAN; self.first.len()]);
        let plain = written(self.rows, self.columns, |out| {
            kernels.rms_norm(input, &self.gain, self.epsilon, out);
        });
        let residual = ResidualSum {
            stream: MatrixRef::new(&self.second, self.columns),
            branch: input,
            sum: MatrixMut::new(&mut stream, self.columns),
        };
        let summed = written(self.rows, self.columns, |out| {
            kernels.add_rms_norm(residual, &self.gain, self.epsilon, out);
        });
        let norm = LayerNorm { gain: &self.gain, bias: &self.bias, epsilon: self.epsilon };
        let mut layer = self.second.clone();
        kernels.add_layer_norm(input, norm, MatrixMut::new(&mut layer, self.columns));
        [plain, summed, stream, layer].concat()
    }

    fn rotation(&self, kernels: &Kernels) -> Vec<f32> {
        let (mut heads, cos, sin) =
            (self.first.clone(), &self.gain[..self.angles], &self.bias[..self.angles]);
        kernels.rotate(&mut heads, self.columns, cos, sin);
        heads
    }

    fn activations(&self, kernels: &Kernels) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.first.len()];
        kernels.swiglu(&self.first, &self.second, &mut out);
        let mut clamped = vec![f32::NAN; self.first.len()];
        let clamp = GateClamp { limit: 7.0, slope: 1.702 };
        kernels.clamped_swiglu(&self.first, &self.second, clamp, &mut clamped);
        out.extend(clamped);
        for activation in ACTIVATIONS {
            let mut row = self.first.clone();
            kernels.activate(activation, &mut row);
            out.extend(row);
        }
        out
    }

    fn softmax(&self, kernels: &Kernels) -> Vec<f32> {
        let mut row = self.first.clone();
        kernels.softmax(&mut row);
        row
    }

    fn rounding(&self, kernels: &Kernels) -> Vec<f32> {
        let mut bytes = vec![0; self.first.len() + CacheRows::SCALE_BYTES];
        kernels.quantize_cache_row(&self.first, &mut bytes);
        bytes.into_iter().map(f32::from).collect()
    }
}

/// Compares the kernels on rows.
pub(super) fn compare(input: &mut Input<'_>) -> Result<(), TooShort> {
    let rows = RowOperands::read(input)?;
    agree("norms", |kernels| rows.norms(kernels));
    agree("rotation", |kernels| rows.rotation(kernels));
    agree("activation functions", |kernels| rows.activations(kernels));
    agree("softmax", |kernels| rows.softmax(kernels));
    agree("rounding for a cache", |kernels| rows.rounding(kernels));
    Ok(())
}
