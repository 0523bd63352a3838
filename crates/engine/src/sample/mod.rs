//! Selection of the next token from logits.

mod chain;
mod rng;

pub(crate) use chain::log_probs;
pub use chain::{Sampler, Scratch};
pub use rng::SplitMix64;
