//! `narthex.Linear`: a product of packed weights and rows that are rounded to eight bits.
//!
//! If there are many rows, they are divided between threads; each thread rounds its rows and multiplies them by all
//! columns. If there are few rows, one thread rounds them, and the columns are divided. A row's results are the same in
//! both cases.

use std::{ops::Range, sync::Arc};

use narthex_graph::Node;
use narthex_kernels::{Granularity, MatrixMut, MatrixRef, QuantizedRows, Scratch};
use ort::{
    operator::{OperatorInput, OperatorOutput},
    value::TensorElementType,
};
use parking_lot::Mutex;

use super::{
    Buffers, DOMAIN, OperatorContext,
    attributes::Attributes,
    call::Call,
    input_rows::{InputRows, Outputs, epsilon_of},
    node_kernel::NodeKernel,
    weights::Linear,
};

/// Operator type.
pub(super) const LINEAR: &str = "Linear";

/// Attribute with the index of the weights.
pub(super) const WEIGHTS: &str = "weights";

/// Attribute with the number of layers over the same rows whose outputs are concatenated: 1 for a layer of its own. Their
/// weights have consecutive indices.
pub(super) const LAYERS: &str = "layers";

/// Minimum number of rows of a task that multiplies all columns. With fewer rows, the weights would be read too often.
const MIN_ROWS: usize = 24;

/// Maximum number of rows of such a task, so that they stay in the cache.
const MAX_ROWS: usize = 96;

/// Number of tasks per thread. With several tasks, a slow thread can process fewer of them.
const TASKS_PER_THREAD: usize = 2;

/// Maximum number of tasks per thread. More than usual are started if tasks of one size are then possible.
const MAX_TASKS_PER_THREAD: usize = 4;

/// Number of rows of a register tile. Tasks have a multiple of it.
const PANEL: usize = 6;

/// Number of columns of a register tile. Tasks have a multiple of it.
const COLUMN_STEP: usize = 32;

/// Minimum number of weight bytes of a task, so that its work outweighs its start.
const MIN_TASK_BYTES: usize = 16 << 10;

/// Returns the inputs of a product: rows, and optionally the branch and the gain of an RMS norm.
pub(super) fn input_types() -> [OperatorInput; 3] {
    let kind = TensorElementType::Float32;
    [OperatorInput::required(kind), OperatorInput::optional(kind), OperatorInput::optional(kind)]
}

/// Returns the outputs of a product: rows, and the residual stream if there is an RMS norm.
pub(super) fn output_types() -> [OperatorOutput; 2] {
    let kind = TensorElementType::Float32;
    [OperatorOutput::required(kind), OperatorOutput::optional(kind)]
}

/// Returns the index of weights in an attribute of a node.
pub(super) fn index_of(
    shared: &OperatorContext,
    node: &impl Attributes,
    attribute: &str,
) -> ort::Result<usize> {
    let index = node.int(attribute).and_then(|index| usize::try_from(index).ok());
    index
        .filter(|&index| index < shared.linears.len())
        .ok_or_else(|| ort::Error::new(format!("no weights have the index of the attribute {attribute}")))
}

/// Returns whether a node is one linear layer without a norm of its rows.
pub(super) fn is_plain_linear(node: &Node) -> bool {
    let is_linear = node.op == LINEAR && node.domain == DOMAIN;
    is_linear && node.inputs.len() == 1 && node.attribute(LAYERS).is_none()
}

/// Returns the number of rows of a task that computes all columns; `None` if there are too few rows to divide them
/// between threads.
pub(super) fn row_block(rows: usize, threads: usize) -> Option<usize> {
    let block = (rows / (threads * TASKS_PER_THREAD)).next_multiple_of(PANEL).clamp(MIN_ROWS, MAX_ROWS);
    (rows >= threads * MIN_ROWS).then_some(block)
}

/// Returns the number of columns of a task, for a product that reads `bytes` bytes in total. If possible, every thread
/// has the same number of tasks, and these have the same number of columns.
pub(super) fn column_step(columns: usize, bytes: usize, threads: usize) -> usize {
    if threads == 1 {
        return columns.next_multiple_of(COLUMN_STEP);
    }
    let steps = columns.div_ceil(COLUMN_STEP);
    let most = (bytes / MIN_TASK_BYTES).max(1);
    let mut counts = (TASKS_PER_THREAD..=MAX_TASKS_PER_THREAD).map(|each| each * threads);
    let even = counts.find(|&count| count <= most && steps.is_multiple_of(count));
    let count = even.unwrap_or(MAX_TASKS_PER_THREAD * threads).min(most);
    steps.div_ceil(count) * COLUMN_STEP
}

/// The operator as the kernel of one node.
pub(super) struct LinearKernel {
    shared: Arc<OperatorContext>,
    /// Indices of the layers whose outputs are concatenated.
    layers: Range<usize>,
    /// Epsilon of the RMS norm of the rows, if there is one.
    epsilon: Option<f32>,
}

impl NodeKernel for LinearKernel {
    const OPERATOR: &'static str = LINEAR;

    fn inputs() -> impl IntoIterator<Item = OperatorInput> {
        input_types()
    }

    fn outputs() -> impl IntoIterator<Item = OperatorOutput> {
        output_types()
    }

    fn of(shared: &Arc<OperatorContext>, node: &impl Attributes) -> ort::Result<Self> {
        let first = index_of(shared, node, WEIGHTS)?;
        let count = usize::try_from(node.int(LAYERS).unwrap_or(1)).unwrap_or(0);
        let layers = first..first.saturating_add(count);
        let fits = shared.linears.get(layers.clone()).is_some_and(|linears| {
            !linears.is_empty() && linears.iter().all(|linear| linear.layout() == linears[0].layout())
        });
        if !fits {
            let message =
                format!("expected layers with equal inputs and blocks, found those from {layers:?}");
            return Err(ort::Error::new(message));
        }
        Ok(Self { shared: Arc::clone(shared), layers, epsilon: epsilon_of(node) })
    }

    fn run(&self, call: &Call<'_>) -> ort::Result<()> {
        let linears = &self.shared.linears[self.layers.clone()];
        let width = linears[0].weights.inputs();
        let columns = linears.iter().map(|linear| linear.weights.outputs()).sum();
        let (x, out) = InputRows::of(call, width, columns, self.epsilon)?;
        self.shared.multiply(call, linears, columns, &x, out)
    }
}

impl OperatorContext {
    /// Multiplies rows by the weights of layers with `columns` outputs in total.
    fn multiply(
        &self,
        call: &Call<'_>,
        linears: &[Linear],
        columns: usize,
        x: &InputRows<'_>,
        out: Outputs<'_>,
    ) -> ort::Result<()> {
        let width = linears[0].weights.inputs();
        if let Some(block) = row_block(x.count(), self.threads) {
            let parts: Vec<_> = out.blocks(block, columns, width).map(Part::new).collect();
            return call.parallel(parts.len(), |index| {
                let Some(Outputs { rows: out, sum }) = parts.get(index).and_then(Part::take) else { return };
                let rows = index * block..index * block + out.len() / columns;
                self.with_buffers(|Buffers { rows: quantized, scratch, normed, .. }| {
                    self.quantize(&linears[0], x.rows(self, rows, sum, normed), quantized);
                    let out = MatrixMut::new(out, columns);
                    self.multiply_layers(linears, quantized, 0..columns, scratch, out);
                });
            });
        }
        self.with_buffers(|Buffers { rows, normed, .. }| {
            self.quantize(&linears[0], x.rows(self, 0..x.count(), out.sum, normed), rows);
            self.divide_columns(call, linears, rows, MatrixMut::new(out.rows, columns))
        })
    }

    /// Rounds rows for the product with a layer's weights.
    pub(super) fn quantize(&self, linear: &Linear, x: MatrixRef<'_>, rows: &mut QuantizedRows) {
        self.kernels.quantize(x, linear.weights.format(), Granularity::Block, rows);
    }

    /// Multiplies rows by all columns of some layers, which are divided between threads.
    pub(super) fn divide_columns(
        &self,
        call: &Call<'_>,
        linears: &[Linear],
        rows: &QuantizedRows,
        out: MatrixMut<'_>,
    ) -> ort::Result<()> {
        let bytes: usize = linears.iter().map(|linear| linear.weights.as_bytes().len()).sum();
        let bytes = bytes * rows.rows();
        let step = column_step(out.columns(), bytes, self.threads);
        for_columns(call, out, step, |start, out| {
            let columns = start..start + out.columns();
            self.with_buffers(|Buffers { scratch, .. }| {
                self.multiply_layers(linears, rows, columns, scratch, out);
            });
        })
    }

    /// Multiplies rows by some of the concatenated columns of several layers.
    fn multiply_layers(
        &self,
        linears: &[Linear],
        rows: &QuantizedRows,
        columns: Range<usize>,
        scratch: &mut Scratch,
        out: MatrixMut<'_>,
    ) {
        let mut rest = out;
        let mut first = 0;
        for linear in linears {
            let end = first + linear.weights.outputs();
            let part = columns.start.max(first)..columns.end.min(end);
            if part.start < part.end {
                let (out, others) = rest.split_at_column(part.len());
                rest = others;
                self.multiply_columns(linear, rows, part.start - first..part.end - first, scratch, out);
            }
            first = end;
        }
    }

    /// Multiplies rows by some columns of a layer.
    pub(super) fn multiply_columns(
        &self,
        linear: &Linear,
        rows: &QuantizedRows,
        columns: Range<usize>,
        scratch: &mut Scratch,
        mut out: MatrixMut<'_>,
    ) {
        self.kernels.matmul(rows, &linear.weights, columns.clone(), scratch, out.reborrow());
        (0..out.rows()).for_each(|row| linear.add_bias(out.row_mut(row), columns.clone()));
    }
}

/// Part of an output, taken by a single task.
pub(super) struct Part<T>(Mutex<Option<T>>);

impl<T> Part<T> {
    pub(super) fn new(part: T) -> Self {
        Self(Mutex::new(Some(part)))
    }

    pub(super) fn take(&self) -> Option<T> {
        self.0.lock().take()
    }
}

/// Runs a task for every `step` columns of an output. A task receives the index of its first column. A single task does
/// not allocate memory.
pub(super) fn for_columns(
    call: &Call<'_>,
    out: MatrixMut<'_>,
    step: usize,
    task: impl Fn(usize, MatrixMut<'_>) + Sync,
) -> ort::Result<()> {
    if out.columns() <= step {
        task(0, out);
        return Ok(());
    }
    let mut parts = Vec::with_capacity(out.columns().div_ceil(step));
    let mut rest = out;
    while rest.columns() > step {
        let (part, others) = rest.split_at_column(step);
        parts.push(Part::new(part));
        rest = others;
    }
    parts.push(Part::new(rest));
    call.parallel(parts.len(), |index| {
        if let Some(out) = parts.get(index).and_then(Part::take) {
            task(index * step, out);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_get_tasks_of_one_size_if_possible() {
        let check = |columns, bytes, threads, expected| {
            assert_eq!(
                column_step(columns, bytes, threads),
                expected,
                "{columns} columns, {threads} threads"
            );
        };
        check(1536, 1 << 20, 2, 384);
        check(576, 1 << 20, 2, 96);
        check(960, 1 << 20, 2, 160);
        check(608, 1 << 20, 2, 96);
        check(576, 3 * MIN_TASK_BYTES, 2, 192);
        check(576, 0, 2, 576);
        check(570, 1 << 20, 1, 576);
        check(4096, 1 << 20, 3, 352);
    }
}
