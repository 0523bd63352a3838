//! From logits to the next token.

mod chain;
mod rng;

pub(crate) use chain::log_probs;
pub use chain::{Sampler, Scratch};
pub use rng::SplitMix64;
