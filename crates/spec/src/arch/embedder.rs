//! Embedding models with the layers of a decoder.

use serde::{Deserialize, Serialize};

use super::{DecoderArch, EncoderHead};

/// An embedding model that reads a text in one run with the layers of a decoder, without a cache: Qwen3-Embedding (Zhang et
/// al. 2025, arXiv:2506.05176) and EmbeddingGemma (Vera et al. 2025, arXiv:2509.20354).
///
/// Its weights are those of [`DecoderArch`] without the head, and one for each dense layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EmbedderArch {
    /// Embeddings, layers and norms. The context is the maximum length of a text in tokens.
    pub decoder: DecoderArch,
    /// Tokens that each token attends to. A window counts in each of these directions.
    pub attends: AttentionDirection,
    /// Widths of linear layers without a bias between pooling and vector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dense: Vec<usize>,
    /// Head over the rows, which gives a vector.
    pub head: EncoderHead,
}

/// Tokens of a text that a token attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttentionDirection {
    /// Itself and earlier ones.
    Causal,
    /// All.
    Bidirectional,
}

impl EmbedderArch {
    /// Returns the number of elements of a vector.
    pub fn width(&self) -> usize {
        self.dense.last().copied().unwrap_or(self.decoder.hidden)
    }

    /// Returns the rows and columns of each linear layer after the pooling.
    pub fn dense_shapes(&self) -> impl Iterator<Item = [usize; 2]> {
        let inputs = std::iter::once(self.decoder.hidden).chain(self.dense.iter().copied());
        self.dense.iter().copied().zip(inputs).map(|(rows, cols)| [rows, cols])
    }
}
