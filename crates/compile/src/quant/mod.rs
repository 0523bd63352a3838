//! Quantisation of weights: the plan, the rounding, the packing.

pub mod block;
pub mod calibrate;
pub mod plan;
pub mod probe;
pub mod scaling;
pub mod segment;

pub use plan::{Plan, Storage};
pub use scaling::Scaling;
