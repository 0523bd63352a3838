//! Budgets of compiles that keep some layers in more bits.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::name::string_form;

/// Limit that decides how many layers of a package of 4 bits have 8: those that lose most for their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Budget {
    /// Maximum additional size: `size=+15%` of the weights in 4 bits.
    Size {
        /// Number of percent.
        percent: u8,
    },
    /// Maximum divergence of the next tokens from those of the model in 8 bits, estimated on the calibration text:
    /// `kl=0.05`.
    Divergence {
        /// Number of millionths of a nat.
        micronats: u32,
    },
}

/// Text that is not a [`Budget`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected size=+N% with N from 0 to {}, as in size=+15%, or kl=X with X from 0.000001 to {} nats, as in kl=0.05; found \
     {found:?}",
    Budget::MAX_PERCENT,
    Budget::MAX_NATS
)]
pub struct BadBudget {
    /// The text, shortened.
    pub found: String,
}

impl Budget {
    /// Largest number of percent: more than all layers need.
    const MAX_PERCENT: u8 = 100;

    /// Largest divergence in nats: more than a model with random answers has.
    const MAX_NATS: f64 = 100.0;

    /// Returns the maximum divergence in nats; `None` for a size.
    pub fn divergence(self) -> Option<f64> {
        match self {
            Self::Divergence { micronats } => Some(f64::from(micronats) / 1e6),
            Self::Size { .. } => None,
        }
    }

    /// Returns the number of additional bytes for weights that take this many bytes in 4 bits; `None` for a divergence.
    pub fn bytes(self, weights: u64) -> Option<u64> {
        match self {
            Self::Size { percent } => Some(weights / 100 * u64::from(percent)),
            Self::Divergence { .. } => None,
        }
    }
}

impl FromStr for Budget {
    type Err = BadBudget;

    fn from_str(text: &str) -> Result<Self, BadBudget> {
        let trimmed = text.trim();
        let percent = trimmed.strip_prefix("size=+").and_then(|rest| rest.strip_suffix('%'));
        let percent = percent.and_then(|number| number.parse().ok());
        let nats = trimmed.strip_prefix("kl=").and_then(|number| number.parse::<f64>().ok());
        match (percent, nats) {
            (Some(percent), _) if percent <= Self::MAX_PERCENT => Ok(Self::Size { percent }),
            (_, Some(nats)) if (1e-6..=Self::MAX_NATS).contains(&nats) => {
                Ok(Self::Divergence { micronats: (nats * 1e6).round() as u32 })
            }
            _ => Err(BadBudget { found: text.chars().take(40).collect() }),
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Size { percent } => write!(f, "size=+{percent}%"),
            Self::Divergence { micronats } => write!(f, "kl={}", f64::from(micronats) / 1e6),
        }
    }
}

string_form!(Budget);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_written_as_they_are_read() {
        for text in ["size=+0%", "size=+15%", "size=+100%", "kl=0.05", "kl=0.000001", "kl=1", "kl=100"] {
            assert_eq!(text.parse::<Budget>().unwrap().to_string(), text);
        }
        for text in
            ["", "15", "size=15%", "size=+15", "size=+101%", "size=+-1%", "kl=0", "kl=-1", "kl=NaN", "kl=101"]
        {
            let error = text.parse::<Budget>().unwrap_err();
            assert!(error.to_string().contains("as in size=+15%, or kl=X"), "{error}");
        }
        let size = "size=+15%".parse::<Budget>().unwrap();
        assert_eq!((size.bytes(2_000), size.divergence()), (Some(300), None));
        let divergence = "kl=0.05".parse::<Budget>().unwrap();
        assert_eq!((divergence.bytes(2_000), divergence.divergence()), (None, Some(0.05)));
    }
}
