//! `narthex.Projections`: several linear layers over the same rows, which are rounded once.

use std::sync::Arc;

use narthex_kernels::{MatrixMut, MatrixRef};
use ort::{
    operator::{OperatorInput, OperatorOutput},
    value::TensorElementType,
};

use crate::operators::{
    Buffers, OperatorContext,
    attributes::Attributes,
    call::{Call, Input},
    linear::{Part, column_step, index_of, row_block},
    node_kernel::NodeKernel,
    values::MAX_RANK,
    weights::Linear,
};

/// Operator type.
pub(in crate::operators) const PROJECTIONS: &str = "Projections";

/// Attributes with the indices of the weights.
pub(super) const WEIGHTS: [&str; 3] = ["query", "key", "value"];

/// The operator as the kernel of one node.
pub(in crate::operators) struct ProjectionsKernel {
    shared: Arc<OperatorContext>,
    indices: [usize; WEIGHTS.len()],
}

/// One layer, and some of its columns as the destination.
struct ColumnsTask<'a> {
    linear: &'a Linear,
    start: usize,
    out: MatrixMut<'a>,
}

impl NodeKernel for ProjectionsKernel {
    const OPERATOR: &'static str = PROJECTIONS;

    fn inputs() -> impl IntoIterator<Item = OperatorInput> {
        [OperatorInput::required(TensorElementType::Float32)]
    }

    fn outputs() -> impl IntoIterator<Item = OperatorOutput> {
        WEIGHTS.map(|_| OperatorOutput::required(TensorElementType::Float32))
    }

    fn of(shared: &Arc<OperatorContext>, node: &impl Attributes) -> ort::Result<Self> {
        let [query, key, value] = WEIGHTS.map(|name| index_of(shared, node, name));
        let indices = [query?, key?, value?];
        let layouts = indices.map(|index| shared.linears[index].layout());
        if layouts.iter().any(|layout| *layout != layouts[0]) {
            let message = format!("expected layers with equal inputs and blocks, found {layouts:?}");
            return Err(ort::Error::new(message));
        }
        Ok(Self { shared: Arc::clone(shared), indices })
    }

    fn run(&self, call: &Call<'_>) -> ort::Result<()> {
        let linears = self.indices.map(|index| &self.shared.linears[index]);
        let x: Input<'_> = call.input(0)?;
        let width: usize = linears[0].weights.inputs();
        let rank = x.shape.len();
        let mut shape = [0; MAX_RANK];
        let Some(shape) = shape.get_mut(..rank).filter(|_| x.columns() == width) else {
            return Err(ort::Error::new(format!("expected rows of {width} elements, found {:?}", x.shape)));
        };
        shape.copy_from_slice(x.shape);
        let mut outputs = Vec::with_capacity(linears.len());
        for (index, linear) in linears.iter().enumerate() {
            shape[rank - 1] = linear.weights.outputs() as i64;
            outputs.push(call.output(index, shape)?);
        }
        self.multiply(call, MatrixRef::new(x.data, width), linears, outputs)
    }
}

impl ProjectionsKernel {
    fn multiply(
        &self,
        call: &Call<'_>,
        x: MatrixRef<'_>,
        linears: [&Linear; WEIGHTS.len()],
        outputs: Vec<&mut [f32]>,
    ) -> ort::Result<()> {
        let shared = &self.shared;
        if let Some(block) = row_block(x.rows(), shared.threads) {
            let mut parts: Vec<Vec<&mut [f32]>> = Vec::new();
            parts.resize_with(x.rows().div_ceil(block), Vec::new);
            for (linear, out) in linears.iter().zip(outputs) {
                let rows = out.chunks_mut(block * linear.weights.outputs());
                parts.iter_mut().zip(rows).for_each(|(part, rows)| part.push(rows));
            }
            let parts: Vec<_> = parts.into_iter().map(Part::new).collect();
            return call.parallel(parts.len(), |index| {
                let Some(outputs) = parts.get(index).and_then(Part::take) else { return };
                let rows = index * block..x.rows().min((index + 1) * block);
                shared.with_buffers(|Buffers { rows: quantized, scratch, .. }| {
                    shared.quantize(linears[0], x.rows_in(rows), quantized);
                    for (linear, out) in linears.iter().zip(outputs) {
                        let columns = linear.weights.outputs();
                        let out = MatrixMut::new(out, columns);
                        shared.multiply_columns(linear, quantized, 0..columns, scratch, out);
                    }
                });
            });
        }

        shared.with_buffers(|Buffers { rows, .. }| {
            shared.quantize(linears[0], x, rows);
            let mut tasks = Vec::new();
            for (&linear, out) in linears.iter().zip(outputs) {
                let columns = linear.weights.outputs();
                let bytes = linear.weights.as_bytes().len() * x.rows();
                let step = column_step(columns, bytes, shared.threads);
                let mut rest = MatrixMut::new(out, columns);
                for start in (0..columns).step_by(step) {
                    let (out, others) = rest.split_at_column(step.min(columns - start));
                    rest = others;
                    tasks.push(Part::new(ColumnsTask { linear, start, out }));
                }
            }
            call.parallel(tasks.len(), |index| {
                let Some(task) = tasks.get(index).and_then(Part::take) else { return };
                let columns = task.start..task.start + task.out.columns();
                shared.with_buffers(|Buffers { scratch, .. }| {
                    shared.multiply_columns(task.linear, rows, columns, scratch, task.out);
                });
            })
        })
    }
}
