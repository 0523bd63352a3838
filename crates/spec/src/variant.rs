//! The two forms of a package's graphs.

use serde::{Deserialize, Serialize};

/// Form of a package's graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// Symbolic shapes, fused attention; for the CPU, WebGPU, CUDA and DirectML.
    #[default]
    Dynamic,
    /// Fixed shapes, plain operators, half precision; for NPUs, and for the CPU as the reference of NPUs.
    Static,
}

impl Variant {
    /// Returns `true` for [`Self::Dynamic`].
    pub fn is_dynamic(&self) -> bool {
        *self == Self::Dynamic
    }
}
