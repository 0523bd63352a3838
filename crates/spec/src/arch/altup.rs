//! Extensions of Gemma 3n and Gemma 4 around their layers: alternating updates and per-layer embeddings.

use serde::{Deserialize, Serialize};

/// Alternating updates (Baykal et al. 2023, arXiv:2301.13310): a token has several residual streams, one of which each
/// layer computes; the others are predicted before the layer and corrected after it. A learned low-rank residual runs
/// parallel to attention (LAuReL, Menghani et al. 2024, arXiv:2411.07501).
///
/// Coefficients are clipped only in training.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AltUp {
    /// Number of streams.
    pub streams: usize,
    /// Index of the stream that layers compute.
    pub active: usize,
    /// True if gated per-layer rows are scaled by channel (`altup.scale`).
    pub scaled: bool,
    /// Rank of the learned residual.
    pub rank: usize,
}

/// Per-layer embeddings: each token has a row for each layer, which the layer gates and adds to the residual stream, or with
/// alternating updates to the streams that it does not compute. The table is far larger than the layers, so the host keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerLayer {
    /// Rows of the table; larger token ids use the first row.
    pub vocab: usize,
    /// Elements of a token's row for one layer.
    pub width: usize,
}
