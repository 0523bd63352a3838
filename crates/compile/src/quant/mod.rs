//! How weights become integers: the plan, the rounding, the packing.

pub mod block;
pub mod plan;

pub use plan::{Plan, Storage};
