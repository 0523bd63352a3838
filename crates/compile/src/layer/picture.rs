//! Parts that the connectors of vision towers share.

use narthex_graph::typed::{Reduction, Scope, Tensor};
use narthex_spec::arch::DecoderArch;

use crate::{emit::Emitter, error::Result};

/// Adds the factor of the rows of a picture: the decoder's graph multiplies its input by the embedding scale, which does not
/// apply to pictures.
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
