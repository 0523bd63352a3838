//! Gated delta rules of Qwen3.5, with ONNX Runtime's operator for linear attention.

use narthex_graph::typed::{LinearAttention, Scope, Tensor, UpdateRule};
use narthex_spec::arch::{Activation, GatedDeltaRule, KeyHeadOrder, NormKind};

use super::{
    linear::{Bias, StackedLinear, linear, stacked_linear},
    mlp::activation,
    norm::{Norm, unit_length},
    recurrence::{RecurrentState, StateConvolution, TokenPlaces, decayed, shifted_softplus},
};
use crate::{emit::Emitter, error::Result};

/// Epsilon that is added to the squared length of queries and keys.
const LENGTH_EPSILON: f32 = 1e-6;

/// A gated delta rule of one layer.
#[derive(Clone, Copy)]
pub(crate) struct DeltaRuleLayer<'a> {
    /// Path of its nodes.
    pub(crate) scope: &'a Scope,
    /// Its structure.
    pub(crate) spec: &'a GatedDeltaRule,
    /// The decoder's norms, for width and epsilon.
    pub(crate) norm: Norm,
}

impl DeltaRuleLayer<'_> {
    /// Adds the rule over normed rows `[batch, sequence, hidden]`. Returns the branch that is added to the residual stream, and
    /// the state after the tokens.
    ///
    /// ```text
    /// x ─┬─ qkv_proj ── convolution ── Split ─┬─ queries ── unit ─┐
    ///    │                                    ├─ keys ───── unit ─┤
    ///    │                                    └─ values ──────────┤
    ///    ├─ decays and rates ─────────────────────────────────────┴─ LinearAttention(past) ─┬─ norm ── Mul ── out_proj
    ///    │                                                                                  └─ state   │
    ///    └─ gate_proj ── SiLU ─────────────────────────────────────────────────────────────────────────┘
    /// ```
    pub(crate) fn apply(
        &self,
        e: &mut Emitter<'_>,
        x: Tensor,
        places: TokenPlaces,
        past: RecurrentState,
    ) -> Result<(Tensor, RecurrentState)> {
        let &GatedDeltaRule { value_heads, value_size, kernel, .. } = self.spec;
        let width = self.spec.width();
        let rows = linear(e, &self.scope.child("qkv_proj"), x, self.norm.width, Bias::Without)?;
        let conv = StateConvolution { scope: self.scope, shape: [width, kernel], bias: false };
        let [mixed, convolution] = conv.apply(e, rows, past.convolution, places)?;

        let [decay, rate] = self.decay_and_rate(e, x, places.mask)?;
        let [query, key, value] = self.query_key_value(e, mixed)?;
        let rule = UpdateRule::GatedDelta(rate);
        let operands =
            LinearAttention { query, key, value, past: past.recurrent, decay, rule, heads: value_heads };
        let [out, recurrent] = e.graph.linear_attention(self.scope, &operands)?;

        let norm = self.scope.child("norm");
        let heads = [0, 0, value_heads as i64, value_size as i64];
        let out = e.graph.reshape(&norm.child("heads"), out, &heads)?;
        let value_norm = Norm { kind: NormKind::Rms, width: value_size, ..self.norm };
        let normed = value_norm.apply(e, &norm, out)?;
        let flat = [0, 0, self.spec.value_width() as i64];
        let normed = e.graph.reshape(&norm.child("flat"), normed, &flat)?;
        let gate = self.scope.child("gate_proj");
        let gates = linear(e, &gate, x, self.norm.width, Bias::Without)?;
        let gates = activation(e, &gate.child("act"), gates, Activation::Silu)?;
        let gated = e.graph.mul(&self.scope.child("gate"), normed, gates)?;
        let output = linear(e, &self.scope.child("out_proj"), gated, self.spec.value_width(), Bias::Without)?;
        Ok((output, RecurrentState { recurrent, convolution }))
    }

    /// Returns queries, keys and values of as many heads, each `[batch, sequence, heads · size]`. Queries and keys have unit
    /// length.
    fn query_key_value(&self, e: &mut Emitter<'_>, mixed: Tensor) -> Result<[Tensor; 3]> {
        let keys = self.spec.key_width();
        let sizes = [keys, keys, self.spec.value_width()];
        let [query, key, value] = e.graph.split_into(&self.scope.child("conv"), mixed, 2, sizes)?;
        Ok([self.unit_heads(e, "query", query)?, self.unit_heads(e, "key", key)?, value])
    }

    /// Returns heads of unit length, each as often as there are values for it.
    fn unit_heads(&self, e: &mut Emitter<'_>, name: &str, x: Tensor) -> Result<Tensor> {
        let &GatedDeltaRule { key_heads, value_heads, key_order, key_size, .. } = self.spec;
        let scope = self.scope.child(name);
        let heads = [0, 0, key_heads as i64, key_size as i64];
        let x = e.graph.reshape(&scope.child("heads"), x, &heads)?;
        let mut unit = unit_length(e, &scope, x, key_size, LENGTH_EPSILON)?;

        let copies = value_heads / key_heads;
        if copies > 1 {
            // Copies of a head beside one another, or copies of all heads.
            let axis = match key_order {
                KeyHeadOrder::Grouped => 3,
                KeyHeadOrder::Tiled => 2,
            };
            let one = e.graph.unsqueeze(&scope.child("copies"), unit, &[axis])?;
            unit = e.graph.concat(&scope.child("copies"), &vec![one; copies], axis)?;
        }
        let flat = [0, 0, (value_heads * key_size) as i64];
        Ok(e.graph.reshape(&scope.child("flat"), unit, &flat)?)
    }

    /// Returns the logarithms of the factors of the state, and the rates of its updates, both `[batch, sequence, heads]` and 0
    /// for padding.
    ///
    /// ```text
    /// x ── decays and rates ─┬─ Add(shift) ── Softplus ── Mul(-e^decay_log) ── Mul(mask)
    ///                        └─ Sigmoid ── Mul(mask)
    /// ```
    fn decay_and_rate(&self, e: &mut Emitter<'_>, x: Tensor, mask: Tensor) -> Result<[Tensor; 2]> {
        let heads = self.spec.value_heads;
        let scope = self.scope.child("rates_proj");
        let parts = ["decay_proj", "rate_proj"].map(|part| self.scope.child(part));
        let stacked =
            StackedLinear { scope: &scope, parts: &parts, cols: self.norm.width, bias: Bias::Without };
        let both = stacked_linear(e, x, &stacked)?;
        let [decay, rate] = e.graph.split_into(&scope, both, 2, [heads; 2])?;

        let scope = self.scope.child("decay");
        let positive = shifted_softplus(e, &scope, decay, &self.scope.child("decay_shift"), heads)?;
        let decay = decayed(e, self.scope, positive, heads)?;
        let decay = e.graph.mul(&scope.child("mask"), decay, mask)?;

        let scope = self.scope.child("rate");
        let rate = e.graph.sigmoid(&scope, rate)?;
        let rate = e.graph.mul(&scope.child("mask"), rate, mask)?;
        Ok([decay, rate])
    }
}
