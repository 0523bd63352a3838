//! Adapters that a compile has merged into a model's weights.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{Sha256, name::string_form};

/// A LoRA adapter (Hu et al. 2021, arXiv:2106.09685) in the weights of a package.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MergedAdapter {
    /// Name of its folder or file.
    pub name: String,
    /// Digest of the file with its weights.
    pub sha256: Sha256,
    /// Factor of its update, besides its own.
    #[serde(default, skip_serializing_if = "AdapterScale::is_default")]
    pub scale: AdapterScale,
}

/// Factor of an adapter's update, in steps of 0.001; 1 by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AdapterScale(i32);

/// Text that is not an [`AdapterScale`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a factor from -{0} to {0} with at most three decimals, as in 0.5, found {found:?}",
    AdapterScale::MAX
)]
pub struct BadAdapterScale {
    /// The text, shortened.
    pub found: String,
}

impl AdapterScale {
    /// Maximum factor.
    const MAX: i32 = 100;

    /// Steps of a factor of 1.
    const STEPS: i32 = 1000;

    /// Returns the factor.
    pub fn get(self) -> f32 {
        self.0 as f32 / Self::STEPS as f32
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for AdapterScale {
    fn default() -> Self {
        Self(Self::STEPS)
    }
}

impl FromStr for AdapterScale {
    type Err = BadAdapterScale;

    fn from_str(text: &str) -> Result<Self, BadAdapterScale> {
        let steps = text.trim().parse::<f64>().ok().map(|factor| factor * f64::from(Self::STEPS));
        let limit = f64::from(Self::MAX * Self::STEPS);
        match steps {
            Some(steps) if steps.abs() <= limit && (steps - steps.round()).abs() < 1e-6 => {
                Ok(Self(steps.round() as i32))
            }
            _ => Err(BadAdapterScale { found: text.chars().take(40).collect() }),
        }
    }
}

impl fmt::Display for AdapterScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / f64::from(Self::STEPS))
    }
}

string_form!(AdapterScale);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_have_three_decimals() {
        for (text, shown, factor) in
            [("1", "1", 1.0), ("-0.125", "-0.125", -0.125), (" 2.50", "2.5", 2.5), ("0", "0", 0.0)]
        {
            let scale: AdapterScale = text.parse().unwrap();
            assert_eq!((scale.to_string().as_str(), scale.get()), (shown, factor));
        }
        for text in ["", "x", "NaN", "inf", "100.001", "-101", "0.0005"] {
            let error = text.parse::<AdapterScale>().unwrap_err().to_string();
            assert!(error.starts_with("expected a factor from -100 to 100"), "{error}");
        }
    }

    #[test]
    fn the_default_factor_is_not_written() {
        let adapter = |scale: &str| MergedAdapter {
            name: "poems".to_owned(),
            sha256: Sha256::of(b""),
            scale: scale.parse().unwrap(),
        };
        for (scale, stated) in [("1", None), ("0.3", Some("0.3"))] {
            let json = serde_json::to_value(adapter(scale)).unwrap();
            assert_eq!(json.get("scale").and_then(serde_json::Value::as_str), stated);
            assert_eq!(serde_json::from_value::<MergedAdapter>(json).unwrap(), adapter(scale));
        }
    }
}
