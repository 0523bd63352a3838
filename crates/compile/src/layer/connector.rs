//! Parts that the connectors of towers share.

use narthex_graph::typed::{Reduction, Scope, Tensor};
use narthex_spec::arch::DecoderArch;

use super::{
    linear::{Bias, linear},
    norm::unit_norm,
};
use crate::{emit::Emitter, error::Result};

/// Adds the factor of the rows of a medium: the decoder's graph multiplies its input by the embedding scale, which does not
/// apply to media.
pub(crate) fn unscaled(e: &mut Emitter<'_>, scope: &Scope, arch: &DecoderArch, x: Tensor) -> Result<Tensor> {
    let factor = arch.embed_scale.map_or(1.0, |scale| f64::from(scale).recip());
    e.scale(&scope.child("scale"), x, factor)
}

/// Adds the means of squares of the rows of a picture, `[1, rows, width]`, which has `from` rows a side before and `to` after.
///
/// ```text
/// x ── Reshape ── ReduceMean ── Reshape ── ReduceMean ── Unsqueeze
/// ```
pub(crate) fn pooled(
    e: &mut Emitter<'_>,
    scope: &Scope,
    x: Tensor,
    [from, to]: [usize; 2],
    width: usize,
) -> Result<Tensor> {
    let square = from / to;
    let x = means(e, &scope.child("columns"), x, [to, square, from * width])?;
    let x = means(e, &scope.child("rows"), x, [to * to, square, width])?;
    Ok(e.graph.unsqueeze(scope, x, &[0])?)
}

/// Adds the means over the middle axis of `x`, which gets this shape.
fn means(e: &mut Emitter<'_>, scope: &Scope, x: Tensor, shape: [usize; 3]) -> Result<Tensor> {
    let x = e.graph.reshape(scope, x, &shape.map(|extent| extent as i64))?;
    Ok(e.graph.reduce_away(scope, Reduction::Mean, x, 1)?)
}

/// Tokens with an embedding in a connector, as in Gemma 3n.
pub(crate) struct TokenRows<'a> {
    /// Number of tokens of the embedding.
    pub(crate) tokens: usize,
    /// Rows of the embedding.
    pub(crate) rows: &'a [usize],
    /// Elements of a row.
    pub(crate) width: usize,
    pub(crate) norm_epsilon: f32,
}

/// Adds the end of a connector of Gemma 3n, `[1, rows, decoder's hidden]`, after the normed rows of a medium.
///
/// ```text
/// x ── Concat(tokens) ── linear ── norm ── Mul(1 / embedding scale)
/// ```
pub(crate) fn with_tokens(
    e: &mut Emitter<'_>,
    scope: &Scope,
    arch: &DecoderArch,
    x: Tensor,
    tokens: TokenRows<'_>,
) -> Result<Tensor> {
    let TokenRows { width, norm_epsilon, .. } = tokens;
    let rows = tokens.add(e, scope)?;
    let x = e.graph.concat(scope, &[x, rows], 1)?;
    let x = linear(e, &scope.child("linear"), x, width, Bias::Without)?;
    let x = unit_norm(e, &scope.child("out_norm"), x, arch.hidden, norm_epsilon)?;
    unscaled(e, scope, arch, x)
}

impl TokenRows<'_> {
    /// Returns the normed rows of a connector's embedding, `[1, rows, width]`.
    fn add(&self, e: &mut Emitter<'_>, connector: &Scope) -> Result<Tensor> {
        let &Self { tokens, rows, width, norm_epsilon } = self;
        let embedding = connector.child("embed").parameter("weight");
        let norm = connector.child("embed_norm").parameter("weight");
        e.tensor(&connector.node("tokens"), &[1, rows.len(), width], |e| {
            let gain = e.values(&norm, &[width])?;
            let mut normed = Vec::with_capacity(rows.len() * width);
            let mut values = vec![0.0; width];
            for &row in rows {
                e.weight(&embedding, &[tokens, width])?.read_row(row, &mut values);
                e.weights.check_finite(&embedding, &values)?;
                let square = values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width as f64;
                let factor = (square + f64::from(norm_epsilon)).sqrt().recip() as f32;
                normed.extend(values.iter().zip(&gain).map(|(x, gain)| x * factor * gain));
            }
            Ok(normed)
        })
    }
}
