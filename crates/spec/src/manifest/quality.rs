//! Agreement of a changed model with the model without its changes.

use serde::{Deserialize, Serialize};

/// Agreement on golden texts with the same model compiled without the changes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "lowercase")]
pub enum Quality {
    /// A decoder's next tokens.
    Decoder {
        /// Number of compared distributions.
        positions: usize,
        /// Mean Kullback-Leibler divergence from the unchanged model, in nats.
        divergence: f64,
        /// Share of positions with the same best token, 0 to 1.
        agreement: f64,
        /// Of a model that gives some tokens only: the share of the whole model's probability that lies on them, 0 to 1, on
        /// average. The divergence is then over these tokens.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mass: Option<f64>,
    },
    /// An encoder's outputs.
    Encoder {
        /// Number of compared texts.
        texts: usize,
        /// Lowest cosine similarity with the unchanged model.
        cosine: f64,
    },
}
