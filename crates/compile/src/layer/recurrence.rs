//! Parts that all recurrences share: their states, and the convolution before them.

use narthex_graph::typed::{Scope, Tensor};
use narthex_spec::arch::Activation;

use super::{mlp::activation, short_convolution::convolved};
use crate::{emit::Emitter, error::Result};

/// Places of the tokens in a batch whose rows end with padding.
#[derive(Clone, Copy)]
pub(crate) struct TokenPlaces {
    /// 1 for a token, 0 for padding, `[batch, sequence, 1]`.
    pub(crate) mask: Tensor,
    /// Indices of the last rows of a convolution's past and new tokens, i64 `[batch, kernel - 1, 1]`.
    pub(crate) last: Tensor,
}

/// State of a recurrence.
#[derive(Clone, Copy)]
pub(crate) struct RecurrentState {
    /// State of its heads, `[batch, heads, key_size, value_size]`.
    pub(crate) recurrent: Tensor,
    /// Inputs of the convolution, `[batch, kernel - 1, width]`.
    pub(crate) convolution: Tensor,
}

/// The convolution before a recurrence, with the weight `conv` and SiLU.
#[derive(Clone, Copy)]
pub(crate) struct StateConvolution<'a> {
    /// Path of the recurrence.
    pub(crate) scope: &'a Scope,
    /// Number of channels, and of tokens under the kernel.
    pub(crate) shape: [usize; 2],
    /// True if it has a bias.
    pub(crate) bias: bool,
}

impl StateConvolution<'_> {
    /// Adds the convolution of new rows `[batch, sequence, width]` after those of the past. Returns its outputs, of the same
    /// shape, and the last rows.
    ///
    /// ```text
    /// rows ── Concat(past rows) ─┬─ taps ── Add(bias) ── SiLU
    ///                            └─ GatherND ── last rows
    /// ```
    pub(crate) fn apply(
        &self,
        e: &mut Emitter<'_>,
        rows: Tensor,
        past: Tensor,
        places: TokenPlaces,
    ) -> Result<[Tensor; 2]> {
        let joined = e.graph.concat(&self.scope.child("joined"), &[past, rows], 1)?;
        let last = e.graph.gather_rows(&self.scope.child("last"), joined, places.last)?;
        let conv = self.scope.child("conv");
        let mut mixed = convolved(e, &conv, joined, self.shape)?;
        if self.bias {
            let bias = e.vector(&conv.parameter("bias"), self.shape[0])?;
            mixed = e.graph.add(&conv.child("bias"), mixed, bias)?;
        }
        Ok([activation(e, &conv.child("act"), mixed, Activation::Silu)?, last])
    }
}

/// Returns `softplus(x + shift)` of one number for each head, `[batch, sequence, heads]`.
pub(crate) fn shifted_softplus(
    e: &mut Emitter<'_>,
    scope: &Scope,
    x: Tensor,
    shift: &Scope,
    heads: usize,
) -> Result<Tensor> {
    let shift = e.vector(&shift.parameter("weight"), heads)?;
    let shifted = e.graph.add(scope, x, shift)?;
    Ok(e.graph.softplus(scope, shifted)?)
}

/// Returns the logarithms of the factors of the state, `-exp(decay_log) · x`, `[batch, sequence, heads]`. `scope` is the path
/// of the recurrence.
pub(crate) fn decayed(e: &mut Emitter<'_>, scope: &Scope, x: Tensor, heads: usize) -> Result<Tensor> {
    let logarithms = scope.child("decay_log").parameter("weight");
    let scope = scope.child("decay");
    let factors = e.tensor(&scope.node("factors"), &[heads], |e| {
        let logarithms = e.values(&logarithms, &[heads])?;
        Ok(logarithms.into_iter().map(|logarithm| -logarithm.exp()).collect())
    })?;
    Ok(e.graph.mul(&scope, x, factors)?)
}
