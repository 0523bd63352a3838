//! Operators for encoders: layers that compute row by row, and attention and pooling over packed texts.
//!
//! `residual_nodes` merges layers with the norms after them, whatever the graph. `pack` removes padding from the graphs
//! of encoders, with the nodes that `attention_nodes` finds. `residual`, `projections`, `attention` and `pooling`
//! compute.

mod attention;
mod attention_nodes;
mod pack;
mod pooling;
mod projections;
mod residual;
mod residual_nodes;
mod texts;

pub(super) use attention::{BIDIRECTIONAL_ATTENTION, BidirectionalAttentionKernel};
pub(super) use pack::pack;
pub(crate) use pack::{PaddedInputs, ROW_OFFSETS};
pub(super) use pooling::{POOL_ROWS, PoolRowsKernel};
pub(super) use projections::{PROJECTIONS, ProjectionsKernel};
pub(super) use residual::{RESIDUAL_MLP, ResidualMlpKernel};
pub(super) use residual_nodes::merge_residuals;
