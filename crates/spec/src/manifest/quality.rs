//! Agreement of a changed model with the unchanged model.

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
        /// For a model that can generate only some tokens: mean probability, 0 to 1, that the whole model assigns to
        /// these tokens. In this case the divergence covers only these tokens.
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
