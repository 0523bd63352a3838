//! Errors for weights and bytes that cannot be packed or read.

/// Error of packing weights or of reading a packed matrix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// Blocks of a size that no kernel supports.
    #[error("blocks of {found} weights have no kernel: quantise with 16, 32, 64 or 128")]
    Block {
        /// Number of weights in a block.
        found: usize,
    },
    /// A slice whose length does not match the shape.
    #[error("{what}: expected {expected} elements, found {found}; check the shape of the weight")]
    Length {
        /// Name of the slice.
        what: &'static str,
        /// Length that follows from the shape.
        expected: usize,
        /// Length found.
        found: usize,
    },
    /// A shape that is too large for this machine's address space.
    #[error("a matrix of {outputs} by {inputs} is too large for this machine")]
    Size {
        /// Number of outputs.
        outputs: usize,
        /// Number of inputs.
        inputs: usize,
    },
    /// Bytes that are not a packed matrix of this version.
    #[error("the bytes are not a packed matrix of this version ({reason}): pack the weights again")]
    Format {
        /// First problem found.
        reason: &'static str,
    },
}
