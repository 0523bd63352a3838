//! Factors by which a context is extended.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::name::string_form;

/// Factor by which YaRN extends the context of a decoder (Peng et al. 2023, arXiv:2309.00071).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContextFactor(u8);

/// Text that is not a [`ContextFactor`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a whole number from 2 to {}, as in 4, found {found:?}", ContextFactor::MAX)]
pub struct BadContextFactor {
    /// The text, shortened.
    pub found: String,
}

impl ContextFactor {
    /// Maximum factor.
    const MAX: u8 = 64;

    /// Returns the number.
    pub fn get(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the suffix of a model's name: `yarn4`.
    pub fn slug(&self) -> String {
        format!("yarn{}", self.0)
    }
}

impl FromStr for ContextFactor {
    type Err = BadContextFactor;

    fn from_str(text: &str) -> Result<Self, BadContextFactor> {
        let factor = text.trim().parse().ok().filter(|factor| (2..=Self::MAX).contains(factor));
        factor.map(Self).ok_or_else(|| BadContextFactor { found: text.chars().take(40).collect() })
    }
}

impl fmt::Display for ContextFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

string_form!(ContextFactor);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_whole_numbers_in_a_range() {
        for (text, factor) in [("2", 2), (" 4 ", 4), ("64", 64)] {
            assert_eq!(text.parse::<ContextFactor>().unwrap().get(), factor);
        }
        for text in ["", "1", "65", "4.0", "-2", "four", "999"] {
            let error = text.parse::<ContextFactor>().unwrap_err().to_string();
            assert!(error.starts_with("expected a whole number from 2 to 64"), "{error}");
        }
    }

    #[test]
    fn a_factor_is_a_string_in_json() {
        let factor: ContextFactor = "4".parse().unwrap();
        assert_eq!(serde_json::to_value(factor).unwrap(), "4");
        assert_eq!(serde_json::from_str::<ContextFactor>("\"4\"").unwrap(), factor);
        assert!(serde_json::from_str::<ContextFactor>("\"1\"").is_err());
    }
}
