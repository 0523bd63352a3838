//! What the catalogue's models come to once they are compiled: computed from the entries' settings, kept in a file of
//! their own, and computed anew by a test of the crate that can.

use std::collections::BTreeMap;

use narthex_spec::{ModelName, Scheme};
use serde::{Deserialize, Serialize};

/// The file, by its path in this crate.
const FILE: &str = include_str!("../../figures.toml");

/// What one model comes to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// Bytes of its weights' file in `w8`.
    pub w8: u64,
    /// Bytes of its weights' file in `w4`.
    pub w4: u64,
    /// How well it suits the catalogue's NPU, 0 to 100.
    pub score: f64,
    /// The scheme that has this score.
    pub scheme: Scheme,
    /// Whether the NPU takes it in that scheme.
    pub runs: bool,
}

/// Every model's figures, by name.
pub(super) fn read() -> Result<BTreeMap<ModelName, Figures>, String> {
    toml::from_str(FILE).map_err(|error| error.to_string())
}
