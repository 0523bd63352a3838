//! Mamba-2, with ONNX Runtime's operator for linear attention.

use narthex_graph::typed::{LinearAttention, Scope, Tensor, UpdateRule};
use narthex_spec::arch::{Activation, Mamba2, NormKind};

use super::{
    linear::{Bias, linear},
    mlp::activation,
    norm::{Norm, unit_norm},
    recurrence::{RecurrentState, StateConvolution, TokenPlaces, decayed, shifted_softplus},
};
use crate::{emit::Emitter, error::Result};

/// A Mamba-2 layer.
#[derive(Clone, Copy)]
pub(crate) struct MambaLayer<'a> {
    /// Path of its nodes.
    pub(crate) scope: &'a Scope,
    /// Its structure.
    pub(crate) spec: &'a Mamba2,
    /// The decoder's norms, for width and epsilon.
    pub(crate) norm: Norm,
}

impl MambaLayer<'_> {
    /// Adds the layer over normed rows `[batch, sequence, hidden]`. Returns the branch that is added to the residual stream,
    /// and the state after the tokens.
    ///
    /// A head's inputs, multiplied by its time steps, are the values of linear attention, and the same steps give its decays.
    /// Padding has steps of 0, so that it changes no state.
    ///
    /// ```text
    /// x ─┬─ in_proj ── convolution ── Split ─┬─ queries and keys ───────────┐
    ///    │                                   ├─ inputs ─┬─ Mul(steps) ──────┤
    ///    │                                   │          └─ Mul(skip) ───────┼──────────────────────────┐
    ///    ├─ time_proj ── steps ── decays ────┴──────────────────────────────┴─ LinearAttention(past) ─┬─ Add ── Mul ── norm ── out_proj
    ///    │                                                                                            └─ state   │
    ///    └─ gate_proj ── SiLU ───────────────────────────────────────────────────────────────────────────────────┘
    /// ```
    pub(crate) fn apply(
        &self,
        e: &mut Emitter<'_>,
        x: Tensor,
        places: TokenPlaces,
        past: RecurrentState,
    ) -> Result<(Tensor, RecurrentState)> {
        let &Mamba2 { heads, head_size, kernel, bias, .. } = self.spec;
        let [inner, keys] = [self.spec.inner(), self.spec.key_width()];
        let rows = linear(e, &self.scope.child("in_proj"), x, self.norm.width, Bias::Without)?;
        let conv = StateConvolution { scope: self.scope, shape: [self.spec.width(), kernel], bias };
        let [mixed, convolution] = conv.apply(e, rows, past.convolution, places)?;
        let [inputs, key, query] =
            e.graph.split_into(&self.scope.child("conv"), mixed, 2, [inner, keys, keys])?;

        let time = self.scope.child("time");
        let steps = linear(e, &self.scope.child("time_proj"), x, self.norm.width, Bias::Without)?;
        let steps = shifted_softplus(e, &time, steps, &self.scope.child("time_shift"), heads)?;
        let steps = e.graph.mul(&time.child("mask"), steps, places.mask)?;
        let decay = decayed(e, self.scope, steps, heads)?;
        let value = self.scope.child("value");
        let by_heads =
            e.graph.reshape(&value.child("heads"), inputs, &[0, 0, heads as i64, head_size as i64])?;
        let steps = e.graph.unsqueeze(&value.child("steps"), steps, &[3])?;
        let values = e.graph.mul(&value, by_heads, steps)?;
        let values = e.graph.reshape(&value.child("flat"), values, &[0, 0, inner as i64])?;

        let operands = LinearAttention {
            query: self.head_rows(e, "query", query)?,
            key: self.head_rows(e, "key", key)?,
            value: values,
            past: past.recurrent,
            decay,
            rule: UpdateRule::Gated,
            heads,
        };
        let [out, recurrent] = e.graph.linear_attention(self.scope, &operands)?;
        let out = self.with_skip(e, out, inputs)?;
        let normed = self.gated_norm(e, out, x)?;
        let output = linear(e, &self.scope.child("out_proj"), normed, inner, Bias::Without)?;
        Ok((output, RecurrentState { recurrent, convolution }))
    }

    /// Returns the keys or the queries of all heads, from those of the groups.
    fn head_rows(&self, e: &mut Emitter<'_>, name: &str, x: Tensor) -> Result<Tensor> {
        let &Mamba2 { heads, groups, state_size, .. } = self.spec;
        if groups == heads {
            return Ok(x);
        }
        let scope = self.scope.child(name);
        let x = e.graph.reshape(&scope.child("heads"), x, &[0, 0, groups as i64, state_size as i64])?;
        let one = e.graph.unsqueeze(&scope.child("one"), x, &[3])?;
        // A product repeats rows: there may be 128 copies of them.
        let copies = heads / groups;
        let ones = e.tensor(&scope.node("ones"), &[copies, 1], |_| Ok(vec![1.0; copies]))?;
        let repeated = e.graph.mul(&scope.child("copies"), one, ones)?;
        Ok(e.graph.reshape(&scope.child("flat"), repeated, &[0, 0, (heads * state_size) as i64])?)
    }

    /// Returns the outputs of the heads with their inputs, each multiplied by the factor of its head, added.
    fn with_skip(&self, e: &mut Emitter<'_>, out: Tensor, inputs: Tensor) -> Result<Tensor> {
        let &Mamba2 { heads, head_size, .. } = self.spec;
        let scope = self.scope.child("skip");
        let weight = scope.parameter("weight");
        let factors = e.tensor(&scope.node("factors"), &[self.spec.inner()], |e| {
            let factors = e.values(&weight, &[heads])?;
            Ok(factors.into_iter().flat_map(|factor| vec![factor; head_size]).collect())
        })?;
        let skipped = e.graph.mul(&scope, inputs, factors)?;
        Ok(e.graph.add(&scope, out, skipped)?)
    }

    /// Returns the norm of the gated output, `[batch, sequence, inner]`. Each group has a norm of its own.
    fn gated_norm(&self, e: &mut Emitter<'_>, out: Tensor, x: Tensor) -> Result<Tensor> {
        let [inner, groups] = [self.spec.inner(), self.spec.groups];
        let gate = self.scope.child("gate_proj");
        let gates = linear(e, &gate, x, self.norm.width, Bias::Without)?;
        let gates = activation(e, &gate.child("act"), gates, Activation::Silu)?;
        let gated = e.graph.mul(&self.scope.child("gate"), out, gates)?;
        let scope = self.scope.child("norm");
        if groups == 1 {
            return Norm { kind: NormKind::Rms, width: inner, ..self.norm }.apply(e, &scope, gated);
        }
        let size = inner / groups;
        let by_groups =
            e.graph.reshape(&scope.child("groups"), gated, &[0, 0, groups as i64, size as i64])?;
        let normed = unit_norm(e, &scope, by_groups, size, self.norm.epsilon)?;
        let normed = e.graph.reshape(&scope.child("flat"), normed, &[0, 0, inner as i64])?;
        let gain = e.vector(&scope.parameter("weight"), inner)?;
        Ok(e.graph.mul(&scope.child("gain"), normed, gain)?)
    }
}
