//! Parts of a model that are computed by one graph.

use serde::{Deserialize, Serialize};

/// Part of the model that a graph computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Part {
    /// The whole model, with any shape.
    #[default]
    Whole,
    /// A decoder's layers for a fixed number of new tokens after a past of fixed width.
    Layers {
        /// Number of new tokens.
        tokens: usize,
        /// Number of columns of the past.
        past: usize,
        /// Range of layers; `None` for all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        range: Option<LayerRange>,
    },
    /// A decoder's last norm and head.
    Head {
        /// Number of rows of hidden states.
        rows: usize,
    },
    /// A whole imported decoder with a fixed number of new tokens, some of which may be padding.
    Chunk {
        /// Maximum number of new tokens.
        tokens: usize,
        /// Maximum number of past tokens.
        past: usize,
    },
    /// The encoder of an encoder-decoder model. It also computes the decoder's keys and values of its rows.
    Encoder,
    /// The decoder of an encoder-decoder model, with any number of tokens.
    Decoder,
    /// A tower that turns a picture into embedding rows of the decoder.
    Vision,
    /// A tower that turns a sound into embedding rows of the decoder.
    Audio,
    /// An encoder for one text in a bucket of fixed length.
    Bucket {
        /// Number of tokens, including padding.
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
