//! Weights of a package that keep the precision of the checkpoint.

use serde::{Deserialize, Serialize};

/// Linear weights that a package stores as its checkpoint does, or with at least as many bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceWeights {
    /// Encoding in the checkpoint, such as `Q4_K`.
    pub encoding: String,
    /// Number of bits of an element in the package: an integer of 4 or 8, or a float of 16 or 32.
    pub bits: usize,
    /// The package has the integers of the checkpoint; otherwise, the elements are rounded to `bits` bits.
    pub copied: bool,
    /// Number of tensors.
    pub tensors: usize,
}
