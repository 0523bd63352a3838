//! Quantisation of weights: the plan, the rounding, the packing.

pub mod block;
pub mod plan;
pub mod scaling;

pub use plan::{Plan, Storage};
pub use scaling::Scaling;
