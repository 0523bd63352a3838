//! Parts that all kinds of attention share: projections, norms of heads, and the softmax.

use narthex_graph::typed::{Scope, Tensor};
use narthex_spec::arch::{Attention, QkNorm};

use super::{
    linear::{Bias, linear},
    norm::{HeadNorm, Norm, unit_norm},
};
use crate::{
    emit::Emitter,
    error::{CompileError, Result},
};

/// Attention of one decoder layer.
#[derive(Clone, Copy)]
pub(crate) struct AttentionLayer<'a> {
    /// Path of its nodes.
    pub(crate) scope: &'a Scope,
    /// Its structure.
    pub(crate) spec: &'a Attention,
    /// The decoder's norms, for width and epsilon.
    pub(crate) norm: Norm,
    /// Biases of the projections.
    pub(crate) qkv_bias: Bias,
}

/// A projection of attention's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Projection {
    Query,
    Key,
    Value,
}

impl Projection {
    /// Returns the letter of the projection in the names of weights and nodes.
    pub(crate) fn letter(self) -> &'static str {
        match self {
            Self::Query => "q",
            Self::Key => "k",
            Self::Value => "v",
        }
    }
}

impl AttentionLayer<'_> {
    pub(crate) fn heads(&self, projection: Projection) -> usize {
        if projection == Projection::Query { self.spec.heads } else { self.spec.kv_heads }
    }

    /// Returns `true` if the layer norms the heads of a projection.
    pub(crate) fn has_norm(&self, projection: Projection) -> bool {
        match projection {
            Projection::Value => self.spec.value_norm,
            Projection::Query | Projection::Key => self.spec.qk_norm != QkNorm::None,
        }
    }

    /// Returns the scope of a projection's weights.
    pub(crate) fn projection(&self, projection: Projection) -> Scope {
        self.scope.child(format_args!("{}_proj", projection.letter()))
    }

    /// Returns heads `[.., heads, size]`, normed if the layer norms that projection.
    pub(crate) fn normed(&self, e: &mut Emitter<'_>, projection: Projection, x: Tensor) -> Result<Tensor> {
        let size = self.spec.head_size;
        let epsilon = self.norm.epsilon;
        let scope = self.scope.child(format_args!("{}_norm", projection.letter()));
        match projection {
            Projection::Value if self.spec.value_norm => unit_norm(e, &scope, x, size, epsilon),
            Projection::Value => Ok(x),
            Projection::Query | Projection::Key => {
                let norm = HeadNorm { kind: self.spec.qk_norm, heads: self.heads(projection), size, epsilon };
                norm.apply(e, &scope, x)
            }
        }
    }

    /// Returns the name of the sinks.
    pub(crate) fn sinks(&self) -> String {
        self.scope.child("sinks").parameter("weight")
    }

    /// Adds the weights of values, the softmax of `scores + mask` over the last axis. Scores are capped before if the layer caps
    /// them. Sinks are one more column, for scores of a fixed shape whose rows are ordered by head.
    ///
    /// ```text
    /// scores ─[ cap ]─ Add(mask) ─[ Concat(sinks) ]─ Softmax ─[ Slice ]─
    /// ```
    pub(crate) fn weights(&self, e: &mut Emitter<'_>, scores: Tensor, mask: Tensor) -> Result<Tensor> {
        let scores = match self.spec.score_cap {
            Some(cap) => soft_cap(e, &self.scope.child("cap"), scores, cap)?,
            None => scores,
        };
        if !self.spec.sinks {
            return masked_softmax(e, self.scope, scores, mask);
        }

        let shape = e.graph.fixed_shape(scores).ok_or_else(|| CompileError::Unsupported {
            what: "attention with sinks over texts of any length".to_owned(),
            reason: "its sinks have no column of a fixed shape".to_owned(),
        })?;
        let masked = e.graph.add(&self.scope.child("mask"), scores, mask)?;
        let scope = self.scope.child("sinks");
        let sinks = self.sink_column(e, &shape)?;
        let last = shape.len() - 1;
        let all = e.graph.concat(&scope, &[masked, sinks], last)?;
        let weights = e.graph.softmax(self.scope, all)?;
        Ok(e.graph.slice_but_last(&scope, weights, last, 1)?)
    }

    /// Returns the sinks as one column beside scores of this shape.
    fn sink_column(&self, e: &mut Emitter<'_>, shape: &[usize]) -> Result<Tensor> {
        let heads = self.spec.heads;
        let mut column = shape.to_vec();
        column.pop();
        let rows = column.iter().product::<usize>() / heads;
        column.push(1);
        let name = self.scope.child("sinks").parameter(&format!("rows_{rows}"));
        e.tensor(&name, &column, |e| {
            let sinks = e.values(&self.sinks(), &[heads])?;
            Ok(sinks.into_iter().flat_map(|sink| std::iter::repeat_n(sink, rows)).collect())
        })
    }

    /// Adds the output projection of concatenated heads, `[.., heads · size]`, after their gate if the layer has one. `x` is the
    /// layer's input.
    ///
    /// ```text
    /// mixed ─────────────────────────[ Mul ]── o_proj
    /// x ───────[ gate_proj ── Sigmoid ──┘ ]
    /// ```
    pub(crate) fn output(&self, e: &mut Emitter<'_>, mut mixed: Tensor, x: Tensor) -> Result<Tensor> {
        let cols = self.spec.heads * self.spec.head_size;
        if self.spec.gated {
            let scope = self.scope.child("gate_proj");
            let gates = linear(e, &scope, x, self.norm.width, Bias::Without)?;
            let gates = e.graph.sigmoid(&scope, gates)?;
            mixed = e.graph.mul(&self.scope.child("gate"), mixed, gates)?;
        }
        linear(e, &self.scope.child("o_proj"), mixed, cols, self.spec.output_bias.into())
    }
}

/// Value that is added to the scores of hidden keys, far below the scores of others. Half precision represents it.
pub(crate) const PADDING_SCORE: f64 = -1e4;

/// Adds `softmax(scores + mask)` over the last axis.
pub(crate) fn masked_softmax(
    e: &mut Emitter<'_>,
    scope: &Scope,
    scores: Tensor,
    mask: Tensor,
) -> Result<Tensor> {
    let masked = e.graph.add(&scope.child("mask"), scores, mask)?;
    Ok(e.graph.softmax(scope, masked)?)
}

/// Adds `cap · tanh(x / cap)`, which is within ±cap (Bello et al. 2016, arXiv:1611.09940).
pub(crate) fn soft_cap(e: &mut Emitter<'_>, scope: &Scope, x: Tensor, cap: f32) -> Result<Tensor> {
    let small = e.scale(&scope.child("in"), x, f64::from(cap).recip())?;
    let bounded = e.graph.tanh(scope, small)?;
    e.scale(&scope.child("out"), bounded, f64::from(cap))
}

/// Concatenates heads `[batch, heads, tokens, size]` to `[batch, tokens, heads · size]`, which is `shape`.
pub(crate) fn join_heads(
    e: &mut Emitter<'_>,
    scope: &Scope,
    mixed: Tensor,
    shape: [usize; 3],
) -> Result<Tensor> {
    let mix = scope.child("mix");
    let rows = if shape[1] == 1 { mixed } else { e.graph.transpose(&mix, mixed, &[0, 2, 1, 3])? };
    Ok(e.graph.reshape(&mix.child("flat"), rows, &shape.map(|extent| extent as i64))?)
}
