//! Embedding models and classifiers with the layers of a decoder.

use serde::{Deserialize, Serialize};

use super::{Activation, DecoderArch, EncoderHead, Pooling};

/// An embedding model or a classifier that reads a text in one run with the layers of a decoder, without a cache:
/// Qwen3-Embedding (Zhang et al. 2025, arXiv:2506.05176), EmbeddingGemma (Vera et al. 2025, arXiv:2509.20354) and ModernBERT.
///
/// Its weights are those of [`DecoderArch`] without the head, one for each dense layer, and those of the classifier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EmbedderArch {
    /// Embeddings, layers and norms. The context is the maximum length of a text in tokens.
    pub decoder: DecoderArch,
    /// Tokens that each token attends to. A window counts in each of these directions.
    pub attends: AttentionDirection,
    /// Widths of linear layers without a bias between pooling and vector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dense: Vec<usize>,
    /// Head over the rows: a vector, scores of a text, or scores of each token.
    pub head: EncoderHead,
    /// Layers of a head that gives scores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classifier: Option<ClassifierLayers>,
}

/// Layers of a classifier over normed rows.
///
/// ```text
/// row ── (dense ── activation ── norm) ── last layer ── scores
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassifierLayers {
    /// Pooling of rows to the one of a text. A classifier of tokens does not pool.
    pub pooling: Pooling,
    /// Layers before the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden: Option<ClassifierHidden>,
    /// True if the last layer has a bias.
    pub bias: bool,
}

/// Dense layer of a classifier, with an activation and a norm of the decoder's kind after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassifierHidden {
    /// Activation.
    pub activation: Activation,
    /// True if the dense layer has a bias.
    pub bias: bool,
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

    /// Returns the kind of model as text for users.
    pub fn kind(&self) -> &'static str {
        match self.head {
            EncoderHead::Embedding { .. } => "embedding model",
            _ => "classifier",
        }
    }
}
