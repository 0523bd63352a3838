//! ONNX Runtime's operator for linear attention with a state of fixed size.

use narthex_spec::dtype::Dim;

use super::{CheckedNode, Result, Scope, Tensor, TypedBuilder, mismatch};
use crate::graph::{Attribute, MICROSOFT};

/// Operands of linear attention, with one head of queries and keys for each state.
#[derive(Debug, Clone, Copy)]
pub struct LinearAttention {
    /// Queries `[batch, sequence, heads · key_size]`.
    pub query: Tensor,
    /// Keys of the same type.
    pub key: Tensor,
    /// Values `[batch, sequence, heads · value_size]`.
    pub value: Tensor,
    /// State after the past tokens, `[batch, heads, key_size, value_size]`.
    pub past: Tensor,
    /// Logarithms of the factors of the state, `[batch, sequence, heads]`.
    pub decay: Tensor,
    /// Update of the state.
    pub rule: UpdateRule,
    /// Number of heads.
    pub heads: usize,
}

/// Update of the state of linear attention by a token.
#[derive(Debug, Clone, Copy)]
pub enum UpdateRule {
    /// The product of key and value is added. Queries are taken as they are.
    Gated,
    /// The gated delta rule (Yang et al. 2024, arXiv:2412.06464), with keys of unit length and rates of the updates,
    /// `[batch, sequence, heads]`. Queries are divided by the square root of their size.
    GatedDelta(Tensor),
}

impl TypedBuilder {
    /// Adds linear attention, whose state is multiplied by its decay before each update. Returns
    /// `[batch, sequence, heads · value_size]` and the state after the last token.
    pub fn linear_attention(&mut self, scope: &Scope, attention: &LinearAttention) -> Result<[Tensor; 2]> {
        const OP: &str = "LinearAttention";
        let LinearAttention { query, key, value, past, decay, rule, heads } = *attention;
        let [queries, keys, values] = self.types(scope, OP, [query, key, value])?;
        let (name, rate) = match rule {
            UpdateRule::Gated => ("gated", None),
            UpdateRule::GatedDelta(rate) => ("gated_delta", Some(rate)),
        };
        let [state, decays, rates] = self.types(scope, OP, [past, decay, rate.unwrap_or(decay)])?;
        let &[_, _, Dim::Fixed(key_size), Dim::Fixed(value_size)] = &state.shape[..] else {
            return Err(mismatch(scope, OP, "a state [batch, heads, key_size, value_size]", &[&state]));
        };
        let count = heads as u64;
        let [key_width, value_width] = [key_size, value_size].map(|size| Dim::Fixed(size * count));
        let fits = queries.shape.len() == 3
            && queries.last() == Some(&key_width)
            && queries == keys
            && values == queries.with_last(value_width)
            && decays == queries.with_last(Dim::from(heads))
            && rates == decays
            && state.dtype == queries.dtype
            && state.shape.first() == queries.shape.first()
            && state.shape[1] == Dim::from(heads);
        if !fits {
            let expected =
                format!("queries, keys and values [batch, sequence, ..] of {heads} heads for {state}");
            return Err(mismatch(scope, OP, expected, &[&queries, &keys, &values, &decays, &rates]));
        }

        let inputs = [query, key, value, past, decay].map(Some);
        let inputs: Vec<Option<Tensor>> = inputs.into_iter().chain(rate.map(Some)).collect();
        let mut attributes = vec![
            ("q_num_heads", Attribute::from(heads)),
            ("kv_num_heads", heads.into()),
            ("update_rule", Attribute::String(name.to_owned())),
        ];
        if rate.is_none() {
            attributes.push(("scale", 1.0.into()));
        }
        let node = CheckedNode { scope, op: OP, domain: MICROSOFT, inputs: &inputs, attributes: &attributes };
        let outputs = ["out", "present_state"].map(|name| scope.node(&format!("{OP}/{name}")));
        self.write(&node, &outputs.each_ref().map(String::as_str));
        let [out, present] = outputs;
        Ok([self.value(out, values), self.value(present, state)])
    }
}
