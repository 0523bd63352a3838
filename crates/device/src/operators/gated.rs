//! `narthex.GatedMlp`: a gated feed-forward network, from its input rows to the output of its last product.
//!
//! Rows are rounded once for gate and up. The hidden rows never leave the cache where many rows are divided between
//! threads; few rows are divided by hidden columns, and then by columns of the output.

use std::sync::Arc;

use narthex_kernels::{MatrixMut, MatrixRef, QuantizedRows};
use ort::{
    operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorInput, OperatorOutput},
    value::TensorElementType,
};

use super::{
    Buffers, Shared,
    call::Call,
    linear::{Part, column_step, for_columns, index_of, input_rows, row_block},
    weights::Linear,
};

/// Operator type.
pub(super) const GATED_MLP: &str = "GatedMlp";

/// Attributes with the indices of the weights.
pub(super) const GATE: &str = "gate";
pub(super) const UP: &str = "up";
pub(super) const DOWN: &str = "down";

/// Hidden columns that one task computes at once, so that they stay in the cache.
const HIDDEN_COLUMNS: usize = 256;

/// The operator.
pub(super) struct GatedMlpOperator {
    pub(super) shared: Arc<Shared>,
}

impl Operator for GatedMlpOperator {
    type Kernel<'attr> = GatedMlpKernel;

    fn name(&self) -> &str {
        GATED_MLP
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        [OperatorInput::required(TensorElementType::Float32)]
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::required(TensorElementType::Float32)]
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<GatedMlpKernel> {
        let index = |name| index_of(&self.shared, context, name);
        let (gate, up, down) = (index(GATE)?, index(UP)?, index(DOWN)?);
        Ok(GatedMlpKernel { shared: Arc::clone(&self.shared), gate, up, down })
    }
}

/// The operator in a node.
pub(super) struct GatedMlpKernel {
    shared: Arc<Shared>,
    gate: usize,
    up: usize,
    down: usize,
}

impl Kernel for GatedMlpKernel {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        let linear = |index: usize| &self.shared.linears[index];
        let mlp = GatedMlp {
            shared: &self.shared,
            gate: linear(self.gate),
            up: linear(self.up),
            down: linear(self.down),
        };
        Call::run(context, |call| {
            let (x, out) = input_rows(call, mlp.gate, mlp.down)?;
            mlp.run(call, x, out)
        })
    }
}

/// The layers of a network.
struct GatedMlp<'a> {
    shared: &'a Shared,
    gate: &'a Linear,
    up: &'a Linear,
    down: &'a Linear,
}

impl GatedMlp<'_> {
    fn run(&self, call: &Call<'_>, x: MatrixRef<'_>, out: &mut [f32]) -> ort::Result<()> {
        let (shared, width, hidden) = (self.shared, self.down.weights.outputs(), self.gate.weights.outputs());
        if let Some(block) = row_block(x.rows(), shared.threads) {
            let parts: Vec<_> = out.chunks_mut(block * width).map(Part::new).collect();
            return call.parallel(parts.len(), |index| {
                let Some(out) = parts.get(index).and_then(Part::take) else { return };
                let rows = x.rows_in(index * block..index * block + out.len() / width);
                shared.with_buffers(|buffers| self.run_rows(rows, buffers, MatrixMut::new(out, width)));
            });
        }
        shared.with_buffers(|Buffers { rows, hidden: all, .. }| {
            shared.quantize(self.gate, x, rows);
            let all = at_least(all, x.rows() * hidden);
            let bytes = 2 * self.gate.weights.as_bytes().len();
            let step = column_step(hidden, bytes * x.rows(), shared.threads);
            for_columns(call, MatrixMut::new(all, hidden), step, |start, out| {
                shared.with_buffers(|buffers| self.run_columns(rows, start, buffers, out));
            })?;
            shared.quantize(self.down, MatrixRef::new(all, hidden), rows);
            shared.divide_columns(call, self.down, rows, MatrixMut::new(out, width))
        })
    }

    /// Computes all columns of some rows.
    fn run_rows(&self, x: MatrixRef<'_>, buffers: &mut Buffers, out: MatrixMut<'_>) {
        let (shared, hidden) = (self.shared, self.gate.weights.outputs());
        let mut rows = std::mem::take(&mut buffers.rows);
        let mut all = std::mem::take(&mut buffers.hidden);
        let columns = at_least(&mut all, x.rows() * hidden);
        shared.quantize(self.gate, x, &mut rows);
        let mut rest = MatrixMut::new(columns, hidden);
        for start in (0..hidden).step_by(HIDDEN_COLUMNS) {
            let (part, others) = rest.split_at_column(HIDDEN_COLUMNS.min(hidden - start));
            self.run_columns(&rows, start, buffers, part);
            rest = others;
        }
        shared.quantize(self.down, MatrixRef::new(columns, hidden), &mut rows);
        let width = out.columns();
        shared.multiply_columns(self.down, &rows, 0..width, &mut buffers.scratch, out);
        (buffers.rows, buffers.hidden) = (rows, all);
    }

    /// Computes the hidden columns of `out`, which start at column `start`.
    fn run_columns(&self, rows: &QuantizedRows, start: usize, buffers: &mut Buffers, mut out: MatrixMut<'_>) {
        let Buffers { scratch, gate, up, .. } = buffers;
        let (count, width) = (out.rows(), out.columns());
        let columns = start..start + width;
        let (gate, up) = (at_least(gate, count * width), at_least(up, count * width));
        for (linear, part) in [(self.gate, &mut *gate), (self.up, &mut *up)] {
            self.shared.multiply_columns(linear, rows, columns.clone(), scratch, MatrixMut::new(part, width));
        }
        let pairs = gate.chunks_exact(width.max(1)).zip(up.chunks_exact(width.max(1)));
        for (row, (gate, up)) in pairs.enumerate() {
            self.shared.kernels.swiglu(gate, up, out.row_mut(row));
        }
    }
}

/// The first `length` elements of a buffer, which grows if it must; their values are unspecified.
fn at_least(buffer: &mut Vec<f32>, length: usize) -> &mut [f32] {
    if buffer.len() < length {
        buffer.resize(length, 0.0);
    }
    &mut buffer[..length]
}
