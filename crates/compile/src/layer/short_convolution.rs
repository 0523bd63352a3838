//! Gated short convolutions of LFM2, as shifted products: every operator is one that compilers of NPUs take.

use narthex_graph::typed::{Scope, Tensor};
use narthex_spec::arch::ShortConvolution;

use super::linear::linear;
use crate::{emit::Emitter, error::Result};

/// A gated short convolution of one layer.
#[derive(Clone, Copy)]
pub(crate) struct ConvolutionLayer<'a> {
    /// Path of its nodes.
    pub(crate) scope: &'a Scope,
    /// Its structure.
    pub(crate) spec: &'a ShortConvolution,
    /// Width of the residual stream, which is the number of channels.
    pub(crate) width: usize,
}

/// Inputs of a convolution for the new tokens, each `[batch, tokens, width]`.
pub(crate) struct GatedRows {
    /// Rows under the kernel: `b · x`. Later tokens read them too.
    pub(crate) rows: Tensor,
    /// Gate of the outputs.
    pub(crate) gate: Tensor,
}

impl ConvolutionLayer<'_> {
    /// Adds the input projection and the first gate of normed rows `[batch, tokens, width]`.
    pub(crate) fn rows(&self, e: &mut Emitter<'_>, x: Tensor) -> Result<GatedRows> {
        let scope = self.scope.child("in_proj");
        let all = linear(e, &scope, x, self.width, self.spec.bias.into())?;
        let [first, gate, x] = e.graph.split_into(&scope, all, 2, [self.width; 3])?;
        Ok(GatedRows { rows: e.graph.mul(&self.scope.child("rows"), first, x)?, gate })
    }

    /// Adds the convolution over the rows of past and new tokens, `[batch, kernel - 1 + tokens, width]`, its gate, and the
    /// output projection.
    pub(crate) fn output(&self, e: &mut Emitter<'_>, joined: Tensor, gate: Tensor) -> Result<Tensor> {
        let mut mixed = convolved(e, self.scope, joined, [self.width, self.spec.kernel])?;
        if self.spec.bias {
            let bias = e.vector(&self.scope.parameter("bias"), self.width)?;
            mixed = e.graph.add(&self.scope.child("bias"), mixed, bias)?;
        }
        let gated = e.graph.mul(&self.scope.child("gate"), mixed, gate)?;
        linear(e, &self.scope.child("out_proj"), gated, self.width, self.spec.bias.into())
    }
}

/// Adds a causal convolution with the weight `[width, kernel]` of the scope, which has one kernel for each channel:
/// `[batch, kernel - 1 + tokens, width]` → `[batch, tokens, width]`.
///
/// ```text
/// joined ─┬─ Slice(from 0) ── Mul(tap 0) ─┐
///         ├─ Slice(from 1) ── Mul(tap 1) ─ Add
///         └─ …
/// ```
pub(crate) fn convolved(
    e: &mut Emitter<'_>,
    scope: &Scope,
    joined: Tensor,
    [width, kernel]: [usize; 2],
) -> Result<Tensor> {
    let last = kernel - 1;
    let name = scope.parameter("weight");
    let mut sum = None;
    for tap in 0..kernel {
        let scope = scope.child(format_args!("tap.{tap}"));
        let mut rows = joined;
        if tap > 0 {
            rows = e.graph.slice_from(&scope.child("from"), rows, 1, tap)?;
        }
        if tap < last {
            rows = e.graph.slice_but_last(&scope.child("to"), rows, 1, last - tap)?;
        }
        let factors =
            e.tensor(&format!("{name}.{tap}"), &[width], |e| e.columns(&name, [width, kernel], &[tap]))?;
        let product = e.graph.mul(&scope, rows, factors)?;
        sum = Some(match sum {
            Some(sum) => e.graph.add(&scope, sum, product)?,
            None => product,
        });
    }
    Ok(sum.unwrap_or(joined))
}
