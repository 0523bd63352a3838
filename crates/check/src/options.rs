//! Options of a check.

use std::collections::BTreeMap;

use narthex_spec::Target;

/// Options of a check.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// Target of the check.
    pub target: Target,
    /// Extents of the model's symbolic dimensions, by symbol.
    pub extents: BTreeMap<String, u64>,
}
