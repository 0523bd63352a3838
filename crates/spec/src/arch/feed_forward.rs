//! Feed-forward parts of layers: dense networks and mixtures of experts.

use serde::{Deserialize, Serialize};

use super::Activation;

/// Feed-forward part of a layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FeedForward {
    /// The same weights for every token.
    #[serde(rename = "mlp")]
    Dense(Mlp),
    /// Several networks, of which each token uses a few.
    #[serde(rename = "experts")]
    Experts(Experts),
}

impl FeedForward {
    /// Returns the experts; `None` for a dense part.
    pub fn experts(&self) -> Option<&Experts> {
        match self {
            Self::Dense(_) => None,
            Self::Experts(experts) => Some(experts),
        }
    }

    /// Returns the activation function.
    pub fn activation(&self) -> Activation {
        match self {
            Self::Dense(mlp) => mlp.activation,
            Self::Experts(experts) => experts.activation,
        }
    }
}

/// A feed-forward part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mlp {
    /// Inner width.
    pub inner: usize,
    /// Activation function.
    pub activation: Activation,
    /// True if a gate multiplies the up projection (Shazeer 2020, arXiv:2002.05202).
    pub gated: bool,
    /// True if the projections have biases.
    pub bias: bool,
    /// Activation sparsity of Gemma 3n: the activation's input is `max(x - mean - cutoff · deviation, 0)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cutoff: Option<f32>,
}

/// A mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): a router selects a few of several gated networks for each
/// token, and their results are added with weights.
///
/// A dense network may compute every token beside them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Number of experts that compute a token.
    pub per_token: usize,
    /// Inner width of an expert.
    pub inner: usize,
    /// Activation function of the gates.
    pub activation: Activation,
    /// Selection and weights of a token's experts.
    #[serde(default, skip_serializing_if = "Routing::is_softmax")]
    pub routing: Routing,
    /// True if the weights of a token's experts are divided by their sum.
    pub normalized: bool,
    /// Inner width of a gated network beside the experts, with the same activation, whose result is added to theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<usize>,
    /// True if the router and the projections of the experts have biases.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bias: bool,
    /// Bounds of gate and up projection; `None` for the product of up projection and activated gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clamp: Option<GateClamp>,
}

impl Experts {
    /// Returns experts with SiLU, whose weights are divided by their sum, without biases, bounds and a network beside them.
    pub fn plain(count: usize, per_token: usize, inner: usize) -> Self {
        Self {
            count,
            per_token,
            inner,
            activation: Activation::Silu,
            routing: Routing::Softmax,
            normalized: true,
            shared: None,
            bias: false,
            clamp: None,
        }
    }
}

/// Bounds of gpt-oss's experts: their product is `(clamp(up, -limit, limit) + 1) · g · sigmoid(slope · g)`, where
/// `g = min(gate, limit)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GateClamp {
    /// Maximum of gate and up projection, and minus the minimum of the latter.
    pub limit: f32,
    /// Factor on the gate in the sigmoid.
    pub slope: f32,
}

/// Selection and weights of a token's experts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Routing {
    /// The experts with the largest logits. Their weights are the softmax of the logits over all experts.
    #[default]
    Softmax,
    /// The experts with the largest sigmoids of the logits, which are their weights.
    Sigmoid,
    /// As [`Self::Sigmoid`], but the experts with the largest sums of sigmoid and bias are selected. The biases, one for each
    /// expert, do not change the weights.
    BiasedSigmoid,
}

impl Routing {
    fn is_softmax(&self) -> bool {
        *self == Self::Softmax
    }
}

impl Experts {
    /// Returns the network beside the experts.
    pub fn shared_mlp(&self) -> Option<Mlp> {
        let inner = self.shared?;
        Some(Mlp { inner, activation: self.activation, gated: true, bias: false, cutoff: None })
    }
}
