//! `narthex.ResidualMlp`: the layer norm of the sum of a residual stream and a linear layer or a network of two.
//!
//! ```text
//! residual ──────────────────────────────────┐
//! x ── (up ── activation) ── down ────────── Add ── norm
//! ```
//!
//! All steps are computed row by row. If there are many rows, they are divided between threads, and the rows of a task
//! stay in the cache from the first step to the last. If there are few rows, the columns of each layer are divided.

use std::{slice, sync::Arc};

use narthex_kernels::{Activation, LayerNorm, MatrixMut, MatrixRef, QuantizedRows, Scratch};
use ort::{
    operator::{OperatorInput, OperatorOutput},
    value::TensorElementType,
};

use crate::operators::{
    Buffers, OperatorContext, at_least,
    attributes::Attributes,
    call::{Call, Input},
    linear::{Part, column_step, for_columns, index_of, row_block},
    node_kernel::NodeKernel,
    weights::Linear,
};

/// Operator type.
pub(in crate::operators) const RESIDUAL_MLP: &str = "ResidualMlp";

/// Attributes with the indices of the weights. There may be no first layer.
pub(super) const UP: &str = "up";
pub(super) const DOWN: &str = "down";

/// Attribute with the number of the activation function after the first layer.
pub(super) const ACTIVATION: &str = "activation";

/// Attribute with the number that is added to the variance.
pub(super) const EPSILON: &str = "epsilon";

/// Epsilon of a norm without that attribute.
const DEFAULT_EPSILON: f32 = 1e-12;

/// Activation functions by the number in the attribute.
const ACTIVATIONS: [Activation; 4] =
    [Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Tanh];

/// Returns the number of an activation function in the attribute; `None` if the operator does not have it.
pub(super) fn activation_number(activation: Activation) -> Option<usize> {
    ACTIVATIONS.iter().position(|&known| known == activation)
}

/// Number of columns of the first layer that a task computes at once, so that they stay in the cache.
const HIDDEN_COLUMNS: usize = 256;

/// The operator as the kernel of one node.
pub(in crate::operators) struct ResidualMlpKernel {
    shared: Arc<OperatorContext>,
    /// Index of the first layer's weights, if there is one.
    up: Option<usize>,
    /// Function after the first layer.
    activation: Activation,
    down: usize,
    epsilon: f32,
}

impl NodeKernel for ResidualMlpKernel {
    const OPERATOR: &'static str = RESIDUAL_MLP;

    fn inputs() -> impl IntoIterator<Item = OperatorInput> {
        [TensorElementType::Float32; 4].map(OperatorInput::required)
    }

    fn outputs() -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::required(TensorElementType::Float32)]
    }

    fn of(shared: &Arc<OperatorContext>, node: &impl Attributes) -> ort::Result<Self> {
        let down = index_of(shared, node, DOWN)?;
        let up = node.int(UP).map(|_| index_of(shared, node, UP)).transpose()?;
        let number = node.int(ACTIVATION).unwrap_or(0);
        let activation = usize::try_from(number).ok().and_then(|number| ACTIVATIONS.get(number).copied());
        let activation = activation
            .ok_or_else(|| ort::Error::new(format!("no activation function has the number {number}")))?;
        let inputs = shared.linears[down].weights.inputs();
        if let Some(up) = up
            && shared.linears[up].weights.outputs() != inputs
        {
            let found = shared.linears[up].weights.outputs();
            return Err(ort::Error::new(format!("expected a layer with {inputs} outputs, found {found}")));
        }
        let epsilon = node.float(EPSILON).unwrap_or(DEFAULT_EPSILON);
        Ok(Self { shared: Arc::clone(shared), up, activation, down, epsilon })
    }

    fn run(&self, call: &Call<'_>) -> ort::Result<()> {
        let up = self.up.map(|up| &self.shared.linears[up]);
        let down = &self.shared.linears[self.down];
        let width = up.unwrap_or(down).weights.inputs();
        let columns = down.weights.outputs();
        let [x, residual, gain, bias]: [Input<'_>; 4] =
            [call.input(0)?, call.input(1)?, call.input(2)?, call.input(3)?];
        let rows = x.data.len() / width;
        let fits = x.columns() == width && residual.columns() == columns;
        if !fits
            || residual.data.len() != rows * columns
            || [gain.data.len(), bias.data.len()] != [columns; 2]
        {
            let found = [x.shape, residual.shape, gain.shape, bias.shape];
            let message =
                format!("expected rows of {width} and a stream of {columns} elements, found {found:?}");
            return Err(ort::Error::new(message));
        }
        let out = call.output(0, residual.shape)?;
        let norm = LayerNorm { gain: gain.data, bias: bias.data, epsilon: self.epsilon };
        let mlp = ResidualMlp { shared: &self.shared, up, activation: self.activation, down, norm };
        mlp.run(call, MatrixRef::new(x.data, width), MatrixRef::new(residual.data, columns), out)
    }
}

/// Layers of a network, and the norm after it.
struct ResidualMlp<'a> {
    shared: &'a OperatorContext,
    up: Option<&'a Linear>,
    activation: Activation,
    down: &'a Linear,
    norm: LayerNorm<'a>,
}

impl ResidualMlp<'_> {
    fn run(
        &self,
        call: &Call<'_>,
        x: MatrixRef<'_>,
        residual: MatrixRef<'_>,
        out: &mut [f32],
    ) -> ort::Result<()> {
        let shared = self.shared;
        let columns = self.down.weights.outputs();
        if let Some(block) = row_block(x.rows(), shared.threads) {
            let parts: Vec<_> = out.chunks_mut(block * columns).map(Part::new).collect();
            return call.parallel(parts.len(), |index| {
                let Some(out) = parts.get(index).and_then(Part::take) else { return };
                let rows = index * block..index * block + out.len() / columns;
                let x = x.rows_in(rows.clone());
                let residual = residual.rows_in(rows);
                shared.with_buffers(|buffers| {
                    self.run_rows(x, residual, buffers, MatrixMut::new(out, columns));
                });
            });
        }

        shared.with_buffers(|Buffers { rows, hidden, .. }| {
            match self.up {
                Some(up) => {
                    let width = up.weights.outputs();
                    let all = at_least(hidden, x.rows() * width);
                    shared.quantize(up, x, rows);
                    let step = column_step(width, up.weights.as_bytes().len() * x.rows(), shared.threads);
                    for_columns(call, MatrixMut::new(all, width), step, |start, out| {
                        shared.with_buffers(|Buffers { scratch, .. }| {
                            self.run_hidden(up, rows, start, scratch, out);
                        });
                    })?;
                    shared.quantize(self.down, MatrixRef::new(all, width), rows);
                }
                None => shared.quantize(self.down, x, rows),
            }
            shared.divide_columns(call, slice::from_ref(self.down), rows, MatrixMut::new(out, columns))?;
            shared.kernels.add_layer_norm(residual, self.norm, MatrixMut::new(out, columns));
            Ok(())
        })
    }

    /// Computes all columns of some rows.
    fn run_rows(
        &self,
        x: MatrixRef<'_>,
        residual: MatrixRef<'_>,
        buffers: &mut Buffers,
        mut out: MatrixMut<'_>,
    ) {
        let shared = self.shared;
        let columns = out.columns();
        let Buffers { rows, hidden, scratch, .. } = buffers;
        match self.up {
            Some(up) => {
                let width = up.weights.outputs();
                let all = at_least(hidden, x.rows() * width);
                shared.quantize(up, x, rows);
                let mut rest = MatrixMut::new(all, width);
                for start in (0..width).step_by(HIDDEN_COLUMNS) {
                    let (part, others) = rest.split_at_column(HIDDEN_COLUMNS.min(width - start));
                    self.run_hidden(up, rows, start, scratch, part);
                    rest = others;
                }
                shared.quantize(self.down, MatrixRef::new(all, width), rows);
            }
            None => shared.quantize(self.down, x, rows),
        }

        shared.multiply_columns(self.down, rows, 0..columns, scratch, out.reborrow());
        shared.kernels.add_layer_norm(residual, self.norm, out);
    }

    /// Computes the columns of `out` of the first layer, which start at column `start`.
    fn run_hidden(
        &self,
        up: &Linear,
        rows: &QuantizedRows,
        start: usize,
        scratch: &mut Scratch,
        mut out: MatrixMut<'_>,
    ) {
        let columns = start..start + out.columns();
        self.shared.multiply_columns(up, rows, columns, scratch, out.reborrow());
        (0..out.rows()).for_each(|row| self.shared.kernels.activate(self.activation, out.row_mut(row)));
    }
}
