//! `narthex.GatedMlp`: a gated feed-forward network, from its input rows to the output of its last product.
//!
//! Rows are rounded once for both gate and up. If there are many rows, they are divided between threads, and the hidden
//! rows stay in the cache. If there are few rows, the hidden columns are divided between threads, and then the columns
//! of the output.

use std::{slice, sync::Arc};

use narthex_kernels::{GateClamp, MatrixMut, MatrixRef, QuantizedRows};
use ort::operator::{OperatorInput, OperatorOutput};

use super::{
    Buffers, OperatorContext, at_least,
    attributes::Attributes,
    call::Call,
    input_rows::{InputRows, Outputs, epsilon_of},
    linear::{Part, column_step, for_columns, index_of, input_types, output_types, row_block},
    node_kernel::NodeKernel,
    weights::Linear,
};

/// Operator type.
pub(super) const GATED_MLP: &str = "GatedMlp";

/// Attributes with the indices of the weights.
pub(super) const GATE: &str = "gate";
pub(super) const UP: &str = "up";
pub(super) const DOWN: &str = "down";

/// Number of hidden columns that a task computes at once, so that they stay in the cache.
const HIDDEN_COLUMNS: usize = 256;

/// The operator as the kernel of one node.
pub(super) struct GatedMlpKernel {
    shared: Arc<OperatorContext>,
    gate: usize,
    up: usize,
    down: usize,
    /// Epsilon of the RMS norm of the rows, if there is one.
    epsilon: Option<f32>,
}

impl NodeKernel for GatedMlpKernel {
    const OPERATOR: &'static str = GATED_MLP;

    fn inputs() -> impl IntoIterator<Item = OperatorInput> {
        input_types()
    }

    fn outputs() -> impl IntoIterator<Item = OperatorOutput> {
        output_types()
    }

    fn of(shared: &Arc<OperatorContext>, node: &impl Attributes) -> ort::Result<Self> {
        Ok(Self {
            shared: Arc::clone(shared),
            gate: index_of(shared, node, GATE)?,
            up: index_of(shared, node, UP)?,
            down: index_of(shared, node, DOWN)?,
            epsilon: epsilon_of(node),
        })
    }

    fn run(&self, call: &Call<'_>) -> ort::Result<()> {
        let linears = &self.shared.linears;
        let mlp = GatedMlp {
            shared: &self.shared,
            gate: &linears[self.gate],
            up: &linears[self.up],
            down: &linears[self.down],
            clamp: None,
        };
        let width = mlp.gate.weights.inputs();
        let columns = mlp.down.weights.outputs();
        let (x, out) = InputRows::of(call, width, columns, self.epsilon)?;
        mlp.run(call, &x, out)
    }
}

/// Layers of a network.
pub(super) struct GatedMlp<'a> {
    pub(super) shared: &'a OperatorContext,
    pub(super) gate: &'a Linear,
    pub(super) up: &'a Linear,
    pub(super) down: &'a Linear,
    /// Bounds of gate and up projection.
    pub(super) clamp: Option<GateClamp>,
}

impl GatedMlp<'_> {
    fn run(&self, call: &Call<'_>, x: &InputRows<'_>, out: Outputs<'_>) -> ort::Result<()> {
        let shared = self.shared;
        let columns = self.down.weights.outputs();
        let hidden = self.gate.weights.outputs();
        if let Some(block) = row_block(x.count(), shared.threads) {
            let parts: Vec<_> =
                out.blocks(block, columns, self.gate.weights.inputs()).map(Part::new).collect();
            return call.parallel(parts.len(), |index| {
                let Some(Outputs { rows: out, sum }) = parts.get(index).and_then(Part::take) else { return };
                let rows = index * block..index * block + out.len() / columns;
                shared.with_buffers(|buffers| {
                    let mut normed = std::mem::take(&mut buffers.normed);
                    let rows = x.rows(shared, rows, sum, &mut normed);
                    self.run_rows(rows, buffers, MatrixMut::new(out, columns));
                    buffers.normed = normed;
                });
            });
        }

        shared.with_buffers(|Buffers { rows, hidden: all, normed, .. }| {
            shared.quantize(self.gate, x.rows(shared, 0..x.count(), out.sum, normed), rows);
            let all = at_least(all, x.count() * hidden);
            let bytes = 2 * self.gate.weights.as_bytes().len();
            let step = column_step(hidden, bytes * x.count(), shared.threads);
            for_columns(call, MatrixMut::new(all, hidden), step, |start, out| {
                shared.with_buffers(|buffers| self.run_columns(rows, start, buffers, out));
            })?;
            shared.quantize(self.down, MatrixRef::new(all, hidden), rows);
            shared.divide_columns(call, slice::from_ref(self.down), rows, MatrixMut::new(out.rows, columns))
        })
    }

    /// Computes all columns of some rows.
    pub(super) fn run_rows(&self, x: MatrixRef<'_>, buffers: &mut Buffers, out: MatrixMut<'_>) {
        let shared = self.shared;
        let hidden = self.gate.weights.outputs();
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
    pub(super) fn run_columns(
        &self,
        rows: &QuantizedRows,
        start: usize,
        buffers: &mut Buffers,
        mut out: MatrixMut<'_>,
    ) {
        let Buffers { scratch, gate, up, .. } = buffers;
        let count = out.rows();
        let width = out.columns();
        let columns = start..start + width;
        let gate = at_least(gate, count * width);
        let up = at_least(up, count * width);
        for (linear, part) in [(self.gate, &mut *gate), (self.up, &mut *up)] {
            self.shared.multiply_columns(linear, rows, columns.clone(), scratch, MatrixMut::new(part, width));
        }
        let pairs = gate.chunks_exact(width.max(1)).zip(up.chunks_exact(width.max(1)));
        for (row, (gate, up)) in pairs.enumerate() {
            match self.clamp {
                Some(clamp) => self.shared.kernels.clamped_swiglu(gate, up, clamp, out.row_mut(row)),
                None => self.shared.kernels.swiglu(gate, up, out.row_mut(row)),
            }
        }
    }
}
