//! Mixtures of experts.

use serde::{Deserialize, Serialize};

use super::Activation;

/// A mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): a router selects a few of several gated networks without
/// biases for each token, and their results are added with weights.
///
/// The weights are the softmax of the router's logits over all experts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Number of experts that compute a token: those with the largest logits.
    pub per_token: usize,
    /// Inner width of an expert.
    pub inner: usize,
    /// Activation function of the gates.
    pub activation: Activation,
    /// True if the weights of a token's experts are divided by their sum.
    pub normalized: bool,
}
