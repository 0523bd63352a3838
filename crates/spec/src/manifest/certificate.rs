//! Measured loss of a quantised model.

use serde::{Deserialize, Serialize};

use crate::{RoundingMethod, ScalingMethod, Sha256, Variant};

/// Agreement of a quantised model with the same model in `f32`, on a text that no calibration uses. Both ran on the CPU,
/// the model in `f32` with dynamic shapes and a KV cache in `f32`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Certificate {
    /// The measured figures.
    #[serde(flatten)]
    pub figures: CertificateFigures,
    /// Variant of the quantised model that ran: the one that its scheme is for.
    #[serde(default, skip_serializing_if = "Variant::is_dynamic")]
    pub variant: Variant,
    /// Digest of the text.
    pub text: Sha256,
    /// Digest of the calibration text; `None` without calibration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Sha256>,
    /// Choice of the integers of weights with 4 bits.
    #[serde(default, skip_serializing_if = "RoundingMethod::is_default")]
    pub rounding: RoundingMethod,
    /// Choice of the scales of channels.
    #[serde(default, skip_serializing_if = "ScalingMethod::is_default")]
    pub scaling: ScalingMethod,
    /// Date of the measurement in UTC, such as `2026-11-29`.
    pub date: String,
    /// True if the loss is above the bound of the scheme and was accepted by the person who compiled the model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accepted_loss: bool,
}

/// Figures of a [`Certificate`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "lowercase")]
pub enum CertificateFigures {
    /// A decoder's next tokens.
    Decoder {
        /// Number of compared distributions.
        positions: usize,
        /// Perplexity of the quantised model.
        perplexity: f64,
        /// Perplexity of the reference, the model in `f32`.
        reference_perplexity: f64,
        /// Mean Kullback-Leibler divergence from the model in `f32`, in nats.
        divergence: f64,
        /// Share of positions with the same best token, 0 to 1.
        agreement: f64,
    },
    /// An encoder's outputs.
    Encoder {
        /// Number of compared texts.
        texts: usize,
        /// Mean cosine similarity with the output of the model in `f32`.
        mean_cosine: f64,
        /// Lowest cosine similarity with the output of the model in `f32`.
        lowest_cosine: f64,
    },
}

impl CertificateFigures {
    /// Returns the relative change of a decoder's perplexity.
    pub fn perplexity_change(&self) -> Option<f64> {
        match *self {
            Self::Decoder { perplexity, reference_perplexity, .. } => {
                Some(perplexity / reference_perplexity - 1.0)
            }
            Self::Encoder { .. } => None,
        }
    }
}
