//! The two forms in which a package holds its graphs.

use serde::{Deserialize, Serialize};

/// One of the two forms in which a package holds its graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// Variant A: symbolic shapes, fused attention; for the CPU, WebGPU, CUDA and DirectML.
    Dynamic,
    /// Variant B: fixed shapes, plain operators, half precision; for NPUs, and for the CPU as B's own reference.
    Static,
}
