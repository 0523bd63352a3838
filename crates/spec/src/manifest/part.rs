//! Parts of a model that single graphs compute.

use serde::{Deserialize, Serialize};

/// Part of the model that a graph computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Part {
    /// The whole model, at any shape.
    #[default]
    Whole,
    /// A decoder's layers for a fixed number of new tokens after a past of fixed width.
    Layers {
        /// New tokens.
        tokens: usize,
        /// Columns of the past.
        past: usize,
        /// Range of layers; `None` for all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        range: Option<LayerRange>,
    },
    /// A decoder's last norm and head.
    Head {
        /// Rows of hidden states.
        rows: usize,
    },
    /// All of an imported decoder, for a fixed number of new tokens, of which fewer may be real.
    Chunk {
        /// Maximum number of new tokens.
        tokens: usize,
        /// Maximum number of past tokens.
        past: usize,
    },
    /// An encoder for one text in a bucket of fixed length.
    Bucket {
        /// Tokens, padding included.
        length: usize,
    },
}

/// Consecutive layers of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LayerRange {
    /// First layer.
    pub first: usize,
    /// End of the range, exclusive.
    pub end: usize,
}
