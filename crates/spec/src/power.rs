//! What a device gives for its speed.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// How fast a device's clocks run while it works, as presets: each provider has its own words for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Power {
    /// The shortest answers.
    #[default]
    Burst,
    /// A balance of time and energy.
    Balanced,
    /// The least energy.
    Saver,
}

impl Power {
    /// Every preset.
    pub const ALL: [Self; 3] = [Self::Burst, Self::Balanced, Self::Saver];

    /// The name on the command line and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Burst => "burst",
            Self::Balanced => "balanced",
            Self::Saver => "saver",
        }
    }
}

impl fmt::Display for Power {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A string that names no preset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown power preset {found:?}: expected burst, balanced or saver")]
pub struct UnknownPower {
    /// What was given.
    pub found: String,
}

impl FromStr for Power {
    type Err = UnknownPower;

    fn from_str(text: &str) -> Result<Self, UnknownPower> {
        let wanted = text.trim().to_ascii_lowercase();
        let found = || UnknownPower { found: text.chars().take(80).collect() };
        Self::ALL.into_iter().find(|power| power.as_str() == wanted).ok_or_else(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_read_as_they_are_written() {
        for power in Power::ALL {
            assert_eq!(power.as_str().to_uppercase().parse(), Ok(power));
        }
        assert!("turbo".parse::<Power>().unwrap_err().to_string().contains("saver"));
    }
}
