//! Convolutions over the tokens of a sequence.

use serde::{Deserialize, Serialize};

/// Gated short convolution of LFM2: `[b, c, x] = in_proj(n); out_proj(c · conv(b · x))`. The convolution is causal and
/// has one kernel for each channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShortConvolution {
    /// Number of tokens under the kernel, including the token itself.
    pub kernel: usize,
    /// True if the projections and the convolution have biases.
    pub bias: bool,
}
