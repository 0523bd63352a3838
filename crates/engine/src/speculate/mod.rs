//! Speculative decoding by prompt lookup (Saxena 2023): the tokens that followed the same words earlier in the sequence are
//! verified in one step.
//!
//! The sampler draws each token from the model's own distribution, as in a step of one token, and goes on while the draft
//! had the same token. So answers are the same with and without it: for a draft of certain tokens this is the acceptance
//! rule of Leviathan et al. 2023 (arXiv:2211.17192).

mod acceptance;
mod lookup;
mod step_costs;

pub(crate) use acceptance::Acceptance;
pub(crate) use lookup::Lookup;
pub(crate) use step_costs::{MAX_WIDTH, StepCosts};
