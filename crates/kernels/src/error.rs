//! Why weights or bytes are refused.

/// Input that a packed matrix cannot be made of.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// Blocks of a size without kernels.
    #[error("blocks of {found} weights have no kernel: quantise with 16, 32, 64 or 128")]
    Block {
        /// Number of weights in a block.
        found: usize,
    },
    /// A slice whose length contradicts the shape.
    #[error("{what} should have {expected} elements and have {found}: check the shape of the weight")]
    Length {
        /// Name of the slice.
        what: &'static str,
        /// Length that follows from the shape.
        expected: usize,
        /// Length found.
        found: usize,
    },
    /// A shape too large for this machine's addresses.
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
        /// First thing that is wrong.
        reason: &'static str,
    },
}
