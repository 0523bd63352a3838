//! Quantisation of weights: planning, rounding, packing.

pub mod block;
pub mod plan;
pub mod scaling;

pub use plan::{Plan, Storage};
pub use scaling::Scaling;
