//! Changes of a model's graphs that a recipe may ask for.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A change of a model's graphs that keeps what they compute, for compilers and NPUs that run the changed form better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pass {
    /// No graph computes positions or their angles. That holds of every graph that Narthex lowers: learned positions and
    /// rotary angles are tables, whose rows the host or the attention reads. Asked for, it is checked; nothing is changed.
    PrecomputedPositions,
    /// Projections that read the same rows, as gate and up, become one product. Queries, keys and values always are.
    GroupedProjections,
    /// Every attention head of a graph of fixed shape is computed by itself: products of two matrices in the place of
    /// batches of products.
    SplitHeads,
    /// Products with a plain weight in a graph of fixed shape become convolutions over one position, 1×1.
    LinearAsConv,
}

impl Pass {
    /// Every pass, in the order in which they are applied.
    pub const ALL: [Self; 4] =
        [Self::PrecomputedPositions, Self::GroupedProjections, Self::SplitHeads, Self::LinearAsConv];

    /// The name on the command line and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PrecomputedPositions => "precomputed-positions",
            Self::GroupedProjections => "grouped-projections",
            Self::SplitHeads => "split-heads",
            Self::LinearAsConv => "linear-as-conv",
        }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A string that names no pass.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown pass {found:?}: expected grouped-projections, split-heads, linear-as-conv or precomputed-positions"
)]
pub struct UnknownPass {
    /// What was given.
    pub found: String,
}

impl FromStr for Pass {
    type Err = UnknownPass;

    fn from_str(text: &str) -> Result<Self, UnknownPass> {
        let wanted = text.trim().to_ascii_lowercase();
        let found = || UnknownPass { found: text.chars().take(80).collect() };
        Self::ALL.into_iter().find(|pass| pass.as_str() == wanted).ok_or_else(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_read_as_they_are_written() {
        for pass in Pass::ALL {
            assert_eq!(pass.as_str().to_uppercase().parse(), Ok(pass));
            assert_eq!(serde_json::to_value(pass).unwrap(), pass.as_str());
        }
        assert!("fuse".parse::<Pass>().unwrap_err().to_string().contains("split-heads"));
    }
}
