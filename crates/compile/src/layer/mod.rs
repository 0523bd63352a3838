//! Parts of a transformer as free functions that add nodes. Functions that add several nodes have a diagram in their
//! comment.
//!
//! They read the architecture, and depend on neither the family nor the device.

pub(crate) mod altup;
pub(crate) mod attention;
pub(crate) mod connector;
pub(crate) mod delta_rule;
pub(crate) mod embed;
pub(crate) mod encoder_attention;
pub(crate) mod encoder_head;
pub(crate) mod experts;
pub(crate) mod group_query_attention;
pub(crate) mod head;
pub(crate) mod linear;
pub(crate) mod mamba;
pub(crate) mod mlp;
pub(crate) mod norm;
pub(crate) mod per_layer;
pub(crate) mod recurrence;
pub(crate) mod rope;
pub(crate) mod scaled_dot_product_attention;
pub(crate) mod short_convolution;
pub(crate) mod unmasked_attention;
pub(crate) mod whole_attention;

use narthex_graph::typed::{Scope, Tensor};

use crate::{emit::Emitter, error::Result};

/// Returns the path of a layer.
pub(crate) fn layer_scope(index: usize) -> Scope {
    Scope::root().child(format_args!("layers.{index}"))
}

/// Adds a `Reshape` that keeps the batch and sequence dimensions.
fn reshape_rows(e: &mut Emitter<'_>, scope: &Scope, x: Tensor, rest: &[usize]) -> Result<Tensor> {
    let extents: Vec<i64> = [0, 0].into_iter().chain(rest.iter().map(|&extent| extent as i64)).collect();
    Ok(e.graph.reshape(scope, x, &extents)?)
}
