//! Budgets of compiles that keep some layers in more bits.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::name::string_form;

/// Additional size of a package for the layers that lose most in 4 bits, which then have 8: `size=+15%` of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SizeBudget {
    percent: u8,
}

/// Text that is not a [`SizeBudget`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected size=+N% with N from 0 to {}, as in size=+15%; found {found:?}", SizeBudget::MAX)]
pub struct BadSizeBudget {
    /// The text, shortened.
    pub found: String,
}

impl SizeBudget {
    /// Largest number of percent: more than all layers need.
    const MAX: u8 = 100;

    /// Returns the number of bytes for weights that take this many bytes in 4 bits.
    pub fn bytes(self, weights: u64) -> u64 {
        weights / 100 * u64::from(self.percent)
    }
}

impl FromStr for SizeBudget {
    type Err = BadSizeBudget;

    fn from_str(text: &str) -> Result<Self, BadSizeBudget> {
        let number = text.trim().strip_prefix("size=+").and_then(|rest| rest.strip_suffix('%'));
        let percent = number.and_then(|number| number.parse().ok()).filter(|percent| *percent <= Self::MAX);
        percent
            .map(|percent| Self { percent })
            .ok_or_else(|| BadSizeBudget { found: text.chars().take(40).collect() })
    }
}

impl fmt::Display for SizeBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "size=+{}%", self.percent)
    }
}

string_form!(SizeBudget);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_written_as_they_are_read() {
        for text in ["size=+0%", "size=+15%", "size=+100%"] {
            assert_eq!(text.parse::<SizeBudget>().unwrap().to_string(), text);
        }
        for text in ["", "15", "size=15%", "size=+15", "size=+101%", "size=+-1%", "kl=0.1"] {
            let error = text.parse::<SizeBudget>().unwrap_err();
            assert!(error.to_string().contains("as in size=+15%"), "{error}");
        }
        assert_eq!("size=+15%".parse::<SizeBudget>().unwrap().bytes(2_000), 300);
    }
}
