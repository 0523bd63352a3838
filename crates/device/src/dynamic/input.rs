//! What goes into a decoder's graph for tokens: rows of the embedding, or the tokens themselves.

use std::path::Path;

use narthex_spec::{
    TokenId,
    arch::{DecoderArch, ImportedDecoder},
    manifest::Manifest,
};

use crate::{error::DeviceError, table::Embedding};

/// The greatest vocabulary that an imported decoder is believed; no table vouches for it.
const MAX_VOCAB: usize = 1 << 24;

/// What goes into the graph for tokens.
pub(crate) enum DecoderInput {
    /// Rows of the embedding, `[places, hidden]`.
    Rows {
        /// The embedding.
        embedding: Box<Embedding>,
        /// What was written last.
        rows: Vec<f32>,
        /// Rows of the per-layer table, `[places, layers · width]`; empty where there is none.
        per_layer: Vec<f32>,
    },
    /// The tokens, `[places]`.
    Tokens {
        /// Entries of the vocabulary.
        vocab: usize,
        /// What was written last.
        tokens: Vec<i64>,
    },
}

impl DecoderInput {
    /// What a decoder that Narthex compiled is fed with.
    pub(super) fn rows(package: &Path, manifest: &Manifest, arch: &DecoderArch) -> Result<Self, DeviceError> {
        let embedding = Box::new(Embedding::open(package, manifest, arch)?);
        Ok(Self::Rows { embedding, rows: Vec::new(), per_layer: Vec::new() })
    }

    /// What an imported decoder is fed with.
    pub(super) fn tokens(imported: &ImportedDecoder) -> Result<Self, DeviceError> {
        match imported.vocab {
            vocab @ 1..=MAX_VOCAB => Ok(Self::Tokens { vocab, tokens: Vec::new() }),
            other => Err(DeviceError::package(format!("a vocabulary of 1 to {MAX_VOCAB}"), other)),
        }
    }

    /// Makes room for this many tokens in a run.
    pub(super) fn resize(&mut self, places: usize) {
        match self {
            Self::Rows { embedding, rows, per_layer } => {
                rows.resize(places * embedding.width(), 0.0);
                per_layer.resize(places * embedding.per_layer_width(), 0.0);
            }
            Self::Tokens { tokens, .. } => tokens.resize(places, 0),
        }
    }

    /// Where in memory that lies, which tells whether it has moved.
    pub(super) fn address(&self) -> usize {
        match self {
            Self::Rows { rows, .. } => rows.as_ptr() as usize,
            Self::Tokens { tokens, .. } => tokens.as_ptr() as usize,
        }
    }

    /// Entries of the vocabulary.
    pub(crate) fn vocab(&self) -> usize {
        match self {
            Self::Rows { embedding, .. } => embedding.vocab(),
            Self::Tokens { vocab, .. } => *vocab,
        }
    }

    /// Writes a token, which has a position in its sequence, to a place in the run.
    pub(super) fn write(&mut self, place: usize, token: TokenId, position: usize) {
        match self {
            Self::Rows { embedding, rows, per_layer } => {
                let (width, wide) = (embedding.width(), embedding.per_layer_width());
                embedding.write(token, position, &mut rows[place * width..][..width]);
                embedding.write_per_layer(token, &mut per_layer[place * wide..][..wide]);
            }
            Self::Tokens { tokens, .. } => tokens[place] = i64::from(token),
        }
    }
}
