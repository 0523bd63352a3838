//! `narthex.PoolRows`: one row for each packed text, its first one or the mean of all.

use std::sync::Arc;

use narthex_kernels::MatrixRef;
use ort::{
    operator::{OperatorInput, OperatorOutput},
    value::TensorElementType,
};

use super::texts::PackedTexts;
use crate::operators::{
    OperatorContext,
    attributes::Attributes,
    call::{Call, Input},
    node_kernel::NodeKernel,
};

/// Operator type.
pub(in crate::operators) const POOL_ROWS: &str = "PoolRows";

/// Attribute that is 1 for the mean and 0 for the first row.
pub(super) const MEAN: &str = "mean";

/// The operator as the kernel of one node.
pub(in crate::operators) struct PoolRowsKernel {
    mean: bool,
}

impl NodeKernel for PoolRowsKernel {
    const OPERATOR: &'static str = POOL_ROWS;

    fn inputs() -> impl IntoIterator<Item = OperatorInput> {
        [TensorElementType::Float32, TensorElementType::Int32].map(OperatorInput::required)
    }

    fn outputs() -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::required(TensorElementType::Float32)]
    }

    fn of(_: &Arc<OperatorContext>, node: &impl Attributes) -> ort::Result<Self> {
        Ok(Self { mean: node.int(MEAN) == Some(1) })
    }

    fn run(&self, call: &Call<'_>) -> ort::Result<()> {
        let rows: Input<'_> = call.input(0)?;
        let width = rows.columns();
        if width == 0 {
            return Err(ort::Error::new("rows without elements cannot be pooled"));
        }
        let rows = MatrixRef::new(rows.data, width);
        let texts = PackedTexts::of(call, 1, rows.rows())?;
        let out = call.output(0, &[texts.count() as i64, width as i64])?;
        for (text, out) in texts.rows().zip(out.chunks_exact_mut(width)) {
            out.fill(0.0);
            let count = if self.mean { text.len() } else { text.len().min(1) };
            for row in text.take(count) {
                out.iter_mut().zip(rows.row(row)).for_each(|(sum, x)| *sum += x);
            }
            if self.mean {
                let count = count.max(1) as f32;
                out.iter_mut().for_each(|sum| *sum /= count);
            }
        }
        Ok(())
    }
}
