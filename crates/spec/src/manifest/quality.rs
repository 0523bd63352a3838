//! How near a changed model's answers stay to those of the model without its changes.

use serde::{Deserialize, Serialize};

/// What a model's changes cost, measured on golden texts beside the same model compiled without them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "lowercase")]
pub enum Quality {
    /// A decoder's next tokens.
    Decoder {
        /// How many distributions were compared.
        positions: usize,
        /// Their Kullback-Leibler divergence from the unchanged model's, in nats, on average.
        divergence: f64,
        /// The share of them whose best token is the same, 0 to 1.
        agreement: f64,
        /// Of a model that gives some tokens only: the share of the whole model's probability that lies on them, 0 to 1, on
        /// average. The divergence is then over these tokens.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mass: Option<f64>,
    },
    /// What an encoder gives of texts.
    Encoder {
        /// How many texts were compared.
        texts: usize,
        /// The least cosine to what the unchanged model gives.
        cosine: f64,
    },
}
