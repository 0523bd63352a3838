//! The two forms of a package's graphs.

use serde::{Deserialize, Serialize};

/// Form of a package's graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// Variant A: symbolic shapes, fused attention; for the CPU, WebGPU, CUDA and DirectML.
    #[default]
    Dynamic,
    /// Variant B: fixed shapes, plain operators, half precision; for NPUs, and for the CPU as the reference of variant
    /// B.
    Static,
}

impl Variant {
    /// Returns `true` for variant A.
    pub fn is_dynamic(&self) -> bool {
        *self == Self::Dynamic
    }
}
