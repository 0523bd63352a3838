//! Speculative decoding by prompt lookup (Saxena 2023): the tokens that followed an earlier occurrence of the last
//! tokens are verified in one step.
//!
//! The sampler draws each token from the model's own distribution, as in a step of one token, and continues while the
//! draft has the same token. Therefore, answers are the same with and without drafts. For a deterministic draft, this
//! is the acceptance rule of Leviathan et al. 2023 (arXiv:2211.17192).

mod acceptance;
mod lookup;
mod step_costs;

pub(crate) use acceptance::Acceptance;
pub(crate) use lookup::Lookup;
pub(crate) use step_costs::{MAX_WIDTH, StepCosts};
