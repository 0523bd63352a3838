//! Sizes and NPU scores of the catalogue's compiled models, computed from the entries' settings and stored in a file
//! that a test of a higher crate recomputes.

use std::collections::BTreeMap;

use narthex_spec::{ModelName, Scheme};
use serde::{Deserialize, Serialize};

/// Content of the file.
const FILE: &str = include_str!("../../figures.toml");

/// Figures of one compiled model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// Size in bytes of the weights file in `w8`.
    pub w8: u64,
    /// Size in bytes of the weights file in `w4`.
    pub w4: u64,
    /// Suitability for the catalogue's NPU, 0 to 100.
    pub score: f64,
    /// Scheme with this score.
    pub scheme: Scheme,
    /// `true` if the NPU runs it in that scheme.
    pub runs: bool,
}

/// Returns every model's figures, by name.
pub(super) fn read() -> Result<BTreeMap<ModelName, Figures>, String> {
    toml::from_str(FILE).map_err(|error| error.to_string())
}
