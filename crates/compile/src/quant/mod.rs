//! Quantisation of weights: planning, rounding, packing.

pub mod activations;
pub mod block;
pub mod channel_groups;
pub mod channel_scales;
pub mod gptq;
pub mod hybrid;
mod key_balance;
pub mod plan;
pub mod scaling;
mod storage;

pub use activations::ActivationRanges;
pub(crate) use key_balance::balance_keys;
pub use plan::Plan;
pub use scaling::Scaling;
pub use storage::Storage;
