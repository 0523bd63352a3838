//! Measurements that a model in memory rests on: the loss of its weights, and the comparison of its device with the CPU.

use narthex_spec::{
    DeviceName,
    manifest::{Certificate, CertificateFigures},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Loss of a package compared with the model in `f32`, which its compile measured on a text that was not used for
/// calibration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CertifiedLoss {
    /// The measured figures.
    #[serde(flatten)]
    pub figures: LossFigures,
    /// Date of the measurement in UTC, such as `2026-11-29`.
    pub date: String,
    /// True if the loss is above the bound of the scheme and was accepted by the person who compiled the model.
    pub accepted_loss: bool,
}

/// Figures of a [`CertifiedLoss`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "of", rename_all = "lowercase")]
pub enum LossFigures {
    /// A decoder's next tokens.
    Decoder {
        /// Number of compared distributions.
        positions: usize,
        /// Relative change of the perplexity.
        perplexity_change: f64,
        /// Mean Kullback-Leibler divergence, in nats.
        divergence: f64,
        /// Share of positions with the same best token, 0 to 1.
        agreement: f64,
    },
    /// An encoder's outputs.
    Encoder {
        /// Number of compared texts.
        texts: usize,
        /// Mean cosine similarity.
        mean_cosine: f64,
        /// Lowest cosine similarity.
        lowest_cosine: f64,
    },
}

impl From<&Certificate> for CertifiedLoss {
    fn from(certificate: &Certificate) -> Self {
        let figures = match certificate.figures {
            CertificateFigures::Decoder {
                positions,
                perplexity,
                reference_perplexity,
                divergence,
                agreement,
            } => LossFigures::Decoder {
                positions,
                perplexity_change: perplexity / reference_perplexity - 1.0,
                divergence,
                agreement,
            },
            CertificateFigures::Encoder { texts, mean_cosine, lowest_cosine } => {
                LossFigures::Encoder { texts, mean_cosine, lowest_cosine }
            }
        };
        Self { figures, date: certificate.date.clone(), accepted_loss: certificate.accepted_loss }
    }
}

/// Comparison of a device with the CPU over reference texts, which the model passed before it was served there.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NumericsCheck {
    /// The device.
    #[schemars(with = "String")]
    pub device: DeviceName,
    /// The measured figures.
    #[serde(flatten)]
    pub figures: NumericsFigures,
}

/// Figures of a [`NumericsCheck`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "of", rename_all = "lowercase")]
pub enum NumericsFigures {
    /// A decoder's next tokens.
    Decoder {
        /// Number of compared distributions.
        positions: usize,
        /// Mean Kullback-Leibler divergence from the CPU, in nats.
        divergence: f64,
        /// Share of positions with the same best token, 0 to 1.
        agreement: f64,
    },
    /// An encoder's outputs.
    Encoder {
        /// Number of compared texts.
        texts: usize,
        /// Lowest cosine similarity with the output of the CPU.
        lowest_cosine: f64,
    },
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_certificate_states_the_change_of_the_perplexity() {
        let certificate: Certificate = serde_json::from_value(json!({
            "of": "decoder", "positions": 160, "perplexity": 22.0, "reference_perplexity": 20.0,
            "divergence": 0.01, "agreement": 0.9, "text": "0".repeat(64), "date": "2026-11-29",
        }))
        .unwrap();
        let loss = CertifiedLoss::from(&certificate);
        let LossFigures::Decoder { perplexity_change, .. } = loss.figures else { panic!("{loss:?}") };
        assert!((perplexity_change - 0.1).abs() < 1e-12 && !loss.accepted_loss, "{loss:?}");
    }

    #[test]
    fn checks_are_written_flat() {
        let figures = NumericsFigures::Encoder { texts: 3, lowest_cosine: 0.9995 };
        let check = NumericsCheck { device: DeviceName::Qnn, figures };
        let json = json!({"device": "qnn", "of": "encoder", "texts": 3, "lowest_cosine": 0.9995});
        assert_eq!(json!(check), json);
        assert_eq!(serde_json::from_value::<NumericsCheck>(json).unwrap(), check);
    }
}
