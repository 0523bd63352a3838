//! Input of a decoder's graph for its tokens: rows of the embedding, or the tokens themselves.

use std::path::Path;

use narthex_engine::{
    executor::{StepError, StepPlan},
    position::Position,
};
use narthex_spec::{
    arch::{DecoderArch, ImportedDecoder},
    manifest::Manifest,
};

use crate::{error::DeviceError, table::Embedding};

/// Maximum vocabulary of an imported decoder, which has no table to check it against.
const MAX_VOCAB: usize = 1 << 24;

/// Input of the graph for its tokens.
pub(crate) enum DecoderInput {
    /// Rows of the embedding, `[places, hidden]`.
    Rows {
        /// The embedding.
        embedding: Box<Embedding>,
        /// Values of the next run.
        rows: Vec<f32>,
        /// Rows of the per-layer table, `[places, layers · width]`; empty without such a table.
        per_layer: Vec<f32>,
    },
    /// Token numbers, `[places]`.
    Tokens {
        /// Size of the vocabulary.
        vocab: usize,
        /// Values of the next run.
        tokens: Vec<i64>,
    },
}

impl DecoderInput {
    /// Creates the input of a decoder that Narthex compiled.
    pub(super) fn rows(package: &Path, manifest: &Manifest, arch: &DecoderArch) -> Result<Self, DeviceError> {
        let embedding = Box::new(Embedding::open(package, manifest, arch)?);
        Ok(Self::Rows { embedding, rows: Vec::new(), per_layer: Vec::new() })
    }

    /// Creates the input of an imported decoder.
    pub(super) fn tokens(imported: &ImportedDecoder) -> Result<Self, DeviceError> {
        match imported.vocab {
            vocab @ 1..=MAX_VOCAB => Ok(Self::Tokens { vocab, tokens: Vec::new() }),
            other => Err(DeviceError::package(format!("a vocabulary of 1 to {MAX_VOCAB}"), other)),
        }
    }

    /// Allocates memory for this many tokens in a run.
    pub(super) fn resize(&mut self, places: usize) {
        match self {
            Self::Rows { embedding, rows, per_layer } => {
                rows.resize(places * embedding.width(), 0.0);
                per_layer.resize(places * embedding.per_layer_width(), 0.0);
            }
            Self::Tokens { tokens, .. } => tokens.resize(places, 0),
        }
    }

    /// Returns the address of the values. If it changes, they have moved.
    pub(super) fn address(&self) -> usize {
        match self {
            Self::Rows { rows, .. } => rows.as_ptr() as usize,
            Self::Tokens { tokens, .. } => tokens.as_ptr() as usize,
        }
    }

    /// Returns the size of the vocabulary.
    pub(crate) fn vocab(&self) -> usize {
        match self {
            Self::Rows { embedding, .. } => embedding.vocab(),
            Self::Tokens { vocab, .. } => *vocab,
        }
    }

    /// Fails if the rows that were written may be wrong, because a file of the package changed.
    pub(super) fn check(&self) -> Result<(), StepError> {
        match self {
            Self::Rows { embedding, .. } => embedding.check(),
            Self::Tokens { .. } => Ok(()),
        }
    }

    /// Returns the number of elements of a row, or `None` if the graph takes only tokens.
    pub(super) fn width(&self) -> Option<usize> {
        match self {
            Self::Rows { embedding, .. } => Some(embedding.width()),
            Self::Tokens { .. } => None,
        }
    }

    /// Writes a token of a checked plan, which is the token `at` of its sequence, to a place in the run.
    pub(super) fn write(&mut self, place: usize, plan: &StepPlan, token: Position, at: usize) {
        match self {
            Self::Rows { embedding, rows, per_layer } => {
                let width = embedding.width();
                let wide = embedding.per_layer_width();
                embedding.write(plan, token, at, &mut rows[place * width..][..width]);
                embedding.write_per_layer(token, &mut per_layer[place * wide..][..wide]);
            }
            // The check of the plan has refused media.
            Self::Tokens { tokens, .. } => tokens[place] = i64::from(token.as_token().unwrap_or(0)),
        }
    }
}
