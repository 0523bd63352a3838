//! Input rows of a product, optionally with the addition and the RMS norm of a residual stream.
//!
//! `SkipSimplifiedLayerNormalization` is merged into the product that reads it. The task that rounds the rows also
//! normalises them, so no separate node runs.

use std::ops::Range;

use narthex_kernels::{MatrixMut, MatrixRef, ResidualSum};

use super::{
    OperatorContext, at_least,
    attributes::Attributes,
    call::{Call, Input},
    values::MAX_RANK,
};

/// Attribute with the number that is added to the mean square.
pub(super) const EPSILON: &str = "epsilon";

/// Input rows of a product.
pub(super) struct InputRows<'a> {
    /// Rows, or the residual stream.
    x: MatrixRef<'a>,
    norm: Option<StreamNorm<'a>>,
}

/// RMS norm of a residual stream.
struct StreamNorm<'a> {
    /// Rows that are added to the stream.
    branch: MatrixRef<'a>,
    gain: &'a [f32],
    epsilon: f32,
}

/// Outputs of a product.
pub(super) struct Outputs<'a> {
    pub(super) rows: &'a mut [f32],
    /// Stream after the addition; empty without a norm.
    pub(super) sum: &'a mut [f32],
}

/// Returns the epsilon of a node that normalises its rows; `None` for other nodes.
pub(super) fn epsilon_of(node: &impl Attributes) -> Option<f32> {
    node.float(EPSILON)
}

impl<'a> InputRows<'a> {
    /// Returns the rows of a call, which have `width` elements, and its outputs, whose rows have `columns` elements.
    pub(super) fn of(
        call: &Call<'a>,
        width: usize,
        columns: usize,
        epsilon: Option<f32>,
    ) -> ort::Result<(Self, Outputs<'a>)> {
        let x: Input<'a> = call.input(0)?;
        if x.columns() != width {
            return Err(ort::Error::new(format!("expected rows of {width} elements, found {}", x.columns())));
        }

        let rank = x.shape.len();
        let mut shape = [0; MAX_RANK];
        let Some(shape) = shape.get_mut(..rank) else {
            return Err(ort::Error::new(format!("expected at most {MAX_RANK} axes, found {rank}")));
        };

        shape.copy_from_slice(x.shape);
        shape.iter_mut().last().into_iter().for_each(|extent| *extent = columns as i64);
        let mut outputs = Outputs { rows: call.output(0, shape)?, sum: &mut [] };
        let norm = match epsilon {
            None => None,
            Some(epsilon) => {
                let branch: Input<'a> = call.input(1)?;
                let gain: Input<'a> = call.input(2)?;
                if branch.shape != x.shape || gain.data.len() != width {
                    let found = [x.shape, branch.shape, gain.shape];
                    return Err(ort::Error::new(format!("a stream, a branch and a gain have {found:?}")));
                }
                outputs.sum = call.output(1, x.shape)?;
                Some(StreamNorm { branch: MatrixRef::new(branch.data, width), gain: gain.data, epsilon })
            }
        };
        Ok((Self { x: MatrixRef::new(x.data, width), norm }, outputs))
    }

    /// Returns the number of rows.
    pub(super) fn count(&self) -> usize {
        self.x.rows()
    }

    /// Returns a range of the rows, normalised if there is a norm. The same rows of the stream are written to `sum`.
    pub(super) fn rows<'b>(
        &'b self,
        shared: &OperatorContext,
        rows: Range<usize>,
        sum: &mut [f32],
        normed: &'b mut Vec<f32>,
    ) -> MatrixRef<'b> {
        let width = self.x.columns();
        let x = self.x.rows_in(rows.clone());
        let Some(StreamNorm { branch, gain, epsilon }) = &self.norm else { return x };
        let normed = at_least(normed, rows.len() * width);
        let residual =
            ResidualSum { stream: x, branch: branch.rows_in(rows), sum: MatrixMut::new(sum, width) };
        shared.kernels.add_rms_norm(residual, gain, *epsilon, MatrixMut::new(normed, width));
        MatrixRef::new(normed, width)
    }
}

impl<'a> Outputs<'a> {
    /// Divides the outputs into blocks of `count` rows. The rows have `columns` elements, those of the stream `width`.
    pub(super) fn blocks(self, count: usize, columns: usize, width: usize) -> impl Iterator<Item = Self> {
        let mut sums = self.sum.chunks_mut(count * width);
        let rows = self.rows.chunks_mut(count * columns);
        rows.map(move |rows| Outputs { rows, sum: sums.next().unwrap_or_default() })
    }
}
