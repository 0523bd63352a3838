//! What the graphs of a package compute of its model.

use serde::{Deserialize, Serialize};

/// What a graph computes of its model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Part {
    /// All of it, at any shape.
    #[default]
    Whole,
    /// A decoder's layers for a fixed number of new tokens after a past of fixed width.
    Layers {
        /// New tokens.
        tokens: usize,
        /// Columns of the past.
        past: usize,
        /// Which of the model's layers; `None` for all of them.
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
        /// New tokens at most.
        tokens: usize,
        /// Tokens of the past at most.
        past: usize,
    },
    /// An encoder for one text in a bucket of fixed length.
    Bucket {
        /// Tokens, padding included.
        length: usize,
    },
}

/// Some of a model's layers in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LayerRange {
    /// The first.
    pub first: usize,
    /// The one behind the last.
    pub end: usize,
}
